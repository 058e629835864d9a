//! Scripts and commands of ours in a sandbox, as its own user: run to their end, with the last of what they say, and found
//! again when nobody waits for them any more.

use std::collections::VecDeque;
use std::time::Duration;

use sdk::{Chunk, Command, CommandError, Exit, Output, Sandbox};
use tracing::debug;

use crate::label;

/// Directory for what we keep in a sandbox beside the project.
pub(crate) const STATE_DIRECTORY: &str = "/home/user/.sandbar";
/// Carried by what we start, and by what that starts.
const MARK: &str = "SANDBAR_TASK";
const END: &str = include_str!("end.sh");
const END_ALL: &str = include_str!("end_all.sh");
/// Two times five seconds of waiting, on a machine that is busy.
const END_DEADLINE: Duration = Duration::from_secs(60);
const SYNC_TIMEOUT: Duration = Duration::from_secs(60);

/// How directories begin in which a clone is made. Git is started by the client, which gives it no mark: it is known by
/// this text on its command line.
pub(crate) const STAGE: &str = "/home/user/.sandbar/clone.";

/// What the end of processes may fail with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EndError {
    #[error("processes of an earlier attempt could not be ended: {0}")]
    StillRunning(String),
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// The command, so that it and all it starts can be found by [`end`]. Marks are plain: letters, digits, `:` and `-`.
pub(crate) fn marked(command: Command, mark: &str) -> Command {
    command.env(MARK, mark)
}

/// Which processes are to be ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ending<'a> {
    /// Those whose mark begins so.
    pub(crate) mark: &'a str,
    /// But none of those that carry one of these.
    pub(crate) except: Vec<String>,
    /// And those that have this on their command line, if it is anything.
    pub(crate) text: &'a str,
}

/// Ends processes, and returns when they are gone.
pub(crate) async fn end(sandbox: &Sandbox, Ending { mark, except, text }: Ending<'_>) -> Result<(), EndError> {
    let except = except.iter().map(|mark| format!("{MARK}={mark}$")).collect::<Vec<_>>().join("|");
    let command = script(END, [format!("{MARK}={mark}"), except]).env("SANDBAR_END", text).timeout(END_DEADLINE);
    let output = sandbox.commands().run(command).await?;
    if output.success() { Ok(()) } else { Err(EndError::StillRunning(tail_of(&output))) }
}

/// Ends everything that runs as the sandbox's user.
pub(crate) async fn end_all(sandbox: &Sandbox) -> Result<(), EndError> {
    let output = sandbox.commands().run(script(END_ALL, [""; 0]).timeout(END_DEADLINE)).await?;
    if output.success() { Ok(()) } else { Err(EndError::StillRunning(tail_of(&output))) }
}

/// Has the sandbox write its files to its disk, so that a power cut after this takes none of them. A sandbox that cannot
/// is used all the same: its files are in the snapshot too, or can be set up again.
pub(crate) async fn sync_files(sandbox: &Sandbox) {
    let command = label::own(Command::exec("sync", ["-f", "/home/user"]).timeout(SYNC_TIMEOUT));
    match sandbox.commands().run(command).await {
        Ok(output) if output.success() => {}
        Ok(output) => debug!(said = tail_of(&output), "the sandbox's files were not synced"),
        Err(error) => debug!(%error, "the sandbox's files were not synced"),
    }
}

/// A bash script with its arguments.
pub(crate) fn script<A: Into<String>>(text: &str, arguments: impl IntoIterator<Item = A>) -> Command {
    let arguments = ["-c", text, "sandbar"].map(str::to_owned).into_iter().chain(arguments.into_iter().map(Into::into));
    label::own(Command::exec("/bin/bash", arguments))
}

/// Runs a command to its end and keeps the last of what it says.
pub(crate) async fn run_to_end(sandbox: &Sandbox, command: Command) -> Result<(Exit, String), CommandError> {
    let (mut said, mut complained) = (Tail::default(), Tail::default());
    let each = |chunk: Chunk| match &chunk {
        Chunk::Stdout(bytes) | Chunk::Pty(bytes) => said.push(bytes),
        Chunk::Stderr(bytes) => complained.push(bytes),
    };
    let exit = sandbox.commands().run_with(command, each).await?;
    Ok((exit, joined(&said, &complained)))
}

/// The last of what a script said.
pub(crate) fn tail_of(output: &Output) -> String {
    let (mut said, mut complained) = (Tail::default(), Tail::default());
    said.push(&output.stdout);
    complained.push(&output.stderr);
    joined(&said, &complained)
}

/// Complaints last. Each has room of its own: however much is said, the reason is not pushed out.
fn joined(said: &Tail, complained: &Tail) -> String {
    let parts = [said.text(), complained.text()];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
}

/// For an error that has something to add.
pub(crate) fn after_colon(tail: &str) -> String {
    if tail.is_empty() { String::new() } else { format!(":\n{tail}") }
}

/// The end of an output.
#[derive(Debug, Default)]
pub(crate) struct Tail(VecDeque<u8>);

impl Tail {
    /// A screen of a terminal.
    const MOST: usize = 2 * 1024;

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(Self::MOST)..];
        let surplus = (self.0.len() + bytes.len()).saturating_sub(Self::MOST);
        self.0.drain(..surplus);
        self.0.extend(bytes);
    }

    /// As text, beginning with a whole line where something was dropped.
    pub(crate) fn text(&self) -> String {
        let bytes: Vec<u8> = self.0.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let whole = match text.split_once('\n') {
            Some((_, rest)) if self.0.len() == Self::MOST && !rest.is_empty() => rest,
            _ => &text,
        };
        whole.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_is_the_last_whole_lines() {
        let mut tail = Tail::default();
        for number in 0..2_000 {
            tail.push(format!("line {number}\n").as_bytes());
        }
        let text = tail.text();
        assert!(text.len() <= Tail::MOST && text.starts_with("line ") && text.ends_with("line 1999"), "{text}");
        let mut tail = Tail::default();
        tail.push("short\n".as_bytes());
        assert_eq!(tail.text(), "short");
        tail.push("é".repeat(10_000).as_bytes());
        assert!(tail.text().len() <= Tail::MOST + 4);
    }
}
