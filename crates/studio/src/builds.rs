//! Starts, rebuilds, cancels and deletes builds.

use checkpoint::ProjectId as SnapshotsOf;
use jiff::Timestamp;
use tracing::warn;

use crate::error::{REBUILD_QUESTION, StudioError};
use crate::events;
use crate::id::{JobId, ProjectId};
use crate::job::{JobStep, Status, next};
use crate::new_build::{NewBuild, ProjectRef};
use crate::records::{Change, JobRecord, JobSpec, Precondition, ProjectRecord};
use crate::studio::Studio;
use crate::view::{Job, User};
use crate::worker;
use text::error_chain;

impl Studio {
    /// Queues a build for one credit.
    ///
    /// # Errors
    /// [`StudioError::NoCredits`], [`StudioError::Invalid`], [`StudioError::ProjectExists`], or
    /// [`StudioError::NotFound`] when the user has no such project.
    pub async fn start(&self, user: &User, build: NewBuild) -> Result<Job, StudioError> {
        let (project, model, mut spec) = build.validate()?;
        let chosen = self.inner.host.model(model.as_deref());
        let chosen = chosen.map_err(|error| StudioError::invalid("model", error_chain(&error)))?;
        if spec.budget_usd.is_some() && chosen.model.price().is_none() {
            return Err(StudioError::invalid(
                "budget_usd",
                format!(
                    "the price of {} is unknown; the server's configuration can say it ([models.NAME])",
                    chosen.name
                ),
            ));
        }
        // No project is created for a build that cannot be queued.
        if self.credits(user).await? < 1 {
            return Err(StudioError::NoCredits);
        }
        let project = match project {
            ProjectRef::Id(id) => self.records().project(&user.id, &id).await?.ok_or(StudioError::NotFound)?,
            ProjectRef::Name(name) => self.records().ensure_project(&user.id, &name).await?,
            ProjectRef::New(name) => self.new_project(user, &name).await?,
        };
        spec.model = chosen.name;
        if spec.repo.is_none() {
            spec.begins_from = self.find_newest_files(&project.id).await?;
        }
        self.enqueue(user, &project.id, &spec).await
    }

    async fn enqueue(&self, user: &User, project: &ProjectId, spec: &JobSpec) -> Result<Job, StudioError> {
        let job = self.records().enqueue(&user.id, project, spec).await?.ok_or(StudioError::NoCredits)?;
        self.inner.work.notify_waiters();
        self.view_job(user, job).await
    }

    /// Creates a project. A project whose builds are all deleted has no files and counts as new.
    async fn new_project(&self, user: &User, name: &str) -> Result<ProjectRecord, StudioError> {
        let (project, made) = self.records().add_project(&user.id, name).await?;
        if !made && !self.records().jobs(&user.id, Some(&project.id)).await?.is_empty() {
            return Err(StudioError::ProjectExists { name: project.name });
        }
        Ok(project)
    }

    /// The snapshots that the next build of a project starts from: those of the newest ended build
    /// with files, whether it is ready, failed or cancelled. A build in progress is no base,
    /// because its files change.
    async fn find_newest_files(&self, project: &ProjectId) -> Result<Option<SnapshotsOf>, StudioError> {
        for job in self.records().ended_jobs(project).await? {
            if let Some(files) = self.find_files(&job).await? {
                return Ok(Some(files));
            }
        }
        Ok(None)
    }

    /// The snapshots that have, or will have, the files of an ended job: the worker saves what only
    /// the sandbox has before the new build starts from it.
    async fn find_files(&self, job: &JobRecord) -> Result<Option<SnapshotsOf>, StudioError> {
        let project: SnapshotsOf = job.workspace.as_str().parse().map_err(StudioError::unavailable)?;
        let being_saved = job.run.is_some() && (job.sandbox_id.is_some() || !job.settled);
        Ok((being_saved || self.has_files(&project).await?).then_some(project))
    }

    pub(crate) async fn has_files(&self, project: &SnapshotsOf) -> Result<bool, StudioError> {
        self.workspaces().checkpoints().has_any(project).await.map_err(StudioError::unavailable)
    }

