//! Where a job's workspace is right now, asked for without waking, resuming or extending anything, and whether its
//! application answers.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::header::{CONTENT_SECURITY_POLICY, HeaderMap, HeaderValue};
use sdk::model::SandboxState;
use sdk::{PortRoute, Sandbox, SandboxError};
use workspace::{OpenError, WorkspaceName, Workspaces};

use crate::chain;

/// A provider that does not answer by then is out of reach.
const ASK: Duration = Duration::from_secs(10);
/// An application that has not begun to answer by then is still starting.
const ANSWER: Duration = Duration::from_secs(10);
/// What an edge answers when nobody listens on a port.
const NOBODY_THERE: u16 = 502;

/// What a look at a workspace's sandbox found.
pub(crate) enum Found {
    Running {
        sandbox: Sandbox,
        ends_at: Option<Timestamp>,
    },
    Paused,
    /// For good.
    Gone,
    Unreachable(String),
}

pub(crate) async fn look(workspaces: &Workspaces, name: &WorkspaceName) -> Found {
    let unreachable = |error: &dyn std::error::Error| Found::Unreachable(chain(error));
    let view = match workspaces.show(name).await {
        Ok(view) => view,
        Err(OpenError::NotFound(_)) => return Found::Gone,
        Err(error) => return unreachable(&error),
    };
    let Some(id) = view.sandbox.and_then(|id| id.parse().ok()) else { return Found::Gone };
    let provider = match workspaces.orchestrator().provider(&view.provider) {
        Ok(provider) => provider,
        Err(error) => return unreachable(&error),
    };
    let client = match provider.client().await {
        Ok(client) => client,
        Err(error) => return unreachable(&error),
    };
    let detail = match client.within(ASK).info(&id).await {
        Ok(detail) => detail,
        Err(SandboxError::NotFound { .. }) => return Found::Gone,
        Err(error) => return unreachable(&error),
    };
    if detail.listed.state == SandboxState::Paused {
        return Found::Paused;
    }
    match client.attach(&detail) {
        Ok(sandbox) => Found::Running { sandbox, ends_at: detail.listed.end_at.parse().ok() },
        Err(error) => unreachable(&error),
    }
}

/// How an application answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Yes,
    /// It forbids to be shown inside of another page.
    NoFrames(String),
    NotYet,
}

pub(crate) async fn ask(http: &reqwest::Client, sandbox: &Sandbox, port: u16) -> Answer {
    let PortRoute { url, headers } = sandbox.route(port);
    match http.get(url).headers(headers).timeout(ANSWER).send().await {
        Ok(answer) if answer.status().as_u16() == NOBODY_THERE => Answer::NotYet,
        Ok(answer) => match refuses_frames(answer.headers()) {
            Some(reason) => Answer::NoFrames(reason),
            None => Answer::Yes,
        },
        Err(_) => Answer::NotYet,
    }
}

/// The header that keeps a page of another origin from showing this one. A policy of frames is believed to forbid us unless it
/// allows all: which origin the dashboard has is not for the application to know.
fn refuses_frames(headers: &HeaderMap) -> Option<String> {
    let text = |value: &HeaderValue| value.to_str().unwrap_or_default().to_owned();
    let ancestors = headers.get_all(CONTENT_SECURITY_POLICY).iter().map(text).find_map(|policy| {
        let directive = policy.split(';').map(str::trim).find(|part| part.starts_with("frame-ancestors"))?;
        let allows = directive.split_whitespace().skip(1).any(|source| ["*", "http:", "https:"].contains(&source));
        Some((!allows).then(|| format!("Content-Security-Policy: {directive}")))
    });
    // Browsers do not look at the older header where there is the newer one.
    match ancestors {
        Some(verdict) => verdict,
        None => headers.get("x-frame-options").map(|value| format!("X-Frame-Options: {}", text(value))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_forbid_frames_are_told_from_others() {
        let check = |pairs: &[(&'static str, &str)], blocked: bool| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, value.parse().expect("a value"));
            }
            assert_eq!(refuses_frames(&headers).is_some(), blocked, "{pairs:?}");
        };
        check(&[], false);
        check(&[("x-frame-options", "DENY")], true);
        check(&[("content-security-policy", "default-src 'self'; frame-ancestors 'none'")], true);
        check(&[("content-security-policy", "frame-ancestors 'self' https://example.com")], true);
        check(&[("content-security-policy", "default-src 'self'")], false);
        check(&[("content-security-policy", "frame-ancestors *"), ("x-frame-options", "DENY")], false);
    }
}
