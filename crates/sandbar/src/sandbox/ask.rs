//! Questions before something is lost.

use anyhow::{Context as _, bail};
use std::io::{IsTerminal, Write, stderr, stdin};

/// Asks whether to do it. Where nobody can be asked, that is an error which says how to do without: `this would {what}`.
pub(crate) fn confirmed(what: &str, question: &str) -> anyhow::Result<bool> {
    if !stdin().is_terminal() {
        bail!("this would {what} and nobody can be asked; add --yes to do it");
    }
    let mut screen = stderr();
    write!(screen, "{question} [y/N] ")?;
    screen.flush()?;
    let mut answer = String::new();
    stdin().read_line(&mut answer).context("cannot read the answer")?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
