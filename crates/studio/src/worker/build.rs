//! One job, from its claim until it is settled.
//!
//! ```text
//! workspace ── run ── application ── snapshot ── screenshots ── ready ── pause ── settled
//!     └──────────┴─────────┴── failed or cancelled ── save files, delete sandbox ── settled
//! ```
//!
//! Every step is idempotent: a worker that continues after a killed one finds completed steps done.

use std::time::Duration;

use agent::{RunId, StopReason};
use jiff::Timestamp;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use workspace::Workspace;

use super::host::BuildHost;
use super::lease::Claim;
use super::run::DriveError;
use crate::error::StudioError;
use crate::events::{self, StudioEvent};
use crate::id::ScreenshotId;
use crate::job::{JobStep, Status, Task, next};
use crate::records::{Change, JobRecord, MAX_RETRY_DELAY, NewScreenshot, Precondition};
use crate::settings::Settings;
use crate::studio::Studio;
use text::error_chain;

/// Workers that may be interrupted between two turns of the model. After that the job fails, so
/// that a job which kills its workers is not claimed again.
const MAX_INTERRUPTIONS: i64 = 10;
/// The first delay before an interrupted job is claimed again.
const RETRY_BACKOFF: Duration = Duration::from_secs(5);
/// The screenshots are skipped after this time.
const SCREENSHOT_TIMEOUT: Duration = Duration::from_secs(120);
/// How often the worker checks whether a page has loaded the preview.
const VIEWER_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// For saving files and deleting a sandbox.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(600);

/// How a job ends.
enum JobEnd {
    Ready(Option<(String, u16)>),
    Failed(String),
    /// Too many workers were interrupted, which is no fault of the user.
    GivenUp,
    Cancelled,
}

/// Why a worker stops working on a job.
pub(super) enum Interrupted {
    /// Another worker has the job.
    LeaseLost,
    /// The process shuts down. Another worker may claim the job at once.
    Stopped,
    /// A transient failure. Another worker may claim the job after a delay.
    Retry(String),
}

impl From<StudioError> for Interrupted {
    fn from(error: StudioError) -> Self {
        Self::Retry(error_chain(&error))
    }
}

/// Works on a claimed job. `permit` counts against the builds of this process; it is released
/// before the worker waits to pause the preview.
pub(super) async fn build(
    host: &impl BuildHost,
    studio: &Studio,
    job: JobRecord,
    stop: CancellationToken,
    permit: Option<OwnedSemaphorePermit>,
) {
    let claim = Claim::hold(studio, &job);
    let work = JobTask { studio, host, claim: &claim, attempt: job.attempt };
    let left = tokio::select! {
        done = work.run(job.clone(), permit) => match done {
            Ok(()) => return,
            Err(left) => left,
        },
        () = claim.lost.cancelled() => Interrupted::LeaseLost,
        () = stop.cancelled() => Interrupted::Stopped,
    };
    let (rest, reason) = match left {
        Interrupted::LeaseLost => return warn!("lost the claim: another worker has the job"),
        Interrupted::Stopped => (Duration::ZERO, None),
        Interrupted::Retry(reason) => (retry_delay(job.broken_off), Some(reason)),
    };
    if let Err(error) = studio.records().release(&job.id, job.attempt, rest).await {
        warn!(error = %error_chain(&error), "cannot release the claim; it expires");
    }
    if let Some(reason) = reason {
        warn!(reason, ?rest, "interrupted; the next worker continues the job");
    }
}

/// What the worker does while a page may still load the preview.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PageWait {
    Over,
    /// The page has loaded; requests of its scripts get a grace period.
    Grace,
    Poll,
}

fn wait_for_page(watched: bool, loaded: bool, waited: Duration, settings: &Settings) -> PageWait {
    match (watched, loaded) {
        (false, _) => PageWait::Over,
        (true, true) => PageWait::Grace,
        (true, false) if waited >= settings.preview_load_timeout => {
            info!("no page has loaded the preview in time");
            PageWait::Over
        }
        (true, false) => PageWait::Poll,
    }
}

/// The delay doubles with every interruption.
fn retry_delay(broken_off: i64) -> Duration {
    let doublings = u32::try_from(broken_off.clamp(0, 10)).unwrap_or_default();
    (RETRY_BACKOFF * 2_u32.pow(doublings)).min(MAX_RETRY_DELAY)
}

