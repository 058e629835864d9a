//! One job, from its claim to where no worker has anything more to do for it.
//!
//! ```text
//! workspace ── run ── application ── snapshot ── pictures ── ready ── sleep ── settled
//!     └──────────┴─────────┴── failed or cancelled ── files saved, sandbox ended ── settled
//! ```
//!
//! Every step can be done again: whatever a killed worker had done is found done.

use std::time::Duration;

use agent::{RunId, StopReason};
use jiff::Timestamp;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use workspace::Workspace;

use super::host::Host;
use super::lease::Claim;
use super::run::Broken;
use crate::body;
use crate::chain;
use crate::error::StudioError;
use crate::id::ScreenshotId;
use crate::job::{Status, Step, next};
use crate::records::{Change, Held, JobRecord, LONGEST_REST, NewPicture};
use crate::settings::Settings;
use crate::studio::Studio;

/// Workers that may break off with a job between two turns of its model. One that ends them all is
/// not given to another.
const MOST_BROKEN_OFF: i64 = 10;
/// Before a job that could not be gone on with is tried again, at first.
const AGAIN: Duration = Duration::from_secs(5);
/// A browser that takes longer takes no picture.
const PHOTOGRAPH: Duration = Duration::from_secs(120);
/// How often the worker looks whether a page has loaded the preview.
const VIEWER_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// For saving files and ending a sandbox.
const TIDY: Duration = Duration::from_secs(600);

/// How a job ends.
enum End {
    Ready(Option<(String, u16)>),
    Failed(String),
    /// Too many workers broke off with it, which is no fault of its user.
    GivenUp,
    Cancelled,
}

/// Why a worker leaves a job as it is.
pub(super) enum Left {
    /// Another has it.
    Lost,
    /// Another may have it at once.
    Stopped,
    /// Another may have it when whatever is wrong has had time to pass.
    Again(String),
}

impl From<StudioError> for Left {
    fn from(error: StudioError) -> Self {
        Self::Again(chain(&error))
    }
}

/// `place` is what a build takes up; it is free again when only the pause of the preview is left to
/// be done.
pub(super) async fn build(
    host: &impl Host,
    studio: &Studio,
    job: JobRecord,
    stop: CancellationToken,
    place: Option<OwnedSemaphorePermit>,
) {
    let claim = Claim::keep(studio, &job);
    let work = Work { studio, host, claim: &claim, attempt: job.attempt };
    let left = tokio::select! {
        done = work.build(job.clone(), place) => match done {
            Ok(()) => return,
            Err(left) => left,
        },
        () = claim.lost.cancelled() => Left::Lost,
        () = stop.cancelled() => Left::Stopped,
    };
    let (rest, reason) = match left {
        Left::Lost => return warn!("another worker has the job"),
        Left::Stopped => (Duration::ZERO, None),
        Left::Again(reason) => (again(job.broken_off), Some(reason)),
    };
    if let Err(error) = studio.records().release(&job.id, job.attempt, rest).await {
        warn!(error = %chain(&error), "the claim ends by itself");
    }
    if let Some(reason) = reason {
        warn!(reason, ?rest, "the job is left to the next worker");
    }
}

/// What a build does that waits for a page to load its preview.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PageWait {
    Over,
    /// It has loaded; what it fetches afterwards gets a moment.
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

/// Longer each time: whatever is wrong may take a while to pass.
fn again(broken_off: i64) -> Duration {
    let doublings = u32::try_from(broken_off.clamp(0, 10)).unwrap_or_default();
    (AGAIN * 2_u32.pow(doublings)).min(LONGEST_REST)
}

pub(super) struct Work<'a, H> {
    pub(super) studio: &'a Studio,
    pub(super) host: &'a H,
    claim: &'a Claim,
    pub(super) attempt: i64,
}

