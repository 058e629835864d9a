//! Asks the user at the terminal whether a tool call is allowed.

use agent::approval::{ApprovalAnswer, Approver, Question};
use async_trait::async_trait;
use cli::show::printable;
use std::io::{BufRead as _, Write as _, stderr, stdin};

/// Reads each answer from standard input.
pub(super) struct TerminalApprover;

#[async_trait]
impl Approver for TerminalApprover {
    async fn ask(&self, question: Question) -> ApprovalAnswer {
        // A blocking read cannot be cancelled. When the run ends before the answer, the program
        // exits and ends the read.
        tokio::task::spawn_blocking(move || ask(&question)).await.unwrap_or(ApprovalAnswer::Deny(None))
    }
}

fn ask(question: &Question) -> ApprovalAnswer {
    let Question { tool, input, .. } = question;
    let what =
        input["command"].as_str().or_else(|| input["path"].as_str()).map_or_else(|| input.to_string(), str::to_owned);
    let _ = write!(stderr(), "\n? {tool} {}\n  allow? [y/N, or why not] ", printable(&what));
    let _ = stderr().flush();
    let mut line = String::new();
    match stdin().lock().read_line(&mut line) {
        Ok(_) => match line.trim() {
            "y" | "Y" | "yes" => ApprovalAnswer::Allow,
            "" | "n" | "N" | "no" => ApprovalAnswer::Deny(None),
            reason => ApprovalAnswer::Deny(Some(reason.to_owned())),
        },
        Err(_) => ApprovalAnswer::Deny(None),
    }
}
