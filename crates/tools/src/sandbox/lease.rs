//! The lease of a sandbox for one call, and what its end adds to the result.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::machine::SandboxMachine;
use super::source::SandboxLease;
use crate::port::{FinishedTask, Machine, MachineLease, PortError, SessionStore};
use crate::result::{Block, ErrorCode, ToolResult};
use crate::structured::EndedTask;
use crate::tools::bash::finished_note;

/// Shorter waits are not reported.
const MIN_REPORTED_WAIT: Duration = Duration::from_millis(20);

pub(super) struct SandboxMachineLease {
    machine: Arc<SandboxMachine>,
    lease: SandboxLease,
    /// The previous call used another sandbox.
    replaced: bool,
}

impl SandboxMachineLease {
    pub(super) fn new(machine: Arc<SandboxMachine>, lease: SandboxLease, replaced: bool) -> Self {
        Self { machine, lease, replaced }
    }

    pub(super) async fn close(self) -> Result<(), PortError> {
        self.machine.close().await
    }

    /// Background tasks that ended or were lost. Needed only after the sandbox was resumed or
    /// replaced: commands report them themselves.
    async fn tasks(&self) -> Vec<FinishedTask> {
        match self.machine.tasks().await {
            Ok(tasks) => tasks,
            Err(error) => {
                tracing::debug!(%error, "background tasks could not be queried");
                Vec::new()
            }
        }
    }
}

#[async_trait]
impl MachineLease for SandboxMachineLease {
    fn machine(&self) -> &dyn Machine {
        self.machine.as_ref()
    }

    async fn release(self: Box<Self>, result: &mut ToolResult) {
        self.machine.wait_for_background().await;
        let resumed = self.machine.was_resumed();
        let tasks = if resumed || self.lease.resumed || self.replaced { self.tasks().await } else { Vec::new() };
        let notices: Vec<String> = self.lease.notices.iter().map(|notice| format!("[{notice}]")).collect();
        let call = &mut result.structured.call;
        if resumed || self.lease.resumed {
            call.sandbox_resumed = Some(true);
        }
        if self.lease.resumed || self.lease.waited >= MIN_REPORTED_WAIT {
            call.sandbox_waited_ms = Some(self.lease.waited.as_millis() as u64);
        }
        if !self.lease.notices.is_empty() {
            call.notices = Some(self.lease.notices.clone());
        }
        if !tasks.is_empty() {
            call.finished_tasks.get_or_insert_default().extend(tasks.iter().map(EndedTask::from));
        }
        prepend_notes(result, notices.into_iter().chain(tasks.iter().map(finished_note)));
        if result.code == Some(ErrorCode::SandboxUnavailable) {
            self.lease.report_unresponsive();
        }
    }
}

/// Prepends notes to the text: the last line belongs to the tool.
fn prepend_notes(result: &mut ToolResult, notes: impl Iterator<Item = String>) {
    let mut notes: Vec<String> = notes.collect();
    if notes.is_empty() {
        return;
    }
    match result.content.iter_mut().find_map(|block| match block {
        Block::Text(text) => Some(text),
        Block::Image(_) => None,
    }) {
        Some(text) => {
            notes.push(std::mem::take(text));
            *text = notes.join("\n");
        }
        None => result.content.push(Block::Text(notes.join("\n"))),
    }
}
