//! Security headers of every response: no MIME sniffing, no framing, no referrer.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS};
use http::{HeaderName, HeaderValue};

/// The policy of responses that are no pages: displayed as a page, they can do nothing.
const NOTHING: HeaderValue = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'; sandbox");

const FIXED: [(HeaderName, HeaderValue); 5] = [
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (REFERRER_POLICY, HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

/// Adds the headers that a response does not set itself.
pub(super) async fn protect(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in FIXED {
        headers.entry(name).or_insert(value);
    }
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(NOTHING);
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Sets the policy of a page that runs our scripts and frames previews.
pub(super) fn with_policy(mut response: Response, policy: &HeaderValue) -> Response {
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy.clone());
    response
}

/// The policy of pages. Inline styles are allowed, because the terminal widget creates them.
pub(super) fn page_policy(preview_sources: &[String]) -> HeaderValue {
    let policy = |frames: &str| {
        format!(
            "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; \
             font-src 'self' data:; connect-src 'self'; manifest-src 'self'; frame-src {frames}; form-action 'self'; \
             base-uri 'none'; frame-ancestors 'none'"
        )
    };
    // A source with a semicolon would end the list and start another directive.
    let plain = |source: &&String| source.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b';' | b','));
    let sources: Vec<&str> = preview_sources.iter().filter(plain).map(String::as_str).collect();
    let frames = if sources.is_empty() { "'none'".to_owned() } else { sources.join(" ") };
    HeaderValue::from_str(&policy(&frames)).unwrap_or(NOTHING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_allows_previews_and_no_injection() {
        let sources = ["http://*.localhost:*", "x; script-src *", "https://*.e2b.app"].map(str::to_owned);
        let policy = page_policy(&sources);
        let policy = policy.to_str().expect("text");
        assert!(policy.contains("; frame-src http://*.localhost:* https://*.e2b.app; "), "{policy}");
        assert!(page_policy(&[]).to_str().expect("text").contains("; frame-src 'none'; "));
    }
}
