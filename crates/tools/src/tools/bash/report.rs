//! Reports a command in the foreground: its output within the budget, and notices about its end.

use std::time::Duration;

use bytes::Bytes;

use super::exit::{failure_for_exit, hint, signal_name};
use super::foreground::{EndReason, MAX_OUTPUT};
use super::{MAX_TIMEOUT_SECONDS, Request};
use crate::notice::{Producer, Provenance, Saved};
use crate::output_buffer::OutputBuffer;
use crate::port::{FinishedTask, Machine, ShellEnd, StartDirectory, Stream, Survivor};
use crate::result::{Done, ErrorCode, Outcome};
use crate::structured::{BashOutput, CapturedOutput, EndedTask, ForegroundEnd, ToolOutput};
use crate::tools::{BUDGET, line_count};
use text::{ExitKind, Truncation, readable, strip_escapes, truncate};

/// Silence after which a last line that looks like a prompt counts as one.
const PROMPT_SILENCE_TIMEOUT: Duration = Duration::from_secs(20);

/// Everything reported about a command.
pub(super) struct Report<'a> {
    pub(super) end_reason: EndReason,
    pub(super) capture: OutputBuffer,
    pub(super) place: StartDirectory,
    pub(super) elapsed: Duration,
    pub(super) silence: Duration,
    pub(super) request: &'a Request,
}

impl Report<'_> {
    pub(super) async fn render(self, machine: &dyn Machine, id: &str) -> Outcome {
        let Self { end_reason, capture, place, elapsed, silence, request } = self;
        let body = strip_escapes(&readable(&capture.all()));
        let mut notes: Vec<String> = Vec::new();
        if let StartDirectory::Fallback { gone } = &place {
            notes.push(format!("[Working directory {gone} no longer exists; using the root directory.]"));
        }
        let (code, exit_code, end) = match end_reason {
            EndReason::Ended(end) => (failure_for_exit(&request.command, end.exit_code), Some(end.exit_code), end),
            EndReason::TimedOut(killed) => {
                let verb = if killed.processes.is_ok() { "was " } else { "" };
                notes.push(format!(
                    "[Timed out after {} s and {verb}{}. Output so far is above. If it needs longer, raise timeout (max {MAX_TIMEOUT_SECONDS}) or use \
                     run_in_background.]",
                    request.limit.as_secs(),
                    killed.describe()
                ));
                if silence >= PROMPT_SILENCE_TIMEOUT.min(request.limit) && is_question(&body) {
                    notes.push("[It appears to be waiting for input; use a non-interactive flag.]".into());
                }
                (Some(ErrorCode::Timeout), killed.exit_code(), killed.end.unwrap_or_default())
            }
            EndReason::Cancelled(killed) => {
                notes.push(match &killed.processes {
                    Ok(processes) => {
                        format!("[Stopped by the user{}; ask before retrying.]", with_children(*processes))
                    }
                    Err(_) => format!("[Cancelled by the user; the command {}.]", killed.describe()),
                });
                (Some(ErrorCode::Cancelled), killed.exit_code(), killed.end.unwrap_or_default())
            }
            EndReason::TooMuchOutput(killed) => {
                notes.push(format!(
                    "[The command wrote {} bytes, more than the {MAX_OUTPUT} that a call may, and {}{}; redirect it to a file or narrow \
                     it with head, tail or grep.]",
                    capture.total(),
                    if killed.processes.is_ok() { "was " } else { "" },
                    killed.describe()
                ));
                (Some(ErrorCode::OutputLimit), killed.exit_code(), killed.end.unwrap_or_default())
            }
            EndReason::Lost(error) => {
                notes.push(format!("[The connection to the command was lost: {error}.]"));
                (Some(ErrorCode::SandboxUnavailable), None, ShellEnd::default())
            }
        };
        let ShellEnd { directory, survivors, finished, .. } = end;
        if matches!(code, None | Some(ErrorCode::CommandFailed)) {
            notes.extend(hint(exit_code, &body));
        }
        notes.extend(survivors_note(&survivors));
        notes.extend(finished.iter().map(finished_note));
        let last = match exit_code {
            Some(exit_code) => format!("[exit {exit_code}]"),
            None => "[exit unknown]".to_owned(),
        };
        let footer = notes.into_iter().chain([last]).collect::<Vec<_>>().join("\n");
        let budget = BUDGET - footer.chars().count() - 1;
        let too_long = body.chars().count() > budget;
        let kept = if too_long {
            // A result without its spill file is better than none.
            machine.spill_output(id, Bytes::from(capture.all())).await.ok()
        } else {
            None
        };
        let provenance = Provenance {
            producer: Producer::from_code(code, exit_code),
            saved: saved_part(kept.as_deref(), &capture),
            one_stream: false,
        };
        let ended = if code.is_none() { ExitKind::Success } else { ExitKind::Failure };
        let shown = fit(&body, budget, ended, provenance);
        let mut text = if shown.is_empty() { "(no output)".to_owned() } else { shown };
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&footer);
        let side = |stream| side(&capture, stream, ended, provenance);
        let output = BashOutput {
            exit_code,
            timed_out: code == Some(ErrorCode::Timeout),
            cancelled: code == Some(ErrorCode::Cancelled),
            duration_ms: elapsed.as_millis() as u64,
            stdout: side(Stream::Stdout),
            stderr: side(Stream::Stderr),
            truncated: too_long,
            captured: Some(CapturedOutput { output_bytes: capture.total(), bytes_dropped: capture.dropped() }),
            foreground: Some(ForegroundEnd {
                signal: exit_code.and_then(signal_name).map(|(name, _)| name.to_owned()),
                cwd: directory,
                output_lines: line_count(&body),
                output_path: kept,
                still_running: survivors,
            }),
            background: None,
        };
        let mut done = Done::text(text, ToolOutput::Bash(output)).failing(code);
        done.finished_tasks = Some(finished.iter().map(EndedTask::from).collect());
        Ok(done)
    }
}

