//! A terminal over a WebSocket: binary messages are bytes in both directions, text messages from
//! the page are JSON commands.

use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade};
use axum::response::{IntoResponse, Response};
use http::header::UPGRADE;
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use serde::Deserialize;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::Shared;
use super::auth::{self, Caller, Proof};
use super::failure::Failure;
use super::input::{PathParams, QueryParams};
use super::requests::TerminalQuery;
use crate::{JobId, Terminal};

/// Columns and rows when the page gives none.
const DEFAULT_SIZE: (u16, u16) = (80, 24);
const MAX_SIZE: u16 = 1000;
/// The largest message, for pasted text.
const MESSAGE_BYTES: usize = 1 << 20;
/// Browsers are pinged at this interval, and disconnected after three intervals of silence.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const SILENCE_TIMEOUT: Duration = Duration::from_secs(90);
/// For a browser to receive the shell's output.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// For a browser to receive the close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Closes a terminal whose session or token was revoked, with the protocol's code for a policy
/// violation.
const SIGNED_OUT: Option<CloseFrame> =
    Some(CloseFrame { code: 1008, reason: Utf8Bytes::from_static("signed out: the session or token was revoked") });
/// `Retry-After` when a user has too many open streams.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// A command of the page.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Command {
    Resize { cols: u16, rows: u16 },
}

pub(super) async fn open(
    State(app): State<Shared>,
    caller: Caller,
    PathParams(job): PathParams<JobId>,
    QueryParams(TerminalQuery { cols, rows }): QueryParams<TerminalQuery>,
    uri: Uri,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Failure> {
    // Any page can open a WebSocket to here, and the browser attaches our cookie.
    if caller.proof == Proof::Cookie && !auth::names_own_origin(&uri, &headers) {
        return Err(Failure::foreign("the request comes from another origin"));
    }
    let (cols, rows) = (size(cols, DEFAULT_SIZE.0)?, size(rows, DEFAULT_SIZE.1)?);
    let Ok(upgrade) = upgrade else {
        // A plain request also receives 404 for an unknown job.
        app.studio.status(&caller.user, &job).await?;
        let mut refused = Failure::new(StatusCode::UPGRADE_REQUIRED, "only a WebSocket is served here").into_response();
        refused.headers_mut().insert(UPGRADE, HeaderValue::from_static("websocket"));
        return Ok(refused);
    };
    let permit = app.limiter.acquire_stream(&caller.user.id).ok_or_else(|| Failure::too_many(RETRY_AFTER))?;
    let guard = app.studio.guard(&caller.credential);
    let terminal = app.studio.terminal(&caller.user, &job, cols, rows).await?;
    let stop = app.stop.clone();
    Ok(upgrade.max_message_size(MESSAGE_BYTES).on_upgrade(move |mut socket| async move {
        let (revoked, _held) = (guard.revoked(), (permit, guard));
        // Also while the browser reads no output: dropping the terminal kills its shell.
        let _ = revoked.run_until_cancelled(join(&mut socket, terminal, stop)).await;
        let code = if revoked.is_cancelled() { SIGNED_OUT } else { None };
        // The connection may be closed already; then the close frame is not sent.
        let _ = timeout(CLOSE_TIMEOUT, socket.send(Message::Close(code))).await;
    }))
}

fn size(asked: Option<u16>, default: u16) -> Result<u16, Failure> {
    match asked.unwrap_or(default) {
        size @ 1..=MAX_SIZE => Ok(size),
        _ => Err(Failure::new(StatusCode::BAD_REQUEST, format!("a terminal has 1 to {MAX_SIZE} columns and rows"))),
    }
}

/// Copies between the socket and the terminal until either ends. Dropping the terminal kills its
/// shell.
async fn join(socket: &mut WebSocket, mut terminal: Terminal, stop: CancellationToken) {
    let mut ping = interval(PING_INTERVAL);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard = Instant::now();
    loop {
        let message = tokio::select! {
            output = terminal.output.next() => match output {
                Some(bytes) => Message::Binary(bytes),
                None => break,
            },
            received = socket.recv() => {
                heard = Instant::now();
                let Some(Ok(message)) = received else { break };
                if take(&terminal, message).await {
                    continue;
                }
                break;
            }
            _ = ping.tick() => {
                if heard.elapsed() > SILENCE_TIMEOUT {
                    break;
                }
                Message::Ping(bytes::Bytes::new())
            }
            () = stop.cancelled() => break,
        };
        if !matches!(timeout(SEND_TIMEOUT, socket.send(message)).await, Ok(Ok(()))) {
            break;
        }
    }
}

/// Handles a message. False when the socket is to be closed.
async fn take(terminal: &Terminal, message: Message) -> bool {
    let taken = match message {
        Message::Binary(bytes) => terminal.input.send(bytes).await,
        Message::Text(text) => match serde_json::from_str(&text) {
            Ok(Command::Resize { cols, rows }) => {
                terminal.input.resize(cols.clamp(1, MAX_SIZE), rows.clamp(1, MAX_SIZE)).await
            }
            Err(error) => {
                debug!(%error, "ignored an unknown message of a terminal's page");
                Ok(())
            }
        },
        Message::Ping(_) | Message::Pong(_) => Ok(()),
        Message::Close(_) => return false,
    };
    taken.inspect_err(|error| debug!(%error, "cannot write to a terminal; closing it")).is_ok()
}
