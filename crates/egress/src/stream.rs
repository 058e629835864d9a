//! Byte streams of connections.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Dials the same target again.
pub(crate) type Dial = Box<dyn Fn() -> BoxFuture<'static, io::Result<Outside>> + Send + Sync>;

/// A connection to a target, directly or through a proxy.
#[derive(Debug)]
pub(crate) enum Outside {
    Tcp(TcpStream),
    /// Through a proxy reached over TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Outside {
    pub(crate) fn boxed(self) -> Box<dyn Stream> {
        match self {
            Self::Tcp(stream) => Box::new(stream),
            Self::Tls(stream) => stream,
        }
    }
}

/// A stream that first replays bytes already read.
#[derive(Debug)]
pub(crate) struct Prefixed<S> {
    held: Vec<u8>,
    taken: usize,
    stream: S,
}

impl<S> Prefixed<S> {
    pub(crate) fn new(held: Vec<u8>, stream: S) -> Self {
        Self { held, taken: 0, stream }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefixed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = &self.held[self.taken..];
        if rest.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let count = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..count]);
        self.taken += count;
        if self.taken == self.held.len() {
            // Frees the buffer: a connection may last for days.
            (self.held, self.taken) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prefixed<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
