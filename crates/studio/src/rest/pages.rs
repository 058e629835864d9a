//! The dashboard's files, embedded at compile time. The page routes paths itself.

use axum::extract::State;
use axum::response::{Html, IntoResponse, Response};
use http::header::{ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, VARY};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};

use super::failure::Failure;
use super::{Shared, headers, session};

/// A file of the web build, with its compressed variants.
struct File {
    /// Relative to the root.
    path: &'static str,
    plain: &'static [u8],
    gzip: Option<&'static [u8]>,
    brotli: Option<&'static [u8]>,
}

// `static FILES: &[File]`, sorted by path; empty when there was no web build.
include!(concat!(env!("OUT_DIR"), "/pages.rs"));

const INDEX: &str = "index.html";
/// File names below contain a digest of the content.
const HASHED: &str = "assets/";
const FOREVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");
const ASK_FIRST: HeaderValue = HeaderValue::from_static("no-cache");

/// Any page of the dashboard.
pub(super) async fn page(State(app): State<Shared>, asked: HeaderMap) -> Response {
    let page = match find(INDEX) {
        Some(index) => send(index, &asked),
        None => Html(include_str!("placeholder.html")).into_response(),
    };
    headers::with_policy(page, &app.page_policy)
}

/// The login page. Without a web build, a minimal one, so that calls can be tried from a browser.
pub(super) async fn sign_in(State(app): State<Shared>, asked: HeaderMap) -> Response {
    let page = match find(INDEX) {
        Some(index) => send(index, &asked),
        None => Html(session::page("")).into_response(),
    };
    headers::with_policy(page, &app.page_policy)
}

/// Any other file of the web build.
pub(super) async fn file(method: Method, uri: Uri, asked: HeaderMap) -> Response {
    let found = find(uri.path().trim_start_matches('/')).filter(|file| file.path != INDEX);
    match found {
        Some(file) if method == Method::GET || method == Method::HEAD => send(file, &asked),
        _ => Failure::new(StatusCode::NOT_FOUND, format!("path '{}' not found", uri.path())).into_response(),
    }
}

fn find(path: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.path == path)
}

fn send(file: &File, asked: &HeaderMap) -> Response {
    let accepted = asked.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or("");
    let (coding, content) = choose(file, accepted);
    let mut response = content.into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind(file.path)));
    headers.insert(CACHE_CONTROL, if file.path.starts_with(HASHED) { FOREVER } else { ASK_FIRST });
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    if let Some(coding) = coding {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding));
    }
    response
}

fn choose(file: &File, accepted: &str) -> (Option<&'static str>, &'static [u8]) {
    let takes = |coding: &str| {
        accepted.split(',').any(|item| {
            let mut parts = item.split(';').map(str::trim);
            parts.next().is_some_and(|name| name.eq_ignore_ascii_case(coding)) && parts.all(|part| part != "q=0")
        })
    };
    match (file.brotli, file.gzip) {
        (Some(content), _) if takes("br") => (Some("br"), content),
        (_, Some(content)) if takes("gzip") => (Some("gzip"), content),
        _ => (None, file.plain),
    }
}

fn kind(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => "text/html; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("json" | "map") => "application/json",
        Some("webmanifest") => "application/manifest+json",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("webp") => "image/webp",
        Some("ico") => "image/x-icon",
        Some("woff2") => "font/woff2",
        Some("txt") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_variants_follow_accept_encoding() {
        let file = File { path: "assets/a.js", plain: b"plain", gzip: Some(b"gzip"), brotli: Some(b"br") };
        for (accepted, expected) in [
            ("", None),
            ("gzip, deflate, br", Some("br")),
            ("gzip;q=1.0, br;q=0", Some("gzip")),
            ("identity", None),
            ("GZIP", Some("gzip")),
        ] {
            assert_eq!(choose(&file, accepted).0, expected, "{accepted}");
        }
        let plain = File { gzip: None, brotli: None, ..file };
        assert_eq!(choose(&plain, "gzip, br"), (None, &b"plain"[..]));
    }

    #[test]
    fn a_web_build_has_an_index_page() {
        assert!(FILES.is_empty() || find(INDEX).is_some(), "web/dist holds files but no {INDEX}");
    }
}
