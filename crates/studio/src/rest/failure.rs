//! Error responses: one JSON object for every refusal and failure.

use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::header::{RETRY_AFTER, SET_COOKIE, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, StatusCode, Uri};
use schemars::JsonSchema;
use serde::Serialize;
use tracing::error;

use crate::StudioError;

/// What failed.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub(super) struct ErrorBody {
    /// The HTTP status.
    #[schemars(range(min = 400, max = 599))]
    code: u16,
    /// For people.
    message: String,
    /// For programs, where the status alone is ambiguous.
    #[serde(skip_serializing_if = "Option::is_none")]
    error_type: Option<&'static str>,
    /// What to do next.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'static str>,
    /// The end of the log of an application that does not start.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
}

/// An error response.
#[derive(Debug)]
pub(super) struct Failure {
    status: StatusCode,
    body: Box<ErrorBody>,
    retry_after: Option<Duration>,
    /// `Set-Cookie` headers of the response.
    cookies: Vec<HeaderValue>,
}

impl Failure {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let body =
            ErrorBody { code: status.as_u16(), message: message.into(), error_type: None, hint: None, output: None };
        Self { status, body: Box::new(body), retry_after: None, cookies: Vec::new() }
    }

    fn kind(mut self, error_type: &'static str) -> Self {
        self.body.error_type = Some(error_type);
        self
    }

    fn hint(mut self, hint: &'static str) -> Self {
        self.body.hint = Some(hint);
        self
    }

    pub(super) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "there is no such thing, or it is not yours")
    }

    pub(super) fn unauthorized(message: &'static str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, message)
            .hint("send `Authorization: Bearer TOKEN`, or sign in; `sandbar user token NAME` makes a token")
    }

    /// Two session cookies: another host has set one of them, and they cannot be distinguished. The
    /// response removes both.
    pub(super) fn ambiguous_session(cookies: Vec<HeaderValue>) -> Self {
        let refused = Self::new(StatusCode::UNAUTHORIZED, "the request has two cookies of the session's name")
            .kind("ambiguous_session")
            .hint("sign in again; if this comes back, remove this site's cookies and give the dashboard a host of its own: `sandbar up --dashboard-host`");
        Self { cookies, ..refused }
    }

    pub(super) fn foreign(message: &'static str) -> Self {
        Self::new(StatusCode::FORBIDDEN, message)
            .kind("csrf")
            .hint("requests with the session's cookie need the header `X-Sandbar-Csrf: 1` and this server's own origin")
    }

    pub(super) fn invalid(field: &str, message: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, format!("{field}: {message}")).kind("invalid")
    }

    pub(super) fn too_many(wait: Duration) -> Self {
        let refused = Self::new(StatusCode::TOO_MANY_REQUESTS, "too many requests");
        Self { retry_after: Some(wait), ..refused.hint("wait as long as `Retry-After` says") }
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    pub(super) fn message(&self) -> &str {
        &self.body.message
    }
}

impl From<StudioError> for Failure {
    fn from(error: StudioError) -> Self {
        let with = |status| Self::new(status, error.to_string());
        match &error {
            StudioError::NotFound => Self::not_found(),
            StudioError::NotReady { .. } => {
                with(StatusCode::UNPROCESSABLE_ENTITY).kind("not_ready").hint("wait until its status is `ready`")
            }
            StudioError::NoCredits => with(StatusCode::PAYMENT_REQUIRED)
                .kind("no_credits")
                .hint("`sandbar user credits NAME --add COUNT` on the server adds some"),
            StudioError::ConfirmNeeded { .. } => {
                with(StatusCode::CONFLICT).kind("confirm_needed").hint("ask, then send `{\"confirm\": true}`")
            }
            StudioError::SandboxExpired => {
                with(StatusCode::SERVICE_UNAVAILABLE).kind("sandbox_expired").hint("rebuild it")
            }
            StudioError::SandboxUnreachable => {
                with(StatusCode::SERVICE_UNAVAILABLE).kind("sandbox_unreachable").hint("try again later, or rebuild it")
            }
            StudioError::ApplicationFailed { output, .. } => {
                let mut failure = with(StatusCode::SERVICE_UNAVAILABLE)
                    .kind("application_failed")
                    .hint("its sandbox runs: mend it in the terminal, or say in a new build what to fix");
                failure.body.output = Some(output.clone()).filter(|output| !output.is_empty());
                failure
            }
            StudioError::OverBudget { .. } => with(StatusCode::PAYMENT_REQUIRED)
                .kind("over_budget")
                .hint("raise the limit in the configuration of the server, or wait until its period is over"),
            StudioError::ProjectExists { .. } => with(StatusCode::CONFLICT)
                .kind("project_exists")
                .hint("choose it from the list of projects to build on its files, or choose another name"),
            StudioError::Invalid { field, message } => Self::invalid(field, message),
            StudioError::SandboxPaused => {
                with(StatusCode::UNPROCESSABLE_ENTITY).kind("asleep").hint("resume its preview first")
            }
            StudioError::Conflict(_) => with(StatusCode::CONFLICT).kind("conflict"),
            StudioError::Unavailable(cause) if let Some(refused) = database::find_unwritable(cause.as_ref()) => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, format!("nothing was recorded: {refused}"))
                    .kind("storage_refuses")
                    .hint("send it again once the server's disk accepts changes; `GET /ready` says when")
            }
            StudioError::Unavailable(_) => {
                error!(error = text::error_chain(&error), "a call of the studio failed");
                with(StatusCode::SERVICE_UNAVAILABLE).kind("unavailable").hint("try again; the server's log says more")
            }
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body)).into_response();
        if let Some(wait) = self.retry_after {
            let seconds = wait.as_secs_f64().ceil().max(1.0) as u64;
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        for cookie in self.cookies {
            response.headers_mut().append(SET_COOKIE, cookie);
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The path exists, but not with that method. axum adds the `Allow` header.
pub(super) async fn wrong_method(method: Method, uri: Uri) -> Failure {
    Failure::new(StatusCode::METHOD_NOT_ALLOWED, format!("method {method} is not allowed on '{}'", uri.path()))
}
