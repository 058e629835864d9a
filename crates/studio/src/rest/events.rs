//! A job's timeline as server-sent events: recorded events, then new ones, with heartbeats in
//! between.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::Shared;
use super::auth::Caller;
use super::failure::Failure;
use super::input::{PathParams, QueryParams};
use super::requests::EventsQuery;
use crate::{JobId, TimelineEvent};

pub(super) const LAST_EVENT_ID: &str = "last-event-id";
/// `Retry-After` when a user has too many open streams.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Tells proxies not to buffer the stream.
const UNBUFFERED: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));

pub(super) async fn watch(
    State(app): State<Shared>,
    caller: Caller,
    PathParams(job): PathParams<JobId>,
    QueryParams(EventsQuery { after }): QueryParams<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let after = last_seen(&headers)?.or(after);
    let permit = app.limiter.acquire_stream(&caller.user.id).ok_or_else(|| Failure::too_many(RETRY_AFTER))?;
    let guard = app.studio.guard(&caller.credential);
    let events = app.studio.events(&caller.user, &job, after).await?;
    let (stop, revoked) = (app.stop.clone(), guard.revoked());
    let end = async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = revoked.cancelled() => {}
        }
    };
    let messages = events.take_until(Box::pin(end)).map(move |event| {
        let _held = (&permit, &guard);
        Ok::<_, Infallible>(message(&event))
    });
    let stream = Sse::new(messages).keep_alive(KeepAlive::new().interval(app.heartbeat).text("heartbeat"));
    Ok(([UNBUFFERED], stream).into_response())
}

/// The `Last-Event-ID` of a reconnecting browser, which takes precedence over the query.
fn last_seen(headers: &HeaderMap) -> Result<Option<u64>, Failure> {
    let Some(value) = headers.get(LAST_EVENT_ID).filter(|value| !value.is_empty()) else { return Ok(None) };
    let seen = value.to_str().ok().and_then(|text| text.parse().ok());
    seen.map(Some).ok_or_else(|| Failure::new(StatusCode::BAD_REQUEST, "Last-Event-ID is no number of an event"))
}

fn message(event: &Arc<TimelineEvent>) -> Event {
    let text = serde_json::to_string(event).expect("texts, numbers and JSON values are JSON");
    match event.seq {
        Some(seq) => Event::default().id(seq.to_string()).data(text),
        None => Event::default().data(text),
    }
}
