//! Pauses, resumes, restores and checks the sandboxes of ready jobs. A check resumes nothing;
//! concurrent resumes of one job share one attempt.
//!
//! An operation on a sandbox holds the job's lock in this process and the workspace's lease among
//! all processes, for no longer than it takes, so that any process can do the next one.

use std::sync::Arc;
use std::time::Duration;

use checkpoint::{CheckpointCondition, Which};
use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;
use tracing::{info, warn};
use workspace::devserver::{self, DevServerError};
use workspace::{OpenError, Unavailable, Workspace, WorkspaceError};

use crate::builds::busy;
use crate::error::StudioError;
use crate::events::{self, StudioEvent};
use crate::id::JobId;
use crate::job::Status;
use crate::probe::{self, AppResponse, SandboxStatus};
use crate::records::{Change, JobRecord, Precondition};
use crate::studio::Studio;
use crate::view::{Job, PreviewCheck, PreviewState, ResumedPreview, SnapshotView, User};
use text::error_chain;

/// A resume in progress, shared by its callers.
pub(crate) type Resuming = Shared<BoxFuture<'static, Result<ResumedPreview, Arc<StudioError>>>>;

/// Removes a resume from the map of resumes in progress when dropped.
struct ResumeGuard<'a> {
    studio: &'a Studio,
    job: &'a JobId,
}

impl Drop for ResumeGuard<'_> {
    fn drop(&mut self) {
        self.studio.inner.resuming.lock().remove(self.job);
    }
}

/// Why a resume failed.
enum ResumeFailure {
    /// A retry would fail the same way.
    Permanent(StudioError),
    Transient(String),
    /// The sandbox runs, but its application does not respond.
    Application {
        reason: String,
        output: String,
    },
}

impl ResumeFailure {
    /// A failure of the application's server carries the end of its log.
    fn from_serve_error(workspace: &Workspace, error: &WorkspaceError) -> Self {
        let WorkspaceError::DevServer(failed) = error else { return Self::Transient(error_chain(error)) };
        let (reason, output) = match failed {
            DevServerError::Died { command, port, code, log } => {
                (format!("`{command}` ended with exit status {code} before it answered on port {port}"), log)
            }
            DevServerError::NotReady { command, port, after, log } => {
                (format!("`{command}` did not answer on port {port} within {after:?}"), log)
            }
            DevServerError::Install { command, status, tail, .. } => (format!("`{command}` ended with {status}"), tail),
            _ => return Self::Transient(error_chain(error)),
        };
        Self::Application { reason: workspace.mask(&reason), output: workspace.mask(output) }
    }

    fn from_unavailable(error: Unavailable) -> Self {
        match error {
            Unavailable::Expired { .. } | Unavailable::Stopped(_) => Self::Permanent(StudioError::SandboxExpired),
            Unavailable::OverBudget { limit, .. } => {
                Self::Permanent(StudioError::OverBudget { limit: limit.to_string() })
            }
            // The workspace has already retried.
            error @ Unavailable::Unreachable { .. } => {
                info!(error = %error_chain(&error), "cannot resume the sandbox");
                Self::Permanent(StudioError::SandboxUnreachable)
            }
            error => Self::Transient(error_chain(&error)),
        }
    }
}

impl From<ResumeFailure> for StudioError {
    fn from(error: ResumeFailure) -> Self {
        match error {
            ResumeFailure::Permanent(error) => error,
            ResumeFailure::Transient(reason) => Self::unavailable(reason),
            ResumeFailure::Application { reason, output } => Self::ApplicationFailed { reason, output },
        }
    }
}

/// How long a caller waits for the worker to save and pause a job that has just become ready.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(100);
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// For finding out why a preview did not respond in time.
const DIAGNOSIS_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for the retry, taken from the time reserved for closing the workspace.
const LAST_DIAGNOSIS_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of an application's output in an error.
const OUTPUT_BYTES: usize = 2048;
/// The part of a resume's time that is reserved for closing the workspace.
const CLOSE_RESERVE: Duration = Duration::from_secs(3);
/// For releasing a workspace's lease.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(20);

