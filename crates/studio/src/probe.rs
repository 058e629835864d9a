//! Inspects the sandbox of a job and probes its application, without resuming or extending
//! anything.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::header::{CONTENT_SECURITY_POLICY, HeaderMap, HeaderValue};
use sdk::model::SandboxState;
use sdk::{PortRoute, Sandbox, SandboxError};
use workspace::{OpenError, WorkspaceName, Workspaces};

use text::error_chain;

/// A provider that does not respond within this time counts as unreachable.
const PROVIDER_TIMEOUT: Duration = Duration::from_secs(10);
/// An application that sends no response head within this time counts as starting.
const APP_TIMEOUT: Duration = Duration::from_secs(10);
/// The status of the edge when no process listens on a port.
const PORT_CLOSED_STATUS: u16 = 502;

/// The state of a workspace's sandbox.
pub(crate) enum SandboxStatus {
    Running {
        sandbox: Sandbox,
        ends_at: Option<Timestamp>,
    },
    Paused,
    /// The sandbox is deleted or expired and cannot be resumed.
    Gone,
    Unreachable(String),
}

pub(crate) async fn inspect_sandbox(workspaces: &Workspaces, name: &WorkspaceName) -> SandboxStatus {
    let unreachable = |error: &dyn std::error::Error| SandboxStatus::Unreachable(error_chain(error));
    let view = match workspaces.show(name).await {
        Ok(view) => view,
        Err(OpenError::NotFound(_)) => return SandboxStatus::Gone,
        Err(error) => return unreachable(&error),
    };
    let Some(id) = view.sandbox.and_then(|id| id.parse().ok()) else { return SandboxStatus::Gone };
    let provider = match workspaces.orchestrator().provider(&view.provider) {
        Ok(provider) => provider,
        Err(error) => return unreachable(&error),
    };
    let client = match provider.client().await {
        Ok(client) => client,
        Err(error) => return unreachable(&error),
    };
    let detail = match client.within(PROVIDER_TIMEOUT).info(&id).await {
        Ok(detail) => detail,
        Err(SandboxError::NotFound { .. }) => return SandboxStatus::Gone,
        Err(error) => return unreachable(&error),
    };
    if detail.listed.state == SandboxState::Paused {
        return SandboxStatus::Paused;
    }
    match client.attach(&detail) {
        Ok(sandbox) => SandboxStatus::Running { sandbox, ends_at: detail.listed.end_at.parse().ok() },
        Err(error) => unreachable(&error),
    }
}

/// How an application responds to a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AppResponse {
    Ready,
    /// A header, given here, forbids other pages to embed the application in a frame.
    FrameBlocked(String),
    NotReady,
}

pub(crate) async fn ask_application(http: &reqwest::Client, sandbox: &Sandbox, port: u16) -> AppResponse {
    let PortRoute { url, headers } = sandbox.route(port);
    match http.get(url).headers(headers).timeout(APP_TIMEOUT).send().await {
        Ok(answer) if answer.status().as_u16() == PORT_CLOSED_STATUS => AppResponse::NotReady,
        Ok(answer) => match frame_refusal(answer.headers()) {
            Some(reason) => AppResponse::FrameBlocked(reason),
            None => AppResponse::Ready,
        },
        Err(_) => AppResponse::NotReady,
    }
}

/// The header that forbids the dashboard to embed this page. A `frame-ancestors` policy counts as a
/// refusal unless it allows every origin, because the application cannot know the dashboard's.
fn frame_refusal(headers: &HeaderMap) -> Option<String> {
    let text = |value: &HeaderValue| value.to_str().unwrap_or_default().to_owned();
    let ancestors = headers.get_all(CONTENT_SECURITY_POLICY).iter().map(text).find_map(|policy| {
        let directive = policy.split(';').map(str::trim).find(|part| part.starts_with("frame-ancestors"))?;
        let allows = directive.split_whitespace().skip(1).any(|source| ["*", "http:", "https:"].contains(&source));
        Some((!allows).then(|| format!("Content-Security-Policy: {directive}")))
    });
    // Browsers ignore `X-Frame-Options` when `frame-ancestors` is present.
    match ancestors {
        Some(verdict) => verdict,
        None => headers.get("x-frame-options").map(|value| format!("X-Frame-Options: {}", text(value))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_forbid_frames_are_detected() {
        let check = |pairs: &[(&'static str, &str)], blocked: bool| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, value.parse().expect("a value"));
            }
            assert_eq!(frame_refusal(&headers).is_some(), blocked, "{pairs:?}");
        };
        check(&[], false);
        check(&[("x-frame-options", "DENY")], true);
        check(&[("content-security-policy", "default-src 'self'; frame-ancestors 'none'")], true);
        check(&[("content-security-policy", "frame-ancestors 'self' https://example.com")], true);
        check(&[("content-security-policy", "default-src 'self'")], false);
        check(&[("content-security-policy", "frame-ancestors *"), ("x-frame-options", "DENY")], false);
    }
}
