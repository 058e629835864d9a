//! Time, of which a model has none: a wait ends at once or never.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// The time is over.
#[derive(Debug)]
pub struct Elapsed;

/// Waits for `future`; with a duration of zero, only if it is ready.
///
/// # Errors
/// [`Elapsed`] if it is not.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Ok(output)),
        Poll::Pending if duration.is_zero() => Poll::Ready(Err(Elapsed)),
        Poll::Pending => Poll::Pending,
    })
    .await
}