impl Studio {
    /// The user's job, once its worker has settled it.
    pub(crate) async fn wait_until_settled(&self, user: &User, id: &JobId) -> Result<JobRecord, StudioError> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        loop {
            let job = self.find_own_job(user, id).await?;
            if job.settled {
                return Ok(job);
            }
            // The caller needs the sandbox, so the worker stops waiting for a page to load the
            // preview.
            self.record_preview_loaded(&job).await?;
            if Instant::now() >= deadline {
                return Err(StudioError::Conflict("the build is still being finished; try again".to_owned()));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// A ready job of the user that has, or had, a sandbox.
    async fn find_ready_job(&self, user: &User, id: &JobId) -> Result<JobRecord, StudioError> {
        let job = self.find_own_job(user, id).await?;
        if job.status != Status::Ready {
            return Err(StudioError::NotReady { status: job.status });
        }
        if job.sandbox_id.is_none() {
            return Err(StudioError::NotFound);
        }
        self.wait_until_settled(user, id).await
    }

    /// Records that a page which watched the build has loaded the preview, so that the worker can
    /// pause the sandbox.
    ///
    /// # Errors
    /// [`StudioError::NotFound`] when the user has no such job.
    pub async fn preview_loaded(&self, user: &User, id: &JobId) -> Result<(), StudioError> {
        let job = self.find_own_job(user, id).await?;
        self.record_preview_loaded(&job).await
    }

    async fn record_preview_loaded(&self, job: &JobRecord) -> Result<(), StudioError> {
        if job.status != Status::Ready || job.settled || job.preview_loaded {
            return Ok(());
        }
        let change = Change { preview_loaded: Some(true), ..Change::default() };
        self.change(&job.id, Precondition::None, change, Vec::new()).await.map(drop)
    }

    /// Pauses the sandbox of a ready job. True when it is paused now, also if it was paused before.
    ///
    /// # Errors
    /// [`StudioError::NotFound`] also when the sandbox is gone; [`StudioError::NotReady`].
    pub async fn pause(&self, user: &User, id: &JobId) -> Result<bool, StudioError> {
        let job = self.find_ready_job(user, id).await?;
        self.pause_job(&job).await
    }

    /// The same without a user, for the end of a build.
    pub(crate) async fn pause_job(&self, job: &JobRecord) -> Result<bool, StudioError> {
        self.pause_before(job, None).await
    }

    /// The same, but only while the sandbox still expires before `ending`. False when a user has
    /// resumed it in the meantime.
    pub(crate) async fn pause_before(&self, job: &JobRecord, ending: Option<Timestamp>) -> Result<bool, StudioError> {
        let _lock = self.lock_job(&job.id).await;
        if let Some(ending) = ending {
            let now = self.records().job(&job.id).await?.ok_or(StudioError::NotFound)?;
            if !now.settled || now.sandbox_expires_at.is_none_or(|end| end >= ending) {
                return Ok(false);
            }
        }
        match probe::inspect_sandbox(self.workspaces(), &job.workspace).await {
            SandboxStatus::Paused if job.sandbox_paused => return Ok(true),
            SandboxStatus::Paused | SandboxStatus::Running { .. } => {}
            SandboxStatus::Gone => return Err(StudioError::NotFound),
            SandboxStatus::Unreachable(reason) => return Err(StudioError::unavailable(reason)),
        }
        let workspace = self.workspaces().open(&job.workspace).await.map_err(StudioError::unavailable)?;
        let paused = async {
            workspace.pause().await.map_err(StudioError::unavailable)?;
            // Recorded while this process holds the workspace: after another process resumed the
            // sandbox, the record would be wrong.
            let change = Change { sandbox_paused: Some(true), ..Change::default() };
            let events = vec![events::status(job.status, &job.stage_label, true, None, None)];
            self.change(&job.id, Precondition::None, change, events).await
        };
        let paused = paused.await;
        close(&workspace).await;
        paused.map(|_| true)
    }

    /// Resumes the preview and returns when the application responds. Concurrent callers share one
    /// attempt, which continues when they disconnect.
    ///
    /// # Errors
    /// [`StudioError::SandboxExpired`], [`StudioError::SandboxUnreachable`],
    /// [`StudioError::OverBudget`], [`StudioError::ApplicationFailed`], [`StudioError::NotReady`],
    /// or [`StudioError::NotFound`].
    pub async fn resume(&self, user: &User, id: &JobId) -> Result<ResumedPreview, StudioError> {
        // The deadline includes all waiting: the response must arrive before clients time out.
        let until = Instant::now() + self.inner.settings.resume_deadline;
        let job = self.find_ready_job(user, id).await?;
        let resuming = {
            let mut all = self.inner.resuming.lock();
            match all.get(id) {
                Some(resuming) => resuming.clone(),
                None => {
                    let studio = self.clone();
                    let resumed = self.inner.tasks.spawn(async move {
                        // Also after a panic, the next caller starts a new attempt.
                        let guard = ResumeGuard { studio: &studio, job: &job.id };
                        let resumed = tokio::time::timeout_at(until, studio.resume_job(&job, until)).await;
                        drop(guard);
                        let resumed = resumed.unwrap_or(Err(StudioError::SandboxUnreachable));
                        if let Err(StudioError::SandboxUnreachable | StudioError::ApplicationFailed { .. }) = resumed {
                            let (studio, id) = (studio.clone(), job.id.clone());
                            let tasks = studio.inner.tasks.clone();
                            tasks.spawn(async move { studio.record_if_running(&id).await });
                        }
                        resumed.map_err(Arc::new)
                    });
                    let joined = async move {
                        resumed.await.unwrap_or_else(|error| Err(Arc::new(StudioError::unavailable(error))))
                    };
                    let resuming = joined.boxed().shared();
                    all.insert(id.clone(), resuming.clone());
                    resuming
                }
            }
        };
        // A caller that joins may have an earlier deadline than the attempt.
        let resumed = tokio::time::timeout_at(until, resuming).await.map_err(|_| StudioError::SandboxUnreachable)?;
        resumed.map_err(|error| match &*error {
            StudioError::SandboxExpired => StudioError::SandboxExpired,
            StudioError::SandboxUnreachable => StudioError::SandboxUnreachable,
            StudioError::NotFound => StudioError::NotFound,
            StudioError::OverBudget { limit } => StudioError::OverBudget { limit: limit.clone() },
            StudioError::ApplicationFailed { reason, output } => {
                StudioError::ApplicationFailed { reason: reason.clone(), output: output.clone() }
            }
            other => StudioError::unavailable(error_chain(other)),
        })
    }

    /// Makes two attempts, which leave time to close the workspace before `until`.
    async fn resume_job(&self, job: &JobRecord, until: Instant) -> Result<ResumedPreview, StudioError> {
        let settings = &self.inner.settings;
        let latest = until - CLOSE_RESERVE;
        let ready_by = latest.min(Instant::now() + settings.resume_timeout);
        let _lock = self.lock_job(&job.id).await;
        let first = match self.try_resume(job, ready_by, latest).await {
            Ok(resumed) => return Ok(resumed),
            Err(ResumeFailure::Permanent(error)) => {
                if let StudioError::SandboxExpired = error {
                    self.record_sandbox_gone(job).await;
                }
                return Err(error);
            }
            Err(ResumeFailure::Transient(reason) | ResumeFailure::Application { reason, .. }) => reason,
        };
        warn!(job = %job.id, reason = first, "cannot resume a preview; retrying once");
        tokio::time::sleep(settings.resume_retry_delay).await;
        let ready_by = latest.min(ready_by.max(Instant::now() + settings.resume_retry_time));
        match self.try_resume(job, ready_by, latest).await {
            Ok(resumed) => Ok(resumed),
            Err(ResumeFailure::Transient(reason)) => {
                warn!(job = %job.id, reason, "cannot resume a preview");
                Err(StudioError::SandboxUnreachable)
            }
            Err(error @ ResumeFailure::Application { .. }) => {
                let error = StudioError::from(error);
                let events = vec![events::notice(error.to_string())];
                if let Err(error) = self.change(&job.id, Precondition::None, Change::default(), events).await {
                    warn!(job = %job.id, error = %error_chain(&error), "cannot append a notice to the timeline");
                }
                Err(error)
            }
            Err(ResumeFailure::Permanent(error)) => Err(error),
        }
    }

    async fn try_resume(
        &self,
        job: &JobRecord,
        ready_by: Instant,
        latest: Instant,
    ) -> Result<ResumedPreview, ResumeFailure> {
        match probe::inspect_sandbox(self.workspaces(), &job.workspace).await {
            SandboxStatus::Gone => return Err(ResumeFailure::Permanent(StudioError::SandboxExpired)),
            SandboxStatus::Unreachable(reason) => return Err(ResumeFailure::Transient(reason)),
            SandboxStatus::Running { .. } | SandboxStatus::Paused => {}
        }
        let late = |_| ResumeFailure::Transient("it took too long".to_owned());
        let workspace = loop {
            match tokio::time::timeout_at(ready_by, self.workspaces().open(&job.workspace)).await.map_err(late)? {
                Ok(workspace) => break workspace,
                Err(OpenError::NotFound(_)) => return Err(ResumeFailure::Permanent(StudioError::SandboxExpired)),
                // Another process holds the workspace, perhaps to resume it, and releases it soon.
                Err(error @ OpenError::Held { .. }) => info!(job = %job.id, "waiting: {error}"),
                Err(error) => return Err(ResumeFailure::Transient(error_chain(&error))),
            }
        };
        let result = match tokio::time::timeout_at(ready_by, self.start_preview(job, &workspace)).await {
            Ok(result) => result,
            Err(_) => {
                let by = (ready_by + DIAGNOSIS_TIMEOUT).min(latest + LAST_DIAGNOSIS_TIMEOUT);
                Err(self.diagnose(job, &workspace, by).await)
            }
        };
        close(&workspace).await;
        result
    }

    /// Finds out why a preview did not respond in time. If the sandbox runs, the application is the
    /// cause, with the end of its log.
    async fn diagnose(&self, job: &JobRecord, workspace: &Workspace, by: Instant) -> ResumeFailure {
        let late = || ResumeFailure::Transient("it took too long".to_owned());
        let Some(port) = job.preview_port else { return late() };
        let diagnosed = async {
            let SandboxStatus::Running { sandbox, .. } =
                probe::inspect_sandbox(self.workspaces(), &job.workspace).await
            else {
                return late();
            };
            let log = sandbox.files().read_text(devserver::LOG).await.unwrap_or_default();
            let reason = format!("nothing answered on port {port} in time");
            ResumeFailure::Application { reason, output: workspace.mask(last_lines(&log)) }
        };
        tokio::time::timeout_at(by, diagnosed).await.unwrap_or_else(|_| late())
    }

    async fn start_preview(&self, job: &JobRecord, workspace: &Workspace) -> Result<ResumedPreview, ResumeFailure> {
        workspace.resume().await.map_err(ResumeFailure::from_unavailable)?;
        let SandboxStatus::Running { sandbox, ends_at } =
            probe::inspect_sandbox(self.workspaces(), &job.workspace).await
        else {
            return Err(ResumeFailure::Transient("it does not run after it was resumed".to_owned()));
        };
        if let Some(port) = job.preview_port {
            // A running sandbox may have lost its server; a server that is starting is waited for.
            if probe::ask_application(&self.inner.http, &sandbox, port).await == AppResponse::NotReady {
                workspace.ensure_served().await.map_err(|error| ResumeFailure::from_serve_error(workspace, &error))?;
            }
            while probe::ask_application(&self.inner.http, &sandbox, port).await == AppResponse::NotReady {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        let preview = job.preview_port.map(|port| (sandbox.url(port), port));
        let preview_url = preview.as_ref().map(|(url, _)| url.clone());
        let sandbox_id = sandbox.id().to_string();
        let change = Change {
            sandbox_paused: Some(false),
            sandbox_id: Some(Some(sandbox_id.clone())),
            sandbox_expires_at: Some(self.keep_running_until(ends_at)),
            preview: Some(preview),
            ..Change::default()
        };
        let events = vec![
            StudioEvent::Resumed { preview_url: preview_url.clone() }.into(),
            events::status(job.status, &job.stage_label, false, preview_url.as_deref(), None),
        ];
        self.change(&job.id, Precondition::None, change, events)
            .await
            .map_err(|error| ResumeFailure::Transient(error_chain(&error)))?;
        Ok(ResumedPreview { preview_url, sandbox_id })
    }

    /// After a failed resume: the provider may have resumed the sandbox after the deadline.
    async fn record_if_running(&self, id: &JobId) {
        let recorded = async {
            let _lock = self.lock_job(id).await;
            let job = self.records().job(id).await?.filter(|job| job.sandbox_paused && !job.deleted);
            let Some(job) = job else { return Ok(()) };
            // The process that holds the workspace records the state itself.
            let Ok(workspace) = self.workspaces().open(&job.workspace).await else { return Ok(()) };
            let recorded = match probe::inspect_sandbox(self.workspaces(), &job.workspace).await {
                SandboxStatus::Running { ends_at, .. } => {
                    let change = Change {
                        sandbox_paused: Some(false),
                        sandbox_expires_at: Some(self.keep_running_until(ends_at)),
                        ..Change::default()
                    };
                    let events =
                        vec![events::status(job.status, &job.stage_label, false, job.preview_url.as_deref(), None)];
                    self.change(id, Precondition::None, change, events).await.map(drop)
                }
                _ => Ok(()),
            };
            close(&workspace).await;
            recorded
        };
        let recorded: Result<(), StudioError> = recorded.await;
        if let Err(error) = recorded {
            warn!(job = %id, error = %error_chain(&error), "cannot record whether the sandbox runs after a failed resume");
        }
    }

    /// Records that the sandbox no longer exists.
    pub(crate) async fn record_sandbox_gone(&self, job: &JobRecord) {
        if !job.sandbox_paused && job.sandbox_expires_at.is_none() {
            return;
        }
        let gone = Change { sandbox_paused: Some(false), sandbox_expires_at: Some(None), ..Change::default() };
        let events = vec![events::notice("The sandbox is gone. A rebuild starts from the newest files.")];
        if let Err(error) = self.change(&job.id, Precondition::None, gone, events).await {
            warn!(job = %job.id, error = %error_chain(&error), "cannot record that a sandbox is gone");
        }
    }

    /// When a preview that runs now is paused again. Workspaces extend a sandbox as far as the
    /// provider allows, for users who work in it; whether a user still views a preview is unknown.
    pub(crate) fn keep_running_until(&self, ends_at: Option<Timestamp>) -> Option<Timestamp> {
        let lifetime = SignedDuration::try_from(self.inner.settings.preview_lifetime).unwrap_or(SignedDuration::MAX);
        let auto_pause_at = Timestamp::now().checked_add(lifetime).unwrap_or(Timestamp::MAX);
        Some(ends_at.map_or(auto_pause_at, |ends_at| ends_at.min(auto_pause_at)))
    }

    /// The state of the preview. Never resumes it.
    ///
    /// # Errors
    /// [`StudioError::NotFound`] when the user has no such job.
    pub async fn check(&self, user: &User, id: &JobId) -> Result<PreviewCheck, StudioError> {
        let job = self.find_own_job(user, id).await?;
        let is = |state, reason: Option<String>| PreviewCheck { state, preview_url: None, reason };
        match job.status {
            Status::Ready if job.restore_to.is_none() => {}
            // The build or the restore is still in progress.
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
        let sandbox = match probe::inspect_sandbox(self.workspaces(), &job.workspace).await {
            SandboxStatus::Running { sandbox, .. } => sandbox,
            SandboxStatus::Paused => return Ok(is(PreviewState::Paused, None)),
            SandboxStatus::Gone => return Ok(is(PreviewState::Expired, None)),
            SandboxStatus::Unreachable(reason) => return Ok(is(PreviewState::Unreachable, Some(reason))),
        };
        let preview_url = Some(sandbox.url(port));
        Ok(match probe::ask_application(&self.inner.http, &sandbox, port).await {
            AppResponse::Ready => PreviewCheck { state: PreviewState::Active, preview_url, reason: None },
            AppResponse::FrameBlocked(reason) => {
                PreviewCheck { state: PreviewState::Blocked, preview_url, reason: Some(reason) }
            }
            AppResponse::NotReady => {
                let waking = self.inner.resuming.lock().contains_key(id);
                is(PreviewState::Starting, waking.then(|| "Waking the preview".to_owned()))
            }
        })
    }

    /// The snapshots of a job's workspace, the newest first.
    ///
    /// # Errors
    /// [`StudioError::NotFound`] when the user has no such job, [`StudioError::Unavailable`] when
    /// the object store cannot be read.
    pub async fn snapshots(&self, user: &User, id: &JobId) -> Result<Vec<SnapshotView>, StudioError> {
        let job = self.find_own_job(user, id).await?;
        let project = job.workspace.as_str().parse().map_err(StudioError::unavailable)?;
        let listed = self.workspaces().checkpoints_of(&project).await.map_err(StudioError::unavailable)?;
        let shown = listed.into_iter().rev().map(|listed| {
            let (files, bytes, verified) = match listed.condition {
                CheckpointCondition::Whole { files, bytes, verified, .. } => (files, bytes, verified),
                CheckpointCondition::Damaged { .. } => (0, 0, false),
            };
            SnapshotView { key: listed.key, files, bytes, created_at: listed.created_at, verified }
        });
        Ok(shown.collect())
    }

    /// Restores a ready job's files from a snapshot, in the background. The timeline reports the
    /// end, after which the preview runs.
    ///
    /// # Errors
    /// [`StudioError::NotFound`] when there is no such job or snapshot, [`StudioError::NotReady`],
    /// or [`StudioError::Conflict`] when another operation is in progress.
    pub async fn restore(&self, user: &User, id: &JobId, key: &str) -> Result<Job, StudioError> {
        let job = self.find_ready_job(user, id).await?;
        let project = job.workspace.as_str().parse().map_err(StudioError::unavailable)?;
        let listed = self.workspaces().checkpoints_of(&project).await.map_err(StudioError::unavailable)?;
        let snapshot = listed.into_iter().find(|listed| listed.key == key).ok_or(StudioError::NotFound)?;
        let label = "Restoring the files";
        let change = Change {
            stage_label: Some(label.to_owned()),
            restore_to: Some(Some(snapshot.stamp)),
            settled: Some(false),
            ..Change::default()
        };
        let events = vec![events::status(job.status, label, job.sandbox_paused, job.preview_url.as_deref(), None)];
        let begun = self.change(id, Precondition::None, change, events).await?.ok_or_else(busy)?;
        self.spawn_cleanup(id);
        self.view_job(user, begun).await
    }

    pub(crate) async fn restore_files(&self, job: &JobRecord, which: Which) -> Result<(), StudioError> {
        let _lock = self.lock_job(&job.id).await;
        let workspace = self.workspaces().open(&job.workspace).await.map_err(StudioError::unavailable)?;
        let restored = async {
            workspace.restore(which).await.map_err(StudioError::unavailable)?;
            self.start_preview(job, &workspace).await?;
            self.take_screenshots(job, &workspace, "restored").await;
            Ok(())
        };
        let restored = tokio::time::timeout(self.inner.settings.resume_timeout * 2, restored).await;
        close(&workspace).await;
        restored.map_err(StudioError::unavailable)?
    }
}

/// The last lines of a log, whole lines where possible.
fn last_lines(log: &str) -> &str {
    let log = log.trim_end();
    let cut = log.len().saturating_sub(OUTPUT_BYTES);
    let tail = &log[log.ceil_char_boundary(cut)..];
    if cut == 0 { tail } else { tail.split_once('\n').map_or(tail, |(_, lines)| lines) }
}

/// Releases a workspace. After the timeout its lease expires instead.
pub(crate) async fn close(workspace: &Workspace) {
    if tokio::time::timeout(CLOSE_TIMEOUT, workspace.close()).await.is_err() {
        warn!(workspace = %workspace.name(), "cannot release a workspace in time; its lease expires");
    }
}
