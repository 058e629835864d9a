//! The worker: claims queued jobs and builds several at once, until it is stopped. Any number of
//! processes can run workers on one database.
//!
//! A claim is a lease with a number, the attempt. Every write of the worker carries the attempt, so
//! that a stalled worker which lost its lease changes nothing. When the lease of a killed worker
//! expires, the next worker continues in the same workspace with the same run.

mod base;
mod build;
mod cleanup;
mod copy;
mod host;
mod lease;
mod run;
#[cfg(test)]
pub(crate) mod simulation;

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info_span, warn};

use self::host::WorkspaceHost;
use crate::records::JobRecord;
use crate::studio::Studio;
use text::error_chain;

/// How long before its sandbox expires a resumed preview is paused, so that it is not lost. Earlier
/// than workspace maintenance would extend the sandbox, because no user works in it.
const AUTO_PAUSE_MARGIN: SignedDuration = SignedDuration::from_mins(10);
const PAUSE_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Builds queued jobs until `stop` is cancelled. Builds in progress are then released for the next
/// worker.
pub async fn work(studio: Studio, stop: CancellationToken) {
    let settings = studio.inner.settings.clone();
    let (mut builds, mut pause_checks) = (JoinSet::new(), JoinSet::new());
    let permits = Arc::new(Semaphore::new(settings.builds));
    let mut next_pause_check = Instant::now() + PAUSE_CHECK_INTERVAL;
    while !stop.is_cancelled() {
        // Registered before the claim, so that a notification during the claim is not lost.
        let work = studio.inner.work.notified();
        while let Ok(permit) = Arc::clone(&permits).try_acquire_owned() {
            match studio.records().claim(settings.lease, None).await {
                Ok(Some(job)) => {
                    let span = info_span!("build", job = %job.id, attempt = job.attempt);
                    let (studio, stop) = (studio.clone(), stop.clone());
                    builds.spawn(build_in_workspace(studio, job, stop, Some(permit)).instrument(span));
                }
                Ok(None) => break,
                Err(error) => {
                    warn!(error = %error_chain(&error), "cannot claim a job; trying again");
                    break;
                }
            }
        }
        while pause_checks.try_join_next().is_some() {}
        if Instant::now() >= next_pause_check && pause_checks.is_empty() {
            next_pause_check = Instant::now() + PAUSE_CHECK_INTERVAL;
            let studio = studio.clone();
            pause_checks.spawn(async move { pause_expiring(&studio).await });
        }
        tokio::select! {
            () = work => {}
            () = stop.cancelled() => {}
            Some(_) = builds.join_next() => {}
            () = tokio::time::sleep(settings.claim_interval) => {}
        }
    }
    while builds.join_next().await.is_some() {}
    while pause_checks.join_next().await.is_some() {}
}

/// Runs the cleanup of an ended job that was claimed.
pub(crate) async fn clean_up(studio: Studio, job: JobRecord) {
    let stop = studio.inner.stop.clone();
    let span = info_span!("cleanup", job = %job.id, attempt = job.attempt);
    build_in_workspace(studio, job, stop, None).instrument(span).await;
}

async fn build_in_workspace(
    studio: Studio,
    job: JobRecord,
    stop: CancellationToken,
    permit: Option<OwnedSemaphorePermit>,
) {
    let host = WorkspaceHost { studio: studio.clone() };
    build::build(&host, &studio, job, stop, permit).await;
}

