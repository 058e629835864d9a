//! The body of an answer on its way from a sandbox to a client: frames pass as they come. It fails as soon as the sandbox
//! can be reached no longer, whereupon the server breaks the client's connection.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use node::Live;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::connections::{Connection, Idle, Sender};
use crate::body::BodyError;

pub(crate) struct Passing {
    inner: Incoming,
    live: Arc<Live>,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The connection, and where it goes when the body has been read to its end.
    connection: Option<(Sender, Arc<Idle>)>,
    finished: bool,
}

impl Passing {
    pub(super) fn new(inner: Incoming, live: &Arc<Live>, connection: Connection) -> Self {
        let Connection { sender, home, .. } = connection;
        Self {
            inner,
            live: Arc::clone(live),
            cut: Box::pin(live.cut.clone().cancelled_owned()),
            connection: home.map(|home| (sender, home)),
            finished: false,
        }
    }
}

impl Body for Passing {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        // Before anything the dying sandbox says: an orderly end of its stream is not one.
        if self.live.cut.is_cancelled() {
            return Poll::Ready(Some(Err(BodyError::Cut)));
        }
        match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Ready(frame) => {
                self.finished = frame.is_none();
                Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from)))
            }
            Poll::Pending => {
                ready!(self.cut.as_mut().poll(cx));
                Poll::Ready(Some(Err(BodyError::Cut)))
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

impl Drop for Passing {
    fn drop(&mut self) {
        if let Some((sender, home)) = self.connection.take()
            && (self.finished || self.inner.is_end_stream())
        {
            home.give_back(sender);
        }
    }
}
