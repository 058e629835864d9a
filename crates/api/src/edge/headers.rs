//! Headers of forwarded requests: hop-by-hop headers and the server's secrets are removed.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use protocol::headers::{ACCESS_TOKEN, API_KEY, KNOWN_PEER, SANDBOX_ID, SANDBOX_PORT, TRAFFIC_ACCESS_TOKEN};
use subtle::ConstantTimeEq;

/// The protocol that a request wants to upgrade to, if any.
pub(super) fn wanted_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asks = connection_options(headers).any(|option| option.eq_ignore_ascii_case("upgrade"));
    headers.get(header::UPGRADE).filter(|_| asks).cloned()
}

/// Removes hop-by-hop headers.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = connection_options(headers).filter_map(|option| option.parse().ok()).collect();
    for name in named {
        headers.remove(name);
    }
    for name in [
        header::CONNECTION,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
    ] {
        headers.remove(name);
    }
}

/// Prepares a request's headers for a sandbox.
pub(super) fn clean_request(headers: &mut HeaderMap, host: &str, api_key: &str) {
    remove_hop_by_hop(headers);
    // hyper has answered it when the server read the body.
    headers.remove(header::EXPECT);
    for name in [SANDBOX_ID, SANDBOX_PORT, TRAFFIC_ACCESS_TOKEN, KNOWN_PEER] {
        headers.remove(name);
    }
    // Untrusted code must not get the key of its server; other keys are passed on. A client may
    // send several.
    if headers.get_all(API_KEY).iter().any(|key| bool::from(key.as_bytes().ct_eq(api_key.as_bytes()))) {
        headers.remove(API_KEY);
    }
    remove_sessions(headers);
    // HTTP/2 has the host in a pseudo-header.
    if !headers.contains_key(header::HOST)
        && let Ok(host) = HeaderValue::from_str(host)
    {
        headers.insert(header::HOST, host);
    }
}

/// Removes access tokens of guests, which are recognized by their form: a service is the sandbox's
/// own code and must not get a token of any guest. Other values of this header stay.
pub(super) fn remove_access_tokens(headers: &mut HeaderMap) {
    const DIGITS: usize = 64;
    let is_token = |value: &HeaderValue| {
        value.len() == DIGITS && value.as_bytes().iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    if headers.get_all(ACCESS_TOKEN).iter().any(is_token) {
        headers.remove(ACCESS_TOKEN);
    }
}

/// The dashboard's cookies, which browsers send to previews on the dashboard's domain.
const SESSIONS: [&str; 2] = ["sandbar_session", "__Host-sandbar_session"];

/// Removes the dashboard's sessions from the cookies; all others stay as they are.
fn remove_sessions(headers: &mut HeaderMap) {
    let names_one = |value: &HeaderValue| {
        let name = SESSIONS[0].as_bytes();
        value.as_bytes().windows(name.len()).any(|part| part == name)
    };
    if !headers.get_all(header::COOKIE).iter().any(names_one) {
        return;
    }
    let kept: Vec<HeaderValue> = headers.get_all(header::COOKIE).iter().filter_map(without_sessions).collect();
    headers.remove(header::COOKIE);
    for cookies in kept {
        headers.append(header::COOKIE, cookies);
    }
}

/// What is left of one header; `None` if nothing is.
fn without_sessions(cookies: &HeaderValue) -> Option<HeaderValue> {
    let is_session = |pair: &&[u8]| {
        let name = pair.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii();
        SESSIONS.iter().any(|session| session.as_bytes() == name)
    };
    let pairs = cookies.as_bytes().split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let kept: Vec<&[u8]> = pairs.filter(|pair| !pair.is_empty() && !is_session(pair)).collect();
    if kept.is_empty() { None } else { HeaderValue::from_bytes(&kept.join(&b"; "[..])).ok() }
}

/// Forbids caching of a response if its service does not mention caching. Browsers would use the
/// file's date as a heuristic, and dates go back with the files when a sandbox returns to a
/// snapshot: their cached copy would then count as newer than the file.
pub(super) fn forbid_heuristic_caching(headers: &mut HeaderMap) {
    let explicit = [header::CACHE_CONTROL, header::EXPIRES, header::PRAGMA];
    if !explicit.into_iter().any(|name| headers.contains_key(name)) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
}

/// Marks a message as requesting, or agreeing to, another protocol.
pub(super) fn set_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, protocol);
}

