//! The tokio runtime of every command.

use std::time::Duration;

use anyhow::Context as _;
use tokio::runtime::Builder;

/// How long an idle thread for blocking work waits for a task. tokio wakes such threads in turn, so
/// that each one that gets a task within this time stays: with tokio's default of 10 s, 50 small
/// tasks per second keep all 500 threads of a burst.
const BLOCKING_KEEP_ALIVE: Duration = Duration::from_secs(1);

fn builder() -> Builder {
    let mut builder = Builder::new_multi_thread();
    builder.enable_all().thread_keep_alive(BLOCKING_KEEP_ALIVE);
    builder
}

/// Runs a command to its end. Tasks that it left running are dropped.
pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = builder().build().context("cannot start the runtime")?;
    let done = runtime.block_on(work);
    // Does not wait for blocking tasks: a read of standard input may never return.
    runtime.shutdown_background();
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// Tasks of a burst.
    const MANY: usize = 200;
    const ENDED_WITHIN: Duration = Duration::from_secs(30);

    fn threads() -> usize {
        std::fs::read_dir("/proc/self/task").expect("Linux has it").count()
    }

    #[test]
    fn threads_of_a_burst_end_under_light_load() {
        let before = threads();
        builder().build().expect("a runtime").block_on(async {
            let begun = std::sync::Arc::new(std::sync::Barrier::new(MANY));
            let burst = (0..MANY).map(|_| {
                let begun = std::sync::Arc::clone(&begun);
                tokio::task::spawn_blocking(move || begun.wait())
            });
            for task in burst.collect::<Vec<_>>() {
                task.await.expect("no panic");
            }
            let deadline = Instant::now() + ENDED_WITHIN;
            while threads() > before + MANY / 2 {
                assert!(Instant::now() < deadline, "{} threads are left", threads());
                tokio::task::spawn_blocking(|| ()).await.expect("no panic");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
}