pub(super) struct JobTask<'a, H> {
    pub(super) studio: &'a Studio,
    pub(super) host: &'a H,
    claim: &'a Claim,
    pub(super) attempt: i64,
}

impl<H: BuildHost> JobTask<'_, H> {
    async fn run(&self, job: JobRecord, permit: Option<OwnedSemaphorePermit>) -> Result<(), Interrupted> {
        match job.task() {
            Task::Build => self.build(job, permit).await,
            Task::Restore(stamp) => self.restore(&job, stamp).await,
            Task::Remove => self.remove(&job).await,
        }
    }

    async fn build(&self, mut job: JobRecord, permit: Option<OwnedSemaphorePermit>) -> Result<(), Interrupted> {
        if !job.status.is_final() {
            self.publish_status(&job).await?;
            let (site, end) = match self.provision(&job).await? {
                Ok(site) => {
                    let end = self.run_agent(&mut job, &site).await?;
                    (Some(site), end)
                }
                Err(end) => (None, end),
            };
            let ended = self.end(&job, end).await?;
            if let Some(site) = site {
                self.host.leave(site).await;
            }
            job = ended;
        }
        drop(permit);
        self.settle(job).await
    }

    /// Changes the job only while this worker has it.
    pub(super) async fn change(
        &self,
        job: &JobRecord,
        change: Change,
        events: Vec<events::EventBody>,
    ) -> Result<JobRecord, Interrupted> {
        self.studio
            .change(&job.id, Precondition::Attempt(self.attempt), change, events)
            .await?
            .ok_or(Interrupted::LeaseLost)
    }

    async fn enter_stage(&self, job: &JobRecord, label: &str) -> Result<(), Interrupted> {
        let change = Change { stage_label: Some(label.to_owned()), ..Change::default() };
        self.change(job, change, vec![events::status(job.status, label, false, None, None)]).await.map(drop)
    }

    async fn publish_status(&self, job: &JobRecord) -> Result<(), Interrupted> {
        let events = events::status(job.status, &job.stage_label, false, None, None);
        self.change(job, Change::default(), vec![events]).await.map(drop)
    }

    /// Creates the workspace of the job, or opens it.
    async fn provision(&self, job: &JobRecord) -> Result<Result<H::Site, JobEnd>, Interrupted> {
        if self.claim.cancel.is_cancelled() {
            return Ok(Err(JobEnd::Cancelled));
        }
        if job.broken_off >= MAX_INTERRUPTIONS {
            return Ok(Err(JobEnd::GivenUp));
        }
        let provision = tokio::select! {
            provision = self.host.provision(job) => provision?,
            () = self.claim.cancel.cancelled() => return Ok(Err(JobEnd::Cancelled)),
        };
        Ok(provision.map_err(JobEnd::Failed))
    }

    /// Starts or continues the agent's run and drives it to its end.
    async fn run_agent(&self, job: &mut JobRecord, site: &H::Site) -> Result<JobEnd, Interrupted> {
        let id = job.run.clone().unwrap_or_else(RunId::new);
        let status = next(job.status, JobStep::StartRun).map_err(|refused| Interrupted::Retry(refused.to_string()))?;
        let label = status.label();
        let change = Change {
            status: Some((job.status, status)),
            stage_label: Some(label.to_owned()),
            // Recorded before the run starts, so that no other worker starts a second run.
            run: Some(id.clone()),
            ..Change::default()
        };
        *job = self.change(job, change, vec![events::status(status, label, false, None, None)]).await?;
        let done = match self.host.drive(job, &id, site, self.claim.cancel.clone()).await {
            Ok(done) => done,
            Err(DriveError::Permanent(reason)) => {
                return Ok(JobEnd::Failed(format!("The build could not begin: {reason}.")));
            }
            Err(DriveError::Retry(reason)) => return Err(Interrupted::Retry(reason)),
        };
        match done.reason {
            StopReason::Completed => {}
            StopReason::Cancelled => return Ok(JobEnd::Cancelled),
            reason => {
                let scripted = job.spec.model.starts_with("scripted:");
                return Ok(JobEnd::Failed(explain_stop(reason, &done.message, scripted)));
            }
        }
        tokio::select! {
            end = self.publish_preview(job, site) => end,
            () = self.claim.cancel.cancelled() => Ok(JobEnd::Cancelled),
        }
    }

    /// Starts the preview, saves the files and takes screenshots.
    async fn publish_preview(&self, job: &JobRecord, site: &H::Site) -> Result<JobEnd, Interrupted> {
        self.enter_stage(job, "Starting the preview").await?;
        let preview = match self.host.serve(site).await {
            Ok(preview) => preview,
            Err(problem) => {
                let text = format!(
                    "The application was built, but it does not answer: {problem}. Rebuild, or say in a new build what to fix."
                );
                return Ok(JobEnd::Failed(text));
            }
        };
        self.enter_stage(job, "Saving the files").await?;
        self.host.save(site).await;
        if let Some((_, port)) = &preview {
            self.enter_stage(job, "Taking pictures").await?;
            let shown = JobRecord { preview_port: Some(*port), ..job.clone() };
            self.host.take_screenshots(&shown, site, "ready").await;
        }
        Ok(JobEnd::Ready(preview))
    }

    /// Records how the job ended. Refunds the credit of a job that never reached the build or was
    /// given up.
    async fn end(&self, job: &JobRecord, end: JobEnd) -> Result<JobRecord, Interrupted> {
        let given_up = matches!(end, JobEnd::GivenUp);
        let (step, preview, message) = match end {
            JobEnd::Ready(preview) => (JobStep::Finish, preview, None),
            JobEnd::Failed(message) => (JobStep::Fail, None, Some(message)),
            JobEnd::GivenUp => {
                let text =
                    format!("The build broke off {MAX_INTERRUPTIONS} times and got no further. Rebuild to try again.");
                (JobStep::Fail, None, Some(text))
            }
            JobEnd::Cancelled => (JobStep::Cancel, None, None),
        };
        let status = next(job.status, step).map_err(|refused| Interrupted::Retry(refused.to_string()))?;
        let mut change = Change {
            status: Some((job.status, status)),
            stage_label: Some(status.label().to_owned()),
            finished_at: Some(Timestamp::now()),
            preview: Some(preview.clone()),
            error_message: message.clone(),
            ..Change::default()
        };
        change.refund = match (job.status, status) {
            (Status::Provisioning, Status::Cancelled) => Some("the build was cancelled before it began"),
            (Status::Provisioning, _) => Some("the build could not begin"),
            _ => given_up.then_some("the build broke off too often"),
        };
        if status == Status::Ready {
            change.sandbox_expires_at = Some(self.studio.keep_running_until(None));
            if let Some((sandbox, ends_at)) = self.host.running(job).await {
                change.sandbox_id = Some(Some(sandbox));
                change.sandbox_expires_at = Some(self.studio.keep_running_until(ends_at));
                change.sandbox_paused = Some(false);
            }
        }
        let url = preview.as_ref().map(|(url, _)| url.as_str());
        let events = vec![events::status(status, status.label(), false, url, message.as_deref())];
        let ended = self.change(job, change, events).await?;
        info!(%status, message, "the job has ended");
        Ok(ended)
    }

    /// Pauses the sandbox of a ready job; saves the files of another and deletes its sandbox.
    /// Failures are logged and skipped.
    async fn settle(&self, job: JobRecord) -> Result<(), Interrupted> {
        match job.status {
            Status::Ready => {
                self.wait_for_viewer(&job).await?;
                if let Err(error) = self.host.pause(&job).await {
                    warn!(error = %error_chain(&error), "cannot pause the preview; it keeps running");
                }
            }
            _ => {
                let discarded = tokio::time::timeout(CLEANUP_TIMEOUT, self.discard_sandbox(&job)).await;
                if let Err(problem) = discarded.unwrap_or_else(|_| Err("it took too long".to_owned())) {
                    warn!(problem, "cannot delete the sandbox of an ended job");
                }
            }
        }
        let change = Change { settled: Some(true), ..Change::default() };
        self.change(&job, change, Vec::new()).await.map(drop)
    }

    /// Waits until a page that watched the build has loaded the preview, or until the timeout: the
    /// page then keeps its frame, and only the server behind it stops. Returns at once without a
    /// page.
    async fn wait_for_viewer(&self, job: &JobRecord) -> Result<(), Interrupted> {
        if job.preview_port.is_none() {
            return Ok(());
        }
        let (settings, begun) = (&self.studio.inner.settings, Instant::now());
        loop {
            let now =
                self.studio.records().job(&job.id).await.map_err(StudioError::from)?.ok_or(Interrupted::LeaseLost)?;
            match wait_for_page(now.watched, now.preview_loaded, begun.elapsed(), settings) {
                PageWait::Over => return Ok(()),
                PageWait::Grace => {
                    tokio::time::sleep(settings.preview_load_grace).await;
                    return Ok(());
                }
                PageWait::Poll => tokio::time::sleep(VIEWER_POLL_INTERVAL).await,
            }
        }
    }

    async fn discard_sandbox(&self, job: &JobRecord) -> Result<(), String> {
        if !self.host.discard(job).await? {
            return Ok(());
        }
        let gone = Change { sandbox_id: Some(None), sandbox_paused: Some(false), ..Change::default() };
        self.studio
            .change(&job.id, Precondition::None, gone, Vec::new())
            .await
            .map(drop)
            .map_err(|error| error_chain(&error))
    }
}

