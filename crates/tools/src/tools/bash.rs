//! `bash`: one command line, its output and its exit code. It returns when the shell ends, even if
//! other processes still hold the pipes. A timeout or a cancellation kills everything that the
//! command started and keeps the output so far.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};

use super::{BUDGET, broken};
use crate::dispatch::Watch;
use crate::input::{Input, invalid};
use crate::live_output::LiveOutput;
use crate::notice::{Producer, Provenance, Saved};
use crate::output_buffer::OutputBuffer;
use crate::port::{
    Fetched, FinishedTask, Machine, PortError, Shell, ShellCall, ShellEnd, ShellEvent, Started, Stream, Survivor,
};
use crate::result::{Done, ErrorCode, Failure, Outcome};
use text::{ExitKind, Truncation, readable, strip_escapes, truncate};

const DEFAULT_TIMEOUT_SECONDS: u64 = 60;
const MAX_TIMEOUT_SECONDS: i64 = 3600;
/// Between SIGTERM and SIGKILL.
const TERM_TIMEOUT: Duration = Duration::from_secs(2);
const CANCEL_TERM_TIMEOUT: Duration = Duration::from_millis(500);
/// For the last output of killed processes.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// More foreground output than this is a mistake.
const MAX_OUTPUT: u64 = 256 * 1024 * 1024;
/// A background command that ends within this time is reported as finished.
const SETTLE_TIMEOUT: Duration = Duration::from_millis(1500);
/// Extends the sandbox's own limit beyond ours.
const BACKSTOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Silence after which a last line that looks like a prompt counts as one.
const PROMPT_SILENCE_TIMEOUT: Duration = Duration::from_secs(20);
/// Delay of the first progress report, and interval between two.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

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
            return Ok(Done::text(text, json!({ "exit_code": 0, "restarted": true })));
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
        run_in_background(machine, shell, &request).await
    } else {
        run_in_foreground(machine, watch, shell, &request, id).await
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

/// Result of killing a command.
struct KillResult {
    /// Number of processes found, or why the attempt failed.
    processes: Result<usize, PortError>,
    /// The end that the command's shell reported, if it did.
    end: Option<ShellEnd>,
}

impl KillResult {
    /// `killed with its 2 child processes`, or why it may still run.
    fn describe(&self) -> String {
        match &self.processes {
            Ok(processes) => format!("killed{}", with_children(*processes)),
            Err(_) if self.end.is_some() => "ended".to_owned(),
            Err(error) => format!("could not be killed ({error}), so that it may still run"),
        }
    }

    /// [`None`] if the command may still run.
    fn exit_code(&self) -> Option<i32> {
        const SIGKILL: i32 = 128 + 9;
        match (&self.end, &self.processes) {
            (Some(end), _) => Some(end.exit_code),
            (None, Ok(_)) => Some(SIGKILL),
            (None, Err(_)) => None,
        }
    }
}

/// Why a foreground call ended.
enum EndReason {
    Ended(ShellEnd),
    TimedOut(KillResult),
    Cancelled(KillResult),
    TooMuchOutput(KillResult),
    Lost(PortError),
}

async fn run_in_foreground(
    machine: &dyn Machine,
    watch: &Watch,
    mut shell: Box<dyn Shell>,
    request: &Request,
    id: &str,
) -> Outcome {
    let asked = Instant::now();
    let deadline = asked + request.limit;
    let detach_at = watch.detach_after.map(|after| request.called + after);
    let mut capture = OutputBuffer::default();
    let mut live = watch.output.as_ref().map(|_| LiveOutput::new());
    let mut spoken = asked;
    let mut heartbeat = asked + HEARTBEAT_INTERVAL;
    let mut place = Started::AsAsked;
    let mut group = None;
    let end_reason = loop {
        tokio::select! {
            event = shell.next() => match event {
                Ok(ShellEvent::Started { directory, group: started }) => {
                    place = directory;
                    group = Some(started).filter(|group| *group > 1);
                }
                Ok(ShellEvent::Task { .. }) => {}
                Ok(ShellEvent::Output(stream, bytes)) => {
                    capture.push(stream, &bytes);
                    if let Some(live) = &mut live {
                        live.push(stream, &bytes);
                    }
                    spoken = Instant::now();
                    if capture.total() > MAX_OUTPUT {
                        break EndReason::TooMuchOutput(kill_and_drain(&mut shell, CANCEL_TERM_TIMEOUT, &mut capture).await);
                    }
                }
                Ok(ShellEvent::Ended(end)) => break EndReason::Ended(end),
                Err(error) => break EndReason::Lost(error),
            },
            () = sleep_until(deadline) => break EndReason::TimedOut(kill_and_drain(&mut shell, TERM_TIMEOUT, &mut capture).await),
            () = watch.cancel.cancelled() => break EndReason::Cancelled(kill_and_drain(&mut shell, CANCEL_TERM_TIMEOUT, &mut capture).await),
            () = until(detach_at) => {
                capture.finish();
                let detached = shell.detach(Bytes::from(capture.all())).await;
                let (task, log) = detached.map_err(|error| broken("go on in the background", &error))?;
                let detached = Detached { task, log, group };
                return Ok(detached_result(&capture, request.called.elapsed(), &detached));
            }
            () = until(live.as_ref().and_then(LiveOutput::due)) => {
                if let Some(live) = &mut live {
                    watch.flush_output(live);
                }
            }
            () = sleep_until(heartbeat) => {
                heartbeat = Instant::now() + HEARTBEAT_INTERVAL;
                watch.report_progress(capture.total(), || capture.last_line());
            }
        }
    };
    capture.finish();
    if let Some(live) = &mut live {
        live.finish();
        watch.flush_output(live);
    }
    if let Started::Missing { directory } = place {
        let text = format!("The command was not run: workdir {directory} does not exist or is not a directory.");
        return Err(Failure::new(ErrorCode::NotFound, text).with(json!({ "workdir": directory })));
    }
    let report = Report { end_reason, capture, place, elapsed: asked.elapsed(), silence: spoken.elapsed(), request };
    report.render(machine, id).await
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Kills the command and collects its remaining output.
async fn kill_and_drain(shell: &mut Box<dyn Shell>, grace: Duration, capture: &mut OutputBuffer) -> KillResult {
    // Output during the grace period belongs to the result, but killing does not wait for it: the
    // shell queues events until they are read.
    let processes = shell.kill(grace).await;
    let drain = async {
        loop {
            match shell.next().await {
                Ok(ShellEvent::Output(stream, bytes)) => capture.push(stream, &bytes),
                Ok(ShellEvent::Ended(end)) => return Some(end),
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    };
    // Some processes keep the pipes open.
    let end = timeout(DRAIN_TIMEOUT, drain).await.unwrap_or(None);
    KillResult { processes, end }
}

/// Everything reported about a command.
struct Report<'a> {
    end_reason: EndReason,
    capture: OutputBuffer,
    place: Started,
    elapsed: Duration,
    silence: Duration,
    request: &'a Request,
}

impl Report<'_> {
    async fn render(self, machine: &dyn Machine, id: &str) -> Outcome {
        let Self { end_reason, capture, place, elapsed, silence, request } = self;
        let body = strip_escapes(&readable(&capture.all()));
        let mut notes: Vec<String> = Vec::new();
        if let Started::Fallback { gone } = &place {
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
            producer: Producer::from_code(code, &json!(exit_code)),
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
        let structured = json!({
            "exit_code": exit_code, "signal": exit_code.and_then(signal_name).map(|(name, _)| name),
            "timed_out": code == Some(ErrorCode::Timeout), "cancelled": code == Some(ErrorCode::Cancelled),
            "duration_ms": elapsed.as_millis() as u64, "cwd": directory,
            "stdout": side(Stream::Stdout), "stderr": side(Stream::Stderr),
            "output_bytes": capture.total(), "output_lines": super::line_count(&body), "truncated": too_long, "output_path": kept,
            "bytes_dropped": capture.dropped(),
            "still_running": survivors.iter().map(|one| json!({ "pid": one.pid, "command": one.command })).collect::<Vec<_>>(),
            "finished_tasks": finished.iter().map(finished_fact).collect::<Vec<_>>(),
            "background": Value::Null,
        });
        Ok(Done::text(text, structured).failing(code))
    }
}

/// How much of the output is in a file.
fn saved_part<'a>(path: Option<&'a str>, capture: &OutputBuffer) -> Saved<'a> {
    match (path, capture.dropped()) {
        (None, _) => Saved::Nowhere,
        (Some(path), 0) => Saved::Whole { path },
        (Some(path), missing) => Saved::Ends { path, missing },
    }
}

/// One of the two streams, for the structured result.
fn side(capture: &OutputBuffer, stream: Stream, ended: ExitKind, provenance: Provenance<'_>) -> String {
    let text = strip_escapes(&readable(&capture.stream(stream)));
    fit(&text, BUDGET, ended, Provenance { one_stream: true, ..provenance })
}

/// Cuts to `budget`, and states the full limit in the notice, whatever the footer takes of it.
fn fit(text: &str, budget: usize, ended: ExitKind, provenance: Provenance<'_>) -> String {
    let cut = truncate(text, Truncation { budget, exit: ended, explanation: &provenance.explain() });
    let notice = format!("output truncated at {budget} chars");
    cut.text.replace(&notice, &format!("output truncated at {BUDGET} chars"))
}

fn with_children(processes: usize) -> String {
    match processes.saturating_sub(1) {
        0 => String::new(),
        1 => " with its 1 child process".into(),
        children => format!(" with its {children} child processes"),
    }
}

/// Whether an exit code is a failure to the model. Some programs use 1 for a negative answer.
fn failure_for_exit(command: &str, exit_code: i32) -> Option<ErrorCode> {
    match exit_code {
        0 => None,
        1 if uses_exit_1_for_no(last_command(command)) => None,
        _ => Some(ErrorCode::CommandFailed),
    }
}

fn uses_exit_1_for_no(words: &str) -> bool {
    let mut words = words.split_whitespace().skip_while(|word| {
        let name = word.split('=').next().unwrap_or_default();
        word.contains('=') && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    });
    let first = words.next().unwrap_or_default();
    let program = first.rsplit('/').next().unwrap_or_default();
    match program {
        "grep" | "rg" | "ugrep" | "egrep" | "fgrep" | "diff" | "cmp" | "test" | "[" | "[[" => true,
        "git" => matches!(words.find(|word| !word.starts_with('-')), Some("grep" | "diff")),
        _ => false,
    }
}

/// The part of a command line that mostly determines its exit code.
fn last_command(command: &str) -> &str {
    let command = command.trim_end().trim_end_matches(';');
    let (mut quote, mut start, mut escaped) = (None, 0, false);
    for (at, letter) in command.char_indices() {
        match (quote, letter) {
            _ if escaped => escaped = false,
            (Some('\'') | None | Some('"'), '\\') if quote != Some('\'') => escaped = true,
            (Some(open), letter) if open == letter => quote = None,
            (None, '\'' | '"') => quote = Some(letter),
            (None, ';' | '|' | '&' | '\n') => start = at + 1,
            _ => {}
        }
    }
    command[start..].trim_start()
}

/// Name and usual meaning of the signal that an exit code stands for.
fn signal_name(exit_code: i32) -> Option<(&'static str, &'static str)> {
    Some(match exit_code - 128 {
        1 => ("SIGHUP", ""),
        2 => ("SIGINT", ""),
        3 => ("SIGQUIT", ""),
        4 => ("SIGILL", ""),
        6 => ("SIGABRT", ", an assertion or abort()"),
        8 => ("SIGFPE", ""),
        9 => ("SIGKILL", ", often out of memory"),
        11 => ("SIGSEGV", ", a crash"),
        13 => ("SIGPIPE", ""),
        15 => ("SIGTERM", ""),
        _ => return None,
    })
}

/// Meaning of exit codes that mean the same everywhere.
fn hint(exit_code: Option<i32>, body: &str) -> Option<String> {
    match exit_code? {
        126 => {
            Some("[The file was found but cannot be executed: try chmod +x, or run it with its interpreter.]".into())
        }
        127 => {
            let missing = body.lines().rev().find_map(|line| {
                let head = line.strip_suffix(": command not found").or_else(|| line.strip_suffix(": not found"))?;
                head.rsplit(": ").next()
            });
            Some(match missing {
                Some(name) => {
                    format!("[{name} is not installed or not in PATH; install it, or check the name with `type -a`.]")
                }
                None => "[A program was not found; check that it is installed and in PATH.]".into(),
            })
        }
        code => signal_name(code).map(|(name, meaning)| format!("[killed by {name}{meaning}]")),
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

pub(crate) fn finished_fact(finished: &FinishedTask) -> Value {
    let FinishedTask { task, exit_code, log } = finished;
    json!({ "task_id": task, "exit_code": exit_code, "survived": exit_code.is_some(), "output_path": log })
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

async fn run_in_background(machine: &dyn Machine, mut shell: Box<dyn Shell>, request: &Request) -> Outcome {
    let begun = Instant::now();
    let mut task = None;
    let mut group = None;
    let settle = begun + SETTLE_TIMEOUT;
    let ended = loop {
        tokio::select! {
            event = shell.next() => match event.map_err(|error| broken("start the background task", &error))? {
                ShellEvent::Task { id, log } => task = Some((id, log)),
                ShellEvent::Started { group: pid, directory } => {
                    if let Started::Missing { directory } = directory {
                        let text = format!("The command was not run: workdir {directory} does not exist or is not a directory.");
                        return Err(Failure::new(ErrorCode::NotFound, text).with(json!({ "workdir": directory })));
                    }
                    group = Some(pid);
                }
                ShellEvent::Ended(end) => break Some(end),
                ShellEvent::Output(..) => {}
            },
            // Waits for the start mark even if that takes longer.
            () = sleep_until(settle), if group.is_some() => break None,
            () = sleep_until(begun + Duration::from_secs(30)) => break None,
        }
    };
    let (Some((id, log)), group) = (task, group) else {
        return Err(Failure::new(ErrorCode::SpawnFailed, "The background task did not start within 30 s."));
    };
    let structured = |end: Option<&ShellEnd>, stdout: &str, truncated: bool| {
        json!({
            "exit_code": end.map(|end| end.exit_code), "timed_out": false, "cancelled": false,
            "duration_ms": begun.elapsed().as_millis() as u64, "stdout": stdout, "stderr": "", "truncated": truncated,
            "background": { "task_id": id, "pid": group, "pgid": group, "output_path": log, "running": end.is_none() },
        })
    };
    let Some(end) = ended else {
        let pid = group.unwrap_or_default();
        let text = format!(
            "Started background task {id} (pid {pid}, group {pid}). Output: {log}. Check with read_file (offset -50); stop with: kill \
             -TERM -- -{pid}"
        );
        return Ok(Done::text(text, structured(None, "", false)));
    };
    let (output, saved) = read_log(machine, &log).await;
    let code = failure_for_exit(&request.command, end.exit_code);
    let how = if code.is_none() { ExitKind::Success } else { ExitKind::Failure };
    let provenance = Provenance { producer: Producer::Exited, saved, one_stream: false };
    let output = strip_escapes(&readable(&output));
    let too_long = output.chars().count() > BUDGET - 1000;
    let body = fit(&output, BUDGET - 1000, how, provenance);
    let mut text = if body.is_empty() { "(no output)".to_owned() } else { body.clone() };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(&format!("[Background task {id} ended at once. Output: {log}]\n"));
    if let Some(hint) = hint(Some(end.exit_code), &body) {
        text.push_str(&hint);
        text.push('\n');
    }
    text.push_str(&format!("[exit {}]", end.exit_code));
    Ok(Done::text(text, structured(Some(&end), &body, too_long)).failing(code))
}

/// The log of a finished task, and how much of the output it holds.
async fn read_log<'a>(machine: &dyn Machine, log: &'a str) -> (Bytes, Saved<'a>) {
    /// Where `background.sh` stops writing.
    const MAX_LOG: u64 = 64 * 1024 * 1024;
    match machine.fetch(log, MAX_LOG).await {
        Ok(Fetched::File(fetch)) if (fetch.bytes.len() as u64) < MAX_LOG => (fetch.bytes, Saved::Whole { path: log }),
        Ok(Fetched::File(fetch)) => (fetch.bytes, Saved::Start { path: log }),
        _ => (Bytes::new(), Saved::Nowhere),
    }
}

/// A command that continues as a background task.
struct Detached {
    task: String,
    log: String,
    group: Option<u32>,
}

fn detached_result(capture: &OutputBuffer, elapsed: Duration, detached: &Detached) -> Done {
    let Detached { task, log, group } = detached;
    let body = strip_escapes(&readable(&capture.all()));
    let notice = format!(
        "[Still running after {} s, so it goes on as background task {task}. Output: {log}. Check with read_file (offset -50){}.]",
        elapsed.as_secs(),
        group.map_or(String::new(), |group| format!("; stop with: kill -TERM -- -{group}"))
    );
    let provenance =
        Provenance { producer: Producer::Running, saved: saved_part(Some(log), capture), one_stream: false };
    let budget = BUDGET - notice.chars().count() - 1;
    let too_long = body.chars().count() > budget;
    let shown = fit(&body, budget, ExitKind::Success, provenance);
    let stdout = side(capture, Stream::Stdout, ExitKind::Success, provenance);
    let stderr = side(capture, Stream::Stderr, ExitKind::Success, provenance);
    let text = if shown.is_empty() { notice } else { format!("{}\n{notice}", shown.trim_end_matches('\n')) };
    let structured = json!({
        "exit_code": Value::Null, "timed_out": false, "cancelled": false, "duration_ms": elapsed.as_millis() as u64,
        "stdout": stdout, "stderr": stderr, "output_bytes": capture.total(), "truncated": too_long,
        "bytes_dropped": capture.dropped(),
        "background": { "task_id": task, "pid": group, "pgid": group, "output_path": log, "running": true },
    });
    Done::text(text, structured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_search_result_is_no_failure() {
        for command in [
            "grep x f",
            "cat f | grep -c x",
            "cd /a && git diff --exit-code",
            "LC_ALL=C rg x",
            "[ -f x ]",
            "a; diff b c;",
        ] {
            assert_eq!(failure_for_exit(command, 1), None, "{command}");
        }
        for command in ["make", "grep x f; false", "echo 'a | grep b'", "git commit", "grep x | wc -l"] {
            assert_eq!(failure_for_exit(command, 1), Some(ErrorCode::CommandFailed), "{command}");
        }
        assert_eq!(failure_for_exit("grep x f", 2), Some(ErrorCode::CommandFailed));
    }

    #[test]
    fn only_a_trailing_ampersand_is_removed() {
        assert_eq!(without_ampersand("sleep 5 & "), "sleep 5");
        assert_eq!(without_ampersand("a && b"), "a && b");
        assert_eq!(without_ampersand("echo \\&"), "echo \\&");
        assert_eq!(without_ampersand("cmd >&"), "cmd >&");
    }

    #[test]
    fn prompts_are_recognised() {
        for line in ["Ok to proceed? (y) ", "Password: ", "Overwrite? [y/N]", "name: "] {
            assert!(is_question(&format!("x\n{line}")), "{line}");
        }
        assert!(!is_question("compiling\n[12/40]"));
    }

    #[test]
    fn missing_program_is_named() {
        let hint = hint(Some(127), "bash: line 1: foo: command not found\n").expect("a hint");
        assert!(hint.starts_with("[foo is not installed"), "{hint}");
    }
}
