//! Ignores EPIPE on writes so that hyper still reads an early error response. A server that refuses
//! a request before all of it has arrived responds and closes; the next write then fails, and hyper
//! would give up without reading the response.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub(super) struct EarlyResponseIo<S> {
    stream: S,
    /// The other end has closed: writes are discarded.
    closed: bool,
}

impl<S> EarlyResponseIo<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, closed: false }
    }
}

impl<S: AsyncWrite + Unpin> EarlyResponseIo<S> {
    /// Writes, or discards `length` bytes if the other end has closed.
    fn write_or_discard(
        &mut self,
        length: usize,
        write: impl FnOnce(Pin<&mut S>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if self.closed {
            return Poll::Ready(Ok(length));
        }
        let written = ready!(write(Pin::new(&mut self.stream)));
        self.closed = written.as_ref().is_err_and(is_closed);
        Poll::Ready(if self.closed { Ok(length) } else { written })
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

impl<S: AsyncRead + Unpin> AsyncRead for EarlyResponseIo<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for EarlyResponseIo<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write_or_discard(bytes.len(), |stream| stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = pieces.iter().map(|piece| piece.len()).sum();
        self.write_or_discard(length, |stream| stream.poll_write_vectored(cx, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write_or_discard(0, |stream| stream.poll_flush(cx).map_ok(|()| 0)).map_ok(|_| ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http::{Request, StatusCode};
    use http_body_util::{BodyExt as _, Full};
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream, UnixStream};

    async fn assert_response_is_read<S: AsyncRead + AsyncWrite + Unpin>(here: S, mut there: S) {
        let mut here = EarlyResponseIo::new(here);
        here.write_all(b"unread").await.expect("it listens");
        there.write_all(b"no").await.expect("it is sent");
        drop(there);
        for _ in 0..3 {
            here.write_all(b"more").await.expect("it goes nowhere");
            here.flush().await.expect("nothing is left");
        }
        let mut answer = [0; 2];
        here.read_exact(&mut answer).await.expect("the answer");
        assert_eq!(&answer, b"no");
    }

    #[tokio::test]
    async fn an_early_response_is_read_after_failed_writes() {
        let (here, there) = UnixStream::pair().expect("a pair");
        assert_response_is_read(here, there).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (here, there) = tokio::join!(TcpStream::connect(listener.local_addr().expect("bound")), listener.accept());
        assert_response_is_read(here.expect("a connection"), there.expect("a connection").0).await;
    }

    /// Responds and closes in the middle of a request, between two writes of the client.
    #[derive(Default)]
    struct EarlyResponder {
        begun: bool,
        answer: Option<&'static [u8]>,
    }

    impl AsyncRead for EarlyResponder {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            // No wakeup is needed: the client polls again after its write.
            let Some(answer) = self.answer.take() else { return Poll::Pending };
            buffer.put_slice(answer);
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for EarlyResponder {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            if !self.begun {
                self.begun = true;
                return Poll::Ready(Ok(1));
            }
            self.answer = Some(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\nno");
            cx.waker().wake_by_ref();
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn hyper_returns_a_refusal_sent_during_a_request() {
        let stream = TokioIo::new(EarlyResponseIo::new(EarlyResponder::default()));
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.expect("a connection");
        tokio::spawn(connection);
        let request = Request::post("/").body(Full::new(Bytes::from_static(b"{}"))).expect("a request");
        let answer = sender.send_request(request).await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(answer.into_body().collect().await.expect("a body").to_bytes(), "no");
    }
}
