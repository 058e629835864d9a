//! Extends a sandbox's timeout while this program uses it.

use sdk::Sandbox;
use std::time::Duration;

/// How long a sandbox lives after this program was killed.
const SANDBOX_TIMEOUT: Duration = Duration::from_secs(300);
const REFRESH_INTERVAL: Duration = Duration::from_secs(60);

/// Extends a sandbox's timeout at an interval, and never shortens it, until the future is dropped.
pub async fn alive(sandbox: Sandbox) {
    let mut ticks = tokio::time::interval(REFRESH_INTERVAL);
    loop {
        ticks.tick().await;
        // A failure is retried at the next tick. If the sandbox is gone, the caller's next call
        // fails.
        let _ = sandbox.client().refresh(sandbox.id(), SANDBOX_TIMEOUT).await;
    }
}
