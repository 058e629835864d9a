//! The worker: claims what is waiting and builds it, several at once, until told to stop. Any number of processes may do so on one
//! database.
//!
//! A claim is a lease with a number, the attempt: everything the worker writes of the job carries it, so that a worker which was
//! held up changes nothing any more. What a killed worker leaves, the next one takes up when the lease is over: in the same
//! workspace, with the same run.

mod base;
mod build;
mod copy;
mod errand;
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
use crate::chain;
use crate::records::JobRecord;
use crate::studio::Studio;

/// So long before the end of its sandbox a preview that somebody woke is put to sleep again, rather than lost. Earlier than
/// those who look after workspaces would extend it: nobody works there.
const BEDTIME: SignedDuration = SignedDuration::from_mins(10);
const WATCH_EVERY: Duration = Duration::from_secs(60);

/// Builds what is waiting until told to stop. What is being built then is left as it is, for whoever comes next.
pub async fn work(studio: Studio, stop: CancellationToken) {
    let settings = studio.inner.settings.clone();
    let (mut builds, mut watches) = (JoinSet::new(), JoinSet::new());
    let places = Arc::new(Semaphore::new(settings.builds));
    let mut next_watch = Instant::now() + WATCH_EVERY;
    while !stop.is_cancelled() {
        // Before the look, so that what comes in meanwhile is not missed.
        let work = studio.inner.work.notified();
        while let Ok(place) = Arc::clone(&places).try_acquire_owned() {
            match studio.records().claim(settings.lease, None).await {
                Ok(Some(job)) => {
                    let span = info_span!("build", job = %job.id, attempt = job.attempt);
                    let (studio, stop) = (studio.clone(), stop.clone());
                    builds.spawn(build_in_workspace(studio, job, stop, Some(place)).instrument(span));
                }
                Ok(None) => break,
                Err(error) => {
                    warn!(error = %chain(&error), "no job can be claimed now");
                    break;
                }
            }
        }
        while watches.try_join_next().is_some() {}
        if Instant::now() >= next_watch && watches.is_empty() {
            next_watch = Instant::now() + WATCH_EVERY;
            let studio = studio.clone();
            watches.spawn(async move { put_to_sleep(&studio).await });
        }
        tokio::select! {
            () = work => {}
            () = stop.cancelled() => {}
            Some(_) = builds.join_next() => {}
            () = tokio::time::sleep(settings.look_every) => {}
        }
    }
    while builds.join_next().await.is_some() {}
    while watches.join_next().await.is_some() {}
}

/// What is to be done for a job that was claimed and has ended.
pub(crate) async fn errand(studio: Studio, job: JobRecord) {
    let stop = studio.inner.stop.clone();
    let span = info_span!("errand", job = %job.id, attempt = job.attempt);
    build_in_workspace(studio, job, stop, None).instrument(span).await;
}

async fn build_in_workspace(
    studio: Studio,
    job: JobRecord,
    stop: CancellationToken,
    place: Option<OwnedSemaphorePermit>,
) {
    let host = WorkspaceHost { studio: studio.clone() };
    build::build(&host, &studio, job, stop, place).await;
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
            Err(crate::StudioError::NotFound) => studio.note_gone(&job).await,
            Err(error) => warn!(job = %job.id, error = %chain(&error), "a preview could not be put to sleep"),
        }
    }
}

#[cfg(test)]
mod tests {
    use agent::approval::Policy;
    use agent::model::{ChoiceError, Usage};
    use agent::records::{Entry, Head, RunRecord, RunState};
    use agent::{Books, Event, Happened, Plan, RunId};
    use async_trait::async_trait;
    use futures::FutureExt as _;
    use sdk::Secret;
    use serde_json::json;
    use tempfile::TempDir;
    use tools::ToolDispatcher;
    use workspace::events::Observer;
    use workspace::{Workspace, Workspaces};

    use super::*;
    use crate::id::JobId;
    use crate::job::Status;
    use crate::premises::{Chosen, NoPicture, Picture, Premises};
    use crate::records::{Change, Held, NewJob, Spec};
    use crate::settings::Settings;
    use crate::token::{Digest, new_token};

    /// Nobody may come here.
    struct Closed;

    #[async_trait]
    impl Premises for Closed {
        fn workspaces(&self) -> &Workspaces {
            panic!("somebody wants to act on a sandbox")
        }

        fn observe(&self, _: Arc<dyn Observer>) {}

        fn tools(&self, _: &Workspace, _: u16) -> Arc<dyn ToolDispatcher> {
            panic!("somebody wants tools")
        }

        fn model(&self, _: Option<&str>) -> Result<Chosen, ChoiceError> {
            panic!("somebody wants a model")
        }

        fn models(&self) -> Vec<String> {
            Vec::new()
        }

        async fn photograph(&self, _: &Workspace, _: u16) -> Result<Vec<Picture>, NoPicture> {
            panic!("somebody wants pictures")
        }
    }

