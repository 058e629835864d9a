//! Calls of E2B that are known and not served: they say why, rather than that they do not exist.

use http::{Method, StatusCode};

use super::Answer;
use super::failure::Failure;

/// First segments of E2B's paths, without a generation, beside `sandboxes`.
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

pub(super) fn answer(method: &Method, segments: &[&str]) -> Answer {
    let path = segments.join("/");
    let (generation, rest) = match segments {
        ["v2" | "v3", rest @ ..] => (segments.first().copied(), rest),
        all => (None, all),
    };
    if let Some(reason) = reason(method, generation, rest) {
        return Err(Failure::new(StatusCode::NOT_IMPLEMENTED, format!("{method} /{path} is not served: {reason}")));
    }
    // The path is one of ours, so the method is not.
    let served = match rest {
        ["sandboxes"] => true,
        ["sandboxes", _] => generation.is_none(),
        ["sandboxes", _, "connect" | "logs"] => true,
        [
            "sandboxes",
            _,
            "resume" | "pause" | "timeout" | "refreshes" | "metrics" | "fork" | "snapshots" | "network",
        ] => generation.is_none(),
        ["teams"] | ["snapshots"] | ["volumes" | "secrets"] | ["volumes" | "secrets", _] => generation.is_none(),
        ["templates"] => true,
        ["templates", _] => generation != Some("v3"),
        ["sandbar", "capabilities" | "trash"] | ["sandbar", "trash", _] | ["sandbar", "templates", _, "builds", _] => {
            generation.is_none()
        }
        _ => false,
    };
    if served {
        let message = format!("method {method} is not allowed on '/{path}'");
        return Err(Failure::new(StatusCode::METHOD_NOT_ALLOWED, message));
    }
    Err(Failure::new(StatusCode::NOT_FOUND, format!("path '/{path}' not found")))
}

/// Why a call of E2B is not for this server.
fn reason(method: &Method, generation: Option<&str>, rest: &[&str]) -> Option<&'static str> {
    match (generation, rest) {
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
