//! The worker: claims what is waiting and builds it, several at once, until told to stop. Any number of processes may do so on one
//! database.
//!
//! A claim is a lease with a number, the attempt: everything the worker writes of the job carries it, so that a worker which was
//! held up changes nothing any more. What a killed worker leaves, the next one takes up when the lease is over: in the same
//! workspace, with the same run.

mod build;
mod copy;
mod errand;
mod lease;
mod run;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info_span, warn};

use crate::chain;
use crate::records::{Change, Held, JobRecord};
use crate::studio::Studio;

/// So long before the end of its sandbox a preview that somebody woke is put to sleep again, rather than lost. Earlier than
/// those who look after workspaces would extend it: nobody works there.
const BEDTIME: SignedDuration = SignedDuration::from_mins(10);
const WATCH_EVERY: Duration = Duration::from_secs(60);

/// Builds what is waiting until told to stop. What is being built then is left as it is, for whoever comes next.
pub async fn work(studio: Studio, stop: CancellationToken) {
    let settings = studio.inner.settings.clone();
    let mut builds = JoinSet::new();
    let mut next_watch = Instant::now() + WATCH_EVERY;
    while !stop.is_cancelled() {
        // Before the look, so that what comes in meanwhile is not missed.
        let work = studio.inner.work.notified();
        while builds.len() < settings.builds {
            match studio.records().claim(settings.lease, None).await {
                Ok(Some(job)) => {
                    let span = info_span!("build", job = %job.id, attempt = job.attempt);
                    builds.spawn(build::build(studio.clone(), job, stop.clone()).instrument(span));
                }
                Ok(None) => break,
                Err(error) => {
                    warn!(error = %chain(&error), "no job can be claimed now");
                    break;
                }
            }
        }
        if Instant::now() >= next_watch {
            next_watch = Instant::now() + WATCH_EVERY;
            let studio = studio.clone();
            builds.spawn(async move { put_to_sleep(&studio).await });
        }
        tokio::select! {
            () = work => {}
            () = stop.cancelled() => {}
            Some(_) = builds.join_next() => {}
            () = tokio::time::sleep(settings.look_every) => {}
        }
    }
    while builds.join_next().await.is_some() {}
}

/// What is to be done for a job that was claimed and has ended.
pub(crate) async fn errand(studio: Studio, job: JobRecord) {
    let stop = studio.inner.stop.clone();
    let span = info_span!("errand", job = %job.id, attempt = job.attempt);
    build::build(studio, job, stop).instrument(span).await;
}

/// Previews that somebody woke and whose time is nearly over.
async fn put_to_sleep(studio: &Studio) {
    let soon = Timestamp::now().saturating_add(BEDTIME).unwrap_or(Timestamp::MAX);
    let ending = match studio.records().ending_before(soon).await {
        Ok(ending) => ending,
        Err(error) => return warn!(error = %chain(&error), "previews that end were not looked for"),
    };
    for job in ending {
        match studio.put_to_sleep_by(&job, Some(soon)).await {
            Ok(_) => {}
            // It is gone: nothing is left to be put to sleep, now or later.
            Err(crate::StudioError::NotFound) => {
                let over = Change { sandbox_expires_at: Some(None), ..Change::default() };
                if let Err(error) = studio.change(&job.id, Held::Anybody, over, Vec::new()).await {
                    warn!(job = %job.id, error = %chain(&error), "the end of a sandbox was not noted");
                }
            }
            Err(error) => warn!(job = %job.id, error = %chain(&error), "a preview could not be put to sleep"),
        }
    }
}
