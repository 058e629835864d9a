//! Calls of E2B that are known and not built yet: they say so, rather than that they do not exist.

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
    let not_found = || Failure::new(StatusCode::NOT_FOUND, format!("path '/{path}' not found"));
    let unbuilt = match (generation, rest) {
        (None, ["snapshots"] | ["volumes"] | ["volumes", _]) => false,
        (_, [first, ..]) => PREFIXES.contains(first),
        _ => false,
    };
    if unbuilt {
        let message = format!("{method} /{path} is not implemented by this server yet");
        return Err(Failure::new(StatusCode::NOT_IMPLEMENTED, message));
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
        ["snapshots"] | ["volumes"] | ["volumes", _] => generation.is_none(),
        ["sandbar", "capabilities"] => generation.is_none(),
        _ => false,
    };
    if served {
        let message = format!("method {method} is not allowed on '/{path}'");
        return Err(Failure::new(StatusCode::METHOD_NOT_ALLOWED, message));
    }
    Err(not_found())
}
