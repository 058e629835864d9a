//! Calls of E2B that are known and not served: the response names the reason instead of 404.

use http::{Method, StatusCode};

use super::CallResult;
use super::failure::Failure;

/// First segments of E2B's paths, without a version, beside `sandboxes`.
pub(super) const PREFIXES: [&str; 12] = [
    "access-tokens",
    "admin",
    "api-keys",
    "default-templates",
    "events",
    "nodes",
    "secrets",
    "snapshots",
    "teams",
    "templates",
    "volumecontent",
    "volumes",
];

pub(super) fn answer(method: &Method, segments: &[&str]) -> CallResult {
    let path = segments.join("/");
    let (version, rest) = match segments {
        ["v2" | "v3", rest @ ..] => (segments.first().copied(), rest),
        all => (None, all),
    };
    if let Some(reason) = reason(method, version, rest) {
        return Err(Failure::new(StatusCode::NOT_IMPLEMENTED, format!("{method} /{path} is not served: {reason}")));
    }
    // The path is served, so the method is not.
    let served = match rest {
        ["sandboxes"] => true,
        ["sandboxes", _] => version.is_none(),
        ["sandboxes", _, "connect" | "logs"] => true,
        [
            "sandboxes",
            _,
            "resume" | "pause" | "timeout" | "refreshes" | "metrics" | "fork" | "snapshots" | "network",
        ] => version.is_none(),
        ["teams"] | ["snapshots"] | ["volumes" | "secrets"] | ["volumes" | "secrets", _] => version.is_none(),
        ["templates"] => true,
        ["templates", _] => version != Some("v3"),
        ["sandbar", "capabilities" | "trash"] | ["sandbar", "trash", _] | ["sandbar", "templates", _, "builds", _] => {
            version.is_none()
        }
        _ => false,
    };
    if served {
        let message = format!("method {method} is not allowed on '/{path}'");
        return Err(Failure::new(StatusCode::METHOD_NOT_ALLOWED, message));
    }
    Err(Failure::new(StatusCode::NOT_FOUND, format!("path '/{path}' not found")))
}

/// Why this server does not serve a call of E2B.
fn reason(method: &Method, version: Option<&str>, rest: &[&str]) -> Option<&'static str> {
    match (version, rest) {
        (None, ["access-tokens" | "api-keys", ..]) => {
            Some("it manages accounts of E2B's cloud; this server has the one key that `sandbar up` prints")
        }
        (None, ["teams", _, "metrics", ..]) => {
            Some("it counts a team of E2B's cloud; GET /sandboxes/metrics tells of what runs here")
        }
        (_, ["nodes" | "admin" | "events" | "default-templates", ..]) => {
            Some("it runs E2B's cloud of many nodes; this server is one, see `sandbar doctor`")
        }
        (None | Some("v2"), ["templates"]) | (None, ["templates", _] | ["templates", _, "builds", _])
            if method == Method::POST =>
        {
            Some("it is E2B's former way to build, by a push to its own registry; build with POST /v3/templates")
        }
        _ => None,
    }
}
