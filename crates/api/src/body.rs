//! Bodies of responses: complete ones of the server, proxied ones of a sandbox, frame by frame, and
//! those of the fallback service.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::{Frame, SizeHint};
use serde::Serialize;

use crate::edge::ProxiedBody;
use crate::fallback::{FallbackBody, FallbackError};

pub(crate) enum Body {
    Whole(Option<Bytes>),
    Proxied(ProxiedBody),
    Other(FallbackBody),
}

/// The connection to the sandbox was closed, or the sandbox broke off: the client's connection must
/// break too, since an orderly end would mean that the response is complete.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the sandbox can be reached no longer")]
    Disconnected,
    #[error("the sandbox broke off its answer")]
    Upstream(#[from] hyper::Error),
    #[error("the answer broke off")]
    Other(#[source] FallbackError),
}

impl From<Infallible> for BodyError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Proxied(proxied) => Pin::new(proxied).poll_frame(cx),
            Self::Other(body) => Pin::new(body).poll_frame(cx).map_err(BodyError::Other),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Self::Proxied(proxied) => proxied.is_end_stream(),
            Self::Other(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Proxied(proxied) => proxied.size_hint(),
            Self::Other(body) => body.size_hint(),
        }
    }
}

/// A response without a body.
pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::Whole(None));
    *response.status_mut() = status;
    // JavaScript clients check this header before they read a body; HTTP/2 does not imply it.
    if status != StatusCode::NO_CONTENT {
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    response
}

pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    let text = serde_json::to_vec(value).expect("our own wire types are JSON");
    whole(status, "application/json", text)
}

pub(crate) fn text(status: StatusCode, text: &'static str) -> Response<Body> {
    whole(status, "text/plain; charset=utf-8", text)
}

pub(crate) fn whole(status: StatusCode, kind: &'static str, content: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::Whole(Some(content.into())));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_answer_has_a_content_length_unless_it_is_204() {
        let length = |status| empty(status).headers().get(header::CONTENT_LENGTH).cloned();
        assert_eq!(length(StatusCode::ACCEPTED), Some(HeaderValue::from_static("0")));
        assert_eq!(length(StatusCode::NO_CONTENT), None);
    }
}
