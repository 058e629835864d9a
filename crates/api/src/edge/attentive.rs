//! A connection that goes on listening when the other end no longer does. Who refuses a request before all of it has arrived
//! answers and hangs up; what is still being sent then meets a closed door, and hyper would give up without reading the answer.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub(super) struct Attentive<S> {
    stream: S,
    /// Nobody reads at the other end: what is written goes nowhere.
    deaf: bool,
}

impl<S> Attentive<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, deaf: false }
    }
}

impl<S: AsyncWrite + Unpin> Attentive<S> {
    /// How much was taken of `length` bytes.
    fn taken(
        &mut self,
        length: usize,
        write: impl FnOnce(Pin<&mut S>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if self.deaf {
            return Poll::Ready(Ok(length));
        }
        let written = ready!(write(Pin::new(&mut self.stream)));
        self.deaf = written.as_ref().is_err_and(has_hung_up);
        Poll::Ready(if self.deaf { Ok(length) } else { written })
    }
}

fn has_hung_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

impl<S: AsyncRead + Unpin> AsyncRead for Attentive<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Attentive<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.taken(bytes.len(), |stream| stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = pieces.iter().map(|piece| piece.len()).sum();
        self.taken(length, |stream| stream.poll_write_vectored(cx, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.taken(0, |stream| stream.poll_flush(cx).map_ok(|()| 0)).map_ok(|_| ())
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

    async fn is_heard<S: AsyncRead + AsyncWrite + Unpin>(here: S, mut there: S) {
        let mut here = Attentive::new(here);
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
    async fn an_answer_is_heard_whatever_was_not() {
        let (here, there) = UnixStream::pair().expect("a pair");
        is_heard(here, there).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (here, there) = tokio::join!(TcpStream::connect(listener.local_addr().expect("bound")), listener.accept());
        is_heard(here.expect("a connection"), there.expect("a connection").0).await;
    }

    /// Answers and hangs up in the middle of a request, after the last look for an answer and before the next piece.
    #[derive(Default)]
    struct Hasty {
        begun: bool,
        answer: Option<&'static [u8]>,
    }

    impl AsyncRead for Hasty {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            // Nobody is woken: whoever wrote looks again.
            let Some(answer) = self.answer.take() else { return Poll::Pending };
            buffer.put_slice(answer);
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Hasty {
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
    async fn a_refusal_in_the_middle_of_a_request_is_an_answer() {
        let stream = TokioIo::new(Attentive::new(Hasty::default()));
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.expect("a connection");
        tokio::spawn(connection);
        let request = Request::post("/").body(Full::new(Bytes::from_static(b"{}"))).expect("a request");
        let answer = sender.send_request(request).await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(answer.into_body().collect().await.expect("a body").to_bytes(), "no");
    }
}
