//! The service itself. What a user can ask for is in `builds`, `looks`, `previews`, `files` and `terminal`; somebody else's job is
//! as good as none.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agent::RunRecords;
use agent::records::DatabaseRunRecords;
use futures::stream::BoxStream;
use jiff::{SignedDuration, Timestamp};
use sdk::Secret;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tracing::warn;
use workspace::Workspaces;
use workspace::events::Observer;
use workspace::records::DatabaseRecords;

use crate::body::Body;
use crate::credentials::{CredentialGuard, Credentials};
use crate::error::StudioError;
use crate::id::{JobId, ProjectId};
use crate::premises::Premises;
use crate::previews::Resuming;
use crate::records::{Change, Held, JobRecord, Records};
use crate::settings::Settings;
use crate::timeline::Timeline;
use crate::token::{Digest, new_session};
use crate::view::{TimelineEvent, User};

/// A credential is believed for this long without asking the records: a revoked one is good for no longer.
const BELIEVED: Duration = Duration::from_secs(2);
/// Of a browser session. Signing in again costs a look for the token.
pub(crate) const SESSION_LIFETIME: SignedDuration = SignedDuration::from_hours(30 * 24);
/// For what is under way when the program stops.
const LAST_WORK: Duration = Duration::from_secs(20);
/// Tokens that are remembered at once.
const REMEMBERED: usize = 10_000;

