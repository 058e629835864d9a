//! Chrome DevTools Protocol over `--remote-debugging-pipe`: JSON messages that end with a zero
//! byte.
//!
//! A pipe rather than a library over a WebSocket: it needs no port in the browser's namespace, ends
//! with the browser, and we use two dozen of the protocol's thousand methods. The usual library's
//! generated code takes 73 seconds to compile and accepts only a WebSocket URL.
//!
//! Events are not queued. The reader passes each to its session's [`Sink`] at once, which folds it
//! into bounded state: a page that logs without end costs time, not memory.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, trace, warn};

/// Images are far smaller. Console output of a page can be larger, and is dropped.
const MAX_MESSAGE_BYTES: u64 = 32 << 20;
/// Commands that wait to be written. Bounds the memory used while a browser does not read.
const COMMAND_QUEUE: usize = 64;

/// Handles the events of one session: method and parameters.
pub(crate) type Sink = Arc<dyn Fn(&str, &Value) + Send + Sync>;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CdpError {
    #[error("the browser has ended")]
    Ended,
    #[error("{method} was not answered within {within:?}")]
    TimedOut { method: &'static str, within: Duration },
    #[error("{method}: {message}")]
    Refused { method: &'static str, message: String },
}

/// This process's end of the pipe. Clones share it; its tasks end with the last clone, or with the
/// browser.
#[derive(Clone)]
pub(crate) struct Connection {
    shared: Arc<Shared>,
    commands: mpsc::Sender<Vec<u8>>,
    _tasks: Arc<[AbortOnDropHandle<()>; 2]>,
}

struct Shared {
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Result<Value, String>>>>,
    sinks: Mutex<HashMap<String, Sink>>,
    /// Cancelled when the pipe has ended.
    ended: CancellationToken,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Message {
    id: Option<u64>,
    session_id: Option<String>,
    method: Option<String>,
    #[serde(default)]
    params: Value,
    #[serde(default)]
    result: Value,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    message: String,
}

impl Connection {
    /// Needs a tokio runtime.
    pub(crate) fn new(commands: OwnedFd, responses: OwnedFd) -> std::io::Result<Self> {
        let writer = pipe::Sender::from_owned_fd(commands)?;
        let reader = pipe::Receiver::from_owned_fd(responses)?;
        let shared = Arc::new(Shared {
            next: AtomicU64::new(1),
            waiting: Mutex::default(),
            sinks: Mutex::default(),
            ended: CancellationToken::new(),
        });
        let (sender, queue) = mpsc::channel(COMMAND_QUEUE);
        let tasks = [
            AbortOnDropHandle::new(tokio::spawn(write(writer, queue, shared.ended.clone()))),
            AbortOnDropHandle::new(tokio::spawn(read(reader, Arc::clone(&shared)))),
        ];
        Ok(Self { shared, commands: sender, _tasks: Arc::new(tasks) })
    }

    /// Resolves when the browser has closed the pipe.
    pub(crate) async fn wait_for_end(&self) {
        self.shared.ended.cancelled().await;
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.shared.ended.is_cancelled()
    }

    /// Sends a command and waits for its response; `session` is that of a page, or `None` for the
    /// browser itself.
    pub(crate) async fn call(
        &self,
        session: Option<&str>,
        method: &'static str,
        params: Value,
        within: Duration,
    ) -> Result<Value, CdpError> {
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.shared.waiting.lock().insert(id, sender);
        let _entry = Waiting { shared: &self.shared, id };
        let exchange = async {
            self.commands.send(encode(id, session, method, &params)).await.map_err(|_| CdpError::Ended)?;
            match answer.await {
                Ok(Ok(result)) => Ok(result),
                Ok(Err(message)) => Err(CdpError::Refused { method, message }),
                Err(_) => Err(CdpError::Ended),
            }
        };
        let started = Instant::now();
        let done = tokio::select! {
            done = tokio::time::timeout(within, exchange) => {
                done.unwrap_or(Err(CdpError::TimedOut { method, within }))
            }
            () = self.wait_for_end() => Err(CdpError::Ended),
        };
        trace!(method, took = ?started.elapsed(), ok = done.is_ok(), "CDP command");
        done
    }

    /// A sender for sinks. It does not keep the connection alive.
    pub(crate) fn command_sender(&self, session: &str) -> CommandSender {
        CommandSender {
            commands: self.commands.downgrade(),
            shared: Arc::downgrade(&self.shared),
            session: session.to_owned(),
        }
    }

    /// Passes the events of `session` to `sink` until [`forget`](Self::forget).
    pub(crate) fn listen(&self, session: &str, sink: Sink) {
        self.shared.sinks.lock().insert(session.to_owned(), sink);
    }

    pub(crate) fn forget(&self, session: &str) {
        self.shared.sinks.lock().remove(session);
    }
}

/// Sends commands without waiting for their responses.
pub(crate) struct CommandSender {
    commands: mpsc::WeakSender<Vec<u8>>,
    shared: std::sync::Weak<Shared>,
    session: String,
}

impl CommandSender {
    pub(crate) fn send(&self, method: &'static str, params: &Value) {
        let (Some(commands), Some(shared)) = (self.commands.upgrade(), self.shared.upgrade()) else { return };
        let id = shared.next.fetch_add(1, Ordering::Relaxed);
        if commands.try_send(encode(id, Some(&self.session), method, params)).is_err() {
            debug!(method, "CDP command was not sent: the queue is full");
        }
    }
}

/// Removes the pending entry when the caller stops waiting, for whatever reason.
struct Waiting<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.shared.waiting.lock().remove(&self.id);
    }
}

fn encode(id: u64, session: Option<&str>, method: &str, params: &Value) -> Vec<u8> {
    let mut message = json!({ "id": id, "method": method, "params": params });
    if let Some(session) = session {
        message["sessionId"] = session.into();
    }
    let mut bytes = message.to_string().into_bytes();
    bytes.push(0);
    bytes
}

async fn write(mut writer: pipe::Sender, mut queue: mpsc::Receiver<Vec<u8>>, ended: CancellationToken) {
    while let Some(Some(bytes)) = ended.run_until_cancelled(queue.recv()).await {
        if let Some(Err(error)) = ended.run_until_cancelled(writer.write_all(&bytes)).await {
            debug!(%error, "the browser takes no more commands");
            break;
        }
    }
}

async fn read(reader: pipe::Receiver, shared: Arc<Shared>) {
    let mut reader = BufReader::with_capacity(64 << 10, reader);
    let mut message = Vec::new();
    loop {
        message.clear();
        match (&mut reader).take(MAX_MESSAGE_BYTES).read_until(0, &mut message).await {
            Ok(0) | Err(_) => break,
            Ok(_) if message.last() == Some(&0) => {
                message.pop();
                shared.take(&message);
            }
            // The pipe ended inside a message.
            Ok(length) if (length as u64) < MAX_MESSAGE_BYTES => break,
            Ok(_) => {
                warn!("a message of the browser is too long and was dropped");
                if !skip_message(&mut reader).await {
                    break;
                }
            }
        }
        // A long message must not keep its memory forever.
        message.shrink_to(1 << 20);
    }
    shared.ended.cancel();
    shared.waiting.lock().clear();
    shared.sinks.lock().clear();
}

/// Skips the rest of the current message; false if the stream ends first.
async fn skip_message(reader: &mut BufReader<pipe::Receiver>) -> bool {
    loop {
        let Ok(buffer) = reader.fill_buf().await else { return false };
        if buffer.is_empty() {
            return false;
        }
        let end = buffer.iter().position(|byte| *byte == 0);
        let used = end.map_or(buffer.len(), |end| end + 1);
        reader.consume(used);
        if end.is_some() {
            return true;
        }
    }
}

impl Shared {
    fn take(&self, bytes: &[u8]) {
        let message: Message = match serde_json::from_slice(bytes) {
            Ok(message) => message,
            // One unreadable message does not end the connection.
            Err(error) => return debug!(%error, "browser sent an invalid CDP message"),
        };
        match (message.id, message.method, message.session_id) {
            (Some(id), ..) => {
                let waiting = self.waiting.lock().remove(&id);
                if let Some(sender) = waiting {
                    // The caller may have stopped waiting.
                    let _ = sender.send(message.error.map_or(Ok(message.result), |error| Err(error.message)));
                }
            }
            (None, Some(method), Some(session)) => {
                let sink = self.sinks.lock().get(&session).cloned();
                if let Some(sink) = sink {
                    sink(&method, &message.params);
                }
            }
            _ => {}
        }
    }
}
