//! Control routes for the host only: settings, the lease, the log.

use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use protocol::envd::Init;
use protocol::guest::{ENVD_VERSION, INIT_PATH, LEASE_PATH, LOG_PATH, Lease};
use protocol::headers;
use serde::de::DeserializeOwned;

use super::{HttpError, QueryString, Reply, empty, json, no_route};
use crate::lease::LeaseEnd;
use crate::state::{Guest, WrongToken};

/// Limit of a body; environment variables are the largest.
const MAX_BODY_BYTES: usize = 16 << 20;

pub(super) async fn handle(guest: &Guest, request: Request<Incoming>) -> Result<Reply, HttpError> {
    match (request.method(), request.uri().path()) {
        (&Method::POST, INIT_PATH) => {
            let init = read::<Init>(request).await?.unwrap_or_default();
            guest
                .init(init)
                .map_err(|WrongToken| HttpError::unauthorized("the access token does not match the one in force"))?;
            let mut reply = empty(StatusCode::NO_CONTENT);
            reply.headers_mut().insert(headers::ENVD_VERSION, HeaderValue::from_static(ENVD_VERSION));
            Ok(reply)
        }
        (&Method::PUT, LEASE_PATH) => {
            let lease = read::<Lease>(request).await?.ok_or_else(|| HttpError::bad_request("a lease is required"))?;
            guest.lease.send_replace(LeaseEnd::from(lease));
            Ok(empty(StatusCode::NO_CONTENT))
        }
        (&Method::GET, LOG_PATH) => {
            let after = QueryString::from_uri(request.uri()).non_empty("after").map_or(Ok(0), str::parse);
            let after = after.map_err(|_| HttpError::bad_request("'after' is a number"))?;
            Ok(json(StatusCode::OK, &guest.log.after(after)))
        }
        (_, path) => Err(no_route(path)),
    }
}

/// Parses the body; [`None`] when it is empty.
pub(crate) async fn read<T: DeserializeOwned>(request: Request<Incoming>) -> Result<Option<T>, HttpError> {
    let body = Limited::new(request.into_body(), MAX_BODY_BYTES).collect().await;
    let body = body.map_err(|error| HttpError::bad_request(format!("cannot read the body: {error}")))?.to_bytes();
    if body.is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(&body).map(Some).map_err(|error| HttpError::bad_request(format!("not understood: {error}")))
}
