//! Builds are asked for, again, no more, and forgotten.

use agent::approval::Policy;
use jiff::Timestamp;
use tracing::warn;
use workspace::setup::{Repo, RepoSource};
use workspace::snapshot::ProjectId as SnapshotsOf;

use crate::body;
use crate::chain;
use crate::error::{REBUILD_QUESTION, StudioError};
use crate::id::{JobId, ProjectId};
use crate::job::{Job, NewBuild, ProjectRef, Status, Step, next};
use crate::records::{Change, Held, JobRecord, NewJob, ProjectRecord, Spec};
use crate::studio::{Studio, locked};
use crate::view::User;
use crate::worker;

const LONGEST_GOAL: usize = 20_000;
const LONGEST_NAME: usize = 100;
const MOST_PHASES: usize = 50;

impl Studio {
    /// Takes a build in, for one credit.
    ///
    /// # Errors
    /// [`StudioError::NoCredits`], [`StudioError::Invalid`], or there is no such project.
    pub async fn start(&self, user: &User, build: NewBuild) -> Result<Job, StudioError> {
        let NewBuild { project, goal, phases, repo, branch, model, template, budget_usd, policy } = build;
        check_text("goal", &goal, LONGEST_GOAL)?;
        if phases.len() > MOST_PHASES {
            return Err(StudioError::invalid("phases", format!("there may be {MOST_PHASES} at most")));
        }
        for phase in &phases {
            check_text("phases", phase, LONGEST_GOAL)?;
        }
        if let Some(repo) = &repo {
            check_repo(repo)?;
        }
        check_policy(&policy)?;
        let chosen = self.inner.premises.model(model.as_deref());
        let chosen = chosen.map_err(|error| StudioError::invalid("model", chain(&error)))?;
        if let Some(budget) = budget_usd {
            if !budget.is_finite() || budget <= 0.0 {
                return Err(StudioError::invalid("budget_usd", "it must be an amount of dollars above nothing"));
            }
            if chosen.model.price().is_none() {
                return Err(StudioError::invalid(
                    "budget_usd",
                    format!(
                        "the price of {} is unknown; the server's configuration can say it ([models.NAME])",
                        chosen.name
                    ),
                ));
            }
        }
        // A project is not made for a build that is not taken in.
        if self.credits(user).await? < 1 {
            return Err(StudioError::NoCredits);
        }
        let project = match project {
            ProjectRef::Id(id) => self.records().project(&user.id, &id).await?.ok_or(StudioError::NotFound)?,
            ProjectRef::Name(name) => {
                check_text("name", &name, LONGEST_NAME)?;
                self.records().project_named(&user.id, name.trim()).await?
            }
            ProjectRef::New(name) => {
                check_text("name", &name, LONGEST_NAME)?;
                self.new_project(user, name.trim()).await?
            }
        };
        let begins_from = if repo.is_none() { self.newest_files(&project.id).await? } else { None };
        let spec = Spec { phases, repo, branch, template, budget_usd, policy };
        let new = NewJob {
            id: JobId::new(),
            project: project.id,
            user: user.id.clone(),
            goal,
            spec,
            model: chosen.name,
            begins_from,
            rebuilt_from: None,
        };
        self.take_in(user, new).await
    }

    async fn take_in(&self, user: &User, new: NewJob) -> Result<Job, StudioError> {
        let job = self.records().take_in(&new).await?.ok_or(StudioError::NoCredits)?;
        self.inner.work.notify_waiters();
        self.shown(user, job).await
    }

    /// A project of a new name. One whose builds were all deleted has no files and counts as new.
    async fn new_project(&self, user: &User, name: &str) -> Result<ProjectRecord, StudioError> {
        let (project, made) = self.records().add_project(&user.id, name).await?;
        if !made && !self.records().jobs(&user.id, Some(&project.id)).await?.is_empty() {
            return Err(StudioError::ProjectExists { name: project.name });
        }
        Ok(project)
    }

    /// Whose snapshots the next build of a project starts from: those of the newest ended build
    /// that has files, whether it became ready, failed or was cancelled. A build that is still
    /// being built is no base: its files change.
    async fn newest_files(&self, project: &ProjectId) -> Result<Option<SnapshotsOf>, StudioError> {
        for job in self.records().ended_jobs(project).await? {
            if let Some(files) = self.files_of(&job).await? {
                return Ok(Some(files));
            }
        }
        Ok(None)
    }

    /// Whose snapshots have the files of an ended job, or will have them: what only its sandbox
    /// has, the worker saves before the new build starts from it.
    async fn files_of(&self, job: &JobRecord) -> Result<Option<SnapshotsOf>, StudioError> {
        let project: SnapshotsOf = job.workspace.as_str().parse().map_err(StudioError::unavailable)?;
        let being_saved = job.run.is_some() && (job.sandbox_id.is_some() || !job.settled);
        Ok((being_saved || self.has_files(&project).await?).then_some(project))
    }

    pub(crate) async fn has_files(&self, project: &SnapshotsOf) -> Result<bool, StudioError> {
        self.workspaces().snapshots().has_any(project).await.map_err(StudioError::unavailable)
    }

