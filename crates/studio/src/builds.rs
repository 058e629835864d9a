//! Builds are asked for, again, no more, and forgotten.

use agent::approval::Policy;
use jiff::Timestamp;
use tracing::warn;
use workspace::setup::{Repo, RepoSource};
use workspace::snapshot::ProjectId as SnapshotsOf;
use workspace::{OpenError, Unsaved};

use crate::body;
use crate::chain;
use crate::error::{REBUILD_QUESTION, StudioError};
use crate::id::JobId;
use crate::job::{Job, NewBuild, ProjectRef, Status, Step, next};
use crate::records::{Change, Held, JobRecord, NewJob, Spec};
use crate::studio::{Studio, locked};
use crate::view::User;

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
                return Err(StudioError::invalid("budget_usd", format!("nobody knows what {} costs", chosen.name)));
            }
        }
        let project = match project {
            ProjectRef::Id(id) => self.records().project(&user.id, &id).await?.ok_or(StudioError::NotFound)?,
            ProjectRef::Name(name) => {
                check_text("name", &name, LONGEST_NAME)?;
                self.records().project_named(&user.id, name.trim()).await?
            }
        };
        let mut begins_from = None;
        if repo.is_none() {
            for ready in self.records().ready_jobs(&project.id).await? {
                begins_from = self.files_of(&ready).await?;
                if begins_from.is_some() {
                    break;
                }
            }
        }
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

    /// Whose snapshots have the files of a job, if there are any.
    async fn files_of(&self, job: &JobRecord) -> Result<Option<SnapshotsOf>, StudioError> {
        let project: SnapshotsOf = job.workspace.as_str().parse().map_err(StudioError::unavailable)?;
        let any = self.workspaces().snapshots().has_any(&project).await.map_err(StudioError::unavailable)?;
        Ok(any.then_some(project))
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
        let begins_from = self.files_of(&old).await?.or(old.begins_from);
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
                ..Change::default()
            };
            let told = vec![body::status(status, status.label(), false, None, None)];
            if let Some(cancelled) = self.change(id, Held::Anybody, change, told).await? {
                self.give_back(&cancelled, "the build was cancelled before it began").await?;
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

    pub(crate) async fn give_back(&self, job: &JobRecord, reason: &str) -> Result<(), StudioError> {
        self.records().give_back(job, reason).await?;
        self.inner.timeline.caught_up(&job.id).await;
        Ok(())
    }

    /// Forgets a job, its sandbox and its pictures. Its snapshots stay: later builds of the project may begin from them.
    ///
    /// # Errors
    /// There is no such job, or it is still being built.
    pub async fn delete(&self, user: &User, id: &JobId) -> Result<(), StudioError> {
        let job = self.own(user, id).await?;
        if !job.status.is_final() {
            return Err(StudioError::Conflict(format!("the build is {}; cancel it first", job.status)));
        }
        let job = self.settled(user, id).await?;
        let _turn = self.turn(id).await;
        match self.workspaces().open(&job.workspace).await {
            Ok(workspace) => {
                if let Err(error) = workspace.destroy(Unsaved::Discard).await {
                    warn!(job = %id, error = %chain(&error), "a deleted job's sandbox ends by its own lifetime");
                    workspace.close().await;
                }
            }
            Err(OpenError::NotFound(_)) => {}
            Err(error) => return Err(StudioError::unavailable(error)),
        }
        if self.records().forget(id).await? { Ok(()) } else { Err(StudioError::NotFound) }
    }
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
