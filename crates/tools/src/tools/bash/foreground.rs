//! Runs a command in the foreground: collects its output until it ends, is killed, or continues in
//! the background.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep_until, timeout};

use super::background::Detached;
use super::report::{Report, with_children};
use super::{Request, missing_directory};
use crate::dispatch::Watch;
use crate::live_output::LiveOutput;
use crate::output_buffer::OutputBuffer;
use crate::port::{Machine, PortError, Shell, ShellEnd, ShellEvent, StartDirectory};
use crate::result::Outcome;
use crate::tools::broken;

/// Between SIGTERM and SIGKILL.
const TERM_TIMEOUT: Duration = Duration::from_secs(2);
const CANCEL_TERM_TIMEOUT: Duration = Duration::from_millis(500);
/// For the last output of killed processes.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// More foreground output than this is a mistake.
pub(super) const MAX_OUTPUT: u64 = 256 * 1024 * 1024;
/// Delay of the first progress report, and interval between two.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// Result of killing a command.
pub(super) struct KillResult {
    /// Number of processes found, or why the attempt failed.
    pub(super) processes: Result<usize, PortError>,
    /// The end that the command's shell reported, if it did.
    pub(super) end: Option<ShellEnd>,
}

impl KillResult {
    /// `killed with its 2 child processes`, or why it may still run.
    pub(super) fn describe(&self) -> String {
        match &self.processes {
            Ok(processes) => format!("killed{}", with_children(*processes)),
            Err(_) if self.end.is_some() => "ended".to_owned(),
            Err(error) => format!("could not be killed ({error}), so that it may still run"),
        }
    }

    /// [`None`] if the command may still run.
    pub(super) fn exit_code(&self) -> Option<i32> {
        const SIGKILL: i32 = 128 + 9;
        match (&self.end, &self.processes) {
            (Some(end), _) => Some(end.exit_code),
            (None, Ok(_)) => Some(SIGKILL),
            (None, Err(_)) => None,
        }
    }
}

/// Why a foreground call ended.
pub(super) enum EndReason {
    Ended(ShellEnd),
    TimedOut(KillResult),
    Cancelled(KillResult),
    TooMuchOutput(KillResult),
    Lost(PortError),
}

pub(super) async fn run(
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
    let mut place = StartDirectory::AsAsked;
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
                return Ok(detached.into_result(&capture, request.called.elapsed()));
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
    if let StartDirectory::Missing { directory } = place {
        return Err(missing_directory(directory));
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
