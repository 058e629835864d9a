//! What all streaming answers share: keepalives in silence, and an end when their time is up.

use std::time::Duration;

use connectrpc::RequestContext;
use protocol::headers;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

const DEFAULT_KEEPALIVE: Duration = Duration::from_secs(90);

/// How long the client lets a stream last, as it said when it called; absent is for ever.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallTimeout(pub(crate) Option<Duration>);

/// The pace of one stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    keepalive: Duration,
    deadline: Option<Instant>,
}

/// The next thing to say.
pub(crate) enum Beat<T> {
    Item(T),
    /// Nothing happened for one keepalive interval.
    Silence,
    Expired,
    /// The other side is gone.
    Over,
}

impl Pace {
    /// The client's wishes; its time starts now.
    pub(crate) fn of(context: &RequestContext) -> Self {
        Self { keepalive: keepalive(context), deadline: deadline(context) }
    }

    /// The same without an end.
    pub(crate) fn unending(context: &RequestContext) -> Self {
        Self { keepalive: keepalive(context), deadline: None }
    }

    pub(crate) async fn next<T>(&self, events: &mut mpsc::Receiver<T>) -> Beat<T> {
        let silence = timeout(self.keepalive, events.recv());
        let beat = match self.deadline {
            Some(deadline) => match timeout_at(deadline, silence).await {
                Ok(beat) => beat,
                Err(_) => return Beat::Expired,
            },
            None => silence.await,
        };
        match beat {
            Ok(Some(item)) => Beat::Item(item),
            Ok(None) => Beat::Over,
            Err(_) => Beat::Silence,
        }
    }
}

/// When the client's patience ends.
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
