//! Read-only queries of users: jobs, projects, usage, screenshots. None of them resumes or extends
//! a sandbox.

use std::collections::{BTreeMap, HashMap, HashSet};

use agent::approval::{ApprovalAnswer, ApprovalQueue, Reply};
use jiff::Timestamp;
use workspace::config::BudgetPeriod;
use workspace::ledger::{Limit, Line, Period, Source, Statement, Sums, Usd, months};

use crate::error::StudioError;
use crate::id::{JobId, ProjectId, ScreenshotId};
use crate::job::Status;
use crate::records::JobRecord;
use crate::studio::Studio;
use crate::view::{
    Dashboard, Job, Me, PlanUse, Project, ScreenshotFile, ScreenshotView, Totals, UsageLine, UsageReport, User,
};

/// Recorded usage per workspace.
type CostByWorkspace = BTreeMap<String, Sums>;

impl Studio {
    /// The job, with its recorded cost and its screenshot.
    ///
    /// # Errors
    /// [`StudioError::NotFound`] when the user has no such job.
    pub async fn job(&self, user: &User, id: &JobId) -> Result<Job, StudioError> {
        let job = self.find_own_job(user, id).await?;
        let spent = self.usage_statement(Some(job.workspace.as_str())).await?.by_project();
        let mut shown = self.view_jobs(user, vec![job], &spent).await?;
        shown.pop().ok_or(StudioError::NotFound)
    }

    /// The job without its recorded usage and screenshot, for callers that poll: the cost is the
    /// model's alone.
    ///
    /// # Errors
    /// [`StudioError::NotFound`] when the user has no such job.
    pub async fn status(&self, user: &User, id: &JobId) -> Result<Job, StudioError> {
        let job = self.find_own_job(user, id).await?;
        let project_name = self.project_name(user, &job.project).await?;
        let cost_usd = cost(&job, &CostByWorkspace::new());
        Ok(to_view(job, project_name, None, cost_usd))
    }

    /// The recorded usage of one workspace, or of all.
    async fn usage_statement(&self, workspace: Option<&str>) -> Result<Statement, StudioError> {
        let statement = self.workspaces().ledger().statement(Period::ALWAYS, workspace, Timestamp::now()).await;
        statement.map_err(StudioError::unavailable)
    }

    /// The jobs of one project, or of all, the newest first.
    ///
    /// # Errors
    /// [`StudioError::NotFound`] when the user has no such project.
    pub async fn jobs(&self, user: &User, project: Option<&ProjectId>) -> Result<Vec<Job>, StudioError> {
        if let Some(project) = project {
            self.records().project(&user.id, project).await?.ok_or(StudioError::NotFound)?;
        }
        let jobs = self.records().jobs(&user.id, project).await?;
        self.view_jobs(user, jobs, &self.usage_statement(None).await?.by_project()).await
    }

    /// The projects, the newest first.
    ///
    /// # Errors
    /// [`StudioError::Unavailable`] when the records cannot be read.
    pub async fn projects(&self, user: &User) -> Result<Vec<Project>, StudioError> {
        let jobs = self.records().jobs_with_deleted(&user.id, None).await?;
        self.list_projects(user, &jobs, &self.usage_statement(None).await?.by_project()).await
    }

    async fn list_projects(
        &self,
        user: &User,
        jobs: &[JobRecord],
        spent: &CostByWorkspace,
    ) -> Result<Vec<Project>, StudioError> {
        let mut costs: HashMap<&ProjectId, f64> = HashMap::new();
        for job in jobs {
            *costs.entry(&job.project).or_default() += cost(job, spent);
        }
        let projects = self.records().projects(&user.id).await?;
        let shown = |project: crate::records::ProjectRecord| {
            let cost_usd = costs.get(&project.id).copied().unwrap_or_default();
            Project { id: project.id, name: project.name, created_at: project.created_at, cost_usd }
        };
        Ok(projects.into_iter().map(shown).collect())
    }

    /// The user with the remaining build credits.
    ///
    /// # Errors
    /// [`StudioError::Unavailable`] when the records cannot be read.
    pub async fn me(&self, user: &User) -> Result<Me, StudioError> {
        Ok(Me { name: user.name.clone(), credits: self.credits(user).await? })
    }