impl Studio {
    /// Takes screenshots of the preview. The job continues without them.
    pub(crate) async fn take_screenshots(&self, job: &JobRecord, workspace: &Workspace, reason: &str) {
        let Some(port) = job.preview_port else { return };
        let taken = tokio::time::timeout(SCREENSHOT_TIMEOUT, self.inner.host.take_screenshots(workspace, port)).await;
        let kept = async {
            let screenshots = taken.map_err(StudioError::unavailable)?.map_err(StudioError::unavailable)?;
            let mut images = Vec::new();
            for screenshot in screenshots {
                let new = NewScreenshot {
                    id: ScreenshotId::new(),
                    device: screenshot.device,
                    width: screenshot.width,
                    height: screenshot.height,
                    reason: reason.to_owned(),
                    media_type: "image/webp".to_owned(),
                    content: screenshot.webp,
                };
                images.push((&self.records().save_screenshot(&job.id, new).await?).into());
            }
            let events = vec![StudioEvent::Screenshots { images, reason: reason.to_owned() }.into()];
            self.change(&job.id, Precondition::None, Change::default(), events).await.map(drop)
        };
        let kept: Result<(), StudioError> = kept.await;
        if let Err(error) = kept {
            warn!(job = %job.id, error = %error_chain(&error), "cannot take screenshots");
            let events = vec![events::notice(format!("No pictures could be taken: {}", error_chain(&error)))];
            if let Err(error) = self.change(&job.id, Precondition::None, Change::default(), events).await {
                warn!(job = %job.id, error = %error_chain(&error), "cannot append a notice to the timeline");
            }
        }
    }
}