impl<H: Host> Work<'_, H> {
    async fn build(&self, mut job: JobRecord, place: Option<OwnedSemaphorePermit>) -> Result<(), Left> {
        if job.deleted {
            return self.remove(&job).await;
        }
        if let Some(stamp) = job.restore_to {
            return self.restore(&job, stamp).await;
        }
        if !job.status.is_final() {
            self.tell_status(&job).await?;
            let (site, end) = match self.provisioned(&job).await? {
                Ok(site) => {
                    let end = self.built(&mut job, &site).await?;
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
        drop(place);
        self.settle(job).await
    }

    /// A change that only counts while this worker has the job.
    pub(super) async fn change(
        &self,
        job: &JobRecord,
        change: Change,
        told: Vec<body::Body>,
    ) -> Result<JobRecord, Left> {
        self.studio.change(&job.id, Held::By(self.attempt), change, told).await?.ok_or(Left::Lost)
    }

    async fn stage(&self, job: &JobRecord, label: &str) -> Result<(), Left> {
        let change = Change { stage_label: Some(label.to_owned()), ..Change::default() };
        self.change(job, change, vec![body::status(job.status, label, false, None, None)]).await.map(drop)
    }

    async fn tell_status(&self, job: &JobRecord) -> Result<(), Left> {
        let told = body::status(job.status, &job.stage_label, false, None, None);
        self.change(job, Change::default(), vec![told]).await.map(drop)
    }

    /// The workspace of the job, made if there is none.
    async fn provisioned(&self, job: &JobRecord) -> Result<Result<H::Site, End>, Left> {
        if self.claim.cancel.is_cancelled() {
            return Ok(Err(End::Cancelled));
        }
        if job.broken_off >= MOST_BROKEN_OFF {
            return Ok(Err(End::GivenUp));
        }
        let provisioned = tokio::select! {
            provisioned = self.host.provision(job) => provisioned?,
            () = self.claim.cancel.cancelled() => return Ok(Err(End::Cancelled)),
        };
        Ok(provisioned.map_err(End::Failed))
    }

    /// Lets the agent work.
    async fn built(&self, job: &mut JobRecord, site: &H::Site) -> Result<End, Left> {
        let id = job.run.clone().unwrap_or_else(RunId::new);
        let status = next(job.status, Step::Provisioned).map_err(|refused| Left::Again(refused.to_string()))?;
        let label = status.label();
        let change = Change {
            status: Some((job.status, status)),
            stage_label: Some(label.to_owned()),
            // Before the run begins, so that nobody begins another.
            run: Some(id.clone()),
            ..Change::default()
        };
        *job = self.change(job, change, vec![body::status(status, label, false, None, None)]).await?;
        let done = match self.host.drive(job, &id, site, self.claim.cancel.clone()).await {
            Ok(done) => done,
            Err(Broken::Hopeless(reason)) => return Ok(End::Failed(format!("The build could not begin: {reason}."))),
            Err(Broken::Again(reason)) => return Err(Left::Again(reason)),
        };
        match done.reason {
            StopReason::Completed => {}
            StopReason::Cancelled => return Ok(End::Cancelled),
            reason => {
                let scripted = job.model.starts_with("scripted:");
                return Ok(End::Failed(what_next(reason, &done.message, scripted)));
            }
        }
        tokio::select! {
            end = self.finished(job, site) => end,
            () = self.claim.cancel.cancelled() => Ok(End::Cancelled),
        }
    }

    /// Makes what was built ready to be looked at.
    async fn finished(&self, job: &JobRecord, site: &H::Site) -> Result<End, Left> {
        self.stage(job, "Starting the preview").await?;
        let preview = match self.host.serve(site).await {
            Ok(preview) => preview,
            Err(problem) => {
                let text = format!(
                    "The application was built, but it does not answer: {problem}. Rebuild, or say in a new build what to fix."
                );
                return Ok(End::Failed(text));
            }
        };
        self.stage(job, "Saving the files").await?;
        self.host.save(site).await;
        if let Some((_, port)) = &preview {
            self.stage(job, "Taking pictures").await?;
            let shown = JobRecord { preview_port: Some(*port), ..job.clone() };
            self.host.photograph(&shown, site, "ready").await;
        }
        Ok(End::Ready(preview))
    }

    /// Writes down how the job ended. A job that had not come to be built, or that was given up,
    /// costs nothing.
    async fn end(&self, job: &JobRecord, end: End) -> Result<JobRecord, Left> {
        let given_up = matches!(end, End::GivenUp);
        let (step, preview, message) = match end {
            End::Ready(preview) => (Step::Built, preview, None),
            End::Failed(message) => (Step::Failed, None, Some(message)),
            End::GivenUp => {
                let text =
                    format!("The build broke off {MOST_BROKEN_OFF} times and got no further. Rebuild to try again.");
                (Step::Failed, None, Some(text))
            }
            End::Cancelled => (Step::Cancelled, None, None),
        };
        let status = next(job.status, step).map_err(|refused| Left::Again(refused.to_string()))?;
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
            change.sandbox_expires_at = Some(self.studio.awake_until(None));
            if let Some((sandbox, ends_at)) = self.host.running(job).await {
                change.sandbox_id = Some(Some(sandbox));
                change.sandbox_expires_at = Some(self.studio.awake_until(ends_at));
                change.sandbox_paused = Some(false);
            }
        }
        let url = preview.as_ref().map(|(url, _)| url.as_str());
        let told = vec![body::status(status, status.label(), false, url, message.as_deref())];
        let ended = self.change(job, change, told).await?;
        info!(%status, message, "the job has ended");
        Ok(ended)
    }

    /// What is left to be done for a job that has ended: a ready one is put to sleep, of another the files are kept and the sandbox
    /// is ended. What cannot be done is left out.
    async fn settle(&self, job: JobRecord) -> Result<(), Left> {
        match job.status {
            Status::Ready => {
                self.wait_for_viewer(&job).await?;
                if let Err(error) = self.host.pause(&job).await {
                    warn!(error = %chain(&error), "the preview could not be put to sleep, and stays awake");
                }
            }
            _ => {
                let tidied = tokio::time::timeout(TIDY, self.tidy(&job)).await;
                if let Err(problem) = tidied.unwrap_or_else(|_| Err("it took too long".to_owned())) {
                    warn!(problem, "the sandbox of a job that ended could not be ended");
                }
            }
        }
        let change = Change { settled: Some(true), ..Change::default() };
        self.change(&job, change, Vec::new()).await.map(drop)
    }

    /// Waits until a page that watched the build has loaded the preview, or for as long as a page
    /// may take: the frame then stays on the screen, and only the server behind it stops. Without a
    /// page there is nothing to wait for.
    async fn wait_for_viewer(&self, job: &JobRecord) -> Result<(), Left> {
        if job.preview_port.is_none() {
            return Ok(());
        }
        let (settings, begun) = (&self.studio.inner.settings, Instant::now());
        loop {
            let now = self.studio.records().job(&job.id).await.map_err(StudioError::from)?.ok_or(Left::Lost)?;
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

    async fn tidy(&self, job: &JobRecord) -> Result<(), String> {
        if !self.host.discard(job).await? {
            return Ok(());
        }
        let gone = Change { sandbox_id: Some(None), sandbox_paused: Some(false), ..Change::default() };
        self.studio.change(&job.id, Held::Anybody, gone, Vec::new()).await.map(drop).map_err(|error| chain(&error))
    }
}

impl Studio {
    /// Takes pictures of what the workspace shows. Without them the work goes on.
    pub(crate) async fn photograph(&self, job: &JobRecord, workspace: &Workspace, reason: &str) {
        let Some(port) = job.preview_port else { return };
        let taken = tokio::time::timeout(PHOTOGRAPH, self.inner.premises.photograph(workspace, port)).await;
        let kept = async {
            let pictures = taken.map_err(StudioError::unavailable)?.map_err(StudioError::unavailable)?;
            let mut kept = Vec::new();
            for picture in pictures {
                let new = NewPicture {
                    id: ScreenshotId::new(),
                    device: picture.device,
                    width: picture.width,
                    height: picture.height,
                    reason: reason.to_owned(),
                    media_type: "image/webp".to_owned(),
                    content: picture.webp,
                };
                kept.push(self.records().keep_picture(&job.id, new).await?);
            }
            let told = vec![body::screenshots(&job.id, &kept, reason)];
            self.change(&job.id, Held::Anybody, Change::default(), told).await.map(drop)
        };
        let kept: Result<(), StudioError> = kept.await;
        if let Err(error) = kept {
            warn!(job = %job.id, error = %chain(&error), "no pictures were taken");
            let told = vec![body::notice(format!("No pictures could be taken: {}", chain(&error)))];
            if let Err(error) = self.change(&job.id, Held::Anybody, Change::default(), told).await {
                warn!(job = %job.id, error = %chain(&error), "a notice is missing on a timeline");
            }
        }
    }
}

/// What a run that did not complete means for whoever asked for it.
fn what_next(reason: StopReason, message: &str, scripted: bool) -> String {
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
            // The page was closed, or there was none.
            (false, false, 0, PageWait::Over),
            (false, true, 5_000, PageWait::Over),
        ] {
            let found = wait_for_page(watched, loaded, Duration::from_millis(millis), &settings);
            assert_eq!(found, expected, "watched {watched}, loaded {loaded}, after {millis} ms");
        }
        assert_eq!(settings.preview_load_grace, Duration::from_secs(2));
    }

    #[test]
    fn a_job_that_cannot_be_gone_on_with_rests_longer_each_time_and_never_for_long() {
        let rests = [0, 1, 2, 3, 4, 5, i64::MAX].map(|broken_off| again(broken_off).as_secs());
        assert_eq!(rests, [5, 10, 20, 40, 60, 60, 60]);
    }
}
