//! Shared HTTP code of all providers: client, streaming and error mapping.

use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use serde_json::Value;
use tokio::time::timeout;

use super::ModelError;
use super::sse::{Sse, SseEvent};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Until the response begins: long prompts are processed before the first token.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(300);
/// Between two chunks of a response. Providers send pings meanwhile.
const IDLE_TIMEOUT: Duration = Duration::from_secs(180);
/// Bytes of an error body that are read.
const MAX_ERROR_BYTES: usize = 64 * 1024;

pub(super) fn client() -> Result<Client, ModelError> {
    let built = Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .user_agent(concat!("sandbar/", env!("CARGO_PKG_VERSION")))
        // A redirect would send the API key to another host.
        .redirect(reqwest::redirect::Policy::none())
        .build();
    built.map_err(|error| ModelError::Refused(format!("no HTTP client could be made: {error}")))
}

/// Sends a request; a status other than success is an error.
pub(super) async fn send(request: RequestBuilder, body: String) -> Result<Response, ModelError> {
    let sent = request.header(CONTENT_TYPE, "application/json").body(body).send();
    let response = match timeout(FIRST_BYTE_TIMEOUT, sent).await {
        Err(_) => return Err(ModelError::Interrupted(format!("no answer within {} s", FIRST_BYTE_TIMEOUT.as_secs()))),
        Ok(Err(error)) => return Err(ModelError::Interrupted(reason(&error))),
        Ok(Ok(response)) => response,
    };
    if response.status().is_success() {
        return Ok(response);
    }
    let status = response.status();
    let retry_after = retry_after(response.headers());
    let body = error_body(response).await;
    let message = match error_message(&body) {
        Some(message) => format!("{message} (status {})", status.as_u16()),
        None => format!("status {}", status.as_u16()),
    };
    Err(failure(status, message, retry_after))
}

fn failure(status: StatusCode, message: String, retry_after: Option<Duration>) -> ModelError {
    match status.as_u16() {
        // 529 is Anthropic's "overloaded".
        408 | 409 | 425 | 429 | 500.. => ModelError::Busy { message, retry_after },
        413 => ModelError::TooLong(message),
        400 if is_too_long(&message) => ModelError::TooLong(message),
        _ => ModelError::Refused(message),
    }
}

/// Recognises a prompt that is too long by its message, since providers have no code for it.
fn is_too_long(message: &str) -> bool {
    let message = message.to_lowercase();
    [
        "prompt is too long",
        "context length",
        "context window",
        "context_length",
        "maximum context",
        "exceed context limit",
    ]
    .iter()
    .any(|words| message.contains(words))
}

/// Seconds or an HTTP date; Anthropic's and OpenAI's own headers use milliseconds.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    if let Some(millis) = text("retry-after-ms").and_then(|text| text.parse::<f64>().ok()) {
        return Duration::try_from_secs_f64(millis / 1000.0).ok();
    }
    let text = text(RETRY_AFTER.as_str())?;
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    Some(Duration::try_from(date.duration_since(Timestamp::now())).unwrap_or_default())
}

async fn error_body(response: Response) -> Vec<u8> {
    let mut body = Vec::new();
    let mut stream = response.bytes_stream();
    while let Ok(Some(Ok(chunk))) = timeout(CONNECT_TIMEOUT, stream.next()).await {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_ERROR_BYTES {
            break;
        }
    }
    body
}

/// The error message, which both families of providers put at the same place.
fn error_message(body: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(body).ok()?;
    value["error"]["message"]
        .as_str()
        .or_else(|| value["message"].as_str())
        .map(|text| text.chars().take(500).collect())
}

/// The reason of an error without its URL, which may contain secrets.
fn reason(error: &reqwest::Error) -> String {
    let mut text = if error.is_connect() { "cannot connect".to_owned() } else { "the connection failed".to_owned() };
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

/// Result of handling one event.
pub(super) enum Step {
    Next,
    Done,
}

/// Passes each event of a response to `take` until it reports the last one. A stream that ends
/// earlier is an error.
pub(super) async fn events(
    response: Response,
    mut take: impl FnMut(SseEvent) -> Result<Step, ModelError> + Send,
) -> Result<(), ModelError> {
    let mut sse = Sse::default();
    let mut stream = response.bytes_stream();
    loop {
        let chunk = match timeout(IDLE_TIMEOUT, stream.next()).await {
            Err(_) => return Err(ModelError::Interrupted(format!("silence for {} s", IDLE_TIMEOUT.as_secs()))),
            Ok(None) => return Err(ModelError::Interrupted("the stream ended too early".into())),
            Ok(Some(Err(error))) => return Err(ModelError::Interrupted(reason(&error))),
            Ok(Some(Ok(chunk))) => chunk,
        };
        let events = sse.feed(&chunk).map_err(|_| ModelError::Interrupted("an event without end".into()))?;
        for event in events {
            if let Step::Done = take(event)? {
                return Ok(());
            }
        }
    }
}

/// Maps an error event inside a stream by its kind.
pub(super) fn error_from_kind(kind: &str, message: &str) -> ModelError {
    let message = format!("{message} ({kind})");
    match kind {
        "overloaded_error" | "rate_limit_error" | "api_error" | "timeout_error" | "server_error" => {
            ModelError::Busy { message, retry_after: None }
        }
        "invalid_request_error" if is_too_long(&message) => ModelError::TooLong(message),
        _ => ModelError::Refused(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_parsed_in_every_form() {
        let of = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().expect("a header"));
            retry_after(&headers)
        };
        assert_eq!(of("retry-after", "7"), Some(Duration::from_secs(7)));
        assert_eq!(of("retry-after-ms", "250"), Some(Duration::from_millis(250)));
        assert_eq!(of("retry-after", "Thu, 01 Jan 1970 00:00:00 GMT"), Some(Duration::ZERO));
        assert_eq!(of("retry-after", "soon"), None);
        assert_eq!(of("retry-after", "-3"), None);
    }

    #[test]
    fn statuses_map_to_error_variants() {
        let of =
            |status: u16, message: &str| failure(StatusCode::from_u16(status).expect("a status"), message.into(), None);
        assert!(matches!(of(529, ""), ModelError::Busy { .. }) && matches!(of(429, ""), ModelError::Busy { .. }));
        assert!(matches!(of(400, "prompt is too long: 5 tokens"), ModelError::TooLong(_)));
        assert!(matches!(of(400, "bad"), ModelError::Refused(_)) && matches!(of(401, ""), ModelError::Refused(_)));
    }
}
