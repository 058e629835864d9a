//! Responses: errors in any of the formats of servers, daemons and proxies, and JSON bodies.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use protocol::headers::SHOULD_RETRY;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::http::Call;
use crate::error::CallError;

/// Limit of an error body.
const MAX_ERROR_BYTES: usize = 64 * 1024;
/// Limit of a JSON response of the control plane, which sends pages of up to a hundred rows.
const MAX_JSON_BYTES: usize = 64 * 1024 * 1024;

/// A failed request.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server responded with an error. The operation decides what it means.
    Refused(Refusal),
    Call(CallError),
}

/// An error response.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) message: String,
    /// The symbolic code: Connect's (`not_found`) or the control plane's `error_code`.
    pub(crate) code: Option<String>,
    pub(crate) retry_after: Option<Duration>,
    pub(super) should_retry: Option<bool>,
}

impl Refusal {
    /// An error inside a stream, which has no status.
    pub(crate) fn from_code(code: &str, message: String) -> Self {
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

    /// Whether the edge reports that the sandbox does not exist or does not run.
    pub(crate) fn reports_sandbox_gone(&self) -> bool {
        self.status == 502 && self.message.contains("was not found")
    }

    pub(crate) fn is(&self, code: &str) -> bool {
        self.code.as_deref() == Some(code)
    }

    /// Converts to the general error, where an operation has no variant of its own.
    pub(crate) fn into_error(self, call: &Call) -> CallError {
        let Self { status, message, retry_after, .. } = self;
        let call = call.what.clone();
        match status {
            401 | 403 => CallError::Unauthorized { call, message },
            // 507: the server's disk is full.
            429 | 503 | 507 => CallError::Limited { call, message, retry_after },
            400 | 413 | 422 => CallError::Invalid { call, message },
            405 | 501 => CallError::Unsupported { call, message },
            _ => CallError::Service { call, status, message },
        }
    }
}

impl Failure {
    /// Converts to the general error.
    pub(crate) fn into_error(self, call: &Call) -> CallError {
        match self {
            Self::Refused(refusal) => refusal.into_error(call),
            Self::Call(error) => error,
        }
    }
}

/// `code` is a number on the control plane and the daemon, a string in Connect and the volume API.
#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    code: serde_json::Value,
    #[serde(default)]
    message: String,
    #[serde(default)]
    error_code: Option<String>,
}

/// Reads an error response. An unreadable body leaves only the status.
pub(super) async fn refusal(mut response: reqwest::Response, call: &Call) -> Refusal {
    let status = response.status();
    let should_retry = flag(response.headers(), SHOULD_RETRY);
    let retry_after = whole_seconds(response.headers());
    let mut text = Vec::new();
    let reading = async {
        while let Ok(Some(chunk)) = response.chunk().await {
            text.extend_from_slice(&chunk);
            if text.len() > MAX_ERROR_BYTES {
                break;
            }
        }
    };
    // An endless error body does not change the error.
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

/// Reads a JSON response within the call's deadline.
pub(crate) async fn read_json<T: DeserializeOwned>(
    mut response: reqwest::Response,
    call: &Call,
) -> Result<T, CallError> {
    let mut text = Vec::new();
    loop {
        match tokio::time::timeout_at(call.deadline(), response.chunk()).await {
            Err(_) => return Err(call.deadline_exceeded()),
            Ok(Err(error)) => return Err(call.lost(&error)),
            Ok(Ok(None)) => break,
            Ok(Ok(Some(chunk))) => text.extend_from_slice(&chunk),
        }
        if text.len() > MAX_JSON_BYTES {
            return Err(call.protocol_error(format!("more than {MAX_JSON_BYTES} bytes of JSON")));
        }
    }
    // Omits the text itself, which may contain a token.
    serde_json::from_slice(&text).map_err(|error| call.protocol_error(error.to_string()))
}
