//! `bash`: one command line, its output and its exit code. It returns when the shell ends, even if
//! other processes still hold the pipes. A timeout or a cancellation kills everything that the
//! command started and keeps the output so far.

mod background;
mod exit;
mod foreground;
mod report;

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::broken;
use crate::dispatch::Watch;
use crate::input::{Input, invalid};
use crate::port::{Machine, ShellCall};
use crate::result::{Done, ErrorCode, Failure, Outcome};
use crate::structured::{FailureFacts, ShellRestarted, ToolOutput};
pub(crate) use report::finished_note;

const DEFAULT_TIMEOUT_SECONDS: u64 = 60;
const MAX_TIMEOUT_SECONDS: i64 = 3600;
/// Extends the sandbox's own limit beyond ours.
const BACKSTOP_TIMEOUT: Duration = Duration::from_secs(30);

struct Request {
    command: String,
    limit: Duration,
    directory: Option<String>,
    called: Instant,
}

/// `called` is the time at which the caller began to wait.
pub(crate) async fn run(machine: &dyn Machine, watch: &Watch, called: Instant, id: &str, input: &mut Input) -> Outcome {
    let command = input.text("command")?;
    let restart = input.flag("restart")?;
    let seconds = input.integer("timeout")?;
    let _ = input.text("description")?;
    let background = input.flag("run_in_background")?;
    let directory = input.optional_text("workdir")?;
    if restart {
        machine.reset_shell().await.map_err(|error| broken("restart the shell", &error))?;
    }
    let command = match command.filter(|command| !command.trim().is_empty()) {
        Some(command) => command,
        None if restart => {
            let text = "The shell's directory and variables are forgotten.\n[exit 0]".to_owned();
            let output = ToolOutput::ShellRestarted(ShellRestarted { exit_code: 0, restarted: true });
            return Ok(Done::text(text, output));
        }
        None => return Err(invalid("`command` is missing. Send the bash command line as a string.")),
    };
    check(&command)?;
    let limit = match seconds {
        None => DEFAULT_TIMEOUT_SECONDS,
        Some(seconds) if seconds > MAX_TIMEOUT_SECONDS => {
            return Err(invalid(format!(
                "`timeout` is {seconds}, but it is in seconds and {MAX_TIMEOUT_SECONDS} seconds are the most. For {seconds} milliseconds send {}; for \
                 longer work use run_in_background.",
                (seconds / 1000).max(1)
            )));
        }
        Some(seconds) => u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).ok_or_else(|| {
            invalid(format!("`timeout` is {seconds}; it is in seconds, from 1 to {MAX_TIMEOUT_SECONDS}."))
        })?,
    };
    let request = Request { command, limit: Duration::from_secs(limit), directory, called };
    let call = ShellCall {
        id: id.to_owned(),
        command: if background { without_ampersand(&request.command).to_owned() } else { request.command.clone() },
        directory: request.directory.clone(),
        background,
        limit: request.limit + BACKSTOP_TIMEOUT,
    };
    if watch.cancel.is_cancelled() {
        return Err(Failure::new(ErrorCode::Cancelled, "Not executed: cancelled."));
    }
    // Not cancellable: a started process must be known so that it can be killed.
    let shell = machine.start(call).await.map_err(|error| broken("start the command", &error))?;
    if background {
        background::run(machine, shell, &request).await
    } else {
        foreground::run(machine, watch, shell, &request, id).await
    }
}

/// Refuses what is not a command line.
fn check(command: &str) -> Result<(), Failure> {
    if command.contains('\0') {
        return Err(invalid("`command` contains a NUL character, which no command line can."));
    }
    let start = command.trim_start();
    let literal = ["[{", "[\"", "{\"", "[['"].iter().any(|opening| start.starts_with(opening));
    if literal && serde_json::from_str::<Value>(start).is_ok() {
        return Err(invalid(
            "`command` is a JSON value, not a command line. Send the bash command itself as a plain string.",
        ));
    }
    Ok(())
}

/// Removes a trailing `&`: the tool itself handles background commands.
fn without_ampersand(command: &str) -> &str {
    let trimmed = command.trim_end();
    match trimmed.strip_suffix('&') {
        Some(rest) if !rest.ends_with(['&', '\\', '>', '<', ';', '|']) => rest.trim_end(),
        _ => trimmed,
    }
}

/// The command's directory does not exist, so that it was not run.
fn missing_directory(directory: String) -> Failure {
    let text = format!("The command was not run: workdir {directory} does not exist or is not a directory.");
    let facts = FailureFacts { workdir: Some(directory), ..FailureFacts::default() };
    Failure::new(ErrorCode::NotFound, text).with(facts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_trailing_ampersand_is_removed() {
        assert_eq!(without_ampersand("sleep 5 & "), "sleep 5");
        assert_eq!(without_ampersand("a && b"), "a && b");
        assert_eq!(without_ampersand("echo \\&"), "echo \\&");
        assert_eq!(without_ampersand("cmd >&"), "cmd >&");
    }
}
