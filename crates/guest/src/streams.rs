//! Shared behaviour of streaming responses: keepalives and deadlines.

use std::time::Duration;

use connectrpc::RequestContext;
use protocol::headers;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

const DEFAULT_KEEPALIVE: Duration = Duration::from_secs(90);

/// The client's timeout for a stream; absent means none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallTimeout(pub(crate) Option<Duration>);

/// Keepalive interval and deadline of one stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamTiming {
    keepalive: Duration,
    deadline: Option<Instant>,
}

/// The next event of a stream.
pub(crate) enum StreamEvent<T> {
    Item(T),
    /// No event for one keepalive interval.
    Silence,
    Expired,
    /// The sender is gone.
    Over,
}

impl StreamTiming {
    /// Reads the client's headers; the timeout starts now.
    pub(crate) fn from_context(context: &RequestContext) -> Self {
        Self { keepalive: keepalive(context), deadline: deadline(context) }
    }

    /// The same without a deadline.
    pub(crate) fn without_deadline(context: &RequestContext) -> Self {
        Self { keepalive: keepalive(context), deadline: None }
    }

    pub(crate) async fn next<T>(&self, events: &mut mpsc::Receiver<T>) -> StreamEvent<T> {
        let silence = timeout(self.keepalive, events.recv());
        let beat = match self.deadline {
            Some(deadline) => match timeout_at(deadline, silence).await {
                Ok(beat) => beat,
                Err(_) => return StreamEvent::Expired,
            },
            None => silence.await,
        };
        match beat {
            Ok(Some(item)) => StreamEvent::Item(item),
            Ok(None) => StreamEvent::Over,
            Err(_) => StreamEvent::Silence,
        }
    }
}

/// The deadline of the client's timeout.
pub(crate) fn deadline(context: &RequestContext) -> Option<Instant> {
    let CallTimeout(limit) = context.extensions().get::<CallTimeout>()?;
    limit.and_then(|limit| Instant::now().checked_add(limit))
}

fn keepalive(context: &RequestContext) -> Duration {
    context
        .header(headers::KEEPALIVE_PING_INTERVAL)
        .and_then(|value| value.to_str().ok()?.trim().parse().ok())
        .filter(|seconds| *seconds > 0)
        .map_or(DEFAULT_KEEPALIVE, Duration::from_secs)
}
