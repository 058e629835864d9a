//! Settles the calls that a crash interrupted. None is silently repeated: a read-only call runs
//! again; for a writing call the model learns that the outcome is unknown, and what a check of the
//! sandbox shows.

use serde_json::json;
use sha2::{Digest, Sha256};
use tools::{ReadContent, ReadFileOutput, ToolOutput};

use super::Run;
use super::act::is_read_only;
use crate::message::ToolUse;

impl Run {
    /// Settles the calls that a dead process had started.
    pub(super) async fn recover(&mut self) {
        let Some(open) = self.state.open.clone() else { return };
        let answer = self.state.messages.last().cloned();
        for call in answer.iter().flat_map(|answer| answer.calls()) {
            if open.begun.contains(&call.id) && !open.ended.contains_key(&call.id) && !is_read_only(&call.name) {
                let text = self.describe_unknown_outcome(call).await;
                self.settle_call(call, "outcome_unknown", &text);
            }
        }
    }

    async fn describe_unknown_outcome(&self, call: &ToolUse) -> String {
        let begins = "outcome unknown: the program was interrupted while this call was being made";
        let path = call.input["path"].as_str().unwrap_or_default();
        match call.name.as_str() {
            "write_file" => format!("{begins}. {}", self.describe_write(call, path).await),
            "edit_file" => {
                format!(
                    "{begins}. {path} has either all of the change or nothing of it. Look with read_file before you repeat it."
                )
            }
            _ => format!(
                "{begins}. The command may have run wholly, partly or not at all, and may still be running; its output is lost. \
                 Check what it should have changed (files, git status, ps) before you run it again."
            ),
        }
    }

    /// Writes of a file are atomic, so its current content tells whether the call took effect.
    async fn describe_write(&self, call: &ToolUse, path: &str) -> String {
        let content = call.input["content"].as_str().unwrap_or_default();
        let wanted = hex::encode(Sha256::digest(content.as_bytes()));
        let read = self.call_internally("read_file", json!({ "path": path, "limit": 1 })).await;
        let found = match &read.structured.output {
            ToolOutput::ReadFile(ReadFileOutput { content: ReadContent::Text(page), .. }) => page.sha256.as_deref(),
            _ => None,
        };
        match found {
            Some(found) if found == wanted => format!("Checked: {path} has exactly this content now."),
            Some(_) => format!("Checked: {path} exists with other content. Look with read_file before you repeat it."),
            None => format!("Checked: {}", read.text().lines().next().unwrap_or_default()),
        }
    }
}