/// Explains to the user why a run stopped, and what to do next.
fn explain_stop(reason: StopReason, message: &str, scripted: bool) -> String {
    let next = match reason {
        StopReason::MaxCost => "Start a new build in this project with a larger budget: it goes on from these files.",
        StopReason::MaxTurns | StopReason::MaxTokensTotal | StopReason::WallClock => {
            "Start a new build in this project: it goes on from these files."
        }
        StopReason::Stuck | StopReason::ConsecutiveTimeouts | StopReason::FormatErrors => {
            "Rebuild, or describe the goal in smaller steps."
        }
        StopReason::ContextExhausted => "Split the goal into phases and build again.",
        StopReason::Refusal => "Change the goal and build again.",
        StopReason::SandboxLost => "Rebuild: it begins with the files that were saved last.",
        StopReason::ProviderError if scripted => "The script fits another goal or other files: choose another model.",
        StopReason::ProviderError => "The model could not be reached or would not answer. Check its key, then rebuild.",
        StopReason::Completed | StopReason::Cancelled => "Rebuild to try again.",
    };
    format!("The build stopped ({reason}): {message} {next}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_thirty_seconds_to_load_the_preview() {
        let settings = Settings::default();
        for (watched, loaded, millis, expected) in [
            (true, false, 0, PageWait::Poll),
            (true, false, 29_999, PageWait::Poll),
            (true, false, 30_000, PageWait::Over),
            (true, true, 0, PageWait::Grace),
            (true, true, 60_000, PageWait::Grace),
            // The page was closed, or no page watched.
            (false, false, 0, PageWait::Over),
            (false, true, 5_000, PageWait::Over),
        ] {
            let found = wait_for_page(watched, loaded, Duration::from_millis(millis), &settings);
            assert_eq!(found, expected, "watched {watched}, loaded {loaded}, after {millis} ms");
        }
        assert_eq!(settings.preview_load_grace, Duration::from_secs(2));
    }

    #[test]
    fn retry_delay_doubles_up_to_a_limit() {
        let rests = [0, 1, 2, 3, 4, 5, i64::MAX].map(|broken_off| retry_delay(broken_off).as_secs());
        assert_eq!(rests, [5, 10, 20, 40, 60, 60, 60]);
    }
}
