//! Bodies of requests. What a handler leaves unread is read and thrown away before our own answer goes out: a server that
//! answers early and closes makes the kernel reset the connection, and a client still sending never sees the answer.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::oneshot;

/// Longest silence of a client that is still waited for. Streams of input stay open and silent for as long as they like.
const SILENCE: Duration = Duration::from_millis(500);
/// Longest time for the rest as a whole.
const PATIENCE: Duration = Duration::from_secs(30);

/// The body of a request.
pub struct Content {
    inner: Option<Incoming>,
    rest: Option<oneshot::Sender<Incoming>>,
}

/// Gets what was left of a [`Content`] when it is dropped.
pub(crate) struct Rest(oneshot::Receiver<Incoming>);

impl Content {
    pub(crate) fn new(inner: Incoming) -> (Self, Rest) {
        let (sender, receiver) = oneshot::channel();
        (Self { inner: Some(inner), rest: Some(sender) }, Rest(receiver))
    }

    fn inner(&self) -> &Incoming {
        self.inner.as_ref().expect("taken by drop only")
    }
}

impl Rest {
    /// Waits until the content has been dropped, and reads what is left of it.
    pub(crate) async fn discard(self) {
        let discarding = async {
            // An error: nothing is left.
            let Ok(mut body) = self.0.await else { return };
            while let Ok(Some(Ok(_))) = tokio::time::timeout(SILENCE, body.frame()).await {}
        };
        // A client that has not come to its end by now learns of our answer by its own luck.
        let _ = tokio::time::timeout(PATIENCE, discarding).await;
    }
}

impl Body for Content {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(self.inner.as_mut().expect("taken by drop only")).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner().size_hint()
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        if let (Some(inner), Some(rest)) = (self.inner.take(), self.rest.take())
            && !inner.is_end_stream()
        {
            // Nobody waits when the answer comes from the sandbox: then the rest is the sandbox's business.
            let _ = rest.send(inner);
        }
    }
}
