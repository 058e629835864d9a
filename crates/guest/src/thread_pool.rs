//! Thread pool for blocking work.
//!
//! The first thread starts with the guest and never ends; the others end when idle. A file thread
//! therefore exists even when the sandbox has reached its process limit: work is queued instead of
//! failing. Tokio's blocking pool ends all its threads when they idle, and panics when it cannot
//! start one.

mod queue;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use self::queue::Queue;
use crate::sys;

/// Idle timeout of all threads but the first, so that an idle guest has two threads.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);
/// Limit of concurrent file operations; each processes one batch and never waits for a client.
const MAX_THREADS: usize = 16;
/// File work needs little stack; the deepest is the removal of a tree.
const STACK_BYTES: usize = 512 * 1024;

type Task = Box<dyn FnOnce() + Send>;

/// The result of submitted work. An error means that the work panicked. Dropping it does not stop
/// the work.
pub(crate) type Job<T> = oneshot::Receiver<T>;

static POOL: LazyLock<Queue<Task>> = LazyLock::new(|| Queue::new(MAX_THREADS));

/// Starts the permanent thread. Call it once, before the first work.
pub(crate) fn start() -> io::Result<()> {
    POOL.add_thread(|| start_thread(None))
}

/// Runs `work` on a pool thread, inside the caller's runtime.
pub(crate) fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Job<T> {
    let (answer, job) = oneshot::channel();
    let runtime = Handle::current();
    let task: Task = Box::new(move || {
        let _inside = runtime.enter();
        // The receiver may have been dropped.
        let _unwanted = answer.send(work());
    });
    POOL.push(task, || start_thread(Some(IDLE_TIMEOUT)));
    job
}

fn start_thread(idle_timeout: Option<Duration>) -> io::Result<()> {
    let run = move || {
        sys::block_signals();
        while let Some(task) = POOL.next(idle_timeout) {
            // The receiver of a panicked task gets an error.
            let _panicked = catch_unwind(AssertUnwindSafe(task));
        }
    };
    thread::Builder::new().stack_size(STACK_BYTES).spawn(run).map(drop)
}