    /// The same goal again, from the newest files, for one credit.
    ///
    /// # Errors
    /// [`StudioError::ConfirmNeeded`] with the question, [`StudioError::NoCredits`], or there is no such job.
    pub async fn rebuild(&self, user: &User, id: &JobId, confirm: bool) -> Result<Job, StudioError> {
        let old = self.own(user, id).await?;
        if !old.status.is_final() {
            return Err(StudioError::Conflict(format!("the build is {}; cancel it first", old.status)));
        }
        if !confirm {
            return Err(StudioError::ConfirmNeeded { question: REBUILD_QUESTION });
        }
        let begins_from = match (self.files_of(&old).await?, old.begins_from) {
            (Some(own), _) => Some(own),
            // The build whose files it began from may have been deleted since.
            (None, Some(from)) => self.has_files(&from).await?.then_some(from),
            (None, None) => None,
        };
        let new = NewJob {
            id: JobId::new(),
            project: old.project,
            user: old.user,
            goal: old.goal,
            spec: old.spec,
            model: old.model,
            begins_from,
            rebuilt_from: Some(old.id),
        };
        self.take_in(user, new).await
    }

    /// Ends a build that has not ended; one that has stays as it is.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn cancel(&self, user: &User, id: &JobId) -> Result<Job, StudioError> {
        let job = self.own(user, id).await?;
        if job.status.is_final() {
            return self.shown(user, job).await;
        }
        // One that nobody has yet ends here and now; of two who do this, one does.
        if job.status == Status::Queued
            && let Ok(status) = next(job.status, Step::Cancelled)
        {
            let change = Change {
                status: Some((job.status, status)),
                stage_label: Some(status.label().to_owned()),
                finished_at: Some(Timestamp::now()),
                settled: Some(true),
                refund: Some("the build was cancelled before it began"),
                ..Change::default()
            };
            let told = vec![body::status(status, status.label(), false, None, None)];
            if let Some(cancelled) = self.change(id, Held::Anybody, change, told).await? {
                return self.shown(user, cancelled).await;
            }
        }
        let asked = Change { cancel_asked: Some(true), ..Change::default() };
        let asked = self.change(id, Held::Anybody, asked, Vec::new()).await?.ok_or(StudioError::NotFound)?;
        if let Some(cancel) = locked(&self.inner.building).get(id) {
            cancel.cancel();
        }
        if let Some(run) = &asked.run {
            // Heard by whoever drives it, here or elsewhere.
            self.inner.runs.ask_to_cancel(run).await.map_err(StudioError::unavailable)?;
        }
        self.shown(user, asked).await
    }

    /// Deletes a job with its sandbox, files, snapshots and pictures. Nobody sees it from here on; what it leaves is removed at once,
    /// or, should that fail or this process end, by whichever worker comes next. What it used stays in the books.
    ///
    /// # Errors
    /// There is no such job, or it is still being built.
    pub async fn delete(&self, user: &User, id: &JobId) -> Result<(), StudioError> {
        let job = self.own(user, id).await?;
        if !job.status.is_final() {
            return Err(StudioError::Conflict(format!("the build is {}; cancel it first", job.status)));
        }
        self.settled(user, id).await?;
        let change = Change { deleted: Some(true), settled: Some(false), ..Change::default() };
        self.change(id, Held::Anybody, change, Vec::new()).await?.ok_or_else(busy)?;
        self.inner.timeline.deleted(id);
        self.run_errand(id);
        Ok(())
    }

    /// Does what is to be done for a job that has ended, at once and whatever is being built here; should this process end, a
    /// worker does it.
    pub(crate) fn run_errand(&self, id: &JobId) {
        let (studio, id) = (self.clone(), id.clone());
        self.inner.tasks.spawn(async move {
            match studio.records().claim(studio.inner.settings.lease, Some(&id)).await {
                Ok(Some(job)) => worker::errand(studio.clone(), job).await,
                // A worker was quicker.
                Ok(None) => {}
                Err(error) => warn!(job = %id, error = %chain(&error), "left to the next worker"),
            }
        });
    }
}

/// Somebody else has something to be done for the same job.
pub(crate) fn busy() -> StudioError {
    StudioError::Conflict("something else is being done with this build; try again".to_owned())
}

fn check_text(field: &'static str, text: &str, longest: usize) -> Result<(), StudioError> {
    if text.trim().is_empty() {
        return Err(StudioError::invalid(field, "it must not be empty"));
    }
    if text.chars().count() > longest {
        return Err(StudioError::invalid(field, format!("it may have {longest} characters at most")));
    }
    if text.contains('\0') {
        return Err(StudioError::invalid(field, "it must not contain the character NUL"));
    }
    Ok(())
}

/// A URL that the sandbox can reach. A directory would be one of the server's own.
fn check_repo(text: &str) -> Result<(), StudioError> {
    let repo = Repo::parse(text);
    match repo.source {
        RepoSource::Url(_) if repo.credentials.is_some() => {
            Err(StudioError::invalid("repo", "names and passwords in the URL are not kept; use a URL without them"))
        }
        RepoSource::Url(_) => check_text("repo", text, LONGEST_GOAL),
        RepoSource::Directory(_) => Err(StudioError::invalid("repo", "it must be a URL, such as https://host/path")),
    }
}

fn check_policy(policy: &Policy) -> Result<(), StudioError> {
    for rule in &policy.rules {
        if rule.tool != "*" && !tools::NAMES.contains(&rule.tool.as_str()) {
            let names = tools::NAMES.join(", ");
            return Err(StudioError::invalid(
                "approvals",
                format!("{} is none of the tools: {names}, or *", rule.tool),
            ));
        }
        if let Some(pattern) = &rule.pattern
            && let Err(error) = regex::Regex::new(pattern)
        {
            return Err(StudioError::invalid("approvals", format!("`{pattern}` is no regular expression: {error}")));
        }
    }
    Ok(())
}
