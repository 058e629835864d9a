//! Runs internal scripts and commands in a sandbox as its user, keeps the tail of their output, and
//! finds their processes again after the caller is gone.

use std::collections::VecDeque;
use std::time::Duration;

use sdk::{Chunk, Command, CommandError, Exit, Output, Sandbox};
use tracing::debug;

use sdk::label;

/// The directory for Sandbar's files in a sandbox, next to the project.
pub const SESSION_DIRECTORY: &str = "/home/user/.sandbar";
/// The environment variable that marks internal processes; children inherit it.
const MARK: &str = "SANDBAR_TASK";
const END: &str = include_str!("end.sh");
const END_ALL: &str = include_str!("end_all.sh");
/// Allows for two waits of five seconds on a busy machine.
const END_DEADLINE: Duration = Duration::from_secs(60);
const SYNC_TIMEOUT: Duration = Duration::from_secs(60);

/// The prefix of directories in which a clone is staged. The client starts git without a mark, so
/// git is found by this text in its command line.
pub(crate) const STAGE: &str = "/home/user/.sandbar/clone.";

/// Why processes could not be killed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KillError {
    #[error("processes of an earlier attempt could not be ended: {0}")]
    StillRunning(String),
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// Marks the command, so that [`kill_marked`] finds it and its children. Marks consist of letters,
/// digits, `:` and `-`.
pub(crate) fn mark(command: Command, mark: &str) -> Command {
    command.env(MARK, mark)
}

/// Selects processes to kill.
#[derive(Debug, Clone, Default)]
pub(crate) struct KillFilter<'a> {
    /// Processes whose mark has this prefix.
    pub(crate) mark: &'a str,
    /// Except those with one of these marks.
    pub(crate) except: Vec<String>,
    /// And processes with this text in their command line, unless it is empty.
    pub(crate) text: &'a str,
}

/// Kills processes, and returns when they have exited.
pub(crate) async fn kill_marked(
    sandbox: &Sandbox,
    KillFilter { mark, except, text }: KillFilter<'_>,
) -> Result<(), KillError> {
    let except = except.iter().map(|mark| format!("{MARK}={mark}$")).collect::<Vec<_>>().join("|");
    let command = script(END, [format!("{MARK}={mark}"), except]).env("SANDBAR_END", text).timeout(END_DEADLINE);
    let output = sandbox.commands().run(command).await?;
    if output.success() { Ok(()) } else { Err(KillError::StillRunning(tail_of(&output))) }
}

/// Kills all processes of the sandbox's user.
pub(crate) async fn kill_all(sandbox: &Sandbox) -> Result<(), KillError> {
    let output = sandbox.commands().run(script(END_ALL, [""; 0]).timeout(END_DEADLINE)).await?;
    if output.success() { Ok(()) } else { Err(KillError::StillRunning(tail_of(&output))) }
}

/// Flushes the sandbox's files to its disk, so that a power cut after this loses none. A failure is
/// only logged: the files are also in the checkpoint, or can be set up again.
pub(crate) async fn sync_files(sandbox: &Sandbox) {
    let command = label::tag_internal(Command::exec("sync", ["-f", "/home/user"]).timeout(SYNC_TIMEOUT));
    match sandbox.commands().run(command).await {
        Ok(output) if output.success() => {}
        Ok(output) => debug!(output = tail_of(&output), "the sandbox's files were not synced"),
        Err(error) => debug!(%error, "the sandbox's files were not synced"),
    }
}

/// A bash script with its arguments.
pub(crate) fn script<A: Into<String>>(text: &str, arguments: impl IntoIterator<Item = A>) -> Command {
    let arguments = ["-c", text, "sandbar"].map(str::to_owned).into_iter().chain(arguments.into_iter().map(Into::into));
    label::tag_internal(Command::exec("/bin/bash", arguments))
}

/// Runs a command to its end and returns the tail of its output.
pub(crate) async fn run_to_end(sandbox: &Sandbox, command: Command) -> Result<(Exit, String), CommandError> {
    let (mut stdout, mut stderr) = (Tail::default(), Tail::default());
    let each = |chunk: Chunk| match &chunk {
        Chunk::Stdout(bytes) | Chunk::Pty(bytes) => stdout.push(bytes),
        Chunk::Stderr(bytes) => stderr.push(bytes),
    };
    let exit = sandbox.commands().run_with(command, each).await?;
    Ok((exit, join_tails(&stdout, &stderr)))
}

/// The tail of a script's output.
pub(crate) fn tail_of(output: &Output) -> String {
    let (mut stdout, mut stderr) = (Tail::default(), Tail::default());
    stdout.push(&output.stdout);
    stderr.push(&output.stderr);
    join_tails(&stdout, &stderr)
}

/// stderr comes last. Each has its own limit, so that stdout cannot push out the error.
fn join_tails(stdout: &Tail, stderr: &Tail) -> String {
    let parts = [stdout.text(), stderr.text()];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
}

/// Formats a tail for the end of an error message.
pub(crate) fn format_tail(tail: &str) -> String {
    if tail.is_empty() { String::new() } else { format!(":\n{tail}") }
}

/// The last bytes of an output.
#[derive(Debug, Default)]
pub(crate) struct Tail(VecDeque<u8>);

impl Tail {
    /// About a screen of a terminal.
    const MOST: usize = 2 * 1024;

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(Self::MOST)..];
        let surplus = (self.0.len() + bytes.len()).saturating_sub(Self::MOST);
        self.0.drain(..surplus);
        self.0.extend(bytes);
    }

    /// As text, starting with a whole line if earlier output was dropped.
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
