//! JSON bodies of calls. They may be chunked, and empty if all fields are optional; the failure for
//! an invalid one names the field.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::failure::Failure;
use crate::content::Content;

/// Far above any sensible body; environment variables are the largest part.
const MOST_BYTES: usize = 8 << 20;
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Reads the complete body.
pub(super) async fn read(request: Request<Content>) -> Result<Bytes, Failure> {
    let reading = Limited::new(request.into_body(), MOST_BYTES).collect();
    match tokio::time::timeout(BODY_TIMEOUT, reading).await {
        Err(_) => Err(Failure::new(StatusCode::REQUEST_TIMEOUT, "the request body did not arrive in time")),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let message = format!("the request body is larger than {MOST_BYTES} bytes");
            Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, message))
        }
        Ok(Err(_)) => Err(Failure::bad_request("the request body could not be read")),
    }
}

/// Reads the complete body as a `T`; an empty one counts as `{}`.
pub(super) async fn read_json<T: DeserializeOwned>(request: Request<Content>) -> Result<T, Failure> {
    parse(&read(request).await?)
}

pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    let fields = match body.trim_ascii() {
        [] => Map::new(),
        text => match serde_json::from_slice(text) {
            Ok(Value::Object(fields)) => fields,
            Ok(_) => return Err(Failure::bad_request("the request body must be a JSON object")),
            Err(error) => return Err(Failure::bad_request(format!("the request body is not JSON: {error}"))),
        },
    };
    T::deserialize(&Value::Object(fields.clone())).map_err(|error| {
        let at_fault = fields.iter().find_map(|(name, value)| {
            let alone = Map::from_iter([(name.clone(), value.clone())]);
            let error = T::deserialize(&Value::Object(alone)).err()?;
            // A required field is missing whenever another field is parsed alone.
            (!error.to_string().starts_with("missing field")).then_some((name, error))
        });
        Failure::bad_request(match at_fault {
            Some((name, error)) => format!("field '{name}': {error}"),
            None => error.to_string(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::rest::{NewSandbox, Pause, Timeout};

    #[track_caller]
    fn refused<T: DeserializeOwned>(body: &str, expected: &str) {
        let failure = parse::<T>(body.as_bytes()).err().expect("the body is wrong");
        assert!(format!("{failure:?}").contains(expected), "{failure:?}");
    }

    #[test]
    fn the_field_at_fault_is_named() {
        refused::<NewSandbox>(r#"{"templateID":"base","timeout":"soon"}"#, "field 'timeout': invalid type: string");
        refused::<NewSandbox>(r#"{"metadata":{"a":1}}"#, "field 'metadata'");
        refused::<Timeout>("{}", "missing field `timeout`");
        refused::<Timeout>(r#"{"timeout":1.5}"#, "field 'timeout'");
        refused::<Pause>("[]", "must be a JSON object");
        refused::<Pause>("{", "not JSON");
    }

    #[test]
    fn an_empty_body_is_an_empty_object() {
        assert!(parse::<Pause>(b"").is_ok_and(|pause| pause.memory.is_none()));
        assert!(parse::<Pause>(b" {} ").is_ok());
    }
}
