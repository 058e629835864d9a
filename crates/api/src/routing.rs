//! Decides which plane a request is for. One listener serves all, so the order of the checks
//! matters:
//!
//! 1. a host name `<port>-<id>.…` names a port of a sandbox;
//! 2. the headers `E2b-Sandbox-Id` and `E2b-Sandbox-Port` do, too, except on calls of the control
//!    plane, where old SDKs send them as well;
//! 3. without either, the guest's token identifies the sandbox: the instance that `Sandbox.connect`
//!    of old SDKs creates sends nothing else;
//! 4. `/files` without any of these is a signed URL, whose signature identifies the sandbox;
//! 5. `/health` and the prefixes of E2B's paths, and Sandbar's, belong to the control plane;
//! 6. everything else goes to the fallback.

use http::uri::Scheme;
use http::{Method, header, request};
use node::SandboxId;
use protocol::guest::ENVD_PORT;
use protocol::headers::{ACCESS_TOKEN, API_KEY, SANDBOX_ID, SANDBOX_PORT};

use crate::control;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Plane {
    Edge(Target),
    /// The guest whose token is in `X-Access-Token`.
    ByToken,
    SignedFile,
    /// A CORS preflight for a sandbox. It cannot name the sandbox, and the response is the same for
    /// all.
    Preflight,
    Control,
    /// Neither control plane nor edge.
    Fallback,
    /// 400 with this text.
    Refused(&'static str),
}

/// A port of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub id: SandboxId,
    pub port: u16,
}

const INVALID_HOST: &str = "Invalid host";
const TWO_HOSTS: &str = "more than one Host header";
const MISSING_HEADER: &str = "missing header";
const INVALID_PORT: &str = "invalid sandbox port";
const INVALID_ID: &str = "invalid sandbox id";

/// Decides the plane of a request. `dashboard` is the host name of the dashboard, if it has its
/// own.
pub(crate) fn plane(request: &request::Parts, dashboard: Option<&str>) -> Plane {
    // Services differ in which of them they use.
    if request.headers.get_all(header::HOST).iter().nth(1).is_some() {
        return Plane::Refused(TWO_HOSTS);
    }
    if let Some(plane) = by_host(host(request)) {
        let name = host(request).split(':').next().unwrap_or("").trim_end_matches('.');
        return match dashboard {
            Some(dashboard) if is_below(name, dashboard) => Plane::Refused(INVALID_HOST),
            _ => plane,
        };
    }
    let header = |name| request.headers.get(name).map(|value| value.to_str().unwrap_or(""));
    match (header(SANDBOX_ID), header(SANDBOX_PORT)) {
        (None, None) => {}
        (id, port) if request.headers.contains_key(API_KEY) && is_control(request.uri.path(), port) => {
            tracing::trace!(?id, "a control call with routing headers");
            return Plane::Control;
        }
        (Some(id), Some(port)) => {
            let (Ok(id), Some(port)) = (id.parse(), parse_port(port)) else {
                return Plane::Refused(if parse_port(port).is_none() { INVALID_PORT } else { INVALID_ID });
            };
            return Plane::Edge(Target { id, port });
        }
        _ => return Plane::Refused(MISSING_HEADER),
    }
    if request.headers.contains_key(ACCESS_TOKEN) && !request.headers.contains_key(API_KEY) {
        return Plane::ByToken;
    }
    let is_file = request.uri.path() == "/files";
    if request.method == Method::OPTIONS && request.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD) {
        let wanted = header(header::ACCESS_CONTROL_REQUEST_HEADERS.as_str()).unwrap_or("").to_ascii_lowercase();
        if is_file || wanted.contains(SANDBOX_ID) {
            return Plane::Preflight;
        }
    }
    if is_file {
        Plane::SignedFile
    } else if control::owns(request.uri.path()) {
        Plane::Control
    } else {
        Plane::Fallback
    }
}

