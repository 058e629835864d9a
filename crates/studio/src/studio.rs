//! The service and its shared state. The operations are in `builds`, `queries`, `previews`, `files`
//! and `terminal`. A job of another user is reported as not found.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent::RunRecords;
use agent::records::DatabaseRunRecords;
use futures::stream::BoxStream;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use sdk::Secret;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tracing::warn;
use workspace::Workspaces;
use workspace::events::Observer;
use workspace::records::DatabaseRecords;

use crate::credentials::{CredentialGuard, Credentials};
use crate::error::StudioError;
use crate::events::{EventBody, TimelineEvent};
use crate::host::StudioHost;
use crate::id::{JobId, ProjectId};
use crate::previews::Resuming;
use crate::records::{Change, JobRecord, Precondition, Records};
use crate::settings::Settings;
use crate::timeline::Timeline;
use crate::token::{TokenDigest, new_session};
use crate::view::User;

/// How long an authenticated credential is cached. A revoked credential stays usable for at most
/// this long.
const CREDENTIAL_CACHE_TTL: Duration = Duration::from_secs(2);
/// How long a browser session is valid.
pub(crate) const SESSION_LIFETIME: SignedDuration = SignedDuration::from_hours(30 * 24);
/// How long [`Studio::close`] waits for background tasks.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);
/// Entries per cache. A full cache is cleared.
const MAX_CACHED: usize = 10_000;

/// The studio. Clones share one state.
#[derive(Clone)]
pub struct Studio {
    pub(crate) inner: Arc<StudioInner>,
}

pub(crate) struct StudioInner {
    pub(crate) records: Records,
    pub(crate) runs: Arc<dyn RunRecords>,
    /// Records the token usage of models.
    pub(crate) usage: DatabaseRecords,
    pub(crate) host: Arc<dyn StudioHost>,
    pub(crate) settings: Settings,
    pub(crate) timeline: Arc<Timeline>,
    /// Probes previews.
    pub(crate) http: reqwest::Client,
    /// Wakes the worker's claim loop.
    pub(crate) work: Notify,
    /// Jobs that this process builds, with the token that cancels each.
    pub(crate) building: Mutex<HashMap<JobId, CancellationToken>>,
    pub(crate) resuming: Mutex<HashMap<JobId, Resuming>>,
    /// Serialises operations on one job's sandbox within this process.
    job_locks: Mutex<HashMap<JobId, Arc<tokio::sync::Mutex<()>>>>,
    /// Background tasks that outlive the request that started them.
    pub(crate) tasks: TaskTracker,
    /// Cancels those background tasks that another process can continue.
    pub(crate) stop: CancellationToken,
    credential_cache: Mutex<HashMap<TokenDigest, (User, Instant)>>,
    project_names: Mutex<HashMap<ProjectId, String>>,
    credentials: Arc<Credentials>,
    _event_polling: AbortOnDropHandle<()>,
    _revocations: AbortOnDropHandle<()>,
}

impl Studio {
    /// Opens the studio on the database that the workspaces of `host` use.
    ///
    /// # Errors
    /// [`StudioError::Unavailable`] when the records cannot be opened.
    pub async fn open(url: &Secret, host: Arc<dyn StudioHost>, settings: Settings) -> Result<Self, StudioError> {
        let records = Records::open(url).await?.with_clock(settings.clock.clone());
        let runs = DatabaseRunRecords::open(url).await.map_err(StudioError::unavailable)?;
        let usage = DatabaseRecords::open(url).await.map_err(StudioError::unavailable)?;
        // A redirect is a response, and its target may be outside of the sandbox.
        let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy().build();
        let timeline = Timeline::new(records.clone());
        let event_polling =
            tokio::spawn(Timeline::poll_forever(Arc::downgrade(&timeline), settings.event_poll_interval));
        let credentials = Arc::new(Credentials::default());
        let revocations = tokio::spawn(Credentials::poll(Arc::downgrade(&credentials), records.clone()));
        let inner = StudioInner {
            records,
            runs: Arc::new(runs),
            usage,
            host: Arc::clone(&host),
            settings,
            timeline,
            http: http.map_err(StudioError::unavailable)?,
            work: Notify::new(),
            building: Mutex::default(),
            resuming: Mutex::default(),
            job_locks: Mutex::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            credential_cache: Mutex::default(),
            project_names: Mutex::default(),
            credentials,
            _revocations: AbortOnDropHandle::new(revocations),
            _event_polling: AbortOnDropHandle::new(event_polling),
        };
        let studio = Self { inner: Arc::new(inner) };
        host.observe(Arc::new(studio.clone()) as Arc<dyn Observer>);
        Ok(studio)
    }

