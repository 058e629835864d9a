//! A client's connection beneath HTTP: plain or TLS, its permit among all connections, how it is
//! closed, and the size and time limits of a request's head.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tracing::debug;

use crate::connection_limit::ConnectionPermit;

/// Most bytes of a request's head. SDKs send a few hundred; hyper's own limit is that of its
/// buffer, which is larger because of bodies.
const LARGEST_HEAD: usize = 64 << 10;
/// The response on a plain connection to a head that is larger.
const HEAD_TOO_LARGE: &[u8] =
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// What the server knows of a connection while hyper owns its stream.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    /// Reads that returned bytes.
    reads: AtomicU64,
    /// Bytes that may be read before the awaited head must be complete; `usize::MAX` if none is
    /// awaited.
    head_left: AtomicUsize,
    /// The awaited head has used up its bytes.
    head_too_large: AtomicBool,
    reset: AtomicBool,
}

impl Default for ConnectionState {
    fn default() -> Self {
        Self {
            reads: AtomicU64::new(0),
            head_left: AtomicUsize::new(usize::MAX),
            head_too_large: AtomicBool::new(false),
            reset: AtomicBool::new(false),
        }
    }
}

impl ConnectionState {
    /// Makes the connection end with a reset. After an orderly end in the middle of a response,
    /// some SDKs (Python 2.45) report a timeout; after a reset, all of them check whether the
    /// sandbox still runs.
    pub(crate) fn reset_when_closed(&self) {
        self.reset.store(true, Ordering::Relaxed);
    }
}

/// The stream of a connection. It keeps the connection's permit also when it becomes a tunnel.
pub(crate) struct ClientStream {
    io: Either<TcpStream, TlsStream<TcpStream>>,
    state: Arc<ConnectionState>,
    _permit: ConnectionPermit,
}

impl ClientStream {
    pub(crate) fn new(io: Either<TcpStream, TlsStream<TcpStream>>, permit: ConnectionPermit) -> Self {
        Self { io, state: Arc::default(), _permit: permit }
    }

    pub(crate) fn state(&self) -> Arc<ConnectionState> {
        Arc::clone(&self.state)
    }
}

impl Drop for ClientStream {
    fn drop(&mut self) {
        if let (true, Either::Left(stream)) = (self.state.head_too_large.load(Ordering::Relaxed), &self.io) {
            // Best effort: the client may not read this while it is still sending.
            let _ = stream.try_write(HEAD_TOO_LARGE);
        }
        if !self.state.reset.load(Ordering::Relaxed) {
            return;
        }
        let socket = match &self.io {
            Either::Left(stream) => stream,
            Either::Right(stream) => stream.get_ref().0,
        };
        if let Err(error) = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO)) {
            debug!(%error, "the connection will end without a reset");
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let left = self.state.head_left.load(Ordering::Relaxed);
        if left == 0 {
            return Poll::Pending; // `HeadDeadline` is polled next, and ends the connection.
        }
        let (read, length) = if left >= buffer.remaining() {
            let before = buffer.filled().len();
            let read = Pin::new(&mut self.io).poll_read(cx, buffer);
            (read, buffer.filled().len() - before)
        } else {
            let mut part = ReadBuf::new(buffer.initialize_unfilled_to(left));
            let read = Pin::new(&mut self.io).poll_read(cx, &mut part);
            let length = part.filled().len();
            buffer.advance(length);
            (read, length)
        };
        if length > 0 {
            self.state.reads.fetch_add(1, Ordering::Relaxed);
            if left != usize::MAX {
                self.state.head_left.store(left - length, Ordering::Relaxed);
            }
        }
        read
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// hyper's timer of an HTTP/1.1 connection. hyper has one timeout from the end of a response to the
/// end of the next request's head; with this timer it is the timeout of an idle connection, and the
/// head's first byte replaces it by `head_timeout`. hyper drops the timeout when the head is
/// complete.
#[derive(Clone)]
pub(crate) struct HeadTimer {
    pub(crate) state: Arc<ConnectionState>,
    pub(crate) head_timeout: Duration,
}

struct HeadDeadline {
    sleep: Pin<Box<tokio::time::Sleep>>,
    timer: HeadTimer,
    /// Number of reads when the wait began; `None` once the head has begun.
    idle_since: Option<u64>,
}

impl Future for HeadDeadline {
    type Output = ();

    /// hyper polls this after every read that did not complete the head.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.timer.state.head_left.load(Ordering::Relaxed) == 0 {
            self.timer.state.head_too_large.store(true, Ordering::Relaxed);
            return Poll::Ready(());
        }
        let reads = self.timer.state.reads.load(Ordering::Relaxed);
        if self.idle_since.is_some_and(|before| before != reads) {
            self.idle_since = None;
            let deadline = tokio::time::Instant::now() + self.timer.head_timeout;
            self.sleep.as_mut().reset(deadline);
        }
        self.sleep.as_mut().poll(cx)
    }
}

impl Sleep for HeadDeadline {}

impl Drop for HeadDeadline {
    fn drop(&mut self) {
        // Also if no bytes are left: a complete head may have arrived with the beginning of its
        // body.
        self.timer.state.head_left.store(usize::MAX, Ordering::Relaxed);
    }
}

impl Timer for HeadTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        let sleep = Box::pin(tokio::time::sleep_until(deadline.into()));
        let idle_since = Some(self.state.reads.load(Ordering::Relaxed));
        self.state.head_left.store(LARGEST_HEAD, Ordering::Relaxed);
        Box::pin(HeadDeadline { sleep, timer: self.clone(), idle_since })
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into()
    }
}
