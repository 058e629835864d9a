//! The port between a worker and what it acts on: the workspace, the run, the preview. The
//! simulation implements it, to inject a failure or a crash at every point.

use agent::RunId;
use async_trait::async_trait;
use checkpoint::{ProjectId as SnapshotsOf, Stamp, Which};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use tracing::warn;
use workspace::setup::{Repo, Setup};
use workspace::{OpenError, SetupError, Unsaved, Workspace};

use super::build::Interrupted;
use super::run::{self, DriveError, RunOutcome};
use crate::error::StudioError;
use crate::job::Status;
use crate::previews::close;
use crate::probe::{self, SandboxStatus};
use crate::records::JobRecord;
use crate::studio::Studio;
use text::error_chain;

/// Every call is idempotent: a worker that continues after a killed one finds completed steps done.
#[async_trait]
pub(super) trait BuildHost: Send + Sync {
    /// What a job is built in.
    type Site: Send + Sync;

    /// Creates or opens the site of a job. The inner error says why that is impossible.
    async fn provision(&self, job: &JobRecord) -> Result<Result<Self::Site, String>, Interrupted>;

    /// Drives the run of a job to its end, and copies it to the timeline.
    async fn drive(
        &self,
        job: &JobRecord,
        run: &RunId,
        site: &Self::Site,
        cancel: CancellationToken,
    ) -> Result<RunOutcome, DriveError>;

    /// Starts the application and returns its URL and port; none when the build has no page.
    async fn serve(&self, site: &Self::Site) -> Result<Option<(String, u16)>, String>;

    /// Saves the files. The pause saves again after a failure.
    async fn save(&self, site: &Self::Site);

    async fn take_screenshots(&self, job: &JobRecord, site: &Self::Site, reason: &str);

    /// Releases the site, so that other processes can act on the sandbox.
    async fn leave(&self, site: Self::Site);

    /// The id and the expiry of the job's sandbox, if it runs.
    async fn running(&self, job: &JobRecord) -> Option<(String, Option<Timestamp>)>;

    /// Pauses the sandbox of a ready job, and records it.
    async fn pause(&self, job: &JobRecord) -> Result<(), StudioError>;

    /// Saves the files of a job that ended without a preview, and deletes its sandbox. False when
    /// the sandbox is kept because its files could not be saved.
    async fn discard(&self, job: &JobRecord) -> Result<bool, String>;

    /// Restores the files of a ready job from a snapshot.
    async fn restore_files(&self, job: &JobRecord, stamp: Stamp) -> Result<(), StudioError>;

    /// Removes the sandbox, the snapshots and the run of a deleted job.
    async fn erase(&self, job: &JobRecord) -> Result<(), Interrupted>;
}

/// Builds jobs in workspaces.
pub(super) struct WorkspaceHost {
    pub(super) studio: Studio,
}

#[async_trait]
impl BuildHost for WorkspaceHost {
    type Site = Workspace;

    async fn provision(&self, job: &JobRecord) -> Result<Result<Workspace, String>, Interrupted> {
        let workspaces = self.studio.workspaces();
        let mut repo = job.spec.repo.as_deref().map(Repo::parse);
        if let Some(branch) = &job.spec.branch {
            repo = repo.map(|repo| repo.branch(branch.clone()));
        }
        let from = match job.status {
            // The workspace exists and has its files.
            Status::Building => job.spec.begins_from.clone(),
            _ => self.prepare_base(job).await?,
        };
        let setup = Setup {
            repo: repo.filter(|_| from.is_none()),
            template: job.spec.template.clone(),
            job: Some(job.id.to_string()),
            from,
            ..Setup::default()
        };
        let error = match workspaces.create(&job.workspace, setup).await {
            Ok(created) => return Ok(Ok(created.workspace)),
            Err(SetupError::Exists(_)) => match workspaces.open(&job.workspace).await {
                Ok(workspace) => return Ok(Ok(workspace)),
                Err(error) => SetupError::Open(error),
            },
            Err(error) => error,
        };
        match error {
            // The previous worker still holds the workspace, or the records are unavailable.
            SetupError::Open(error) => Err(Interrupted::Retry(error_chain(&error))),
            error => {
                let text =
                    format!("The workspace could not be prepared: {}. Rebuild to try again.", error_chain(&error));
                Ok(Err(text))
            }
        }
    }