    /// The data of the dashboard's first page.
    ///
    /// # Errors
    /// [`StudioError::Unavailable`] when the records cannot be read.
    pub async fn dashboard(&self, user: &User) -> Result<Dashboard, StudioError> {
        let mut records = self.records().jobs_with_deleted(&user.id, None).await?;
        let now = Timestamp::now();
        let periods = [Period::ALWAYS, months::current(now)];
        let statements = self.workspaces().ledger().statements(periods, None, now).await;
        let [all, month] = statements.map_err(StudioError::unavailable)?;
        let spent = all.by_project();
        let projects = self.list_projects(user, &records, &spent).await?;
        let usage = self.totals(&records, &all, &month, now).await?;
        records.retain(|job| !job.deleted);
        let models = self.inner.host.models();
        Ok(Dashboard {
            user: self.me(user).await?,
            projects,
            jobs: self.view_jobs(user, records, &spent).await?,
            usage,
            default_model: models.first().cloned(),
            models,
        })
    }

    /// The cost of a user's jobs, and the used share of the installation's plans and budgets.
    async fn totals(
        &self,
        jobs: &[JobRecord],
        all: &Statement,
        month: &Statement,
        now: Timestamp,
    ) -> Result<Totals, StudioError> {
        let ledger = self.workspaces().ledger();
        let names: HashSet<&str> = jobs.iter().map(|job| job.workspace.as_str()).collect();
        let sum = |statement: &Statement| {
            let own = statement.lines.iter().filter(|line| names.contains(line.project.as_str()));
            own.fold(0.0, |sum, line| sum + line.sums.cost.dollars())
        };
        let mut totals = Totals { total_usd: sum(all), month_usd: sum(month), ..Totals::default() };
        for meter in ledger.meters(now).await.map_err(StudioError::unavailable)? {
            match &meter.limit {
                Limit::Budget { project: None, usd, period: BudgetPeriod::Month } => {
                    totals.budget_usd = Some(usd.dollars());
                }
                Limit::Budget { .. } => {}
                Limit::PlanMinutes { provider, minutes } => {
                    #[expect(clippy::cast_precision_loss, reason = "minutes of a month")]
                    let limit = *minutes as f64;
                    // Read from the statement, because a meter has whole percents only.
                    let used = month.by_source().remove(&Source::Provider(provider.clone())).unwrap_or_default();
                    totals.plans.push(PlanUse {
                        provider: provider.to_string(),
                        what: "running minutes this month".to_owned(),
                        used: used.running.as_secs_f64() / 60.0,
                        limit,
                    });
                }
            }
        }
        Ok(totals)
    }

    /// The usage of a job.
    ///
    /// # Errors
    /// [`StudioError::NotFound`] when the user has no such job.
    pub async fn usage(&self, user: &User, id: &JobId) -> Result<UsageReport, StudioError> {
        let job = self.find_own_job(user, id).await?;
        self.report_usage(&[job]).await
    }

    /// The usage of a project, deleted builds included.
    ///
    /// # Errors
    /// [`StudioError::NotFound`] when the user has no such project.
    pub async fn project_usage(&self, user: &User, id: &ProjectId) -> Result<UsageReport, StudioError> {
        self.records().project(&user.id, id).await?.ok_or(StudioError::NotFound)?;
        let jobs = self.records().jobs_with_deleted(&user.id, Some(id)).await?;
        self.report_usage(&jobs).await
    }

    async fn report_usage(&self, jobs: &[JobRecord]) -> Result<UsageReport, StudioError> {
        let mut report = UsageReport::default();
        for job in jobs {
            let statement = self.usage_statement(Some(job.workspace.as_str())).await?;
            report.total_usd += statement.total().cost.dollars();
            report.lines.extend(statement.lines.iter().flat_map(lines));
        }
        Ok(report)
    }

    /// The screenshots of a job, the newest first.
    ///
    /// # Errors
    /// [`StudioError::NotFound`] when the user has no such job.
    pub async fn screenshots(&self, user: &User, id: &JobId) -> Result<Vec<ScreenshotView>, StudioError> {
        self.find_own_job(user, id).await?;
        Ok(self.records().screenshots(id).await?)
    }

    /// The content of a screenshot.
    ///
    /// # Errors
    /// [`StudioError::NotFound`] when the user has no such job or the job no such screenshot.
    pub async fn screenshot(
        &self,
        user: &User,
        id: &JobId,
        screenshot: &ScreenshotId,
    ) -> Result<ScreenshotFile, StudioError> {
        self.find_own_job(user, id).await?;
        self.records().screenshot(id, screenshot).await?.ok_or(StudioError::NotFound)
    }

