//! Previews sleep and wake. Looking at one wakes nothing; waking one is joined by all who want it.
//!
//! Whoever acts on a sandbox has the job's turn in this process and the workspace's lease among all processes, for as long as
//! it takes and no longer: afterwards any process may.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;
use tracing::{info, warn};
use workspace::devserver::{self, DevServerError};
use workspace::snapshot::{SnapshotCondition, Which};
use workspace::{OpenError, Unavailable, Workspace, WorkspaceError};

use crate::body;
use crate::builds::busy;
use crate::chain;
use crate::error::StudioError;
use crate::id::JobId;
use crate::job::{Job, Status};
use crate::records::{Change, Held, JobRecord};
use crate::seat::{self, Answer, Found};
use crate::studio::{Studio, locked};
use crate::view::{PreviewCheck, PreviewState, Resumed, SnapshotView, User};

/// A resume that is under way.
pub(crate) type Resuming = Shared<BoxFuture<'static, Result<Resumed, Arc<StudioError>>>>;

/// Takes a resume out of the list of those that are under way.
struct UnderWay<'a> {
    studio: &'a Studio,
    job: &'a JobId,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        locked(&self.studio.inner.resuming).remove(self.job);
    }
}

/// Why a preview did not wake.
enum NotWoken {
    /// Another attempt would end the same way.
    ForGood(StudioError),
    ForNow(String),
    /// The sandbox runs, and its application does not answer.
    Application {
        reason: String,
        output: String,
    },
}

impl NotWoken {
    /// What the application's server has to do with it is told as that, with its last output.
    fn serving(workspace: &Workspace, error: &WorkspaceError) -> Self {
        let WorkspaceError::DevServer(failed) = error else { return Self::ForNow(chain(error)) };
        let (reason, output) = match failed {
            DevServerError::Died { command, port, code, log } => {
                (format!("`{command}` ended with exit status {code} before it answered on port {port}"), log)
            }
            DevServerError::NotReady { command, port, after, log } => {
                (format!("`{command}` did not answer on port {port} within {after:?}"), log)
            }
            DevServerError::Install { command, status, tail, .. } => (format!("`{command}` ended with {status}"), tail),
            _ => return Self::ForNow(chain(error)),
        };
        Self::Application { reason: workspace.mask(&reason), output: workspace.mask(output) }
    }

    fn of(error: Unavailable) -> Self {
        match error {
            Unavailable::Expired { .. } | Unavailable::Stopped(_) => Self::ForGood(StudioError::SandboxExpired),
            Unavailable::OverBudget { limit, .. } => {
                Self::ForGood(StudioError::OverBudget { limit: limit.to_string() })
            }
            // It was asked twice.
            error @ Unavailable::Unreachable { .. } => {
                info!(error = %chain(&error), "the sandbox was not resumed");
                Self::ForGood(StudioError::SandboxUnreachable)
            }
            error => Self::ForNow(chain(&error)),
        }
    }
}

impl From<NotWoken> for StudioError {
    fn from(error: NotWoken) -> Self {
        match error {
            NotWoken::ForGood(error) => error,
            NotWoken::ForNow(reason) => Self::unavailable(reason),
            NotWoken::Application { reason, output } => Self::ApplicationFailed { reason, output },
        }
    }
}

/// How long somebody waits for the worker to be done with a job that is ready: it saves the files and pauses.
const SETTLE: Duration = Duration::from_secs(100);
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// For finding out why a preview is not awake in time.
const DIAGNOSIS_TIMEOUT: Duration = Duration::from_secs(10);
/// The same, taken from what is left for giving the workspace back.
const LAST_DIAGNOSIS_TIMEOUT: Duration = Duration::from_secs(2);
/// Of an application's output.
const OUTPUT_BYTES: usize = 2048;
/// What a resume leaves of its time for giving the workspace back.
const GIVE_BACK: Duration = Duration::from_secs(3);
/// For giving a lease back.
const CLOSE: Duration = Duration::from_secs(20);