    async fn drive(
        &self,
        job: &JobRecord,
        run: &RunId,
        site: &Workspace,
        cancel: CancellationToken,
    ) -> Result<RunOutcome, DriveError> {
        run::drive(&self.studio, job, run, site, cancel).await
    }

    async fn serve(&self, workspace: &Workspace) -> Result<Option<(String, u16)>, String> {
        let served = workspace.serve(None).await.map_err(|error| error_chain(&error))?;
        let Some(ready) = served else { return Ok(None) };
        let pass = workspace.enter().await.map_err(|error| error_chain(&error))?;
        Ok(Some((pass.sandbox().url(ready.port), ready.port)))
    }

    async fn save(&self, site: &Workspace) {
        if let Err(error) = site.save_checkpoint().await {
            warn!(error = %error_chain(&error), "cannot save a checkpoint; the pause saves again");
        }
    }

    async fn take_screenshots(&self, job: &JobRecord, site: &Workspace, reason: &str) {
        self.studio.take_screenshots(job, site, reason).await;
    }

    async fn leave(&self, site: Workspace) {
        close(&site).await;
    }

    async fn running(&self, job: &JobRecord) -> Option<(String, Option<Timestamp>)> {
        match probe::inspect_sandbox(self.studio.workspaces(), &job.workspace).await {
            SandboxStatus::Running { sandbox, ends_at } => Some((sandbox.id().to_string(), ends_at)),
            SandboxStatus::Paused | SandboxStatus::Gone | SandboxStatus::Unreachable(_) => None,
        }
    }

    async fn pause(&self, job: &JobRecord) -> Result<(), StudioError> {
        self.studio.pause_job(job).await.map(drop)
    }

    async fn discard(&self, job: &JobRecord) -> Result<bool, String> {
        let workspace = match self.studio.workspaces().open(&job.workspace).await {
            Ok(workspace) => workspace,
            // Also after a worker was killed when it had deleted the sandbox.
            Err(OpenError::NotFound(_)) => return Ok(true),
            Err(error) => return Err(error_chain(&error)),
        };
        let ended = workspace.destroy(Unsaved::Keep).await;
        if let Err(error) = &ended {
            warn!(error = %error_chain(error), "cannot save the files; keeping the sandbox");
            let paused = workspace.pause().await;
            close(&workspace).await;
            return paused.map(|()| false).map_err(|error| error_chain(&error));
        }
        Ok(true)
    }

    async fn restore_files(&self, job: &JobRecord, stamp: Stamp) -> Result<(), StudioError> {
        self.studio.restore_files(job, Which::Exactly(stamp)).await
    }

    async fn erase(&self, job: &JobRecord) -> Result<(), Interrupted> {
        let _lock = self.studio.lock_job(&job.id).await;
        match self.studio.workspaces().open(&job.workspace).await {
            Ok(workspace) => {
                if let Err(error) = workspace.destroy(Unsaved::Unwanted).await {
                    close(&workspace).await;
                    return Err(Interrupted::Retry(error_chain(&error)));
                }
            }
            Err(OpenError::NotFound(_)) => {}
            Err(error) => return Err(Interrupted::Retry(error_chain(&error))),
        }
        if self.studio.records().is_base_of_queued_job(&job.workspace).await.map_err(StudioError::from)? {
            return Err(Interrupted::Retry("another build is about to begin from its files".to_owned()));
        }
        let files: SnapshotsOf = job.workspace.as_str().parse().map_err(StudioError::unavailable)?;
        let removed = self.studio.workspaces().remove_checkpoints_of(&files).await;
        removed.map_err(StudioError::unavailable)?;
        if let Some(run) = &job.run {
            let erased = self.studio.inner.runs.remove(run).await;
            erased.map_err(StudioError::unavailable)?;
        }
        Ok(())
    }
}