    /// Waits for background tasks, for at most 20 s.
    pub async fn close(&self) {
        self.inner.stop.cancel();
        self.inner.tasks.close();
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, self.inner.tasks.wait()).await.is_err() {
            warn!("background tasks were still running at shutdown: a preview was being resumed or restored");
        }
    }

    pub fn records(&self) -> &Records {
        &self.inner.records
    }

    pub(crate) fn workspaces(&self) -> &Workspaces {
        self.inner.host.workspaces()
    }

    /// The user whose access token has this digest.
    ///
    /// # Errors
    /// [`StudioError::Unavailable`] when the records cannot be read.
    pub(crate) async fn authenticate(&self, token: &TokenDigest) -> Result<Option<User>, StudioError> {
        if let Some(user) = self.cached_user(token) {
            return Ok(Some(user));
        }
        let user = self.records().user_by_token(token).await?;
        self.cache_user(token, user.as_ref());
        Ok(user)
    }

    /// The user whose session token has this digest; none when the session has ended.
    ///
    /// # Errors
    /// [`StudioError::Unavailable`] when the records cannot be read.
    pub(crate) async fn authenticate_session(&self, session: &TokenDigest) -> Result<Option<User>, StudioError> {
        if let Some(user) = self.cached_user(session) {
            return Ok(Some(user));
        }
        let user = self.records().user_by_session(session).await?;
        self.cache_user(session, user.as_ref());
        Ok(user)
    }

    fn cached_user(&self, credential: &TokenDigest) -> Option<User> {
        let credential_cache = self.inner.credential_cache.lock();
        credential_cache
            .get(credential)
            .filter(|(_, at)| at.elapsed() < CREDENTIAL_CACHE_TTL)
            .map(|(user, _)| user.clone())
    }

    fn cache_user(&self, credential: &TokenDigest, user: Option<&User>) {
        let mut credential_cache = self.inner.credential_cache.lock();
        match user {
            Some(user) => {
                if credential_cache.len() >= MAX_CACHED {
                    credential_cache.clear();
                }
                credential_cache.insert(credential.clone(), (user.clone(), Instant::now()));
            }
            None => drop(credential_cache.remove(credential)),
        }
    }

    /// Opens a browser session for the owner of an access token and returns the session's token.
    /// None when the access token is unknown.
    ///
    /// # Errors
    /// [`StudioError::Unavailable`] when the records cannot be read or written.
    pub(crate) async fn sign_in(&self, token: &str) -> Result<Option<Secret>, StudioError> {
        let Some(access) = TokenDigest::from_token(token) else { return Ok(None) };
        let session = new_session();
        let Some(digest) = TokenDigest::from_session(session.expose()) else { return Ok(None) };
        let user = self.records().add_session(&access, &digest, SESSION_LIFETIME).await?;
        Ok(user.map(|_| session))
    }

    /// Ends a session, with the terminals and event streams it opened.
    ///
    /// # Errors
    /// [`StudioError::Unavailable`] when the records cannot be written. The session then stays
    /// valid.
    pub(crate) async fn sign_out(&self, session: &TokenDigest) -> Result<(), StudioError> {
        self.records().end_session(session).await?;
        self.cache_user(session, None);
        self.inner.credentials.revoke(session);
        Ok(())
    }

    /// A guard that reports when the credential is revoked.
    pub(crate) fn guard(&self, credential: &TokenDigest) -> CredentialGuard {
        self.inner.credentials.guard(credential)
    }

    /// The user's remaining build credits.
    ///
    /// # Errors
    /// [`StudioError::Unavailable`] when the records cannot be read.
    pub async fn credits(&self, user: &User) -> Result<i64, StudioError> {
        Ok(self.records().credits(&user.id).await?)
    }

    /// The events after event `after`, then new events, until the stream is dropped.
    ///
    /// # Errors
    /// [`StudioError::NotFound`] when the user has no such job.
    pub async fn events(
        &self,
        user: &User,
        id: &JobId,
        after: Option<u64>,
    ) -> Result<BoxStream<'static, Arc<TimelineEvent>>, StudioError> {
        let job = self.find_own_job(user, id).await?;
        // Only the first of several watchers in this process writes the flag.
        if !job.settled && !job.watched && !self.inner.timeline.is_watched(id) {
            // The worker lets this page load the preview before it pauses the sandbox.
            let change = Change { watched: Some(true), ..Change::default() };
            if let Err(error) = self.change(id, Precondition::None, change, Vec::new()).await {
                warn!(job = %id, error = %text::error_chain(&error), "cannot record that a page watches the build; the sandbox may be paused before the page has loaded");
            }
        }
        // An `after` beyond the last event is clamped, so that the caller receives new events.
        let after = after.unwrap_or_default().min(job.events);
        Ok(self.inner.timeline.watch(job.id, after, job.events))
    }

    /// The job, if it belongs to the user and is not deleted.
    pub(crate) async fn find_own_job(&self, user: &User, id: &JobId) -> Result<JobRecord, StudioError> {
        let job = self.records().job(id).await?;
        job.filter(|job| job.user == user.id && !job.deleted).ok_or(StudioError::NotFound)
    }

    /// Changes a job, appends events to its timeline and notifies watchers. None when the
    /// precondition does not hold.
    pub(crate) async fn change(
        &self,
        id: &JobId,
        precondition: Precondition,
        change: Change,
        events: Vec<EventBody>,
    ) -> Result<Option<JobRecord>, StudioError> {
        let now = Timestamp::now();
        let events = events.into_iter().map(|body| (now, body)).collect();
        #[cfg(test)]
        crate::worker::simulation::step().await;
        let changed = self.records().change(id, precondition, change, events).await?;
        #[cfg(test)]
        crate::worker::simulation::step().await;
        self.inner.timeline.publish(id).await;
        Ok(changed)
    }

    /// Locks operations on a job's sandbox within this process.
    pub(crate) async fn lock_job(&self, id: &JobId) -> tokio::sync::OwnedMutexGuard<()> {
        let lock = {
            let mut job_locks = self.inner.job_locks.lock();
            job_locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(job_locks.entry(id.clone()).or_default())
        };
        lock.lock_owned().await
    }

    /// The name of a project. Cached, because projects cannot be renamed.
    pub(crate) async fn project_name(&self, user: &User, id: &ProjectId) -> Result<String, StudioError> {
        if let Some(name) = self.inner.project_names.lock().get(id) {
            return Ok(name.clone());
        }
        let name = self.records().project(&user.id, id).await?.map(|project| project.name).unwrap_or_default();
        let mut project_names = self.inner.project_names.lock();
        if project_names.len() >= MAX_CACHED {
            project_names.clear();
        }
        project_names.insert(id.clone(), name.clone());
        Ok(name)
    }
}