impl Studio {
    /// The user's own job, once no worker has anything more to do for it.
    pub(crate) async fn settled(&self, user: &User, id: &JobId) -> Result<JobRecord, StudioError> {
        let deadline = Instant::now() + SETTLE;
        loop {
            let job = self.own(user, id).await?;
            if job.settled {
                return Ok(job);
            }
            // Something else is wanted of the sandbox: the worker waits for no page any longer.
            self.note_loaded(&job).await?;
            if Instant::now() >= deadline {
                return Err(StudioError::Conflict("the build is still being finished; try again".to_owned()));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// A ready job of the user that has, or had, a sandbox.
    async fn ready(&self, user: &User, id: &JobId) -> Result<JobRecord, StudioError> {
        let job = self.own(user, id).await?;
        if job.status != Status::Ready {
            return Err(StudioError::NotReady { status: job.status });
        }
        if job.sandbox_id.is_none() {
            return Err(StudioError::NotFound);
        }
        self.settled(user, id).await
    }

    /// A page that watched the build has loaded the preview: the worker may pause the sandbox now.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn preview_loaded(&self, user: &User, id: &JobId) -> Result<(), StudioError> {
        let job = self.own(user, id).await?;
        self.note_loaded(&job).await
    }

    async fn note_loaded(&self, job: &JobRecord) -> Result<(), StudioError> {
        if job.status != Status::Ready || job.settled || job.preview_loaded {
            return Ok(());
        }
        let change = Change { preview_loaded: Some(true), ..Change::default() };
        self.change(&job.id, Held::Anybody, change, Vec::new()).await.map(drop)
    }

    /// Lets the sandbox of a ready job sleep. True when it sleeps now, also when it slept already.
    ///
    /// # Errors
    /// [`StudioError::NotFound`] also when there is no sandbox any more; [`StudioError::NotReady`].
    pub async fn pause(&self, user: &User, id: &JobId) -> Result<bool, StudioError> {
        let job = self.ready(user, id).await?;
        self.put_to_sleep(&job).await
    }

    /// The same without a user, for the end of a build.
    pub(crate) async fn put_to_sleep(&self, job: &JobRecord) -> Result<bool, StudioError> {
        self.put_to_sleep_by(job, None).await
    }

    /// The same, but only while its sandbox is still to end before `ending`: somebody may have woken it anew meanwhile. False then.
    pub(crate) async fn put_to_sleep_by(
        &self,
        job: &JobRecord,
        ending: Option<Timestamp>,
    ) -> Result<bool, StudioError> {
        let _turn = self.turn(&job.id).await;
        if let Some(ending) = ending {
            let now = self.records().job(&job.id).await?.ok_or(StudioError::NotFound)?;
            if !now.settled || now.sandbox_expires_at.is_none_or(|end| end >= ending) {
                return Ok(false);
            }
        }
        match seat::look(self.workspaces(), &job.workspace).await {
            Found::Paused if job.sandbox_paused => return Ok(true),
            Found::Paused | Found::Running { .. } => {}
            Found::Gone => return Err(StudioError::NotFound),
            Found::Unreachable(reason) => return Err(StudioError::unavailable(reason)),
        }
        let workspace = self.workspaces().open(&job.workspace).await.map_err(StudioError::unavailable)?;
        let paused = async {
            workspace.pause().await.map_err(StudioError::unavailable)?;
            // While nobody else has the workspace: they might wake it, and this would say that it sleeps.
            let change = Change { sandbox_paused: Some(true), ..Change::default() };
            let told = vec![body::status(job.status, &job.stage_label, true, None, None)];
            self.change(&job.id, Held::Anybody, change, told).await
        };
        let paused = paused.await;
        close(&workspace).await;
        paused.map(|_| true)
    }

    /// Wakes the preview and returns when it answers. Whoever asks meanwhile waits for the same; it goes on when they leave.
    ///
    /// # Errors
    /// [`StudioError::SandboxExpired`], [`StudioError::SandboxUnreachable`], [`StudioError::OverBudget`],
    /// [`StudioError::NotReady`], or there is none.
    pub async fn resume(&self, user: &User, id: &JobId) -> Result<Resumed, StudioError> {
        // From here, whatever is waited for first: a call that wakes something may not outlast its caller's patience.
        let until = Instant::now() + self.inner.settings.resume_all;
        let job = self.ready(user, id).await?;
        let resuming = {
            let mut all = locked(&self.inner.resuming);
            match all.get(id) {
                Some(resuming) => resuming.clone(),
                None => {
                    let studio = self.clone();
                    let woken = self.inner.tasks.spawn(async move {
                        // Whatever becomes of it, the next who asks begins anew.
                        let under_way = UnderWay { studio: &studio, job: &job.id };
                        let woken = tokio::time::timeout_at(until, studio.wake(&job, until)).await;
                        drop(under_way);
                        let woken = woken.unwrap_or(Err(StudioError::SandboxUnreachable));
                        if let Err(StudioError::SandboxUnreachable | StudioError::ApplicationFailed { .. }) = woken {
                            let (studio, id) = (studio.clone(), job.id.clone());
                            let tasks = studio.inner.tasks.clone();
                            tasks.spawn(async move { studio.note_if_awake(&id).await });
                        }
                        woken.map_err(Arc::new)
                    });
                    let joined = async move {
                        woken.await.unwrap_or_else(|error| Err(Arc::new(StudioError::unavailable(error))))
                    };
                    let resuming = joined.boxed().shared();
                    all.insert(id.clone(), resuming.clone());
                    resuming
                }
            }
        };
        // Whoever joins may have come earlier than the one who began.
        let resumed = tokio::time::timeout_at(until, resuming).await.map_err(|_| StudioError::SandboxUnreachable)?;
        resumed.map_err(|error| match &*error {
            StudioError::SandboxExpired => StudioError::SandboxExpired,
            StudioError::SandboxUnreachable => StudioError::SandboxUnreachable,
            StudioError::NotFound => StudioError::NotFound,
            StudioError::OverBudget { limit } => StudioError::OverBudget { limit: limit.clone() },
            StudioError::ApplicationFailed { reason, output } => {
                StudioError::ApplicationFailed { reason: reason.clone(), output: output.clone() }
            }
            other => StudioError::unavailable(chain(other)),
        })
    }

    /// Two attempts, which leave time to give the workspace back before `until`.
    async fn wake(&self, job: &JobRecord, until: Instant) -> Result<Resumed, StudioError> {
        let settings = &self.inner.settings;
        let latest = until - GIVE_BACK;
        let ready_by = latest.min(Instant::now() + settings.resume);
        let _turn = self.turn(&job.id).await;
        let first = match self.try_to_wake(job, ready_by, latest).await {
            Ok(resumed) => return Ok(resumed),
            Err(NotWoken::ForGood(error)) => {
                if let StudioError::SandboxExpired = error {
                    self.note_gone(job).await;
                }
                return Err(error);
            }
            Err(NotWoken::ForNow(reason) | NotWoken::Application { reason, .. }) => reason,
        };
        warn!(job = %job.id, reason = first, "a preview did not wake; once more");
        tokio::time::sleep(settings.resume_again).await;
        let ready_by = latest.min(ready_by.max(Instant::now() + settings.resume_more));
        match self.try_to_wake(job, ready_by, latest).await {
            Ok(resumed) => Ok(resumed),
            Err(NotWoken::ForNow(reason)) => {
                warn!(job = %job.id, reason, "a preview did not wake");
                Err(StudioError::SandboxUnreachable)
            }
            Err(error @ NotWoken::Application { .. }) => {
                let error = StudioError::from(error);
                let told = vec![body::notice(error.to_string())];
                if let Err(error) = self.change(&job.id, Held::Anybody, Change::default(), told).await {
                    warn!(job = %job.id, error = %chain(&error), "a notice is missing on a timeline");
                }
                Err(error)
            }
            Err(NotWoken::ForGood(error)) => Err(error),
        }
    }

    async fn try_to_wake(&self, job: &JobRecord, ready_by: Instant, latest: Instant) -> Result<Resumed, NotWoken> {
        match seat::look(self.workspaces(), &job.workspace).await {
            Found::Gone => return Err(NotWoken::ForGood(StudioError::SandboxExpired)),
            Found::Unreachable(reason) => return Err(NotWoken::ForNow(reason)),
            Found::Running { .. } | Found::Paused => {}
        }
        let late = |_| NotWoken::ForNow("it took too long".to_owned());
        let workspace = loop {
            match tokio::time::timeout_at(ready_by, self.workspaces().open(&job.workspace)).await.map_err(late)? {
                Ok(workspace) => break workspace,
                Err(OpenError::NotFound(_)) => return Err(NotWoken::ForGood(StudioError::SandboxExpired)),
                // Another process has it, perhaps to wake it: then that is soon done.
                Err(error @ OpenError::Held { .. }) => info!(job = %job.id, "waiting: {error}"),
                Err(error) => return Err(NotWoken::ForNow(chain(&error))),
            }
        };
        let brought = match tokio::time::timeout_at(ready_by, self.bring_up(job, &workspace)).await {
            Ok(brought) => brought,
            Err(_) => {
                let by = (ready_by + DIAGNOSIS_TIMEOUT).min(latest + LAST_DIAGNOSIS_TIMEOUT);
                Err(self.diagnose(job, &workspace, by).await)
            }
        };
        close(&workspace).await;
        brought
    }

    /// What stands in the way of a preview that is not awake in time: its application where the
    /// sandbox runs, with the end of its log.
    async fn diagnose(&self, job: &JobRecord, workspace: &Workspace, by: Instant) -> NotWoken {
        let late = || NotWoken::ForNow("it took too long".to_owned());
        let Some(port) = job.preview_port else { return late() };
        let diagnosed = async {
            let Found::Running { sandbox, .. } = seat::look(self.workspaces(), &job.workspace).await else {
                return late();
            };
            let log = sandbox.files().read_text(devserver::LOG).await.unwrap_or_default();
            let reason = format!("nothing answered on port {port} in time");
            NotWoken::Application { reason, output: workspace.mask(last_lines(&log)) }
        };
        tokio::time::timeout_at(by, diagnosed).await.unwrap_or_else(|_| late())
    }

    async fn bring_up(&self, job: &JobRecord, workspace: &Workspace) -> Result<Resumed, NotWoken> {
        workspace.resume().await.map_err(NotWoken::of)?;
        let Found::Running { sandbox, ends_at } = seat::look(self.workspaces(), &job.workspace).await else {
            return Err(NotWoken::ForNow("it does not run after it was resumed".to_owned()));
        };
        if let Some(port) = job.preview_port {
            // One that ran may have lost its server; one that is still starting is waited for.
            if seat::ask(&self.inner.http, &sandbox, port).await == Answer::NotYet {
                workspace.serve_again().await.map_err(|error| NotWoken::serving(workspace, &error))?;
            }
            while seat::ask(&self.inner.http, &sandbox, port).await == Answer::NotYet {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }
        let preview = job.preview_port.map(|port| (sandbox.url(port), port));
        let preview_url = preview.as_ref().map(|(url, _)| url.clone());
        let sandbox_id = sandbox.id().to_string();
        let change = Change {
            sandbox_paused: Some(false),
            sandbox_id: Some(Some(sandbox_id.clone())),
            sandbox_expires_at: Some(self.awake_until(ends_at)),
            preview: Some(preview),
            ..Change::default()
        };
        let told = vec![
            body::resumed(preview_url.as_deref()),
            body::status(job.status, &job.stage_label, false, preview_url.as_deref(), None),
        ];
        self.change(&job.id, Held::Anybody, change, told).await.map_err(|error| NotWoken::ForNow(chain(&error)))?;
        Ok(Resumed { preview_url, sandbox_id })
    }

    /// After a resume that came to nothing: whoever was asked to wake the sandbox may have done so when nobody waited any more.
    async fn note_if_awake(&self, id: &JobId) {
        let noted = async {
            let _turn = self.turn(id).await;
            let job = self.records().job(id).await?.filter(|job| job.sandbox_paused && !job.deleted);
            let Some(job) = job else { return Ok(()) };
            // Whoever else has the workspace knows better.
            let Ok(workspace) = self.workspaces().open(&job.workspace).await else { return Ok(()) };
            let noted = match seat::look(self.workspaces(), &job.workspace).await {
                Found::Running { ends_at, .. } => {
                    let change = Change {
                        sandbox_paused: Some(false),
                        sandbox_expires_at: Some(self.awake_until(ends_at)),
                        ..Change::default()
                    };
                    let told =
                        vec![body::status(job.status, &job.stage_label, false, job.preview_url.as_deref(), None)];
                    self.change(id, Held::Anybody, change, told).await.map(drop)
                }
                _ => Ok(()),
            };
            close(&workspace).await;
            noted
        };
        let noted: Result<(), StudioError> = noted.await;
        if let Err(error) = noted {
            warn!(job = %id, error = %chain(&error), "a preview may be awake that is said to sleep");
        }
    }

    /// The sandbox is no more: nothing sleeps there, and there is nothing to look at.
    pub(crate) async fn note_gone(&self, job: &JobRecord) {
        if !job.sandbox_paused && job.sandbox_expires_at.is_none() {
            return;
        }
        let gone = Change { sandbox_paused: Some(false), sandbox_expires_at: Some(None), ..Change::default() };
        let told = vec![body::notice("The sandbox is gone. A rebuild starts from the newest files.")];
        if let Err(error) = self.change(&job.id, Held::Anybody, gone, told).await {
            warn!(job = %job.id, error = %chain(&error), "the end of a sandbox was not noted");
        }
    }

    /// When a preview that is awake now sleeps again: workspaces give a sandbox all the life there is, for people who work
    /// there; of a preview nobody knows whether anybody still looks.
    pub(crate) fn awake_until(&self, ends_at: Option<Timestamp>) -> Option<Timestamp> {
        let awake = SignedDuration::try_from(self.inner.settings.awake).unwrap_or(SignedDuration::MAX);
        let bedtime = Timestamp::now().checked_add(awake).unwrap_or(Timestamp::MAX);
        Some(ends_at.map_or(bedtime, |ends_at| ends_at.min(bedtime)))
    }

    /// How the preview is. Never wakes it.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn check(&self, user: &User, id: &JobId) -> Result<PreviewCheck, StudioError> {
        let job = self.own(user, id).await?;
        let is = |state, reason: Option<String>| PreviewCheck { state, preview_url: None, reason };
        match job.status {
            Status::Ready if job.restore_to.is_none() => {}
            // It is on its way; there may be one soon.
            Status::Ready | Status::Queued | Status::Provisioning | Status::Building => {
                return Ok(is(PreviewState::Starting, Some(job.stage_label)));
            }
            Status::Failed | Status::Cancelled => {
                return Ok(is(PreviewState::None, Some(format!("the build is {}", job.status))));
            }
        }
        let Some(port) = job.preview_port else {
            return Ok(is(PreviewState::None, Some("the build has no page to show".to_owned())));
        };
        let sandbox = match seat::look(self.workspaces(), &job.workspace).await {
            Found::Running { sandbox, .. } => sandbox,
            Found::Paused => return Ok(is(PreviewState::Paused, None)),
            Found::Gone => return Ok(is(PreviewState::Expired, None)),
            Found::Unreachable(reason) => return Ok(is(PreviewState::Unreachable, Some(reason))),
        };
        let preview_url = Some(sandbox.url(port));
        Ok(match seat::ask(&self.inner.http, &sandbox, port).await {
            Answer::Yes => PreviewCheck { state: PreviewState::Active, preview_url, reason: None },
            Answer::NoFrames(reason) => {
                PreviewCheck { state: PreviewState::Blocked, preview_url, reason: Some(reason) }
            }
            Answer::NotYet => {
                let waking = locked(&self.inner.resuming).contains_key(id);
                is(PreviewState::Starting, waking.then(|| "Waking the preview".to_owned()))
            }
        })
    }

    /// The newest first.
    ///
    /// # Errors
    /// There is no such job, or the store is in trouble.
    pub async fn snapshots(&self, user: &User, id: &JobId) -> Result<Vec<SnapshotView>, StudioError> {
        let job = self.own(user, id).await?;
        let project = job.workspace.as_str().parse().map_err(StudioError::unavailable)?;
        let listed = self.workspaces().snapshots_of(&project).await.map_err(StudioError::unavailable)?;
        let shown = listed.into_iter().rev().map(|listed| {
            let (files, bytes, verified) = match listed.condition {
                SnapshotCondition::Whole { files, bytes, verified, .. } => (files, bytes, verified),
                SnapshotCondition::Damaged { .. } => (0, 0, false),
            };
            SnapshotView { key: listed.key, files, bytes, created_at: listed.created_at, verified }
        });
        Ok(shown.collect())
    }

    /// Sets a ready job's files back to a snapshot. That goes on when this has returned; the timeline tells of the end, and the
    /// preview is awake then.
    ///
    /// # Errors
    /// There is no such job or snapshot, or the job is not ready.
    pub async fn restore(&self, user: &User, id: &JobId, key: &str) -> Result<Job, StudioError> {
        let job = self.ready(user, id).await?;
        let project = job.workspace.as_str().parse().map_err(StudioError::unavailable)?;
        let listed = self.workspaces().snapshots_of(&project).await.map_err(StudioError::unavailable)?;
        let snapshot = listed.into_iter().find(|listed| listed.key == key).ok_or(StudioError::NotFound)?;
        let label = "Restoring the files";
        let change = Change {
            stage_label: Some(label.to_owned()),
            restore_to: Some(Some(snapshot.stamp)),
            settled: Some(false),
            ..Change::default()
        };
        let told = vec![body::status(job.status, label, job.sandbox_paused, job.preview_url.as_deref(), None)];
        let begun = self.change(id, Held::Anybody, change, told).await?.ok_or_else(busy)?;
        self.run_errand(id);
        self.shown(user, begun).await
    }

    pub(crate) async fn set_back(&self, job: &JobRecord, which: Which) -> Result<(), StudioError> {
        let _turn = self.turn(&job.id).await;
        let workspace = self.workspaces().open(&job.workspace).await.map_err(StudioError::unavailable)?;
        let restored = async {
            workspace.restore(which).await.map_err(StudioError::unavailable)?;
            self.bring_up(job, &workspace).await?;
            self.photograph(job, &workspace, "restored").await;
            Ok(())
        };
        let restored = tokio::time::timeout(self.inner.settings.resume * 2, restored).await;
        close(&workspace).await;
        restored.map_err(StudioError::unavailable)?
    }
}

/// The end of a log, whole lines where it can be.
fn last_lines(log: &str) -> &str {
    let log = log.trim_end();
    let cut = log.len().saturating_sub(OUTPUT_BYTES);
    let tail = &log[log.ceil_char_boundary(cut)..];
    if cut == 0 { tail } else { tail.split_once('\n').map_or(tail, |(_, lines)| lines) }
}

/// Gives a workspace back. What takes too long is given back by its lease's end.
pub(crate) async fn close(workspace: &Workspace) {
    if tokio::time::timeout(CLOSE, workspace.close()).await.is_err() {
        warn!(workspace = %workspace.name(), "a workspace is given back late");
    }
}
