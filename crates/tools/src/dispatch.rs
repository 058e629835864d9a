//! One entry point for all tools.

use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::definitions::NAMES;
use crate::input::Input;
use crate::live::{Live, Said};
use crate::port::{Ground, Machine};
use crate::result::{Block, ErrorCode, Failure, Outcome, ToolResult, conclude};
use crate::screenshots::Screenshots;
use crate::text::{Ended, Provenance, Truncation, truncate};
use crate::tools::{self, BUDGET};

/// Runs tools by name. Every call gives exactly one result; nothing that a model sends makes it fail otherwise.
#[async_trait]
pub trait ToolDispatcher: Send + Sync {
    /// Runs one tool to its end.
    async fn dispatch(&self, tool_name: &str, tool_input: Value) -> ToolResult {
        self.dispatch_watched(tool_name, tool_input, Watch::default()).await
    }

    /// Runs one tool for somebody who may lose patience, or wants to know how it goes.
    async fn dispatch_watched(&self, tool_name: &str, tool_input: Value, watch: Watch) -> ToolResult;

    /// Ends the session: background tasks are killed, kept output is removed.
    async fn close(&self);
}

/// What the caller of a tool wants besides the result.
#[derive(Clone, Default)]
pub struct Watch {
    /// Cancelled: a command is killed with all it started, and the result says so.
    pub cancel: CancellationToken,
    /// A command that takes longer goes on in the background, and the result says where.
    pub detach_after: Option<Duration>,
    /// Told about once a second how a command is going.
    pub progress: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
    /// Told what a command says, soon after it has said it.
    pub output: Option<Arc<dyn Fn(Said) + Send + Sync>>,
}

/// How a command is going.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of output so far.
    pub bytes: u64,
    /// What it said last.
    pub last_line: String,
}

impl Watch {
    pub(crate) fn tell(&self, bytes: u64, last_line: impl FnOnce() -> String) {
        if let Some(progress) = &self.progress {
            progress(Progress { bytes, last_line: last_line() });
        }
    }

    /// Tells what waits to be told.
    pub(crate) fn pass_on(&self, live: &mut Live) {
        if let Some(output) = &self.output {
            live.take().into_iter().for_each(|said| output(said));
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("detach_after", &self.detach_after).finish_non_exhaustive()
    }
}

/// Whether `write_file` may replace what the session has not seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OverwriteGuard {
    /// Only when the content is the one that was read, written or edited last.
    #[default]
    Hash,
    Off,
}

/// How calls are told apart.
#[derive(Debug)]
pub(crate) enum Ids {
    Random,
    /// The same in every run.
    Counted(AtomicU64),
}

impl Ids {
    fn next(&self) -> String {
        match self {
            Self::Random => format!("c{:016x}", rand::random::<u64>()),
            Self::Counted(count) => format!("c{}", count.fetch_add(1, Ordering::Relaxed) + 1),
        }
    }
}

/// The tools of a session.
pub(crate) struct Core {
    pub(crate) guard: OverwriteGuard,
    pub(crate) screenshots: Option<Arc<dyn Screenshots>>,
    pub(crate) preview_port: u16,
    ids: Ids,
    /// Commands of a session run one after the other, in the order they came.
    shell: tokio::sync::Mutex<()>,
    /// Changes of one file happen one after the other, in the order they came.
    files: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
}

/// The port that previews are on unless somebody says otherwise.
pub(crate) const PREVIEW_PORT: u16 = 3000;

impl Core {
    pub(crate) fn new(ids: Ids) -> Self {
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
        ground: &dyn Ground,
        tool_name: &str,
        tool_input: Value,
        watch: Watch,
    ) -> ToolResult {
        let run = AssertUnwindSafe(self.run(ground, tool_name, tool_input, watch)).catch_unwind();
        let mut result = run.await.unwrap_or_else(|_| {
            tracing::error!(tool = tool_name, "a tool panicked");
            let failure = Failure::new(
                ErrorCode::Internal,
                format!("{tool_name} failed because of a mistake in the tool itself."),
            );
            conclude(Err(failure), &[])
        });
        // Whatever a tool forgot to cut is cut here.
        for block in &mut result.content {
            if let Block::Text(text) = block
                && text.len() > BUDGET
            {
                let explanation = Provenance::UNSAVED_DOCUMENT.explain();
                *text =
                    truncate(text, Truncation { budget: BUDGET, ended: Ended::Well, explanation: &explanation }).text;
            }
        }
        result
    }

