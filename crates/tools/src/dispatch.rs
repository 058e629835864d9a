//! The entry point of all tools.

use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
#[cfg(feature = "testing")]
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::definitions::NAMES;
use crate::input::Input;
use crate::live_output::{LiveOutput, OutputChunk};
use crate::notice::Provenance;
use crate::port::{Machine, MachineSource};
use crate::result::{Block, ErrorCode, Failure, Outcome, ToolResult, conclude};
use crate::screenshots::ScreenshotProvider;
use crate::tools::{self, BUDGET};
use text::{ExitKind, Truncation, truncate};

/// Runs tools by name. Every call returns exactly one result, whatever the model sends.
#[async_trait]
pub trait ToolDispatcher: Send + Sync {
    /// Runs one tool to its end.
    async fn dispatch(&self, tool_name: &str, tool_input: Value) -> ToolResult {
        self.dispatch_watched(tool_name, tool_input, Watch::default()).await
    }

    /// Runs one tool with cancellation, a deadline for detaching, and progress reports.
    async fn dispatch_watched(&self, tool_name: &str, tool_input: Value, watch: Watch) -> ToolResult;

    /// Closes the session: kills background tasks and deletes spilled output.
    async fn close(&self);
}

/// Cancellation and callbacks of a call.
#[derive(Clone, Default)]
pub struct Watch {
    /// Cancelling kills the command with all its processes; the result says so.
    pub cancel: CancellationToken,
    /// A command that takes longer continues in the background; the result names its log.
    pub detach_after: Option<Duration>,
    /// Called about once per second with the command's progress.
    pub progress: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
    /// Called with the command's output shortly after it arrives.
    pub output: Option<Arc<dyn Fn(OutputChunk) + Send + Sync>>,
}

/// Progress of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of output so far.
    pub bytes: u64,
    /// Its last line of output.
    pub last_line: String,
}

impl Watch {
    pub(crate) fn report_progress(&self, bytes: u64, last_line: impl FnOnce() -> String) {
        if let Some(progress) = &self.progress {
            progress(Progress { bytes, last_line: last_line() });
        }
    }

    /// Passes pending output to the callback.
    pub(crate) fn flush_output(&self, live: &mut LiveOutput) {
        if let Some(output) = &self.output {
            live.take().into_iter().for_each(|chunk| output(chunk));
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("detach_after", &self.detach_after).finish_non_exhaustive()
    }
}

/// Whether `write_file` may replace a file that the session has not seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OverwriteGuard {
    /// Only if the content equals what was last read, written or edited.
    #[default]
    Hash,
    Off,
}

/// Generates the ids of calls.
#[derive(Debug)]
pub(crate) enum CallIds {
    Random,
    /// Deterministic.
    #[cfg(feature = "testing")]
    Counted(AtomicU64),
}

impl CallIds {
    fn next(&self) -> String {
        match self {
            Self::Random => format!("c{:016x}", rand::random::<u64>()),
            #[cfg(feature = "testing")]
            Self::Counted(count) => format!("c{}", count.fetch_add(1, Ordering::Relaxed) + 1),
        }
    }
}

/// State that the tools of a session share.
pub(crate) struct Core {
    pub(crate) guard: OverwriteGuard,
    pub(crate) screenshots: Option<Arc<dyn ScreenshotProvider>>,
    pub(crate) preview_port: u16,
    ids: CallIds,
    /// Serialises the commands of a session, in order of arrival.
    shell: tokio::sync::Mutex<()>,
    /// Serialises the changes of one file, in order of arrival.
    files: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
}

/// Default port of previews.
pub(crate) const PREVIEW_PORT: u16 = 3000;

impl Core {
    pub(crate) fn new(ids: CallIds) -> Self {
        Self {
            guard: OverwriteGuard::default(),
            screenshots: None,
            preview_port: PREVIEW_PORT,
            ids,
            shell: tokio::sync::Mutex::new(()),
            files: Mutex::default(),
        }
    }

    pub(crate) async fn dispatch(
        &self,
        source: &dyn MachineSource,
        tool_name: &str,
        tool_input: Value,
        watch: Watch,
    ) -> ToolResult {
        let run = AssertUnwindSafe(self.run(source, tool_name, tool_input, watch)).catch_unwind();
        let mut result = run.await.unwrap_or_else(|_| {
            tracing::error!(tool = tool_name, "a tool panicked");
            let failure = Failure::new(
                ErrorCode::Internal,
                format!("{tool_name} failed because of a mistake in the tool itself."),
            );
            conclude(Err(failure), &[])
        });
        // A safety net for a tool that did not truncate its text.
        for block in &mut result.content {
            if let Block::Text(text) = block
                && text.len() > BUDGET
            {
                let explanation = Provenance::UNSAVED_DOCUMENT.explain();
                *text =
                    truncate(text, Truncation { budget: BUDGET, exit: ExitKind::Success, explanation: &explanation })
                        .text;
            }
        }
        result
    }

