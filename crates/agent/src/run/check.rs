//! After a crash: what may have happened to the calls that were being made. None is silently repeated. What only reads is
//! read again; of what writes, the model is told that the outcome is unknown, with what can be checked.

use serde_json::json;
use sha2::{Digest, Sha256};

use super::Run;
use super::act::reads;
use crate::message::ToolUse;

impl Run {
    /// Settles the calls that were begun by a process that is gone.
    pub(super) async fn recover(&mut self) {
        let Some(open) = self.state.open.clone() else { return };
        let answer = self.state.messages.last().cloned();
        for call in answer.iter().flat_map(|answer| answer.calls()) {
            if open.begun.contains(&call.id) && !open.ended.contains_key(&call.id) && !reads(&call.name) {
                let text = self.unknown(call).await;
                self.settle_call(call, "outcome_unknown", &text);
            }
        }
    }

    async fn unknown(&self, call: &ToolUse) -> String {
        let begins = "outcome unknown: the program was interrupted while this call was being made";
        let path = call.input["path"].as_str().unwrap_or_default();
        match call.name.as_str() {
            "write_file" => format!("{begins}. {}", self.written(call, path).await),
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

    /// A file that is written is written whole, so what is there now tells which it was.
    async fn written(&self, call: &ToolUse, path: &str) -> String {
        let content = call.input["content"].as_str().unwrap_or_default();
        let wanted: String = Sha256::digest(content.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        let read = self.aside("read_file", json!({ "path": path, "limit": 1 })).await;
        match read.structured["sha256"].as_str() {
            Some(found) if found == wanted => format!("Checked: {path} has exactly this content now."),
            Some(_) => format!("Checked: {path} exists with other content. Look with read_file before you repeat it."),
            None => format!("Checked: {}", read.text().lines().next().unwrap_or_default()),
        }
    }
}
