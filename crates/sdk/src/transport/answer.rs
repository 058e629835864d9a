//! What came back: a refusal in any of the shapes servers, daemons and proxies use, or a body to read.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use protocol::headers::SHOULD_RETRY;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::http::Call;
use crate::error::CallError;

/// Error bodies are short texts; more is not worth keeping.
const LONGEST_ERROR: usize = 64 * 1024;
/// JSON answers of the control plane: pages of a hundred rows.
const LONGEST_JSON: usize = 64 * 1024 * 1024;

/// A request that did not do what it was for.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server answered, and the answer is no. What that means depends on what was asked.
    Refused(Refusal),
    Call(CallError),
}

/// An answer that is not a success.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) message: String,
    /// The code by name, of Connect (`not_found`) or the control plane's `error_code`.
    pub(crate) code: Option<String>,
    pub(crate) retry_after: Option<Duration>,
    pub(super) should_retry: Option<bool>,
}

impl Refusal {
    /// A refusal that came inside a stream, where there is no status.
    pub(crate) fn of_code(code: &str, message: String) -> Self {
        let status = match code {
            "invalid_argument" | "failed_precondition" | "out_of_range" => 400,
            "unauthenticated" => 401,
            "permission_denied" => 403,
            "not_found" => 404,
            "already_exists" | "aborted" => 409,
            "resource_exhausted" => 429,
            "canceled" => 499,
            "unimplemented" => 501,
            "unavailable" => 503,
            "deadline_exceeded" => 504,
            _ => 500,
        };
        Self { status, message, code: Some(code.to_owned()), retry_after: None, should_retry: None }
    }

    /// The edge's word that there is no such sandbox, or that it is not running.
    pub(crate) fn says_sandbox_is_gone(&self) -> bool {
        self.status == 502 && self.message.contains("was not found")
    }

    pub(crate) fn is(&self, code: &str) -> bool {
        self.code.as_deref() == Some(code)
    }

    /// The general meaning, for what an operation has no variant of its own.
    pub(crate) fn into_error(self, call: &Call) -> CallError {
        let Self { status, message, retry_after, .. } = self;
        let call = call.what.clone();
        match status {
            401 | 403 => CallError::Unauthorized { call, message },
            429 | 503 => CallError::Limited { call, message, retry_after },
            400 | 413 | 422 => CallError::Invalid { call, message },
            405 | 501 => CallError::Unsupported { call, message },
            _ => CallError::Service { call, status, message },
        }
    }
}

impl Failure {
    /// The general meaning of whatever happened.
    pub(crate) fn into_error(self, call: &Call) -> CallError {
        match self {
            Self::Refused(refusal) => refusal.into_error(call),
            Self::Call(error) => error,
        }
    }
}

/// `code` is a number on the control plane and the daemon, a text in Connect and the volume API.
#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    code: serde_json::Value,
    #[serde(default)]
    message: String,
    #[serde(default)]
    error_code: Option<String>,
}

/// Takes in an answer that is not a success. A body that cannot be read leaves the status to speak.
pub(super) async fn refusal(mut response: reqwest::Response, call: &Call) -> Refusal {
    let status = response.status();
    let should_retry = flag(response.headers(), SHOULD_RETRY);
    let retry_after = whole_seconds(response.headers());
    let mut text = Vec::new();
    let reading = async {
        while let Ok(Some(chunk)) = response.chunk().await {
            text.extend_from_slice(&chunk);
            if text.len() > LONGEST_ERROR {
                break;
            }
        }
    };
    // An error whose body never ends is still that error.
    let _ = tokio::time::timeout_at(call.deadline(), reading).await;
    let (message, code) = match serde_json::from_slice::<Body>(&text) {
        Ok(body) => (body.message, body.error_code.or_else(|| body.code.as_str().map(str::to_owned))),
        Err(_) => (String::from_utf8_lossy(&text).trim().chars().take(500).collect(), None),
    };
    let message = if message.is_empty() { reason(status) } else { message };
    Refusal { status: status.as_u16(), message, code, retry_after, should_retry }
}

fn reason(status: StatusCode) -> String {
    status.canonical_reason().unwrap_or("no reason given").to_owned()
}

fn flag(headers: &HeaderMap, name: &str) -> Option<bool> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

fn whole_seconds(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(http::header::RETRY_AFTER)?.to_str().ok()?;
    text.trim().parse().ok().map(Duration::from_secs)
}

/// Reads a JSON answer whole, within the call's deadline.
pub(crate) async fn read_json<T: DeserializeOwned>(
    mut response: reqwest::Response,
    call: &Call,
) -> Result<T, CallError> {
    let mut text = Vec::new();
    loop {
        match tokio::time::timeout_at(call.deadline(), response.chunk()).await {
            Err(_) => return Err(call.out_of_time()),
            Ok(Err(error)) => return Err(call.lost(&error)),
            Ok(Ok(None)) => break,
            Ok(Ok(Some(chunk))) => text.extend_from_slice(&chunk),
        }
        if text.len() > LONGEST_JSON {
            return Err(call.misunderstood(format!("more than {LONGEST_JSON} bytes of JSON")));
        }
    }
    // Not the text itself: it may hold a token.
    serde_json::from_slice(&text).map_err(|error| call.misunderstood(error.to_string()))
}