/// Pauses resumed previews whose sandboxes expire soon.
async fn pause_expiring(studio: &Studio) {
    let soon = Timestamp::now().saturating_add(AUTO_PAUSE_MARGIN).unwrap_or(Timestamp::MAX);
    let ending = match studio.records().jobs_expiring_before(soon).await {
        Ok(ending) => ending,
        Err(error) => return warn!(error = %error_chain(&error), "cannot query expiring previews; trying again"),
    };
    for job in ending {
        match studio.pause_before(&job, Some(soon)).await {
            Ok(_) => {}
            // The sandbox is gone, so nothing is left to pause.
            Err(crate::StudioError::NotFound) => studio.record_sandbox_gone(&job).await,
            Err(error) => warn!(job = %job.id, error = %error_chain(&error), "cannot pause a preview; trying again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use agent::records::JournalEntry;
    use agent::{Event, Happened, RunId, UsageRecorder};
    use futures::FutureExt as _;
    use sdk::Secret;
    use tempfile::TempDir;

    use super::simulation::{NoHost, run_head, run_record};
    use super::*;
    use crate::events::TimelineEventKind;
    use crate::job::Status;
    use crate::records::{Change, JobSpec, Precondition};
    use crate::settings::Settings;
    use crate::token::{TokenDigest, new_token};

    /// A ready job whose sandbox runs and expires within a minute.
    async fn ending(studio: &Studio) -> JobRecord {
        let digest = TokenDigest::from_token(new_token().expose()).expect("a token");
        let user = studio.records().add_user("ada", &digest, 1).await.expect("a user");
        let project = studio.records().ensure_project(&user.id, "page").await.expect("a project");
        let spec = JobSpec { goal: "Make a page.".to_owned(), model: "scripted:here".to_owned(), ..JobSpec::default() };
        let mut job = studio.records().enqueue(&user.id, &project.id, &spec).await.expect("taken in").expect("a job");
        for to in [Status::Provisioning, Status::Building, Status::Ready] {
            let change = Change {
                status: Some((job.status, to)),
                sandbox_id: Some(Some("iawake".to_owned())),
                sandbox_expires_at: Some(Some(Timestamp::now() + SignedDuration::from_mins(1))),
                settled: Some(true),
                ..Change::default()
            };
            job =
                studio.change(&job.id, Precondition::None, change, Vec::new()).await.expect("changed").expect("a job");
        }
        job
    }

    async fn nowhere(directory: &TempDir) -> Studio {
        let url = Secret::from(format!("sqlite://{}", directory.path().join("records.db").display()));
        Studio::open(&url, Arc::new(NoHost), Settings::default()).await.expect("a studio")
    }

    /// A write may succeed although its response is lost.
    #[tokio::test]
    async fn the_copier_continues_after_a_lost_response() {
        let directory = TempDir::new().expect("a directory");
        let studio = nowhere(&directory).await;
        let (job, run) = (ending(&studio).await, RunId::new());
        studio.inner.runs.begin(&run_record(&job, &run)).await.expect("begun");
        let message_entry = |seq: u64| JournalEntry {
            happened: Happened {
                seq,
                ts: Timestamp::now(),
                turn: 1,
                dropped: 0,
                event: Event::Message { text: format!("message {seq}") },
            },
            change: None,
        };
        let append = async |from: u64, to: u64| {
            let entries: Vec<JournalEntry> = (from + 1..=to).map(message_entry).collect();
            studio.inner.runs.append(&run, from, &entries, &run_head()).await.expect("written");
        };
        let books = UsageRecorder {
            records: studio.inner.usage.clone(),
            run: run.clone(),
            project: "project".to_owned(),
            job: job.id.to_string(),
            model: job.spec.model.clone(),
        };
        let phases = || tokio::sync::mpsc::unbounded_channel().0;
        let copier = || copy::JournalCopier::new(&studio, &job.id, job.attempt, books.clone(), 0, phases());
        append(0, 2).await;
        copier().copy().await.expect("copied");
        append(2, 3).await;
        // This copier does not know that the first two were written.
        copier().copy().await.expect("copied");
        let events = studio.records().events(&job.id, job.events).await.expect("read");
        let texts: Vec<_> = events
            .iter()
            .filter_map(|event| match &event.body.event {
                TimelineEventKind::Agent(Event::Message { text }) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(texts, ["message 1", "message 2", "message 3"]);
        // A copier whose job another worker has writes nothing.
        append(3, 4).await;
        let mut late = copy::JournalCopier::new(&studio, &job.id, job.attempt + 1, books.clone(), 0, phases());
        late.copy().await.expect("nothing is wrong");
        assert_eq!(studio.records().events(&job.id, job.events).await.expect("read").len(), 3);
    }

    #[tokio::test]
    async fn a_preview_resumed_meanwhile_is_not_paused() {
        let directory = TempDir::new().expect("a directory");
        let studio = nowhere(&directory).await;
        let job = ending(&studio).await;
        let soon = Timestamp::now() + AUTO_PAUSE_MARGIN;
        let listed = async || studio.records().jobs_expiring_before(soon).await.expect("read").len();
        assert_eq!(listed().await, 1, "it is to be paused");

        // A user resumes it and holds the lock; the worker waits for the lock.
        let lock = studio.lock_job(&job.id).await;
        let mut pause = Box::pin(studio.pause_before(&job, Some(soon)));
        assert!(futures::poll!(&mut pause).is_pending(), "the pause did not wait for the lock");
        let woken = Change { sandbox_expires_at: Some(studio.keep_running_until(None)), ..Change::default() };
        studio.change(&job.id, Precondition::None, woken, Vec::new()).await.expect("changed");
        drop(lock);
        // The sandbox is not inspected, and nothing changed.
        assert!(!pause.await.expect("the records work"), "it was paused");
        let after = studio.records().job(&job.id).await.expect("read").expect("a job");
        assert_eq!((after.sandbox_paused, after.events), (false, job.events));
        assert_eq!(listed().await, 0);

        // A preview that no user resumed is paused.
        let over = Change { sandbox_expires_at: Some(job.sandbox_expires_at), ..Change::default() };
        studio.change(&job.id, Precondition::None, over, Vec::new()).await.expect("changed");
        let tried = std::panic::AssertUnwindSafe(pause_expiring(&studio)).catch_unwind().await;
        assert!(tried.is_err(), "no worker paused it");
    }
}