    /// Queues the same goal again, from the newest files, for one credit.
    ///
    /// # Errors
    /// [`StudioError::ConfirmNeeded`] with the question, [`StudioError::Conflict`] while the build
    /// runs, [`StudioError::NoCredits`], or [`StudioError::NotFound`].
    pub async fn rebuild(&self, user: &User, id: &JobId, confirm: bool) -> Result<Job, StudioError> {
        let old = self.find_own_job(user, id).await?;
        if !old.status.is_final() {
            return Err(StudioError::Conflict(format!("the build is {}; cancel it first", old.status)));
        }
        if !confirm {
            return Err(StudioError::ConfirmNeeded { question: REBUILD_QUESTION });
        }
        let begins_from = match (self.find_files(&old).await?, old.spec.begins_from) {
            (Some(own), _) => Some(own),
            // The build that it started from may be deleted by now.
            (None, Some(from)) => self.has_files(&from).await?.then_some(from),
            (None, None) => None,
        };
        let spec = JobSpec { begins_from, rebuilt_from: Some(old.id), ..old.spec };
        self.enqueue(user, &old.project, &spec).await
    }

    /// Cancels a build. A build that has ended stays unchanged.
    ///
    /// # Errors
    /// [`StudioError::NotFound`] when the user has no such job.
    pub async fn cancel(&self, user: &User, id: &JobId) -> Result<Job, StudioError> {
        let job = self.find_own_job(user, id).await?;
        if job.status.is_final() {
            return self.view_job(user, job).await;
        }
        // A queued job ends here. The compare-and-swap of the status decides between two cancels or
        // a cancel and a claim.
        if job.status == Status::Queued
            && let Ok(status) = next(job.status, JobStep::Cancel)
        {
            let change = Change {
                status: Some((job.status, status)),
                stage_label: Some(status.label().to_owned()),
                finished_at: Some(Timestamp::now()),
                settled: Some(true),
                refund: Some("the build was cancelled before it began"),
                ..Change::default()
            };
            let events = vec![events::status(status, status.label(), false, None, None)];
            if let Some(cancelled) = self.change(id, Precondition::None, change, events).await? {
                return self.view_job(user, cancelled).await;
            }
        }
        let asked = Change { cancel_asked: Some(true), ..Change::default() };
        let asked = self.change(id, Precondition::None, asked, Vec::new()).await?.ok_or(StudioError::NotFound)?;
        if let Some(cancel) = self.inner.building.lock().get(id) {
            cancel.cancel();
        }
        if let Some(run) = &asked.run {
            // The process that drives the run polls this.
            self.inner.runs.request_cancel(run).await.map_err(StudioError::unavailable)?;
        }
        self.view_job(user, asked).await
    }

    /// Deletes a job with its sandbox, files, snapshots and screenshots. Users no longer see it; a
    /// background task, or the next worker after a failure, removes what it left. Its usage stays
    /// recorded.
    ///
    /// # Errors
    /// [`StudioError::NotFound`], or [`StudioError::Conflict`] while the build runs or another
    /// operation is in progress.
    pub async fn delete(&self, user: &User, id: &JobId) -> Result<(), StudioError> {
        let job = self.find_own_job(user, id).await?;
        if !job.status.is_final() {
            return Err(StudioError::Conflict(format!("the build is {}; cancel it first", job.status)));
        }
        self.wait_until_settled(user, id).await?;
        let change = Change { deleted: Some(true), settled: Some(false), ..Change::default() };
        self.change(id, Precondition::None, change, Vec::new()).await?.ok_or_else(busy)?;
        self.inner.timeline.publish_deleted(id);
        self.spawn_cleanup(id);
        Ok(())
    }

    /// Runs the cleanup of an ended job at once, beside the builds of this process. If this process
    /// ends first, the next worker runs it.
    pub(crate) fn spawn_cleanup(&self, id: &JobId) {
        let (studio, id) = (self.clone(), id.clone());
        self.inner.tasks.spawn(async move {
            match studio.records().claim(studio.inner.settings.lease, Some(&id)).await {
                Ok(Some(job)) => worker::clean_up(studio.clone(), job).await,
                // A worker claimed the job first.
                Ok(None) => {}
                Err(error) => warn!(job = %id, error = %error_chain(&error), "cannot claim the job for its cleanup; the next worker does it"),
            }
        });
    }
}

/// Another operation on the same job is in progress.
pub(crate) fn busy() -> StudioError {
    StudioError::Conflict("something else is being done with this build; try again".to_owned())
}