    /// A ready job whose sandbox runs and ends within the minute.
    async fn ending(studio: &Studio) -> JobRecord {
        let digest = Digest::of(new_token().expose()).expect("a token");
        let user = studio.records().add_user("ada", &digest, 1).await.expect("a user");
        let project = studio.records().project_named(&user.id, "page").await.expect("a project");
        let new = NewJob {
            id: JobId::new(),
            project: project.id,
            user: user.id,
            goal: "Make a page.".to_owned(),
            spec: Spec::default(),
            model: "scripted:here".to_owned(),
            begins_from: None,
            rebuilt_from: None,
        };
        let mut job = studio.records().take_in(&new).await.expect("taken in").expect("a job");
        for to in [Status::Provisioning, Status::Building, Status::Ready] {
            let change = Change {
                status: Some((job.status, to)),
                sandbox_id: Some(Some("iawake".to_owned())),
                sandbox_expires_at: Some(Some(Timestamp::now() + SignedDuration::from_mins(1))),
                settled: Some(true),
                ..Change::default()
            };
            job = studio.change(&job.id, Held::Anybody, change, Vec::new()).await.expect("changed").expect("a job");
        }
        job
    }

    async fn nowhere(directory: &TempDir) -> Studio {
        let url = Secret::from(format!("sqlite://{}", directory.path().join("records.db").display()));
        Studio::open(&url, Arc::new(Closed), Settings::default()).await.expect("a studio")
    }

    /// Whoever writes may never hear that it is written.
    #[tokio::test]
    async fn a_timeline_goes_on_after_an_answer_was_lost() {
        let directory = TempDir::new().expect("a directory");
        let studio = nowhere(&directory).await;
        let (job, run) = (ending(&studio).await, RunId::new());
        let head = Head {
            state: RunState::Running,
            stop_reason: None,
            turns: 0,
            usage: Usage::default(),
            cost_nanos: 0,
            seen_at: Timestamp::now(),
        };
        let plan = Plan {
            goal: job.goal.clone(),
            phases: Vec::new(),
            model: job.model.clone(),
            workspace: None,
            system: String::new(),
            settings: agent::Settings::default(),
            policy: Policy::default(),
            details: json!({}),
        };
        let record = RunRecord {
            id: run.clone(),
            plan,
            created_at: Timestamp::now(),
            head: head.clone(),
            cancel_asked: false,
            entries: 0,
        };
        studio.inner.runs.begin(&record).await.expect("begun");
        let said = |seq: u64| Entry {
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
            let entries: Vec<Entry> = (from + 1..=to).map(said).collect();
            studio.inner.runs.append(&run, from, &entries, &head).await.expect("written");
        };
        let books = Books {
            records: studio.inner.book.clone(),
            run: run.clone(),
            project: "project".to_owned(),
            job: job.id.to_string(),
            model: job.model.clone(),
        };
        let phases = || tokio::sync::mpsc::unbounded_channel().0;
        let copier = || copy::Copier::new(&studio, &job.id, job.attempt, books.clone(), 0, phases());
        append(0, 2).await;
        copier().copy().await.expect("copied");
        append(2, 3).await;
        // This one has not heard of the first two.
        copier().copy().await.expect("copied");
        let told = studio.records().events(&job.id, job.events).await.expect("read");
        let texts: Vec<_> = told.iter().filter_map(|event| event.body["text"].as_str()).collect();
        assert_eq!(texts, ["message 1", "message 2", "message 3"]);
        // One whose job another worker has writes nothing.
        append(3, 4).await;
        let mut late = copy::Copier::new(&studio, &job.id, job.attempt + 1, books.clone(), 0, phases());
        late.copy().await.expect("nothing is wrong");
        assert_eq!(studio.records().events(&job.id, job.events).await.expect("read").len(), 3);
    }

    #[tokio::test]
    async fn a_preview_that_is_woken_at_its_bedtime_stays_awake() {
        let directory = TempDir::new().expect("a directory");
        let studio = nowhere(&directory).await;
        let job = ending(&studio).await;
        let soon = Timestamp::now() + BEDTIME;
        let listed = async || studio.records().ending_before(soon).await.expect("read").len();
        assert_eq!(listed().await, 1, "it is to be put to sleep");

        // Somebody wakes it, and has the turn; the worker waits for it.
        let turn = studio.turn(&job.id).await;
        let mut sleep = Box::pin(studio.put_to_sleep_by(&job, Some(soon)));
        assert!(futures::poll!(&mut sleep).is_pending(), "it did not wait for its turn");
        let woken = Change { sandbox_expires_at: Some(studio.awake_until(None)), ..Change::default() };
        studio.change(&job.id, Held::Anybody, woken, Vec::new()).await.expect("changed");
        drop(turn);
        // Nothing is looked at, and nothing changed.
        assert!(!sleep.await.expect("the records work"), "it was put to sleep");
        let after = studio.records().job(&job.id).await.expect("read").expect("a job");
        assert_eq!((after.sandbox_paused, after.events), (false, job.events));
        assert_eq!(listed().await, 0);

        // One that nobody woke is put to sleep.
        let over = Change { sandbox_expires_at: Some(job.sandbox_expires_at), ..Change::default() };
        studio.change(&job.id, Held::Anybody, over, Vec::new()).await.expect("changed");
        let tried = std::panic::AssertUnwindSafe(put_to_sleep(&studio)).catch_unwind().await;
        assert!(tried.is_err(), "nobody came to put it to sleep");
    }
}
