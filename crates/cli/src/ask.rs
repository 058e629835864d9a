//! Asks the user to confirm a command that deletes something.

use anyhow::{Context as _, bail};
use std::io::{IsTerminal, Write, stderr, stdin};

/// Asks a yes-or-no question on the terminal. Without a terminal it fails with `this would {what}`
/// and names `--yes`.
pub fn confirm(what: &str, question: &str) -> anyhow::Result<bool> {
    if !stdin().is_terminal() {
        bail!("this would {what} and no user can be asked; add --yes to do it");
    }
    let mut screen = stderr();
    write!(screen, "{question} [y/N] ")?;
    screen.flush()?;
    let mut answer = String::new();
    stdin().read_line(&mut answer).context("cannot read the answer")?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
