//! Phase commits: record the result of a stage of the work in the project's own git history.

use std::time::Duration;

use sdk::{Command, CommandError, Sandbox};

use crate::shell::{script, tail_of};
use checkpoint::Excludes;

const COMMIT: &str = include_str!("commit.sh");
/// Allows for a first commit of many files.
const COMMIT_DEADLINE: Duration = Duration::from_secs(10 * 60);
const HEAD_DEADLINE: Duration = Duration::from_secs(30);
/// Half of what an environment variable can hold (`MAX_ARG_STRLEN`).
const LONGEST_MESSAGE: usize = 64 * 1024;
/// The message of a commit without one.
const NO_MESSAGE: &str = "Phase";

/// The result of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    Committed(Commit),
    /// There were no changes.
    NothingToCommit {
        /// The current commit; [`None`] in a repository without commits.
        head: Option<String>,
    },
}

/// A commit that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Commit {
    pub id: String,
    /// How many files it changes.
    pub files: u64,
    /// Whether the repository was created for this commit.
    pub initialised: bool,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PhaseError {
    /// Git failed: a conflict, a full disk, a missing directory.
    #[error("the phase could not be committed in {root}: {message}")]
    Git { root: String, message: String },
    #[error(transparent)]
    Sandbox(#[from] CommandError),
}

/// Commits all changes in the repository at `root`, including new and deleted files. Without a
/// repository, creates one on a branch `main`.
///
/// Ignored files stay out, and so do new files in folders that checkpoints exclude (`node_modules`,
/// `.venv`). The author is the configured one, else Sandbar. Hooks and signing are disabled, since
/// no user is there to answer a prompt. The lock of a killed git is removed.
///
/// Dropping the future may or may not leave the commit made; a retry then finds nothing to commit.
///
/// # Errors
/// [`PhaseError::Git`] with git's output, [`PhaseError::Sandbox`] when the command could not run.
pub async fn commit(sandbox: &Sandbox, root: &str, message: &str) -> Result<Phase, PhaseError> {
    let generated = Excludes::default().certain;
    let arguments = [root].into_iter().chain(generated.iter().map(|name| name.as_str()));
    let command = script(COMMIT, arguments).env("SANDBAR_MESSAGE", sendable(message)).timeout(COMMIT_DEADLINE);
    let output = sandbox.commands().run(command).await?;
    let failed = || PhaseError::Git { root: root.to_owned(), message: tail_of(&output) };
    if !output.success() {
        return Err(failed());
    }
    let text = output.stdout_text();
    let initialised = text.lines().next() == Some("initialised");
    let words: Vec<&str> = text.lines().last().unwrap_or_default().split_whitespace().collect();
    match words[..] {
        ["commit", id, files] => {
            let files = files.parse().map_err(|_| failed())?;
            Ok(Phase::Committed(Commit { id: id.to_owned(), files, initialised }))
        }
        ["nothing"] => Ok(Phase::NothingToCommit { head: None }),
        ["nothing", head] => Ok(Phase::NothingToCommit { head: Some(head.to_owned()) }),
        _ => Err(failed()),
    }
}

/// The commit that is checked out at `root`; [`None`] without a repository or a commit. Cheap
/// enough to poll.
///
/// # Errors
/// [`CommandError`] when the sandbox cannot be queried.
pub async fn head(sandbox: &Sandbox, root: &str) -> Result<Option<String>, CommandError> {
    let arguments = ["-C", root, "rev-parse", "--verify", "--quiet", "HEAD"];
    let output = sandbox.commands().run(Command::exec("git", arguments).timeout(HEAD_DEADLINE)).await;
    match output {
        Ok(output) if output.success() => Ok(Some(output.stdout_text().trim().to_owned())),
        // [`CommandError::NotStartable`] means that git is not installed.
        Ok(_) | Err(CommandError::NotStartable { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Limits a message to what an environment variable can carry and git accepts.
fn sendable(message: &str) -> String {
    let message = message.replace('\0', "\u{fffd}");
    if message.trim().is_empty() {
        return NO_MESSAGE.to_owned();
    }
    let mut end = message.len().min(LONGEST_MESSAGE);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_message_can_be_sent() {
        assert_eq!(sendable(" \n"), NO_MESSAGE);
        assert_eq!(sendable("a\0b"), "a\u{fffd}b");
        assert!(sendable(&"é".repeat(LONGEST_MESSAGE)).len() <= LONGEST_MESSAGE);
        assert_eq!(sendable("it's \"$HOME\"\n\n# kept\n"), "it's \"$HOME\"\n\n# kept\n");
    }
}
