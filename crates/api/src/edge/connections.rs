//! Connections to sandboxes. Those to guests are kept for the next request, since every command is one; those to other
//! ports are made anew, for what listens there is not ours and may hang up whenever it likes.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use node::{Live, SandboxId};
use protocol::guest::{ENVD_PORT, INTERPRETER_PORT, INTERPRETER_PREFIX};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Way;
use super::attentive::Attentive;
use super::secured::Securing;
use crate::content::Content;
use crate::routing::Target;
use crate::server::BUFFER_BYTES;

/// Idle connections kept for one sandbox.
const MOST_IDLE: usize = 8;
/// Both ends are on this machine.
const DIAL_PATIENCE: Duration = Duration::from_secs(10);

pub(super) type Sender = SendRequest<Content>;

/// Idle connections to guests, by sandbox.
#[derive(Default)]
pub(super) struct Connections {
    idle: Mutex<HashMap<SandboxId, Arc<Idle>>>,
    securing: Securing,
}

/// Why there is no connection.
pub(super) enum OpenError {
    Closed(io::Error),
    NotSecured(io::Error),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        Self::Closed(error)
    }
}

/// Idle connections to the guest of one life of a sandbox.
pub(super) struct Idle {
    live: Weak<Live>,
    senders: Mutex<Vec<Sender>>,
}

/// A connection that is being used.
pub(super) struct Connection {
    pub sender: Sender,
    /// Where it may go back to.
    pub home: Option<Arc<Idle>>,
    /// It was used before, and may have been closed meanwhile.
    pub used: bool,
    /// What goes before the path: the guest answers for the port.
    pub prefix: &'static str,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connections {
    /// A kept connection to the guest, if one is there.
    pub(super) fn reuse(&self, live: &Arc<Live>, target: &Target) -> Option<Connection> {
        if target.port != ENVD_PORT {
            return None;
        }
        let home = self.home(live, target);
        let mut senders = lock(&home.senders);
        while let Some(sender) = senders.pop() {
            if sender.is_ready() {
                drop(senders);
                return Some(Connection { sender, home: Some(home), used: true, prefix: "" });
            }
        }
        None
    }

    /// A new connection to the port.
    pub(super) async fn open(
        &self,
        way @ Way { live, secured, .. }: &Way,
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
            let dialled = match way.take_dialled() {
                Some(stream) => Ok(stream),
                None => live.machine.dial(target.port).await,
            };
            match dialled {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    let stream = if *secured {
                        Either::Right(self.securing.secure(stream).await.map_err(OpenError::NotSecured)?)
                    } else {
                        Either::Left(stream)
                    };
                    Ok((handshake(stream, live, tasks, end).await?, ""))
                }
                // An interpreter of the sandbox's own comes first; else the guest has one.
                Err(error) if target.port == INTERPRETER_PORT && error.kind() == io::ErrorKind::ConnectionRefused => {
                    Ok((to_guest.await?, INTERPRETER_PREFIX))
                }
                Err(error) => Err(error.into()),
            }
        };
        let (sender, prefix) = tokio::time::timeout(DIAL_PATIENCE, opening).await.map_err(io::Error::from)??;
        let home = (target.port == ENVD_PORT).then(|| self.home(live, target));
        Ok(Connection { sender, home, used: false, prefix })
    }

    fn home(&self, live: &Arc<Live>, target: &Target) -> Arc<Idle> {
        let mut idle = lock(&self.idle);
        if let Some(home) = idle.get(&target.id)
            && std::ptr::eq(home.live.as_ptr(), Arc::as_ptr(live))
        {
            return Arc::clone(home);
        }
        // A good moment to forget the sandboxes that are gone.
        idle.retain(|_, home| home.live.upgrade().is_some_and(|live| !live.cut.is_cancelled()));
        let home = Arc::new(Idle { live: Arc::downgrade(live), senders: Mutex::default() });
        idle.insert(target.id.clone(), Arc::clone(&home));
        home
    }
}

impl Idle {
    /// Takes back a connection whose answer has been read to its end.
    pub(super) fn give_back(&self, sender: Sender) {
        let mut senders = lock(&self.senders);
        if senders.len() < MOST_IDLE && !sender.is_closed() {
            senders.push(sender);
        }
    }
}

async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    live: &Arc<Live>,
    tasks: &TaskTracker,
    end: &CancellationToken,
) -> io::Result<Sender> {
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(BUFFER_BYTES)
        // Header names as the client spelled them: hyper keeps the spelling in the request's extensions, and
        // in the response's on the way back. HTTP/2 has lower-case names only: those become `Title-Case`.
        .preserve_header_case(true)
        .title_case_headers(true)
        .handshake(TokioIo::new(Attentive::new(stream)))
        .await
        .map_err(io::Error::other)?;
    let (cut, end) = (live.cut.clone(), end.clone());
    tasks.spawn(async move {
        // How it ended shows in the answer that was under way.
        tokio::select! {
            _ = connection.with_upgrades() => {}
            () = cut.cancelled() => {}
            () = end.cancelled() => {}
        }
    });
    Ok(sender)
}
