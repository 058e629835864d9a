//! What users see of their projects and jobs. Nothing here wakes or extends a sandbox.

use std::collections::{BTreeMap, HashMap, HashSet};

use agent::approval::{Answer, Desk, Reply};
use jiff::Timestamp;
use workspace::config::BudgetPeriod;
use workspace::ledger::{Limit, Line, Period, Source, Statement, Sums, Usd, months};

use crate::error::StudioError;
use crate::id::{JobId, ProjectId, ScreenshotId};
use crate::job::{Job, Status};
use crate::records::JobRecord;
use crate::studio::Studio;
use crate::view::{Dashboard, PictureFile, PlanUse, Project, Screenshot, Totals, UsageLine, UsageReport, User};

/// What stands in the book, by workspace.
type Spent = BTreeMap<String, Sums>;

impl Studio {
    /// # Errors
    /// There is no such job.
    pub async fn job(&self, user: &User, id: &JobId) -> Result<Job, StudioError> {
        let job = self.own(user, id).await?;
        let spent = self.booked(Some(job.workspace.as_str())).await?.by_project();
        let mut shown = self.all_shown(user, vec![job], &spent).await?;
        shown.pop().ok_or(StudioError::NotFound)
    }

    /// The same without a look into the book or at pictures, for those who ask often: the cost is the model's alone.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn status(&self, user: &User, id: &JobId) -> Result<Job, StudioError> {
        let job = self.own(user, id).await?;
        let project_name = self.project_name(user, &job.project).await?;
        let cost_usd = cost(&job, &Spent::new());
        Ok(show(job, project_name, None, cost_usd))
    }

    /// What was ever used, in one workspace or in all.
    async fn booked(&self, workspace: Option<&str>) -> Result<Statement, StudioError> {
        let statement = self.workspaces().ledger().statement(Period::ALWAYS, workspace, Timestamp::now()).await;
        statement.map_err(StudioError::unavailable)
    }

    /// The newest first; of one project, or of all.
    ///
    /// # Errors
    /// There is no such project.
    pub async fn jobs(&self, user: &User, project: Option<&ProjectId>) -> Result<Vec<Job>, StudioError> {
        if let Some(project) = project {
            self.records().project(&user.id, project).await?.ok_or(StudioError::NotFound)?;
        }
        let jobs = self.records().jobs(&user.id, project).await?;
        self.all_shown(user, jobs, &self.booked(None).await?.by_project()).await
    }

    /// The newest first.
    ///
    /// # Errors
    /// The records cannot be read.
    pub async fn projects(&self, user: &User) -> Result<Vec<Project>, StudioError> {
        let jobs = self.records().ever(&user.id, None).await?;
        self.projects_with(user, &jobs, &self.booked(None).await?.by_project()).await
    }

    async fn projects_with(&self, user: &User, jobs: &[JobRecord], spent: &Spent) -> Result<Vec<Project>, StudioError> {
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

    /// Everything that the first page shows.
    ///
    /// # Errors
    /// The records cannot be read.
    pub async fn dashboard(&self, user: &User) -> Result<Dashboard, StudioError> {
        let mut records = self.records().ever(&user.id, None).await?;
        let now = Timestamp::now();
        let periods = [Period::ALWAYS, months::this(now)];
        let statements = self.workspaces().ledger().statements(periods, None, now).await;
        let [all, month] = statements.map_err(StudioError::unavailable)?;
        let spent = all.by_project();
        let projects = self.projects_with(user, &records, &spent).await?;
        let usage = self.totals(&records, &all, &month, now).await?;
        records.retain(|job| !job.deleted);
        let models = self.inner.premises.models();
        Ok(Dashboard {
            user: user.clone(),
            credits: self.credits(user).await?,
            projects,
            jobs: self.all_shown(user, records, &spent).await?,
            usage,
            default_model: models.first().cloned(),
            models,
        })
    }

    /// What a user's jobs have used, and how much of the installation's plans and budgets is.
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
                    // From the book, since a meter has whole percents only.
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

    /// # Errors
    /// There is no such job.
    pub async fn usage(&self, user: &User, id: &JobId) -> Result<UsageReport, StudioError> {
        let job = self.own(user, id).await?;
        self.used_by(&[job]).await
    }

    /// # Errors
    /// There is no such project.
    pub async fn project_usage(&self, user: &User, id: &ProjectId) -> Result<UsageReport, StudioError> {
        self.records().project(&user.id, id).await?.ok_or(StudioError::NotFound)?;
        let jobs = self.records().ever(&user.id, Some(id)).await?;
        self.used_by(&jobs).await
    }

    async fn used_by(&self, jobs: &[JobRecord]) -> Result<UsageReport, StudioError> {
        let mut report = UsageReport::default();
        for job in jobs {
            let statement = self.booked(Some(job.workspace.as_str())).await?;
            report.total_usd += statement.total().cost.dollars();
            report.lines.extend(statement.lines.iter().flat_map(lines));
        }
        Ok(report)
    }

    /// The newest first.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn screenshots(&self, user: &User, id: &JobId) -> Result<Vec<Screenshot>, StudioError> {
        self.own(user, id).await?;
        Ok(self.records().pictures(id).await?)
    }

    /// The picture itself.
    ///
    /// # Errors
    /// There is no such job or picture.
    pub async fn screenshot(
        &self,
        user: &User,
        id: &JobId,
        picture: &ScreenshotId,
    ) -> Result<PictureFile, StudioError> {
        self.own(user, id).await?;
        self.records().picture(id, picture).await?.ok_or(StudioError::NotFound)
    }

    /// Answers a question of the timeline (`approval_asked`) by its id. Whoever drives the run hears of it through the records.
    ///
    /// # Errors
    /// There is no such question, or somebody has answered it.
    pub async fn answer(
        &self,
        user: &User,
        id: &JobId,
        question: &str,
        allow: bool,
        reason: Option<String>,
    ) -> Result<(), StudioError> {
        let job = self.own(user, id).await?;
        let run = job.run.ok_or(StudioError::NotFound)?;
        let answer = if allow { Answer::Allow } else { Answer::Deny(reason) };
        let desk = Desk::new(std::sync::Arc::clone(&self.inner.runs));
        match desk.reply(&run, question, &answer).await.map_err(StudioError::unavailable)? {
            Reply::Taken => Ok(()),
            Reply::NoQuestion => Err(StudioError::NotFound),
            Reply::TooLate => Err(StudioError::Conflict("the question was answered before".to_owned())),
        }
    }

    /// The job as its owner sees it.
    pub(crate) async fn shown(&self, user: &User, job: JobRecord) -> Result<Job, StudioError> {
        let mut shown = self.all_shown(user, vec![job], &Spent::new()).await?;
        shown.pop().ok_or(StudioError::NotFound)
    }

    async fn all_shown(&self, user: &User, jobs: Vec<JobRecord>, spent: &Spent) -> Result<Vec<Job>, StudioError> {
        let awake = |job: &&JobRecord| job.status == Status::Ready && is_awake(job);
        let awake: Vec<JobId> = jobs.iter().filter(awake).map(|job| job.id.clone()).collect();
        let mut pictures: HashMap<JobId, ScreenshotId> = HashMap::new();
        if !awake.is_empty() {
            pictures.extend(self.records().newest_pictures(&awake).await?);
        }
        let mut shown = Vec::with_capacity(jobs.len());
        for job in jobs {
            let project_name = self.project_name(user, &job.project).await?;
            let screenshot = pictures.remove(&job.id);
            let cost_usd = cost(&job, spent);
            shown.push(show(job, project_name, screenshot, cost_usd));
        }
        Ok(shown)
    }
}

