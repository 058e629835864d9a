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
use tokio_util::sync::CancellationToken;

use crate::input::Input;
use crate::port::Machine;
use crate::result::{Block, ErrorCode, Failure, Outcome, ToolResult, conclude};
use crate::screenshots::Screenshots;
use crate::text::{Ended, Truncation, truncate};
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

/// The tools on a machine.
pub(crate) struct Core<M> {
    pub(crate) machine: M,
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

impl<M: Machine> Core<M> {
    pub(crate) fn new(machine: M, ids: Ids) -> Self {
        Self {
            machine,
            guard: OverwriteGuard::default(),
            screenshots: None,
            preview_port: PREVIEW_PORT,
            ids,
            shell: tokio::sync::Mutex::new(()),
            files: Mutex::default(),
        }
    }

    pub(crate) async fn dispatch(&self, tool_name: &str, tool_input: Value, watch: Watch) -> ToolResult {
        let run = AssertUnwindSafe(self.run(tool_name, tool_input, watch)).catch_unwind();
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
                *text = truncate(text, Truncation { budget: BUDGET, ended: Ended::Well, full_output: None }).text;
            }
        }
        result
    }

    async fn run(&self, tool_name: &str, tool_input: Value, watch: Watch) -> ToolResult {
        let mut input = match Input::new(tool_input) {
            Ok(input) => input,
            Err(failure) => return conclude(Err(failure), &[]),
        };
        let outcome = self.choose(tool_name, &mut input, &watch).await;
        let ignored = if matches!(&outcome, Err(failure) if failure.code == ErrorCode::UnknownTool) {
            Vec::new()
        } else {
            input.ignored()
        };
        conclude(outcome, &ignored)
    }

    async fn choose(&self, tool_name: &str, input: &mut Input, watch: &Watch) -> Outcome {
        let machine = &self.machine;
        match tool_name {
            "read_file" => unless_cancelled(watch, tools::read_file::run(machine, input)).await,
            "write_file" => {
                let _turn = self.turn(input).await;
                unless_cancelled(watch, tools::write_file::run(machine, self.guard, input)).await
            }
            "edit_file" => {
                let _turn = self.turn(input).await;
                unless_cancelled(watch, tools::edit_file::run(machine, input)).await
            }
            "bash" => {
                let background = input.flag("run_in_background").unwrap_or(false);
                // A background task waits for nobody, and nobody for it.
                let _turn = match background {
                    true => None,
                    false => match watch.cancel.run_until_cancelled(self.shell.lock()).await {
                        Some(turn) => Some(turn),
                        None => return Err(Failure::new(ErrorCode::Cancelled, "Not executed: cancelled.")),
                    },
                };
                tools::bash::run(machine, watch, &self.ids.next(), input).await
            }
            "grep" => unless_cancelled(watch, tools::grep::run(machine, input)).await,
            "glob" => unless_cancelled(watch, tools::glob::run(machine, input)).await,
            "take_screenshot" => {
                let capture = tools::take_screenshot::run(self.screenshots.as_deref(), self.preview_port, input);
                unless_cancelled(watch, capture).await
            }
            unknown => Err(Failure::new(ErrorCode::UnknownTool, format!("[{unknown}: unknown tool]"))
                .with(json!({ "tools": crate::definitions::NAMES }))),
        }
    }

    /// Waits until nobody else changes the file that the input names.
    async fn turn(&self, input: &mut Input) -> Option<tokio::sync::OwnedMutexGuard<()>> {
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

    pub(crate) async fn close(&self) {
        if let Err(error) = self.machine.close().await {
            tracing::debug!(%error, "a session could not be closed");
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
