//! One call's stay in a sandbox, and what is told about it afterwards.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::machine::SandboxMachine;
use super::source::Entry;
use crate::port::{Finished, Machine, Memory, PortError, Visit};
use crate::result::{Block, ErrorCode, ToolResult};
use crate::tools::bash::{finished_fact, finished_note};

/// Shorter waits are nothing to tell.
const NOTABLE: Duration = Duration::from_millis(20);

pub(super) struct SandboxVisit {
    machine: Arc<SandboxMachine>,
    entry: Entry,
    /// The call before was in another sandbox.
    replaced: bool,
}

impl SandboxVisit {
    pub(super) fn new(machine: Arc<SandboxMachine>, entry: Entry, replaced: bool) -> Self {
        Self { machine, entry, replaced }
    }

    pub(super) async fn close(self) -> Result<(), PortError> {
        self.machine.close().await
    }

    /// Tasks that ended or are no more, which only matters to ask after the sandbox slept or was replaced: commands ask
    /// for themselves.
    async fn tasks(&self) -> Vec<Finished> {
        match self.machine.tasks().await {
            Ok(tasks) => tasks,
            Err(error) => {
                tracing::debug!(%error, "the background tasks cannot be looked for");
                Vec::new()
            }
        }
    }
}

#[async_trait]
impl Visit for SandboxVisit {
    fn machine(&self) -> &dyn Machine {
        self.machine.as_ref()
    }

    async fn leave(self: Box<Self>, result: &mut ToolResult) {
        self.machine.settle().await;
        let woken = self.machine.was_resumed();
        let tasks = if woken || self.entry.resumed || self.replaced { self.tasks().await } else { Vec::new() };
        let notices: Vec<String> = self.entry.notices.iter().map(|notice| format!("[{notice}]")).collect();
        if let Value::Object(fields) = &mut result.structured {
            if woken || self.entry.resumed {
                fields.insert("sandbox_resumed".into(), Value::Bool(true));
            }
            if self.entry.resumed || self.entry.waited >= NOTABLE {
                fields.insert("sandbox_waited_ms".into(), json!(self.entry.waited.as_millis() as u64));
            }
            if !self.entry.notices.is_empty() {
                fields.insert("notices".into(), json!(self.entry.notices));
            }
            if !tasks.is_empty() {
                let facts = tasks.iter().map(finished_fact);
                match fields.get_mut("finished_tasks").and_then(Value::as_array_mut) {
                    Some(known) => known.extend(facts),
                    None => drop(fields.insert("finished_tasks".into(), facts.collect())),
                }
            }
        }
        tell(result, notices.into_iter().chain(tasks.iter().map(finished_note)));
        if result.code == Some(ErrorCode::SandboxUnavailable) {
            self.entry.doubt();
        }
    }
}

/// Before all else that is said: the last line belongs to the tool.
fn tell(result: &mut ToolResult, notes: impl Iterator<Item = String>) {
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
