//! The body of a response from a sandbox to a client: frames are forwarded as they arrive. It fails
//! as soon as the sandbox can no longer be reached, and the server then breaks the client's
//! connection.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use node::RunningSandbox;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::connections::{Connection, IdleConnections, Sender};
use crate::body::BodyError;

pub(crate) struct ProxiedBody {
    inner: Incoming,
    live: Arc<RunningSandbox>,
    disconnect: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The connection, and the pool it returns to when the body has been read to its end.
    connection: Option<(Sender, Arc<IdleConnections>)>,
    finished: bool,
}

impl ProxiedBody {
    pub(super) fn new(inner: Incoming, live: &Arc<RunningSandbox>, connection: Connection) -> Self {
        let Connection { sender, pool, .. } = connection;
        Self {
            inner,
            live: Arc::clone(live),
            disconnect: Box::pin(live.disconnect.clone().cancelled_owned()),
            connection: pool.map(|pool| (sender, pool)),
            finished: false,
        }
    }
}

impl Body for ProxiedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        // Before any frame of the ending sandbox: an orderly end of its stream does not mean that
        // the response is complete.
        if self.live.disconnect.is_cancelled() {
            return Poll::Ready(Some(Err(BodyError::Disconnected)));
        }
        match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Ready(frame) => {
                self.finished = frame.is_none();
                Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from)))
            }
            Poll::Pending => {
                ready!(self.disconnect.as_mut().poll(cx));
                Poll::Ready(Some(Err(BodyError::Disconnected)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for ProxiedBody {
    fn drop(&mut self) {
        if let Some((sender, pool)) = self.connection.take()
            && (self.finished || self.inner.is_end_stream())
        {
            pool.put_back(sender);
        }
    }
}