/// The authority of an HTTP/2 request or an absolute URL, else the `Host` header.
pub(crate) fn host(request: &request::Parts) -> &str {
    let named = request.uri.authority().map(http::uri::Authority::as_str);
    named.or_else(|| request.headers.get(header::HOST)?.to_str().ok()).unwrap_or("")
}

/// The scheme by which the client reached the server: that of its connection, unless a proxy in
/// front of the server reports that it terminated TLS.
pub(crate) fn scheme(request: &request::Parts) -> Scheme {
    let forwarded = request.headers.get("x-forwarded-proto").is_some_and(|value| value == "https");
    let connection = request.extensions.get::<Scheme>().cloned();
    if forwarded { Scheme::HTTPS } else { connection.unwrap_or(Scheme::HTTP) }
}

fn by_host(host: &str) -> Option<Plane> {
    let name = host.split(':').next().unwrap_or("");
    let label = name.split('.').next().unwrap_or("");
    let (port, rest) = label.split_once('-')?;
    if port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let id = rest.split('-').next().unwrap_or("").to_ascii_lowercase();
    Some(match (parse_port(port), id.parse()) {
        (Some(port), Ok(id)) if name.contains('.') => Plane::Edge(Target { id, port }),
        _ => Plane::Refused(INVALID_HOST),
    })
}

fn is_below(name: &str, parent: &str) -> bool {
    let at = name.len().checked_sub(parent.len()).filter(|at| *at > 0);
    at.is_some_and(|at| {
        let tail = name.get(at..).is_some_and(|tail| tail.eq_ignore_ascii_case(parent));
        tail && name.as_bytes()[at - 1] == b'.'
    })
}

fn parse_port(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port != 0)
}

