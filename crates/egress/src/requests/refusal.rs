//! The response that a sandboxed program receives when its request is refused. It never contains a
//! secret.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;

/// A refused request, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    status: StatusCode,
    reason: String,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into() }
    }

    /// Refused by a policy.
    pub(crate) fn forbidden(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, reason)
    }

    pub(super) fn reason(&self) -> &str {
        &self.reason
    }

    pub(super) fn to_response(&self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::from(format!("the sandbox's egress refused this: {}\n", self.reason)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        // The rest of the connection may be the body of the refused request.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        response
    }
}
