//! Bodies of requests. The server reads and discards what a handler leaves unread before it sends
//! its own response: if it responded early and closed, the kernel would reset the connection, and a
//! client that is still sending would never see the response.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::oneshot;

/// Longest time without a byte before the server stops discarding. Input streams may stay open and
/// idle for any time.
const IDLE_TIMEOUT: Duration = Duration::from_millis(500);
/// Longest time for discarding the rest.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(30);

/// The body of a request.
pub struct Content {
    inner: Option<Incoming>,
    rest: Option<oneshot::Sender<Incoming>>,
}

/// Receives the unread rest of a [`Content`] when it is dropped.
pub(crate) struct UnreadBody(oneshot::Receiver<Incoming>);

impl Content {
    pub(crate) fn new(inner: Incoming) -> (Self, UnreadBody) {
        let (sender, receiver) = oneshot::channel();
        (Self { inner: Some(inner), rest: Some(sender) }, UnreadBody(receiver))
    }

    fn inner(&self) -> &Incoming {
        self.inner.as_ref().expect("taken by drop only")
    }
}

impl UnreadBody {
    /// Waits until the content has been dropped, and reads what is left of it.
    pub(crate) async fn discard(self) {
        let discarding = async {
            // An error means that nothing is left.
            let Ok(mut body) = self.0.await else { return };
            while let Ok(Some(Ok(_))) = tokio::time::timeout(IDLE_TIMEOUT, body.frame()).await {}
        };
        // A client that is still sending after this may not see the response.
        let _ = tokio::time::timeout(DISCARD_TIMEOUT, discarding).await;
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
            // The receiver is gone if the response comes from the sandbox: then the sandbox handles
            // the rest.
            let _ = rest.send(inner);
        }
    }
}
