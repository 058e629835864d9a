//! Phase commits: what a stage of the work has come to, kept in the project's own history.

use std::time::Duration;

use sdk::{Command, CommandError, Sandbox};

use crate::shell::{script, tail_of};
use crate::snapshot::LeftOut;

const COMMIT: &str = include_str!("commit.sh");
/// A first commit of many files.
const COMMIT_DEADLINE: Duration = Duration::from_secs(10 * 60);
const HEAD_DEADLINE: Duration = Duration::from_secs(30);
/// A variable holds no more than twice that.
const LONGEST_MESSAGE: usize = 64 * 1024;
/// For whoever has nothing to say.
const NO_MESSAGE: &str = "Phase";

/// What came of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    Committed(Commit),
    /// Everything was committed already.
    NothingToCommit {
        /// The commit that has it; none in a repository without any.
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
    /// There was no repository before.
    pub initialised: bool,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PhaseError {
    /// Git refused: a conflict, a full disk, a directory that does not exist.
    #[error("the phase could not be committed in {root}: {message}")]
    Git { root: String, message: String },
    #[error(transparent)]
    Sandbox(#[from] CommandError),
}

/// Commits all that differs in the repository at `root`, new and deleted files included. Where there is no repository one is
/// made, on a branch `main`.
///
/// Files that git ignores stay out, and so do new ones in folders that snapshots leave out (`node_modules`, `.venv`). The
/// author is the configured one, else Sandbar. Hooks do not run and nothing is signed, since nobody is there to ask. A lock
/// that a killed git has left is removed.
///
/// Dropping the future may leave the commit made or not; doing it again then finds nothing to commit.
///
/// # Errors
/// [`PhaseError::Git`] has what git said.
pub async fn commit(sandbox: &Sandbox, root: &str, message: &str) -> Result<Phase, PhaseError> {
    let generated = LeftOut::default().certain;
    let arguments = [root].into_iter().chain(generated.iter().map(|name| name.as_str()));
    let command = script(COMMIT, arguments).env("SANDBAR_MESSAGE", sendable(message)).timeout(COMMIT_DEADLINE);
    let output = sandbox.commands().run(command).await?;
    let failed = || PhaseError::Git { root: root.to_owned(), message: tail_of(&output) };
    if !output.success() {
        return Err(failed());
    }
    let said = output.stdout_text();
    let initialised = said.lines().next() == Some("initialised");
    let words: Vec<&str> = said.lines().last().unwrap_or_default().split_whitespace().collect();
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

/// The commit that is checked out at `root`; [`None`] without a repository or a commit. Cheap enough to be asked often.
///
/// # Errors
/// When the sandbox could not be asked.
pub async fn head(sandbox: &Sandbox, root: &str) -> Result<Option<String>, CommandError> {
    let arguments = ["-C", root, "rev-parse", "--verify", "--quiet", "HEAD"];
    let output = sandbox.commands().run(Command::exec("git", arguments).timeout(HEAD_DEADLINE)).await;
    match output {
        Ok(output) if output.success() => Ok(Some(output.stdout_text().trim().to_owned())),
        // Also where there is no git at all.
        Ok(_) | Err(CommandError::NotStartable { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A message as a variable can carry it, and as git takes it.
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
