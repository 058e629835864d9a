//! Extractors of path, query and body, with errors as [`Failure`].

use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::failure::Failure;

/// The largest accepted body: a goal and fifty phases of maximal length.
pub(super) const BODY_BYTES: usize = 2 << 20;

/// A larger body is read up to this size before it is refused.
const MAX_DRAINED_BYTES: usize = 32 << 20;
/// For the whole body to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The path parameters. An invalid id is reported as not found.
pub(super) struct PathParams<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathParams<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let named = Path::<T>::from_request_parts(parts, state).await;
        named.map(|Path(value)| Self(value)).map_err(|_| Failure::not_found())
    }
}

/// The query parameters.
pub(super) struct QueryParams<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(value)) => Ok(Self(value)),
            Err(rejection) => {
                let text = rejection.body_text().replace("Failed to deserialize query string", "the query");
                Err(Failure::new(StatusCode::BAD_REQUEST, text))
            }
        }
    }
}

/// A JSON object as the body.
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, _: &S) -> Result<Self, Failure> {
        let is_json = is_json(request.headers());
        let body = read(request).await?;
        if !is_json {
            return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body must be `application/json`"));
        }
        parse(&body).map(Self)
    }
}

/// A JSON object, or no body.
pub(super) struct OptionalJsonBody<T>(pub(super) T);

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequest<S> for OptionalJsonBody<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, _: &S) -> Result<Self, Failure> {
        let is_json = is_json(request.headers());
        let body = read(request).await?;
        match (body.is_empty(), is_json) {
            (true, _) => Ok(Self(T::default())),
            (false, true) => parse(&body).map(Self),
            (false, false) => {
                Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body must be `application/json`"))
            }
        }
    }
}

/// Reads the body. A body that is too large is drained for a while and discarded, because a client
/// that is still sending does not read the response.
async fn read(request: Request) -> Result<Bytes, Failure> {
    let reading = async {
        let mut pieces = request.into_body().into_data_stream();
        let (mut body, mut read) = (BytesMut::new(), 0);
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|_| Failure::new(StatusCode::BAD_REQUEST, "the body broke off"))?;
            read += piece.len();
            if read <= BODY_BYTES {
                body.extend_from_slice(&piece);
            } else if read > MAX_DRAINED_BYTES {
                break;
            }
        }
        if read > BODY_BYTES {
            let text = format!("the body is longer than {BODY_BYTES} bytes");
            return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, text));
        }
        Ok(body.freeze())
    };
    let late = |_| Failure::new(StatusCode::REQUEST_TIMEOUT, "the body did not come in time");
    timeout(BODY_TIMEOUT, reading).await.map_err(late)?
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    let fields = match serde_json::from_slice::<Map<String, Value>>(body) {
        Ok(fields) => fields,
        Err(error) if error.classify() == Category::Data => return Err(Failure::invalid("body", error)),
        Err(error) => return Err(Failure::new(StatusCode::BAD_REQUEST, format!("the body is no JSON: {error}"))),
    };
    serde_path_to_error::deserialize(Value::Object(fields)).map_err(|error| {
        let field = error.path().to_string();
        Failure::invalid(if field == "." { "body" } else { &field }, error.inner())
    })
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}
