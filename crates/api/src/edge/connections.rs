//! Connections to sandboxes. Those to guests are pooled, since every command is a request; those to
//! other ports are opened per request, since the programs that listen there may close them at any
//! time.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use node::{RunningSandbox, SandboxId};
use parking_lot::Mutex;
use protocol::guest::{ENVD_PORT, INTERPRETER_PORT, INTERPRETER_PREFIX};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Route;
use super::early_response_io::EarlyResponseIo;
use super::secured::TlsDialer;
use crate::content::Content;
use crate::routing::Target;
use crate::server::BUFFER_BYTES;

/// Most idle connections per sandbox.
const MOST_IDLE: usize = 8;
/// Both ends are on this machine.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) type Sender = SendRequest<Content>;

/// Idle connections to guests, by sandbox.
#[derive(Default)]
pub(super) struct Connections {
    idle: Mutex<HashMap<SandboxId, Arc<IdleConnections>>>,
    tls_dialer: TlsDialer,
}

/// Why no connection was opened.
pub(super) enum OpenError {
    Closed(io::Error),
    NotSecured(io::Error),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        Self::Closed(error)
    }
}

/// Idle connections to the guest of one run of a sandbox, from a start or resume to the next pause
/// or end.
pub(super) struct IdleConnections {
    live: Weak<RunningSandbox>,
    senders: Mutex<Vec<Sender>>,
}

/// A connection in use.
pub(super) struct Connection {
    pub sender: Sender,
    /// The pool that it returns to.
    pub pool: Option<Arc<IdleConnections>>,
    /// Whether it was used before and may have been closed meanwhile.
    pub used: bool,
    /// Prefix of the path if the guest serves the port.
    pub prefix: &'static str,
}

impl Connections {
    /// Returns an idle connection to the guest, if there is one.
    pub(super) fn reuse(&self, live: &Arc<RunningSandbox>, target: &Target) -> Option<Connection> {
        if target.port != ENVD_PORT {
            return None;
        }
        let pool = self.pool(live, target);
        let mut senders = pool.senders.lock();
        while let Some(sender) = senders.pop() {
            if sender.is_ready() {
                drop(senders);
                return Some(Connection { sender, pool: Some(pool), used: true, prefix: "" });
            }
        }
        None
    }

    /// Opens a connection to the port.
    pub(super) async fn open(
        &self,
        route @ Route { live, secured, .. }: &Route,
        target: &Target,
        tasks: &TaskTracker,
        end: &CancellationToken,
    ) -> Result<Connection, OpenError> {
        let to_guest = async {
            let stream = UnixStream::connect(live.machine.guest_socket()).await?;
            handshake(stream, live, tasks, end).await
        };
        let opening = async {
            if target.port == ENVD_PORT {
                return Ok::<_, OpenError>((to_guest.await?, ""));
            }
            let dialled = match route.take_dialled() {
                Some(stream) => Ok(stream),
                None => live.machine.dial(target.port).await,
            };
            match dialled {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    let stream = if *secured {
                        Either::Right(self.tls_dialer.connect(stream).await.map_err(OpenError::NotSecured)?)
                    } else {
                        Either::Left(stream)
                    };
                    Ok((handshake(stream, live, tasks, end).await?, ""))
                }
                // The sandbox's own interpreter comes first; without one the guest serves the port.
                Err(error) if target.port == INTERPRETER_PORT && error.kind() == io::ErrorKind::ConnectionRefused => {
                    Ok((to_guest.await?, INTERPRETER_PREFIX))
                }
                Err(error) => Err(error.into()),
            }
        };
        let (sender, prefix) = tokio::time::timeout(DIAL_TIMEOUT, opening).await.map_err(io::Error::from)??;
        let pool = (target.port == ENVD_PORT).then(|| self.pool(live, target));
        Ok(Connection { sender, pool, used: false, prefix })
    }

    fn pool(&self, live: &Arc<RunningSandbox>, target: &Target) -> Arc<IdleConnections> {
        let mut idle = self.idle.lock();
        if let Some(pool) = idle.get(&target.id)
            && std::ptr::eq(pool.live.as_ptr(), Arc::as_ptr(live))
        {
            return Arc::clone(pool);
        }
        // Also drops the pools of sandboxes that have ended.
        idle.retain(|_, pool| pool.live.upgrade().is_some_and(|live| !live.disconnect.is_cancelled()));
        let pool = Arc::new(IdleConnections { live: Arc::downgrade(live), senders: Mutex::default() });
        idle.insert(target.id.clone(), Arc::clone(&pool));
        pool
    }
}

impl IdleConnections {
    /// Returns a connection whose response has been read to its end.
    pub(super) fn put_back(&self, sender: Sender) {
        let mut senders = self.senders.lock();
        if senders.len() < MOST_IDLE && !sender.is_closed() {
            senders.push(sender);
        }
    }
}

async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    live: &Arc<RunningSandbox>,
    tasks: &TaskTracker,
    end: &CancellationToken,
) -> io::Result<Sender> {
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(BUFFER_BYTES)
        // Keeps header names as the client spelled them: hyper stores the spelling in the
        // extensions of the request, and of the response on the way back. HTTP/2 has lower-case
        // names only: those become `Title-Case`.
        .preserve_header_case(true)
        .title_case_headers(true)
        .handshake(TokioIo::new(EarlyResponseIo::new(stream)))
        .await
        .map_err(io::Error::other)?;
    let (disconnect, end) = (live.disconnect.clone(), end.clone());
    tasks.spawn(async move {
        // A pending request gets the error.
        tokio::select! {
            _ = connection.with_upgrades() => {}
            () = disconnect.cancelled() => {}
            () = end.cancelled() => {}
        }
    });
    Ok(sender)
}