/// Whether its sandbox runs, as far as is known: what runs has an end.
fn is_awake(job: &JobRecord) -> bool {
    !job.sandbox_paused && job.sandbox_expires_at.is_some()
}

/// What a job has cost: what the book has, where the model's part may come a little later than the run knows it.
fn cost(job: &JobRecord, spent: &Spent) -> f64 {
    let booked = spent.get(job.workspace.as_str()).map_or(0.0, |sums| sums.cost.dollars());
    booked.max(Usd::from_nanos(job.cost_nanos).dollars())
}

fn show(job: JobRecord, project_name: String, screenshot: Option<ScreenshotId>, cost_usd: f64) -> Job {
    let (asleep, awake) = (job.sandbox_paused, is_awake(&job));
    Job {
        debug_id: job.workspace.to_string(),
        id: job.id,
        project: job.project,
        project_name,
        goal: job.goal,
        model: job.model,
        status: job.status,
        stage_label: job.stage_label,
        created_at: job.created_at,
        finished_at: job.finished_at,
        build_version: job.build_version,
        preview_url: job.preview_url.filter(|_| awake),
        sandbox_paused: asleep,
        sandbox_id: job.sandbox_id,
        sandbox_expires_at: job.sandbox_expires_at.filter(|_| !asleep),
        cost_usd,
        screenshot,
        error_message: job.error_message,
        rebuilt_from: job.rebuilt_from,
    }
}

/// What a line of the book says, each quantity by itself. The money stands with the first.
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