    async fn run(&self, ground: &dyn Ground, tool_name: &str, tool_input: Value, watch: Watch) -> ToolResult {
        let patience = Patience::new(&watch);
        let mut input = match Input::new(tool_input) {
            Ok(input) => input,
            Err(failure) => return conclude(Err(failure), &[]),
        };
        if !NAMES.contains(&tool_name) {
            let failure = Failure::new(ErrorCode::UnknownTool, format!("[{tool_name}: unknown tool]"));
            return conclude(Err(failure.with(json!({ "tools": NAMES }))), &[]);
        }
        // The turn comes first: whoever waits for it keeps no sandbox from being replaced.
        let turn =
            patience.bear(self.turn(tool_name, &mut input), "an earlier command of this session still runs").await;
        let entered = match turn {
            Ok(turn) => patience.bear(ground.enter(), "the sandbox is not ready").await.map(|entered| (turn, entered)),
            Err(failure) => Err(failure),
        };
        let (_turn, visit) = match entered {
            Ok((turn, Ok(visit))) => (turn, visit),
            Ok((_, Err(error))) => return conclude(Err(tools::broken("enter the sandbox", &error)), &input.ignored()),
            Err(failure) => return conclude(Err(failure), &input.ignored()),
        };
        let outcome = self.choose(visit.machine(), tool_name, &mut input, &watch, &patience).await;
        let mut result = conclude(outcome, &input.ignored());
        visit.leave(&mut result).await;
        result
    }

    async fn choose(
        &self,
        machine: &dyn Machine,
        tool_name: &str,
        input: &mut Input,
        watch: &Watch,
        patience: &Patience<'_>,
    ) -> Outcome {
        match tool_name {
            "read_file" => unless_cancelled(watch, tools::read_file::run(machine, input)).await,
            "write_file" => unless_cancelled(watch, tools::write_file::run(machine, self.guard, input)).await,
            "edit_file" => unless_cancelled(watch, tools::edit_file::run(machine, input)).await,
            "bash" => tools::bash::run(machine, watch, patience.called, &self.ids.next(), input).await,
            "grep" => unless_cancelled(watch, tools::grep::run(machine, input)).await,
            "glob" => unless_cancelled(watch, tools::glob::run(machine, input)).await,
            _ => {
                let capture = tools::take_screenshot::run(self.screenshots.as_deref(), self.preview_port, input);
                unless_cancelled(watch, capture).await
            }
        }
    }

    /// Waits until it is this call's turn: commands of a session and changes of one file happen one after the other.
    async fn turn(&self, tool_name: &str, input: &mut Input) -> Option<Turn<'_>> {
        match tool_name {
            // A background task waits for nobody, and nobody for it.
            "bash" if !input.flag("run_in_background").unwrap_or(false) => Some(Turn::Shell(self.shell.lock().await)),
            "write_file" | "edit_file" => self.file_turn(input).await.map(Turn::File),
            _ => None,
        }
    }

    /// Waits until nobody else changes the file that the input names.
    async fn file_turn(&self, input: &mut Input) -> Option<tokio::sync::OwnedMutexGuard<()>> {
        let path = input.text("path").ok()??;
        let lock = {
            let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Nobody else's turn until it is dropped.
#[expect(dead_code, reason = "they are held, not looked at")]
enum Turn<'a> {
    Shell(tokio::sync::MutexGuard<'a, ()>),
    File(tokio::sync::OwnedMutexGuard<()>),
}

/// How long a caller waits before anything has begun: until it cancels, or wants an answer at least.
struct Patience<'a> {
    cancel: &'a CancellationToken,
    called: Instant,
    end: Option<Instant>,
}

impl<'a> Patience<'a> {
    fn new(watch: &'a Watch) -> Self {
        let called = Instant::now();
        Self { cancel: &watch.cancel, called, end: watch.detach_after.map(|after| called + after) }
    }

    async fn bear<T>(&self, wait: impl Future<Output = T>, reason: &str) -> Result<T, Failure> {
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

/// Drops the work when nobody wants it any more. Changes of files are made whole or not at all.
async fn unless_cancelled(watch: &Watch, work: impl Future<Output = Outcome>) -> Outcome {
    match watch.cancel.run_until_cancelled(work).await {
        Some(outcome) => outcome,
        None => Err(Failure::new(ErrorCode::Cancelled, "Cancelled before it was done.")),
    }
}
