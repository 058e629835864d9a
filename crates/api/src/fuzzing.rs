//! What the fuzz targets call: heads of requests, signed URLs. Each function panics when a property
//! is violated.

use http::{HeaderName, HeaderValue, Request, header};
use protocol::guest::{CONTROL_PREFIX, INIT_PATH};
use protocol::headers::{API_KEY, KNOWN_PEER, SANDBOX_ID, SANDBOX_PORT, TRAFFIC_ACCESS_TOKEN};

pub use crate::edge::fuzzing::check_signed_url;
use crate::edge::fuzzing::{clean_request, is_control_route};
use crate::routing::{Plane, Target, host, plane};

/// The key of the server, which no sandbox may get.
const KEY: &str = "sbk-key";
const DASHBOARD: &str = "dash.example";

/// A request head, `METHOD URI` and `NAME: VALUE` in lines: it leads to a sandbox that it names and
/// to no other, and what is forwarded holds none of the server's secrets.
///
/// # Panics
/// When a property is violated.
pub fn check_route(bytes: &[u8]) {
    let Some(request) = parse(bytes) else { return };
    let (mut parts, ()) = request.into_parts();
    let hosts = parts.headers.get_all(header::HOST).iter().count();
    if let Plane::Edge(target) = plane(&parts, Some(DASHBOARD)) {
        assert!(hosts <= 1, "two hosts lead nowhere");
        let named = host(&parts).split(':').next().unwrap_or("").to_ascii_lowercase();
        let by_host = names(&named, &target);
        assert!(by_host || header_names(&parts.headers, &target), "{parts:?} leads to {target:?}");
        let below = named.trim_end_matches('.').strip_suffix(DASHBOARD).is_some_and(|rest| rest.ends_with('.'));
        assert!(!(by_host && below), "{named} is the dashboard's");
    }
    let path = parts.uri.path();
    if path == INIT_PATH || path.starts_with(CONTROL_PREFIX) {
        assert!(is_control_route(path), "the guest serves {path} to the host only");
    }
    let host = host(&parts).to_owned();
    clean_request(&mut parts.headers, &host, KEY);
    for name in [SANDBOX_ID, SANDBOX_PORT, TRAFFIC_ACCESS_TOKEN, KNOWN_PEER, "connection", "transfer-encoding"] {
        assert!(!parts.headers.contains_key(name), "{name} is forwarded");
    }
    assert!(!parts.headers.get_all(API_KEY).iter().any(|key| key == KEY), "the server's key is forwarded");
    for cookies in parts.headers.get_all(header::COOKIE) {
        let names = cookies.as_bytes().split(|byte| *byte == b';');
        let mut names = names.map(|pair| pair.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii());
        assert!(!names.any(|name| name == b"sandbar_session" || name == b"__Host-sandbar_session"), "{cookies:?}");
    }
}

fn parse(bytes: &[u8]) -> Option<Request<()>> {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let first = std::str::from_utf8(lines.next()?).ok()?;
    let (method, uri) = first.split_once(' ')?;
    let mut request = Request::builder().method(method).uri(uri);
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        request = request.header(name, HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?);
    }
    request.body(()).ok()
}

/// Whether the first label of `host` is `PORT-ID`, or `PORT-ID-CLIENT`.
fn names(host: &str, target: &Target) -> bool {
    let mut label = host.split('.').next().unwrap_or("").split('-');
    let port = label.next().and_then(|port| port.parse().ok());
    port == Some(target.port) && label.next() == Some(target.id.as_str())
}

fn header_names(headers: &http::HeaderMap, target: &Target) -> bool {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
    let port = text(SANDBOX_PORT).parse().ok();
    port == Some(target.port) && text(SANDBOX_ID).split('-').next() == Some(target.id.as_str())
}
