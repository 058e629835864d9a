//! What a program inside is told when its request goes no further. Nothing that was filled in is ever in it.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;

/// A request that is not passed on, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    status: StatusCode,
    reason: String,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into() }
    }

    /// By a policy.
    pub fn forbidden(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, reason)
    }

    pub(crate) fn reason(&self) -> &str {
        &self.reason
    }

    pub(crate) fn answer(&self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::from(format!("the sandbox's egress refused this: {}\n", self.reason)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        // What follows on the connection may have been meant for the request that is not sent.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        response
    }
}