/// How much of the output is in a file.
pub(super) fn saved_part<'a>(path: Option<&'a str>, capture: &OutputBuffer) -> Saved<'a> {
    match (path, capture.dropped()) {
        (None, _) => Saved::Nowhere,
        (Some(path), 0) => Saved::Whole { path },
        (Some(path), missing) => Saved::Ends { path, missing },
    }
}

/// One of the two streams, for the structured result.
pub(super) fn side(capture: &OutputBuffer, stream: Stream, ended: ExitKind, provenance: Provenance<'_>) -> String {
    let text = strip_escapes(&readable(&capture.stream(stream)));
    fit(&text, BUDGET, ended, Provenance { one_stream: true, ..provenance })
}

/// Cuts to `budget`, and states the full limit in the notice, whatever the footer takes of it.
pub(super) fn fit(text: &str, budget: usize, ended: ExitKind, provenance: Provenance<'_>) -> String {
    let cut = truncate(text, Truncation { budget, exit: ended, explanation: &provenance.explain() });
    let notice = format!("output truncated at {budget} chars");
    cut.text.replace(&notice, &format!("output truncated at {BUDGET} chars"))
}

pub(super) fn with_children(processes: usize) -> String {
    match processes.saturating_sub(1) {
        0 => String::new(),
        1 => " with its 1 child process".into(),
        children => format!(" with its {children} child processes"),
    }
}

fn survivors_note(survivors: &[Survivor]) -> Option<String> {
    const SHOWN: usize = 3;
    if survivors.is_empty() {
        return None;
    }
    let named: Vec<String> =
        survivors.iter().take(SHOWN).map(|one| format!("pid {} ({})", one.pid, one.command)).collect();
    let more = survivors.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let its = if survivors.len() == 1 { "Its" } else { "Their" };
    Some(format!(
        "[Still running in the background: {}{more}. {its} further output is not captured; redirect it to a file or use \
         run_in_background.]",
        named.join(", ")
    ))
}

pub(crate) fn finished_note(finished: &FinishedTask) -> String {
    let FinishedTask { task, exit_code, log } = finished;
    match exit_code {
        Some(code) => format!("[Background task {task} has ended with exit code {code}. Output: {log}]"),
        None => format!(
            "[Background task {task} did not survive: the sandbox was paused or replaced. Start it again if it is needed. Output \
             until then: {log}]"
        ),
    }
}

fn is_question(body: &str) -> bool {
    let line = body.trim_end_matches('\n').rsplit(['\n', '\r']).next().unwrap_or_default();
    let lower = line.to_lowercase();
    let words = ["[y/n]", "(y/n)", "(yes/no)", "password", "passphrase", "ok to proceed", "continue?", "press enter"];
    words.iter().any(|word| lower.contains(word)) || line.ends_with("? ") || line.ends_with(": ") || line.ends_with('?')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_recognised() {
        for line in ["Ok to proceed? (y) ", "Password: ", "Overwrite? [y/N]", "name: "] {
            assert!(is_question(&format!("x\n{line}")), "{line}");
        }
        assert!(!is_question("compiling\n[12/40]"));
    }
}