    async fn run(&self, source: &dyn MachineSource, tool_name: &str, tool_input: Value, watch: Watch) -> ToolResult {
        let deadline = CallerDeadline::new(&watch);
        let mut input = match Input::new(tool_input) {
            Ok(input) => input,
            Err(failure) => return conclude(Err(failure), &[]),
        };
        if !NAMES.contains(&tool_name) {
            return ToolResult::for_unknown_tool(tool_name);
        }
        // The lock comes before the sandbox: a waiting call must not block the replacement of a
        // sandbox.
        let lock =
            deadline.wait(self.lock(tool_name, &mut input), "an earlier command of this session still runs").await;
        let acquired = match lock {
            Ok(lock) => deadline.wait(source.acquire(), "the sandbox is not ready").await.map(|lease| (lock, lease)),
            Err(failure) => Err(failure),
        };
        let (_lock, lease) = match acquired {
            Ok((lock, Ok(lease))) => (lock, lease),
            Ok((_, Err(error))) => return conclude(Err(tools::broken("enter the sandbox", &error)), &input.ignored()),
            Err(failure) => return conclude(Err(failure), &input.ignored()),
        };
        let outcome = self.run_tool(lease.machine(), tool_name, &mut input, &watch, &deadline).await;
        let mut result = conclude(outcome, &input.ignored());
        lease.release(&mut result).await;
        result
    }

    async fn run_tool(
        &self,
        machine: &dyn Machine,
        tool_name: &str,
        input: &mut Input,
        watch: &Watch,
        deadline: &CallerDeadline<'_>,
    ) -> Outcome {
        match tool_name {
            "read_file" => unless_cancelled(watch, tools::read_file::run(machine, input)).await,
            "write_file" => unless_cancelled(watch, tools::write_file::run(machine, self.guard, input)).await,
            "edit_file" => unless_cancelled(watch, tools::edit_file::run(machine, input)).await,
            "bash" => tools::bash::run(machine, watch, deadline.called, &self.ids.next(), input).await,
            "grep" => unless_cancelled(watch, tools::grep::run(machine, input)).await,
            "glob" => unless_cancelled(watch, tools::glob::run(machine, input)).await,
            _ => {
                let capture = tools::take_screenshot::run(self.screenshots.as_deref(), self.preview_port, input);
                unless_cancelled(watch, capture).await
            }
        }
    }

    /// Waits for this call's lock: commands of a session, and changes of one file, run one after
    /// the other.
    async fn lock(&self, tool_name: &str, input: &mut Input) -> Option<OpLock<'_>> {
        match tool_name {
            // Background tasks neither wait nor block.
            "bash" if !input.flag("run_in_background").unwrap_or(false) => Some(OpLock::Shell(self.shell.lock().await)),
            "write_file" | "edit_file" => self.lock_file(input).await.map(OpLock::File),
            _ => None,
        }
    }

    /// Waits for the lock of the file that the input names.
    async fn lock_file(&self, input: &mut Input) -> Option<tokio::sync::OwnedMutexGuard<()>> {
        let path = input.text("path").ok()??;
        let lock = {
            let mut files = self.files.lock();
            files.retain(|_, lock| lock.strong_count() > 0);
            match files.get(&path).and_then(Weak::upgrade) {
                Some(lock) => lock,
                None => {
                    let lock = Arc::new(tokio::sync::Mutex::new(()));
                    files.insert(path, Arc::downgrade(&lock));
                    lock
                }
            }
        };
        Some(lock.lock_owned().await)
    }
}

/// Held until the call ends.
#[expect(dead_code, reason = "they are held, not looked at")]
enum OpLock<'a> {
    Shell(tokio::sync::MutexGuard<'a, ()>),
    File(tokio::sync::OwnedMutexGuard<()>),
}

/// How long a caller waits before a call starts: until it cancels, or its detach deadline passes.
struct CallerDeadline<'a> {
    cancel: &'a CancellationToken,
    called: Instant,
    end: Option<Instant>,
}

impl<'a> CallerDeadline<'a> {
    fn new(watch: &'a Watch) -> Self {
        let called = Instant::now();
        Self { cancel: &watch.cancel, called, end: watch.detach_after.map(|after| called + after) }
    }

    async fn wait<T>(&self, wait: impl Future<Output = T>, reason: &str) -> Result<T, Failure> {
        let late = async {
            match self.end {
                Some(end) => sleep_until(end).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(Failure::new(ErrorCode::Cancelled, "Not executed: cancelled.")),
            waited = wait => Ok(waited),
            () = late => {
                Err(Failure::new(ErrorCode::Timeout, format!("Not executed: {reason}. Wait a while and call again.")))
            }
        }
    }
}

/// Drops the work when the caller cancels. Changes of files are atomic.
async fn unless_cancelled(watch: &Watch, work: impl Future<Output = Outcome>) -> Outcome {
    match watch.cancel.run_until_cancelled(work).await {
        Some(outcome) => outcome,
        None => Err(Failure::new(ErrorCode::Cancelled, "Cancelled before it was done.")),
    }
}
