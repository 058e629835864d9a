//! Keeps a sandbox alive while somebody works in it.

use sdk::Sandbox;
use std::time::Duration;

/// How long a sandbox lives on when this program ends without a word.
const LIFE: Duration = Duration::from_secs(300);
const EVERY: Duration = Duration::from_secs(60);

/// Extends a sandbox's life, never shortens it, until the future is dropped.
pub(crate) async fn alive(sandbox: Sandbox) {
    let mut ticks = tokio::time::interval(EVERY);
    loop {
        ticks.tick().await;
        // Tried again in a minute; if the sandbox is gone, whoever works in it will be told so.
        let _ = sandbox.client().refresh(sandbox.id(), LIFE).await;
    }
}
