//! The session cookie. Over https it has the prefix `__Host-`, which browsers refuse from other
//! hosts, also from hosts below the same domain, as those of previews. Plain http has no such
//! prefix, so a preview on the dashboard's domain can set a second cookie with the name; the two
//! cannot be distinguished, and both are refused and removed.

use http::header::{COOKIE, HOST};
use http::request::Parts;
use http::uri::Scheme;
use http::{HeaderMap, HeaderValue};

use super::failure::Failure;
use crate::studio::SESSION_LIFETIME;

pub(super) const SESSION: &str = "sandbar_session";
const HOST_SESSION: &str = "__Host-sandbar_session";
/// The limits of parent domains, and of paths per domain, for which removals are sent.
const MAX_DOMAINS: usize = 4;
const MAX_PATHS: usize = 6;

/// The session token of the request, if it has one.
pub(super) fn session(request: &Parts) -> Result<Option<&str>, Failure> {
    let mut prefixed = values(&request.headers, HOST_SESSION);
    let mut plain = values(&request.headers, SESSION);
    let found = match (prefixed.next(), prefixed.next()) {
        (Some(only), None) => return Ok(Some(only)),
        (Some(_), Some(_)) => None,
        // Over https a cookie without the prefix is foreign, or older than the prefix.
        (None, _) if is_https(request) => return Ok(None),
        (None, _) => match (plain.next(), plain.next()) {
            (Some(_), Some(_)) => None,
            (only, _) => return Ok(only),
        },
    };
    found.ok_or_else(|| Failure::ambiguous_session(removals(request)))
}

/// All session tokens of a request.
pub(super) fn all_sessions(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    values(headers, HOST_SESSION).chain(values(headers, SESSION))
}

fn values<'a>(headers: &'a HeaderMap, name: &'static str) -> impl Iterator<Item = &'a str> {
    let texts = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = texts.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter_map(move |(key, value)| (key == name).then_some(value))
}

/// Whether the client uses https, to this server or to a proxy that says so.
fn is_https(request: &Parts) -> bool {
    request.extensions.get::<Scheme>() == Some(&Scheme::HTTPS)
        || request.headers.get("x-forwarded-proto").is_some_and(|value| value == "https")
}

/// The `Set-Cookie` of a new session. None for a token that no header can hold.
pub(super) fn open(request: &Parts, token: &str) -> Option<HeaderValue> {
    let origin = request.headers.get(http::header::ORIGIN);
    let secure = is_https(request) || origin.is_some_and(|origin| origin.as_bytes().starts_with(b"https://"));
    let (name, secure) = if secure { (HOST_SESSION, "; Secure") } else { (SESSION, "") };
    let age = SESSION_LIFETIME.as_secs();
    sensitive(&format!("{name}={token}; HttpOnly; SameSite=Strict; Path=/; Max-Age={age}{secure}"))
}

/// `Set-Cookie` headers that remove every session cookie of this host: ours, and those of other
/// hosts on the same domain, for the domains and paths that a response can reach.
pub(super) fn removals(request: &Parts) -> Vec<HeaderValue> {
    let ours = format!("{SESSION}=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0");
    let prefixed = format!("{HOST_SESSION}=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0; Secure");
    let mut cookies = vec![ours, prefixed];
    let paths = paths(request.uri.path());
    cookies.extend(paths.iter().skip(1).map(|path| format!("{SESSION}=; Path={path}; Max-Age=0")));
    for domain in domains(host(request)) {
        cookies.extend(paths.iter().map(|path| format!("{SESSION}=; Domain={domain}; Path={path}; Max-Age=0")));
    }
    cookies.iter().filter_map(|cookie| sensitive(cookie)).collect()
}

/// The host of the request, with its port.
pub(super) fn host(request: &Parts) -> &str {
    let named = request.headers.get(HOST).and_then(|host| host.to_str().ok());
    named.or_else(|| request.uri.authority().map(http::uri::Authority::as_str)).unwrap_or("")
}

/// A host name without its port.
pub(super) fn without_port(host: &str) -> &str {
    host.rsplit_once(':')
        .filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()))
        .map_or(host, |(name, _)| name)
}

/// A host name and its parent domains; none for an IP address.
fn domains(host: &str) -> Vec<&str> {
    let name = without_port(host);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    if name.parse::<std::net::IpAddr>().is_ok() || !name.bytes().all(plain) {
        return Vec::new();
    }
    let parents = std::iter::successors(Some(name), |name| name.split_once('.').map(|(_, parent)| parent));
    parents.filter(|domain| domain.contains('.')).take(MAX_DOMAINS).collect()
}

/// The cookie paths that match `path`, `/` first.
fn paths(path: &str) -> Vec<&str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'/');
    let mut paths = vec!["/"];
    if path.bytes().all(plain) {
        let ends = path.match_indices('/').map(|(at, _)| at).filter(|at| *at > 0);
        for end in ends.chain([path.len()]) {
            paths.extend([&path[..end], path.get(..=end).unwrap_or("")].into_iter().filter(|path| path.len() > 1));
        }
    }
    paths.truncate(MAX_PATHS);
    paths
}

fn sensitive(cookie: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(cookie).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn request(uri: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    #[test]
    fn two_session_cookies_are_ambiguous() {
        let found = |pairs: &[(&str, &str)]| session(&request("/api/me", pairs)).ok().map(|it| it.map(str::to_owned));
        let forwarded = ("x-forwarded-proto", "https");
        assert_eq!(found(&[("cookie", "a=b; sandbar_session=c1; other=sandbar_session")]), Some(Some("c1".into())));
        assert_eq!(found(&[("cookie", "not_sandbar_session=c1")]), Some(None));
        assert_eq!(found(&[("cookie", "sandbar_session=evil; sandbar_session=c1")]), None);
        assert_eq!(found(&[("cookie", "sandbar_session=evil"), ("cookie", "sandbar_session=c1")]), None);
        let both = ("cookie", "sandbar_session=evil; __Host-sandbar_session=c1; sandbar_session=evil2");
        assert_eq!(found(&[both]), Some(Some("c1".into())));
        assert_eq!(found(&[both, forwarded]), Some(Some("c1".into())));
        assert_eq!(found(&[("cookie", "__Host-sandbar_session=a; __Host-sandbar_session=b")]), None);
        assert_eq!(found(&[("cookie", "sandbar_session=c1"), forwarded]), Some(None), "no prefix over https");
    }

    #[test]
    fn removals_cover_all_domains_and_paths() {
        let removed = |uri: &str, host: &str| -> Vec<String> {
            let values = removals(&request(uri, &[("host", host)]));
            values.iter().map(|value| value.to_str().expect("text").to_owned()).collect()
        };
        let all = removed("/api/me", "dash.sandbox.test:5990");
        for expected in [
            "sandbar_session=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0",
            "__Host-sandbar_session=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0; Secure",
            "sandbar_session=; Domain=sandbox.test; Path=/api; Max-Age=0",
            "sandbar_session=; Domain=sandbox.test; Path=/; Max-Age=0",
            "sandbar_session=; Domain=dash.sandbox.test; Path=/api/me; Max-Age=0",
        ] {
            assert!(all.iter().any(|cookie| cookie == expected), "{expected} in {all:#?}");
        }
        assert!(removed("/api/me", "127.0.0.1:4980").iter().all(|cookie| !cookie.contains("Domain")));
        let long = format!("/{}", "a/".repeat(500));
        assert!(removed(&long, &"a.".repeat(100)).len() < 40);
        assert!(removed("/%0d%0aSet-Cookie:%20x", "a\"b;c").iter().all(|cookie| !cookie.contains("Domain")));
    }
}
