//! What every command runs on.

use anyhow::Context as _;

/// Runs a command to its end. What it left under way ends with it.
pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.context("cannot start the runtime")?;
    let done = runtime.block_on(work);
    // A read of this program's own input may be under way and never end.
    runtime.shutdown_background();
    done
}