fn connection_options(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::CONNECTION).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|option| !option.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn hop_by_hop_headers_are_removed() {
        let mut headers = map(&[
            ("connection", "keep-alive, x-mine"),
            ("x-mine", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("expect", "100-continue"),
            ("x-other", "2"),
            ("host", "original"),
        ]);
        clean_request(&mut headers, "ignored", "key");
        assert_eq!(headers, map(&[("x-other", "2"), ("host", "original")]));
    }

    #[test]
    fn the_servers_api_key_is_removed() {
        let mut ours = map(&[("x-api-key", "key"), ("host", "h")]);
        clean_request(&mut ours, "h", "key");
        assert_eq!(ours, map(&[("host", "h")]));
        let mut second = map(&[("x-api-key", "another"), ("host", "h")]);
        second.append("x-api-key", HeaderValue::from_static("key"));
        clean_request(&mut second, "h", "key");
        assert_eq!(second, map(&[("host", "h")]));
        let mut theirs = map(&[("x-api-key", "another"), ("e2b-sandbox-id", "i")]);
        clean_request(&mut theirs, "h2.example", "key");
        assert_eq!(theirs, map(&[("x-api-key", "another"), ("host", "h2.example")]));
    }

    #[test]
    fn access_tokens_of_guests_are_removed() {
        let token: &'static str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        let mut ours = map(&[("x-access-token", token), ("x-other", token)]);
        remove_access_tokens(&mut ours);
        assert_eq!(ours, map(&[("x-other", token)]));
        let theirs = map(&[("x-access-token", "theirs")]);
        let mut kept = theirs.clone();
        remove_access_tokens(&mut kept);
        assert_eq!(kept, theirs);
    }

    #[test]
    fn sessions_of_the_dashboard_are_removed() {
        let left = |cookies: &[&'static str]| -> Vec<String> {
            let mut headers: HeaderMap =
                cookies.iter().map(|value| (header::COOKIE, HeaderValue::from_static(value))).collect();
            clean_request(&mut headers, "h", "key");
            headers.get_all(header::COOKIE).iter().map(|value| value.to_str().expect("text").to_owned()).collect()
        };
        assert_eq!(left(&["a=1; sandbar_session=sbs_x; b=2;c=3"]), ["a=1; b=2; c=3"]);
        assert_eq!(left(&["sandbar_session=x", "__Host-sandbar_session = y; d=4"]), ["d=4"]);
        assert_eq!(left(&["my_sandbar_session=1;  e=sandbar_session"]), ["my_sandbar_session=1; e=sandbar_session"]);
        assert_eq!(left(&["f=1;g=2"]), ["f=1;g=2"], "untouched where there is none");
        assert!(left(&["sandbar_session=x"]).is_empty());
    }

    #[test]
    fn caching_headers_of_a_service_are_passed_on() {
        for explicit in
            [("cache-control", "max-age=60"), ("cache-control", "no-cache"), ("expires", "0"), ("pragma", "no-cache")]
        {
            let mut headers = map(&[explicit, ("etag", "x")]);
            forbid_heuristic_caching(&mut headers);
            assert_eq!(headers, map(&[explicit, ("etag", "x")]));
        }
        let mut silent = map(&[("last-modified", "Mon, 05 Jan 2026 10:00:00 GMT")]);
        forbid_heuristic_caching(&mut silent);
        assert_eq!(silent.get("cache-control"), Some(&HeaderValue::from_static("no-store")));
    }

    #[test]
    fn an_upgrade_needs_both_headers() {
        assert_eq!(wanted_upgrade(&map(&[("upgrade", "websocket")])), None);
        assert_eq!(wanted_upgrade(&map(&[("connection", "upgrade")])), None);
        let both = map(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]);
        assert_eq!(wanted_upgrade(&both), Some(HeaderValue::from_static("websocket")));
    }
}
