//! Commands that continue in the background: those that start there, and those that take longer
//! than the caller waits.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};

use super::exit::{failure_for_exit, hint};
use super::report::{fit, saved_part, side};
use super::{Request, missing_directory};
use crate::notice::{Producer, Provenance, Saved};
use crate::output_buffer::OutputBuffer;
use crate::port::{Fetched, Machine, Shell, ShellEnd, ShellEvent, StartDirectory, Stream};
use crate::result::{Done, ErrorCode, Failure, Outcome};
use crate::structured::{BackgroundTask, BashOutput, CapturedOutput, ToolOutput};
use crate::tools::{BUDGET, broken};
use text::{ExitKind, readable, strip_escapes};

/// A background command that ends within this time is reported as finished.
const SETTLE_TIMEOUT: Duration = Duration::from_millis(1500);

pub(super) async fn run(machine: &dyn Machine, mut shell: Box<dyn Shell>, request: &Request) -> Outcome {
    let begun = Instant::now();
    let mut task = None;
    let mut group = None;
    let settle = begun + SETTLE_TIMEOUT;
    let ended = loop {
        tokio::select! {
            event = shell.next() => match event.map_err(|error| broken("start the background task", &error))? {
                ShellEvent::Task { id, log } => task = Some((id, log)),
                ShellEvent::Started { group: pid, directory } => {
                    if let StartDirectory::Missing { directory } = directory {
                        return Err(missing_directory(directory));
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
    let output = |end: Option<&ShellEnd>, stdout: &str, truncated: bool| {
        ToolOutput::Bash(BashOutput {
            exit_code: end.map(|end| end.exit_code),
            duration_ms: begun.elapsed().as_millis() as u64,
            stdout: stdout.to_owned(),
            truncated,
            background: Some(BackgroundTask {
                task_id: id.clone(),
                pid: group,
                pgid: group,
                output_path: log.clone(),
                running: end.is_none(),
            }),
            ..BashOutput::default()
        })
    };
    let Some(end) = ended else {
        let pid = group.unwrap_or_default();
        let text = format!(
            "Started background task {id} (pid {pid}, group {pid}). Output: {log}. Check with read_file (offset -50); stop with: kill \
             -TERM -- -{pid}"
        );
        return Ok(Done::text(text, output(None, "", false)));
    };
    let (logged, saved) = read_log(machine, &log).await;
    let code = failure_for_exit(&request.command, end.exit_code);
    let how = if code.is_none() { ExitKind::Success } else { ExitKind::Failure };
    let provenance = Provenance { producer: Producer::Exited, saved, one_stream: false };
    let logged = strip_escapes(&readable(&logged));
    let too_long = logged.chars().count() > BUDGET - 1000;
    let body = fit(&logged, BUDGET - 1000, how, provenance);
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
    Ok(Done::text(text, output(Some(&end), &body, too_long)).failing(code))
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
pub(super) struct Detached {
    pub(super) task: String,
    pub(super) log: String,
    pub(super) group: Option<u32>,
}

impl Detached {
    /// The result of the call that gave the command up.
    pub(super) fn into_result(self, capture: &OutputBuffer, elapsed: Duration) -> Done {
        let Self { task, log, group } = self;
        let body = strip_escapes(&readable(&capture.all()));
        let notice = format!(
            "[Still running after {} s, so it goes on as background task {task}. Output: {log}. Check with read_file (offset -50){}.]",
            elapsed.as_secs(),
            group.map_or(String::new(), |group| format!("; stop with: kill -TERM -- -{group}"))
        );
        let provenance =
            Provenance { producer: Producer::Running, saved: saved_part(Some(&log), capture), one_stream: false };
        let budget = BUDGET - notice.chars().count() - 1;
        let too_long = body.chars().count() > budget;
        let shown = fit(&body, budget, ExitKind::Success, provenance);
        let stdout = side(capture, Stream::Stdout, ExitKind::Success, provenance);
        let stderr = side(capture, Stream::Stderr, ExitKind::Success, provenance);
        let text = if shown.is_empty() { notice } else { format!("{}\n{notice}", shown.trim_end_matches('\n')) };
        let output = BashOutput {
            duration_ms: elapsed.as_millis() as u64,
            stdout,
            stderr,
            truncated: too_long,
            captured: Some(CapturedOutput { output_bytes: capture.total(), bytes_dropped: capture.dropped() }),
            background: Some(BackgroundTask {
                task_id: task,
                pid: group,
                pgid: group,
                output_path: log,
                running: true,
            }),
            ..BashOutput::default()
        };
        Done::text(text, ToolOutput::Bash(output))
    }
}
