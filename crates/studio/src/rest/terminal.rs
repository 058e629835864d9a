//! A terminal over a WebSocket: binary messages are bytes both ways, text messages from the page are JSON commands.

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
use super::input::{Asked, At};
use super::requests::TerminalQuery;
use crate::{JobId, Terminal};

/// As terminals usually begin.
const SIZE: (u16, u16) = (80, 24);
const LARGEST: u16 = 1000;
/// What somebody pastes.
const MESSAGE_BYTES: usize = 1 << 20;
/// How often a browser is asked whether it is still there; one that says nothing for three times that is not.
const PING: Duration = Duration::from_secs(30);
const SILENCE: Duration = Duration::from_secs(90);
/// For a browser to take what the shell says.
const SEND: Duration = Duration::from_secs(30);
/// For a browser to take the last message.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Why a terminal is closed whose session or token was revoked: a violation of policy, says the protocol.
const SIGNED_OUT: Option<CloseFrame> =
    Some(CloseFrame { code: 1008, reason: Utf8Bytes::from_static("signed out: the session or token was revoked") });
/// When a terminal cannot be opened because too many are.
const LATER: Duration = Duration::from_secs(5);

/// What a page says beside what is typed.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Command {
    Resize { cols: u16, rows: u16 },
}

pub(super) async fn open(
    State(app): State<Shared>,
    caller: Caller,
    At(job): At<JobId>,
    Asked(TerminalQuery { cols, rows }): Asked<TerminalQuery>,
    uri: Uri,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Failure> {
    // A page of any origin may open a WebSocket to here, and the browser sends our cookie along.
    if caller.proof == Proof::Cookie && !auth::names_own_origin(&uri, &headers) {
        return Err(Failure::foreign("the request comes from another origin"));
    }
    let (cols, rows) = (size(cols, SIZE.0)?, size(rows, SIZE.1)?);
    let Ok(upgrade) = upgrade else {
        // Whether there is such a job is told to others, too.
        app.studio.status(&caller.user, &job).await?;
        let mut refused = Failure::new(StatusCode::UPGRADE_REQUIRED, "only a WebSocket is served here").into_response();
        refused.headers_mut().insert(UPGRADE, HeaderValue::from_static("websocket"));
        return Ok(refused);
    };
    let place = app.gate.stream(&caller.user.id).ok_or_else(|| Failure::too_many(LATER))?;
    let guard = app.studio.guard(&caller.credential);
    let terminal = app.studio.terminal(&caller.user, &job, cols, rows).await?;
    let stop = app.stop.clone();
    Ok(upgrade.max_message_size(MESSAGE_BYTES).on_upgrade(move |mut socket| async move {
        let (revoked, _held) = (guard.revoked(), (place, guard));
        // Also while the browser takes no output: dropping the terminal ends its shell.
        let _ = revoked.run_until_cancelled(join(&mut socket, terminal, stop)).await;
        let code = if revoked.is_cancelled() { SIGNED_OUT } else { None };
        // The connection may be closed already; then the close frame is not sent.
        let _ = timeout(CLOSE_TIMEOUT, socket.send(Message::Close(code))).await;
    }))
}

fn size(asked: Option<u16>, default: u16) -> Result<u16, Failure> {
    match asked.unwrap_or(default) {
        size @ 1..=LARGEST => Ok(size),
        _ => Err(Failure::new(StatusCode::BAD_REQUEST, format!("a terminal has 1 to {LARGEST} columns and rows"))),
    }
}

/// Joins the two until either ends. Dropping the terminal ends its shell.
async fn join(socket: &mut WebSocket, mut terminal: Terminal, stop: CancellationToken) {
    let mut ping = interval(PING);
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
                if heard.elapsed() > SILENCE {
                    break;
                }
                Message::Ping(bytes::Bytes::new())
            }
            () = stop.cancelled() => break,
        };
        if !matches!(timeout(SEND, socket.send(message)).await, Ok(Ok(()))) {
            break;
        }
    }
}

/// Whether to go on.
async fn take(terminal: &Terminal, message: Message) -> bool {
    let taken = match message {
        Message::Binary(bytes) => terminal.input.send(bytes).await,
        Message::Text(text) => match serde_json::from_str(&text) {
            Ok(Command::Resize { cols, rows }) => {
                terminal.input.resize(cols.clamp(1, LARGEST), rows.clamp(1, LARGEST)).await
            }
            Err(error) => {
                debug!(%error, "a terminal's page said something unknown");
                Ok(())
            }
        },
        Message::Ping(_) | Message::Pong(_) => Ok(()),
        Message::Close(_) => return false,
    };
    taken.inspect_err(|error| debug!(%error, "a terminal took no more")).is_ok()
}
