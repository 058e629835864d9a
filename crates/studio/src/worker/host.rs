//! What a worker needs of the world around a job: a site to build on, a run, a preview. A port, so
//! that the simulation can fail it, and crash the worker, at every point.

use agent::RunId;
use async_trait::async_trait;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use tracing::warn;
use workspace::setup::{Repo, Setup};
use workspace::snapshot::{ProjectId as SnapshotsOf, Stamp, Which};
use workspace::{OpenError, SetupError, Unsaved, Workspace};

use super::build::Left;
use super::run::{self, Broken, Done};
use crate::chain;
use crate::error::StudioError;
use crate::job::Status;
use crate::previews::close;
use crate::records::JobRecord;
use crate::seat::{self, Found};
use crate::studio::Studio;

/// Every call can be made again: what a killed worker had done is found done.
#[async_trait]
pub(super) trait Host: Send + Sync {
    /// What a job is built in.
    type Site: Send + Sync;

    /// The site of a job, made if there is none; else why there can be none.
    async fn provision(&self, job: &JobRecord) -> Result<Result<Self::Site, String>, Left>;

    /// Drives the run of a job to its end, and puts it on the timeline.
    async fn drive(
        &self,
        job: &JobRecord,
        run: &RunId,
        site: &Self::Site,
        cancel: CancellationToken,
    ) -> Result<Done, Broken>;

    /// Where the application is looked at; none when it is nothing to look at.
    async fn serve(&self, site: &Self::Site) -> Result<Option<(String, u16)>, String>;

    /// Saves the files. What fails is tried again by the pause.
    async fn save(&self, site: &Self::Site);

    async fn photograph(&self, job: &JobRecord, site: &Self::Site, reason: &str);

    /// Gives the site back, so that others can act on the sandbox.
    async fn leave(&self, site: Self::Site);

    /// The sandbox of a job and its end, where it runs.
    async fn running(&self, job: &JobRecord) -> Option<(String, Option<Timestamp>)>;

    /// Pauses the sandbox of a ready job, and notes it.
    async fn pause(&self, job: &JobRecord) -> Result<(), StudioError>;

    /// Saves the files of a job that has ended without a preview and ends its sandbox. False when
    /// it is kept, since its files could not be saved.
    async fn discard(&self, job: &JobRecord) -> Result<bool, String>;

    /// Sets the files of a ready job back to a snapshot.
    async fn set_back(&self, job: &JobRecord, stamp: Stamp) -> Result<(), StudioError>;

    /// Removes the sandbox, the snapshots and the run of a deleted job.
    async fn erase(&self, job: &JobRecord) -> Result<(), Left>;
}

/// Jobs are built in workspaces.
pub(super) struct WorkspaceHost {
    pub(super) studio: Studio,
}

#[async_trait]
impl Host for WorkspaceHost {
    type Site = Workspace;

    async fn provision(&self, job: &JobRecord) -> Result<Result<Workspace, String>, Left> {
        let workspaces = self.studio.workspaces();
        let mut repo = job.spec.repo.as_deref().map(Repo::parse);
        if let Some(branch) = &job.spec.branch {
            repo = repo.map(|repo| repo.branch(branch.clone()));
        }
        let from = match job.status {
            // The workspace is there, and has its files.
            Status::Building => job.begins_from.clone(),
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
            // The worker before this one is not long gone, or the records are in trouble.
            SetupError::Open(error) => Err(Left::Again(chain(&error))),
            error => {
                let text = format!("The workspace could not be prepared: {}. Rebuild to try again.", chain(&error));
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
    ) -> Result<Done, Broken> {
        run::drive(&self.studio, job, run, site, cancel).await
    }

    async fn serve(&self, workspace: &Workspace) -> Result<Option<(String, u16)>, String> {
        let served = workspace.serve(None).await.map_err(|error| chain(&error))?;
        let Some(ready) = served else { return Ok(None) };
        let pass = workspace.enter().await.map_err(|error| chain(&error))?;
        Ok(Some((pass.sandbox().url(ready.port), ready.port)))
    }

    async fn save(&self, site: &Workspace) {
        if let Err(error) = site.snapshot().await {
            warn!(error = %chain(&error), "no snapshot was saved");
        }
    }

    async fn photograph(&self, job: &JobRecord, site: &Workspace, reason: &str) {
        self.studio.photograph(job, site, reason).await;
    }

    async fn leave(&self, site: Workspace) {
        close(&site).await;
    }

    async fn running(&self, job: &JobRecord) -> Option<(String, Option<Timestamp>)> {
        match seat::look(self.studio.workspaces(), &job.workspace).await {
            Found::Running { sandbox, ends_at } => Some((sandbox.id().to_string(), ends_at)),
            Found::Paused | Found::Gone | Found::Unreachable(_) => None,
        }
    }

    async fn pause(&self, job: &JobRecord) -> Result<(), StudioError> {
        self.studio.put_to_sleep(job).await.map(drop)
    }

    async fn discard(&self, job: &JobRecord) -> Result<bool, String> {
        let workspace = match self.studio.workspaces().open(&job.workspace).await {
            Ok(workspace) => workspace,
            // Also after a worker that was killed when it had ended the sandbox.
            Err(OpenError::NotFound(_)) => return Ok(true),
            Err(error) => return Err(chain(&error)),
        };
        let ended = workspace.destroy(Unsaved::Keep).await;
        if let Err(error) = &ended {
            warn!(error = %chain(error), "the sandbox is kept, since its files could not be saved");
            let paused = workspace.pause().await;
            close(&workspace).await;
            return paused.map(|()| false).map_err(|error| chain(&error));
        }
        Ok(true)
    }

    async fn set_back(&self, job: &JobRecord, stamp: Stamp) -> Result<(), StudioError> {
        self.studio.set_back(job, Which::Exactly(stamp)).await
    }

    async fn erase(&self, job: &JobRecord) -> Result<(), Left> {
        let _turn = self.studio.turn(&job.id).await;
        match self.studio.workspaces().open(&job.workspace).await {
            Ok(workspace) => {
                if let Err(error) = workspace.destroy(Unsaved::Unwanted).await {
                    close(&workspace).await;
                    return Err(Left::Again(chain(&error)));
                }
            }
            Err(OpenError::NotFound(_)) => {}
            Err(error) => return Err(Left::Again(chain(&error))),
        }
        if self.studio.records().is_waited_for(&job.workspace).await.map_err(StudioError::from)? {
            return Err(Left::Again("another build is about to begin from its files".to_owned()));
        }
        let files: SnapshotsOf = job.workspace.as_str().parse().map_err(StudioError::unavailable)?;
        let removed = self.studio.workspaces().remove_snapshots_of(&files).await;
        removed.map_err(StudioError::unavailable)?;
        if let Some(run) = &job.run {
            let forgotten = self.studio.inner.runs.remove(run).await;
            forgotten.map_err(StudioError::unavailable)?;
        }
        Ok(())
    }
}
