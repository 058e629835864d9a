//! What all providers share: one HTTP client, one way to stream, and statuses in our words.

use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use serde_json::Value;
use tokio::time::timeout;

use super::ModelError;
use super::sse::{Sse, SseEvent};

const CONNECT: Duration = Duration::from_secs(20);
/// Until the answer begins: long prompts are read before the first token comes.
const FIRST_BYTE: Duration = Duration::from_secs(300);
/// Between two pieces of an answer. Providers send pings meanwhile.
const SILENCE: Duration = Duration::from_secs(180);
/// Of an error's body; what follows says nothing more.
const LONGEST_ERROR: usize = 64 * 1024;

pub(super) fn client() -> Result<Client, ModelError> {
    let built = Client::builder()
        .connect_timeout(CONNECT)
        .user_agent(concat!("sandbar/", env!("CARGO_PKG_VERSION")))
        // A redirect would carry the key elsewhere.
        .redirect(reqwest::redirect::Policy::none())
        .build();
    built.map_err(|error| ModelError::Refused(format!("no HTTP client could be made: {error}")))
}

/// Sends a request; an answer other than success is an error.
pub(super) async fn send(request: RequestBuilder, body: String) -> Result<Response, ModelError> {
    let sent = request.header(CONTENT_TYPE, "application/json").body(body).send();
    let response = match timeout(FIRST_BYTE, sent).await {
        Err(_) => return Err(ModelError::Interrupted(format!("no answer within {} s", FIRST_BYTE.as_secs()))),
        Ok(Err(error)) => return Err(ModelError::Interrupted(reason(&error))),
        Ok(Ok(response)) => response,
    };
    if response.status().is_success() {
        return Ok(response);
    }
    let status = response.status();
    let retry_after = retry_after(response.headers());
    let body = error_body(response).await;
    let message = match message_of(&body) {
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
        400 if too_long(&message) => ModelError::TooLong(message),
        _ => ModelError::Refused(message),
    }
}

/// Providers have no code for it.
fn too_long(message: &str) -> bool {
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

/// Seconds, or the date until which to wait; Anthropic's and OpenAI's own headers have milliseconds.
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
    while let Ok(Some(Ok(chunk))) = timeout(CONNECT, stream.next()).await {
        body.extend_from_slice(&chunk);
        if body.len() > LONGEST_ERROR {
            break;
        }
    }
    body
}

/// Both families of providers put it at the same place.
fn message_of(body: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(body).ok()?;
    value["error"]["message"]
        .as_str()
        .or_else(|| value["message"].as_str())
        .map(|text| text.chars().take(500).collect())
}

/// Without the URL, which may have more in it than people should see.
fn reason(error: &reqwest::Error) -> String {
    let mut text = if error.is_connect() { "cannot connect".to_owned() } else { "the connection failed".to_owned() };
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

/// What a handler makes of one event.
pub(super) enum Step {
    Next,
    Done,
}

/// Hands over each event of an answer until `take` says that it was the last; what ends earlier was interrupted.
pub(super) async fn events(
    response: Response,
    mut take: impl FnMut(SseEvent) -> Result<Step, ModelError> + Send,
) -> Result<(), ModelError> {
    let mut sse = Sse::default();
    let mut stream = response.bytes_stream();
    loop {
        let chunk = match timeout(SILENCE, stream.next()).await {
            Err(_) => return Err(ModelError::Interrupted(format!("silence for {} s", SILENCE.as_secs()))),
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

/// An error that comes inside a stream, by its name.
pub(super) fn failure_named(kind: &str, message: &str) -> ModelError {
    let message = format!("{message} ({kind})");
    match kind {
        "overloaded_error" | "rate_limit_error" | "api_error" | "timeout_error" | "server_error" => {
            ModelError::Busy { message, retry_after: None }
        }
        "invalid_request_error" if too_long(&message) => ModelError::TooLong(message),
        _ => ModelError::Refused(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_wait_for_is_read_in_every_form() {
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
    fn statuses_say_what_to_do() {
        let of =
            |status: u16, message: &str| failure(StatusCode::from_u16(status).expect("a status"), message.into(), None);
        assert!(matches!(of(529, ""), ModelError::Busy { .. }) && matches!(of(429, ""), ModelError::Busy { .. }));
        assert!(matches!(of(400, "prompt is too long: 5 tokens"), ModelError::TooLong(_)));
        assert!(matches!(of(400, "bad"), ModelError::Refused(_)) && matches!(of(401, ""), ModelError::Refused(_)));
    }
}
