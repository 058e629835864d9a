//! Asks on the terminal whether a call may be made.

use crate::sandbox::show::printable;
use agent::approval::{Answer, Approver, Question};
use async_trait::async_trait;
use std::io::{BufRead as _, Write as _, stderr, stdin};

/// Whoever sits at the terminal.
pub(super) struct Terminal;

#[async_trait]
impl Approver for Terminal {
    async fn ask(&self, question: Question) -> Answer {
        // A read cannot be broken off; when the run ends meanwhile, the program ends with it.
        tokio::task::spawn_blocking(move || ask(&question)).await.unwrap_or(Answer::Deny(None))
    }
}

fn ask(question: &Question) -> Answer {
    let Question { tool, input, .. } = question;
    let what =
        input["command"].as_str().or_else(|| input["path"].as_str()).map_or_else(|| input.to_string(), str::to_owned);
    let _ = write!(stderr(), "\n? {tool} {}\n  allow? [y/N, or why not] ", printable(&what));
    let _ = stderr().flush();
    let mut line = String::new();
    match stdin().lock().read_line(&mut line) {
        Ok(_) => match line.trim() {
            "y" | "Y" | "yes" => Answer::Allow,
            "" | "n" | "N" | "no" => Answer::Deny(None),
            reason => Answer::Deny(Some(reason.to_owned())),
        },
        Err(_) => Answer::Deny(None),
    }
}
