//! Responses, and errors that become responses.

use std::convert::Infallible;
use std::io;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use protocol::envd::ErrorBody;
use serde::Serialize;

pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;
pub(crate) type Reply = Response<Body>;

/// An error response: the status and message for the client.
#[derive(Debug)]
pub(crate) struct HttpError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl HttpError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    pub(crate) fn reply(&self) -> Reply {
        json(self.status, &ErrorBody { code: self.status.as_u16(), message: self.message.clone() })
    }
}

pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Reply {
    let text = serde_json::to_vec(body).expect("wire types have string keys and no failing serializer");
    let mut reply = bytes(text);
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json; charset=utf-8"));
    reply
}

pub(crate) fn bytes(body: impl Into<Bytes>) -> Reply {
    Response::new(Full::new(body.into()).map_err(never).boxed_unsync())
}

pub(crate) fn empty(status: StatusCode) -> Reply {
    let mut reply = bytes(Bytes::new());
    *reply.status_mut() = status;
    reply
}

pub(super) fn never(error: Infallible) -> io::Error {
    match error {}
}