/// Calls that the control plane has and the guest does not.
fn is_control(path: &str, port: Option<&str>) -> bool {
    let for_guest = port.is_none_or(|port| parse_port(port) == Some(ENVD_PORT));
    let path = path.strip_prefix("/v2").unwrap_or(path);
    for_guest && path.strip_prefix("/sandboxes").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn route(line: &str, headers: &[(&str, &str)]) -> Plane {
        let (method, uri) = line.split_once(' ').expect("METHOD URI");
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        plane(&request.body(()).expect("a request").into_parts().0, Some("dash.example"))
    }

    fn edge(id: &str, port: u16) -> Plane {
        Plane::Edge(Target { id: id.parse().expect("an ID"), port })
    }

    #[test]
    fn hosts_lead_to_ports() {
        let by_host = |host| route("GET /", &[("host", host)]);
        assert_eq!(by_host("8000-iabc.localhost:4980"), edge("iabc", 8000));
        assert_eq!(by_host("8000-iabc-client.sandbox.test"), edge("iabc", 8000));
        assert_eq!(by_host("8000-IABC.localhost"), edge("iabc", 8000));
        assert_eq!(by_host("8000-iabc"), Plane::Refused("Invalid host"));
        assert_eq!(by_host("99999-iabc.localhost"), Plane::Refused("Invalid host"));
        assert_eq!(by_host("8000-.localhost"), Plane::Refused("Invalid host"));
        for host in ["localhost:4980", "127.0.0.1:4980", "[::1]:4980", "my-host.test", "sandbox.test", ""] {
            assert_eq!(by_host(host), Plane::Fallback, "{host}");
            assert_eq!(route("GET /v2/sandboxes", &[("host", host)]), Plane::Control, "{host}");
        }
        assert_eq!(route("GET http://8000-iabc.localhost/x", &[]), edge("iabc", 8000));
    }

    #[test]
    fn ports_below_the_dashboard_and_two_hosts_are_refused() {
        let by_host = |host| route("GET /", &[("host", host)]);
        for host in ["3000-iabc.dash.example", "3000-iabc.DASH.example:4980", "3000-iabc.a.dash.example."] {
            assert_eq!(by_host(host), Plane::Refused("Invalid host"), "{host}");
        }
        assert_eq!(by_host("3000-iabc.xdash.example"), edge("iabc", 3000));
        assert_eq!(by_host("dash.example"), Plane::Fallback);
        let two = [("host", "3000-iabc.localhost"), ("host", "localhost")];
        assert_eq!(route("GET /", &two), Plane::Refused("more than one Host header"));
        assert_eq!(route("GET http://3000-iabc.localhost/", &two), Plane::Refused("more than one Host header"));
    }

    #[test]
    fn headers_lead_to_ports() {
        let id = ("e2b-sandbox-id", "iabc");
        assert_eq!(route("GET /health", &[id, ("e2b-sandbox-port", "49983")]), edge("iabc", 49983));
        assert_eq!(route("GET /health", &[id]), Plane::Refused("missing header"));
        assert_eq!(route("GET /health", &[("e2b-sandbox-port", "1")]), Plane::Refused("missing header"));
        assert_eq!(route("GET /", &[id, ("e2b-sandbox-port", "0")]), Plane::Refused("invalid sandbox port"));
        assert_eq!(route("GET /", &[id, ("e2b-sandbox-port", "x")]), Plane::Refused("invalid sandbox port"));
        let bad = ("e2b-sandbox-id", "I_");
        assert_eq!(route("GET /", &[bad, ("e2b-sandbox-port", "1")]), Plane::Refused("invalid sandbox id"));
    }

    #[test]
    fn old_sdks_send_routing_headers_to_the_control_plane() {
        let pair = [("e2b-sandbox-id", "iabc"), ("e2b-sandbox-port", "49983"), ("x-api-key", "k")];
        assert_eq!(route("POST /sandboxes/iabc/connect", &pair), Plane::Control);
        assert_eq!(route("POST /v2/sandboxes/iabc/connect", &pair), Plane::Control);
        assert_eq!(route("POST /sandboxes/iabc/connect", &pair[..2]), edge("iabc", 49983));
        let other_port = [("e2b-sandbox-id", "iabc"), ("e2b-sandbox-port", "3000"), ("x-api-key", "k")];
        assert_eq!(route("GET /sandboxes", &other_port), edge("iabc", 3000));
    }

    #[test]
    fn a_token_alone_leads_to_its_guest() {
        let token = ("x-access-token", "t");
        for line in ["GET /health", "GET /files?path=a", "POST /process.Process/Start"] {
            assert_eq!(route(line, &[token]), Plane::ByToken, "{line}");
        }
        let routed = [token, ("e2b-sandbox-id", "iabc"), ("e2b-sandbox-port", "49983")];
        assert_eq!(route("GET /health", &routed), edge("iabc", 49983));
        assert_eq!(route("GET /v2/sandboxes", &[token, ("x-api-key", "k")]), Plane::Control);
    }

    #[test]
    fn files_without_a_sandbox_are_signed() {
        assert_eq!(route("GET /files?path=a&signature=s", &[("host", "localhost")]), Plane::SignedFile);
        assert_eq!(route("POST /files", &[]), Plane::SignedFile);
        assert_eq!(route("GET /filesystem", &[]), Plane::Fallback);
    }

    #[test]
    fn other_paths_go_to_the_fallback() {
        for path in ["/", "/api/jobs", "/jobs/1", "/assets/a.js", "/v2", "/sandboxes2", "/v1/sandboxes"] {
            assert_eq!(route(&format!("GET {path}"), &[]), Plane::Fallback, "{path}");
        }
        for path in ["/health", "/sandboxes", "/v2/sandboxes/i", "/v3/templates", "/sandbar/capabilities", "/teams"] {
            assert_eq!(route(&format!("GET {path}"), &[]), Plane::Control, "{path}");
        }
    }

    #[test]
    fn preflight_requests_are_recognized() {
        let ask = |uri: &str, headers| {
            let asked = [("access-control-request-method", "POST"), ("access-control-request-headers", headers)];
            route(&format!("OPTIONS {uri}"), &asked)
        };
        assert_eq!(ask("/files?path=a", "content-type"), Plane::Preflight);
        assert_eq!(ask("/process.Process/Start", "content-type,e2b-sandbox-id"), Plane::Preflight);
        assert_eq!(ask("/sandboxes", "x-api-key"), Plane::Control);
    }
}