/// The studio. Cheap to clone; clones are the same.
#[derive(Clone)]
pub struct Studio {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) records: Records,
    pub(crate) runs: Arc<dyn RunRecords>,
    /// Where the tokens of models are noted.
    pub(crate) book: DatabaseRecords,
    pub(crate) premises: Arc<dyn Premises>,
    pub(crate) settings: Settings,
    pub(crate) timeline: Arc<Timeline>,
    /// For looking at previews.
    pub(crate) http: reqwest::Client,
    /// Tells the worker that there may be something to do.
    pub(crate) work: Notify,
    /// Jobs that are being built here, and how to stop them.
    pub(crate) building: Mutex<HashMap<JobId, CancellationToken>>,
    pub(crate) resuming: Mutex<HashMap<JobId, Resuming>>,
    /// One at a time acts on a job's sandbox in this process.
    turns: Mutex<HashMap<JobId, Arc<tokio::sync::Mutex<()>>>>,
    /// What was begun for a user and goes on when they have left.
    pub(crate) tasks: TaskTracker,
    /// Ends those of them that another process can go on with.
    pub(crate) stop: CancellationToken,
    known: Mutex<HashMap<Digest, (User, Instant)>>,
    names: Mutex<HashMap<ProjectId, String>>,
    credentials: Arc<Credentials>,
    _listening: AbortOnDropHandle<()>,
    _revocations: AbortOnDropHandle<()>,
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Studio {
    /// Opens the studio on the database that the workspaces of `premises` have.
    ///
    /// # Errors
    /// The records cannot be opened.
    pub async fn open(url: &Secret, premises: Arc<dyn Premises>, settings: Settings) -> Result<Self, StudioError> {
        let records = Records::open(url).await?;
        let runs = DatabaseRunRecords::open(url).await.map_err(StudioError::unavailable)?;
        let book = DatabaseRecords::open(url).await.map_err(StudioError::unavailable)?;
        // A page that leads elsewhere answers, and where it leads is none of our business.
        let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy().build();
        let timeline = Timeline::new(records.clone());
        let listening = tokio::spawn(Timeline::listen(Arc::downgrade(&timeline), settings.hear_every));
        let credentials = Arc::new(Credentials::default());
        let revocations = tokio::spawn(Credentials::poll(Arc::downgrade(&credentials), records.clone()));
        let inner = Inner {
            records,
            runs: Arc::new(runs),
            book,
            premises: Arc::clone(&premises),
            settings,
            timeline,
            http: http.map_err(StudioError::unavailable)?,
            work: Notify::new(),
            building: Mutex::default(),
            resuming: Mutex::default(),
            turns: Mutex::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            known: Mutex::default(),
            names: Mutex::default(),
            credentials,
            _revocations: AbortOnDropHandle::new(revocations),
            _listening: AbortOnDropHandle::new(listening),
        };
        let studio = Self { inner: Arc::new(inner) };
        premises.observe(Arc::new(studio.clone()) as Arc<dyn Observer>);
        Ok(studio)
    }

    /// Waits, within reason, for what was begun for users and goes on.
    pub async fn close(&self) {
        self.inner.stop.cancel();
        self.inner.tasks.close();
        if tokio::time::timeout(LAST_WORK, self.inner.tasks.wait()).await.is_err() {
            warn!("a preview was still being woken or restored");
        }
    }

    pub fn records(&self) -> &Records {
        &self.inner.records
    }

    pub(crate) fn workspaces(&self) -> &Workspaces {
        self.inner.premises.workspaces()
    }

    /// Whose access token has this digest.
    ///
    /// # Errors
    /// The records cannot be read.
    pub(crate) async fn authenticate(&self, token: &Digest) -> Result<Option<User>, StudioError> {
        if let Some(user) = self.believed(token) {
            return Ok(Some(user));
        }
        let user = self.records().user_with(token).await?;
        self.remember(token, user.as_ref());
        Ok(user)
    }

    /// Whose session has a token with this digest; none when it has ended.
    ///
    /// # Errors
    /// The records cannot be read.
    pub(crate) async fn authenticate_session(&self, session: &Digest) -> Result<Option<User>, StudioError> {
        if let Some(user) = self.believed(session) {
            return Ok(Some(user));
        }
        let user = self.records().user_in(session).await?;
        self.remember(session, user.as_ref());
        Ok(user)
    }

    fn believed(&self, credential: &Digest) -> Option<User> {
        let known = locked(&self.inner.known);
        known.get(credential).filter(|(_, at)| at.elapsed() < BELIEVED).map(|(user, _)| user.clone())
    }

    fn remember(&self, credential: &Digest, user: Option<&User>) {
        let mut known = locked(&self.inner.known);
        match user {
            Some(user) => {
                if known.len() >= REMEMBERED {
                    known.clear();
                }
                known.insert(credential.clone(), (user.clone(), Instant::now()));
            }
            None => drop(known.remove(credential)),
        }
    }

    /// Opens a browser session for whom an access token belongs to, and returns the session's token.
    /// None when the access token is unknown.
    ///
    /// # Errors
    /// The records cannot be read or written.
    pub(crate) async fn sign_in(&self, token: &str) -> Result<Option<Secret>, StudioError> {
        let Some(access) = Digest::of(token) else { return Ok(None) };
        let session = new_session();
        let Some(digest) = Digest::of_session(session.expose()) else { return Ok(None) };
        let user = self.records().add_session(&access, &digest, SESSION_LIFETIME).await?;
        Ok(user.map(|_| session))
    }

    /// Ends a session, with the terminals and event streams it opened.
    ///
    /// # Errors
    /// The records cannot be written. Then the session is still valid.
    pub(crate) async fn sign_out(&self, session: &Digest) -> Result<(), StudioError> {
        self.records().end_session(session).await?;
        self.remember(session, None);
        self.inner.credentials.revoke(session);
        Ok(())
    }

    /// Keeps something open for as long as a credential is valid.
    pub(crate) fn guard(&self, credential: &Digest) -> CredentialGuard {
        self.inner.credentials.guard(credential)
    }

    /// Build credits that are left.
    ///
    /// # Errors
    /// The records cannot be read.
    pub async fn credits(&self, user: &User) -> Result<i64, StudioError> {
        Ok(self.records().credits(&user.id).await?)
    }

    /// What happened after event `after`, then what happens, without end. Dropping it ends that.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn events(
        &self,
        user: &User,
        id: &JobId,
        after: Option<u64>,
    ) -> Result<BoxStream<'static, Arc<TimelineEvent>>, StudioError> {
        let job = self.own(user, id).await?;
        // Of many who watch one build here, the first notes it.
        if !job.settled && !job.watched && !self.inner.timeline.is_watched(id) {
            // The worker lets this page load the preview before it pauses the sandbox.
            let change = Change { watched: Some(true), ..Change::default() };
            if let Err(error) = self.change(id, Held::Anybody, change, Vec::new()).await {
                warn!(job = %id, error = %crate::chain(&error), "the worker does not know that a page watches the build");
            }
        }
        // Who speaks of events that never were begins with what is new.
        let after = after.unwrap_or_default().min(job.events);
        Ok(self.inner.timeline.watch(job.id, after, job.events))
    }

    /// The user's own job.
    pub(crate) async fn own(&self, user: &User, id: &JobId) -> Result<JobRecord, StudioError> {
        let job = self.records().job(id).await?;
        job.filter(|job| job.user == user.id && !job.deleted).ok_or(StudioError::NotFound)
    }

    /// Changes a job, tells of it, and lets watchers hear it.
    pub(crate) async fn change(
        &self,
        id: &JobId,
        held: Held,
        change: Change,
        told: Vec<Body>,
    ) -> Result<Option<JobRecord>, StudioError> {
        let now = Timestamp::now();
        let events = told.into_iter().map(|body| (now, body)).collect();
        #[cfg(test)]
        crate::worker::simulation::step().await;
        let changed = self.records().change(id, held, change, events).await?;
        #[cfg(test)]
        crate::worker::simulation::step().await;
        self.inner.timeline.caught_up(id).await;
        Ok(changed)
    }

    /// The right to act on a job's sandbox, in this process.
    pub(crate) async fn turn(&self, id: &JobId) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = {
            let mut turns = locked(&self.inner.turns);
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(id.clone()).or_default())
        };
        turn.lock_owned().await
    }

    /// Names of projects never change.
    pub(crate) async fn project_name(&self, user: &User, id: &ProjectId) -> Result<String, StudioError> {
        if let Some(name) = locked(&self.inner.names).get(id) {
            return Ok(name.clone());
        }
        let name = self.records().project(&user.id, id).await?.map(|project| project.name).unwrap_or_default();
        let mut names = locked(&self.inner.names);
        if names.len() >= REMEMBERED {
            names.clear();
        }
        names.insert(id.clone(), name.clone());
        Ok(name)
    }
}