    /// Answers an approval request of the timeline (`approval_asked`) by its id. The process that
    /// drives the run reads the answer from the records.
    ///
    /// # Errors
    /// [`StudioError::NotFound`] when no such request exists, [`StudioError::Conflict`] when it is
    /// already answered.
    pub async fn answer(
        &self,
        user: &User,
        id: &JobId,
        question: &str,
        allow: bool,
        reason: Option<String>,
    ) -> Result<(), StudioError> {
        let job = self.find_own_job(user, id).await?;
        let run = job.run.ok_or(StudioError::NotFound)?;
        let answer = if allow { ApprovalAnswer::Allow } else { ApprovalAnswer::Deny(reason) };
        let approvals = ApprovalQueue::new(std::sync::Arc::clone(&self.inner.runs));
        match approvals.reply(&run, question, &answer).await.map_err(StudioError::unavailable)? {
            Reply::Taken => Ok(()),
            Reply::NoQuestion => Err(StudioError::NotFound),
            Reply::TooLate => Err(StudioError::Conflict("the question was answered before".to_owned())),
        }
    }

    /// The job as its owner sees it, without recorded usage.
    pub(crate) async fn view_job(&self, user: &User, job: JobRecord) -> Result<Job, StudioError> {
        let mut shown = self.view_jobs(user, vec![job], &CostByWorkspace::new()).await?;
        shown.pop().ok_or(StudioError::NotFound)
    }

    async fn view_jobs(
        &self,
        user: &User,
        jobs: Vec<JobRecord>,
        spent: &CostByWorkspace,
    ) -> Result<Vec<Job>, StudioError> {
        let running = |job: &&JobRecord| job.status == Status::Ready && job.is_running();
        let running: Vec<JobId> = jobs.iter().filter(running).map(|job| job.id.clone()).collect();
        let mut screenshots: HashMap<JobId, ScreenshotId> = HashMap::new();
        if !running.is_empty() {
            screenshots.extend(self.records().newest_screenshots(&running).await?);
        }
        let mut shown = Vec::with_capacity(jobs.len());
        for job in jobs {
            let project_name = self.project_name(user, &job.project).await?;
            let screenshot = screenshots.remove(&job.id);
            let cost_usd = cost(&job, spent);
            shown.push(to_view(job, project_name, screenshot, cost_usd));
        }
        Ok(shown)
    }
}

/// The cost of a job: the recorded usage, or the run's own figure while that is ahead of it.
fn cost(job: &JobRecord, spent: &CostByWorkspace) -> f64 {
    let recorded = spent.get(job.workspace.as_str()).map_or(0.0, |sums| sums.cost.dollars());
    recorded.max(Usd::from_nanos(job.cost_nanos).dollars())
}

fn to_view(job: JobRecord, project_name: String, screenshot: Option<ScreenshotId>, cost_usd: f64) -> Job {
    let (paused, running) = (job.sandbox_paused, job.is_running());
    Job {
        debug_id: job.workspace.to_string(),
        screenshot_url: screenshot.map(|screenshot| screenshot.url(&job.id)),
        id: job.id,
        project: job.project,
        project_name,
        goal: job.spec.goal,
        model: job.spec.model,
        status: job.status,
        stage_label: job.stage_label,
        created_at: job.created_at,
        finished_at: job.finished_at,
        build_version: job.build_version,
        preview_url: job.preview_url.filter(|_| running),
        sandbox_paused: paused,
        sandbox_id: job.sandbox_id,
        sandbox_expires_at: job.sandbox_expires_at.filter(|_| !paused),
        cost_usd,
        error_message: job.error_message,
        rebuilt_from: job.spec.rebuilt_from,
    }
}

/// One line per quantity. The first line carries the cost.
fn lines(line: &Line) -> Vec<UsageLine> {
    #[expect(clippy::cast_precision_loss, reason = "shown to people")]
    let count = |number: u64| number as f64;
    let (provider, model) = match &line.from {
        Source::Provider(name) => (Some(name.to_string()), None),
        Source::Model(name) => (None, Some(name.clone())),
        Source::Objects => (None, None),
    };
    let sums = &line.sums;
    let byte_hours = u64::try_from(sums.stored).unwrap_or(u64::MAX);
    let quantities = [
        ("running time", sums.running.as_secs_f64() / 60.0, "minutes"),
        ("sandboxes created", count(sums.creations), "sandboxes"),
        ("stored snapshots", count(byte_hours) / 1e9, "GB hours"),
        ("model input", count(sums.input_tokens), "tokens"),
        ("model output", count(sums.output_tokens), "tokens"),
    ];
    let mut cost = sums.cost.dollars();
    let used = quantities.into_iter().filter(|(_, quantity, _)| *quantity > 0.0);
    used.map(|(what, quantity, unit)| UsageLine {
        what: what.to_owned(),
        provider: provider.clone(),
        model: model.clone(),
        quantity,
        unit,
        cost_usd: std::mem::take(&mut cost),
    })
    .collect()
}
