//! Queues, claims, changes and erases jobs.

use std::collections::HashMap;
use std::time::Duration;

use agent::RunId;
use database::Database;
use futures::FutureExt;
use jiff::{SignedDuration, Timestamp};
use sea_orm::sea_query::{Expr, ExprTrait, LockBehavior, LockType, Query, Value as SqlValue};
use sea_orm::{
    ColumnTrait, Condition, ConnectionTrait, DbErr, EntityTrait, IntoActiveModel, QueryFilter, QueryOrder, QuerySelect,
};
use tracing::info;
use uuid::Uuid;
use workspace::WorkspaceName;
use workspace::process::{self, Liveness};
use workspace::setup::PROJECT_DIRECTORY;

use super::batch::BatchLoader;
use super::entity::{event, job, project, screenshot};
use super::events::append;
use super::model::{Change, JobRecord, JobSpec, Precondition, to_i64};
use super::users::{CreditChange, charge};
use super::{Records, RecordsError, cannot};
use crate::events::{self, EventBody};
use crate::id::{JobId, ProjectId, UserId};
use crate::job::{JobStep, Status, next};

/// Ids per query: databases limit the parameters of a statement.
const LOOKUP_BATCH: usize = 500;

/// The longest delay before an interrupted job can be claimed again.
pub(crate) const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);

/// The name of the workspace in which a job is built.
fn workspace_name(id: &JobId) -> String {
    id.as_str().replace('_', "-")
}

fn time_after(now: Timestamp, span: Duration) -> i64 {
    let span = SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX);
    now.checked_add(span).unwrap_or(Timestamp::MAX).as_microsecond()
}

/// Batches reads of single jobs.
pub(super) fn job_loader(database: &Database) -> BatchLoader<String, job::Model, DbErr> {
    let database = database.clone();
    BatchLoader::new(move |ids| {
        let database = database.clone();
        async move {
            let mut found = HashMap::new();
            for ids in ids.chunks(LOOKUP_BATCH) {
                let rows = job::Entity::find().filter(job::Column::Id.is_in(ids)).all(&database).await?;
                found.extend(rows.into_iter().map(|row| (row.id.clone(), row)));
            }
            Ok(found)
        }
        .boxed()
    })
}

impl Records {
    /// Parses rows, and sets aside those that this version cannot parse.
    fn parse_rows(&self, rows: Vec<job::Model>) -> Vec<JobRecord> {
        let read = |row: job::Model| {
            let id = row.id.clone();
            self.set_aside.keep("studio_job", &id, JobRecord::from_row(row))
        };
        rows.into_iter().filter_map(read).collect()
    }

    /// Queues a job for one credit, in one transaction. None when no credit is left.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be written.
    pub async fn enqueue(
        &self,
        user: &UserId,
        project: &ProjectId,
        spec: &JobSpec,
    ) -> Result<Option<JobRecord>, RecordsError> {
        let (id, now) = (&JobId::new(), self.clock.now());
        let transaction = self.database.begin().await.map_err(cannot("write"))?;
        let charged = charge(&transaction, user, -1, "a build", Some(id)).await.map_err(cannot("write"))?;
        let CreditChange::Done(left) = charged else { return Ok(None) };
        project::Entity::update_many()
            .col_expr(project::Column::Builds, Expr::col(project::Column::Builds).add(1))
            .filter(project::Column::Id.eq(project.as_str()))
            .exec(&transaction)
            .await
            .map_err(cannot("write"))?;
        let counted = project::Entity::find_by_id(project.as_str()).one(&transaction).await.map_err(cannot("read"))?;
        let build_version = counted.ok_or("the project is gone").map_err(cannot("read"))?.builds;
        let status = Status::Queued;
        let events = [
            (now, events::status(status, status.label(), false, None, None)),
            (now, events::credit(-1, left, "a build")),
        ];
        let row = job::Model {
            id: id.to_string(),
            project: project.to_string(),
            user: user.to_string(),
            goal: spec.goal.clone(),
            spec: serde_json::to_string(spec).map_err(cannot("write"))?,
            model: spec.model.clone(),
            status: status.as_str().to_owned(),
            stage_label: status.label().to_owned(),
            created_at_us: now.as_microsecond(),
            finished_at_us: None,
            build_version,
            workspace: workspace_name(id),
            workspace_path: PROJECT_DIRECTORY.to_owned(),
            begins_from: spec.begins_from.as_ref().map(ToString::to_string),
            rebuilt_from: spec.rebuilt_from.as_ref().map(ToString::to_string),
            sandbox_id: None,
            sandbox_paused: false,
            sandbox_expires_at_us: None,
            preview_url: None,
            preview_port: None,
            cost_nanos: 0,
            error_message: None,
            run: None,
            run_entries: 0,
            attempt: 0,
            claim: None,
            lease_until_us: 0,
            lease_owner: None,
            cancel_asked: false,
            settled: false,
            events: to_i64(events.len() as u64),
            restore_to: None,
            deleted: false,
            broken_off: 0,
            watched: false,
            preview_loaded: false,
        };
        let insert = job::Entity::insert(row.clone().into_active_model());
        insert.exec_without_returning(&transaction).await.map_err(cannot("write"))?;
        append(&transaction, id.as_str(), 0, &events).await.map_err(cannot("write"))?;
        transaction.commit().await.map_err(cannot("write"))?;
        JobRecord::from_row(row).map(Some).map_err(cannot("understand"))
    }

    /// The job, deleted or not.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn job(&self, id: &JobId) -> Result<Option<JobRecord>, RecordsError> {
        let row = self.jobs.get(&id.to_string()).await.map_err(cannot("read"))?;
        row.map(|row| JobRecord::from_row(row).map_err(cannot("understand"))).transpose()
    }

    /// The user's jobs of one project, or of all, the newest first.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn jobs(&self, user: &UserId, project: Option<&ProjectId>) -> Result<Vec<JobRecord>, RecordsError> {
        let mut jobs = self.jobs_with_deleted(user, project).await?;
        jobs.retain(|job| !job.deleted);
        Ok(jobs)
    }

    /// The same with deleted jobs, whose usage still counts.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn jobs_with_deleted(
        &self,
        user: &UserId,
        project: Option<&ProjectId>,
    ) -> Result<Vec<JobRecord>, RecordsError> {
        let mut wanted = job::Entity::find().filter(job::Column::User.eq(user.as_str()));
        if let Some(project) = project {
            wanted = wanted.filter(job::Column::Project.eq(project.as_str()));
        }
        let newest = wanted.order_by_desc(job::Column::CreatedAtUs).order_by_desc(job::Column::Id);
        Ok(self.parse_rows(newest.all(&self.database).await.map_err(cannot("read"))?))
    }

    /// The project's jobs with a final status, the newest first.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn ended_jobs(&self, project: &ProjectId) -> Result<Vec<JobRecord>, RecordsError> {
        let ended = Status::ALL.into_iter().filter(|status| status.is_final()).map(Status::as_str);
        let rows = job::Entity::find()
            .filter(job::Column::Project.eq(project.as_str()))
            .filter(job::Column::Status.is_in(ended))
            .filter(job::Column::Deleted.eq(false))
            .order_by_desc(job::Column::BuildVersion)
            .all(&self.database)
            .await;
        Ok(self.parse_rows(rows.map_err(cannot("read"))?))
    }

    /// Ready, settled jobs whose sandboxes run and expire before `moment`.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn jobs_expiring_before(&self, moment: Timestamp) -> Result<Vec<JobRecord>, RecordsError> {
        let rows = job::Entity::find()
            .filter(job::Column::Status.eq(Status::Ready.as_str()))
            .filter(job::Column::Settled.eq(true))
            .filter(job::Column::Deleted.eq(false))
            .filter(job::Column::SandboxPaused.eq(false))
            .filter(job::Column::SandboxId.is_not_null())
            .filter(job::Column::SandboxExpiresAtUs.lt(moment.as_microsecond()))
            .all(&self.database)
            .await;
        Ok(self.parse_rows(rows.map_err(cannot("read"))?))
    }

    /// The job that is built in a workspace.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn job_in_workspace(&self, workspace: &WorkspaceName) -> Result<Option<JobRecord>, RecordsError> {
        let row = job::Entity::find().filter(job::Column::Workspace.eq(workspace.as_str())).one(&self.database).await;
        row.map_err(cannot("read"))?.map(|row| JobRecord::from_row(row).map_err(cannot("understand"))).transpose()
    }

    /// Whether a job that does not build yet starts from the snapshots of that workspace.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn is_base_of_queued_job(&self, files_of: &WorkspaceName) -> Result<bool, RecordsError> {
        let begin = [Status::Queued, Status::Provisioning].map(Status::as_str);
        let waiting = job::Entity::find()
            .filter(job::Column::BeginsFrom.eq(files_of.as_str()))
            .filter(job::Column::Status.is_in(begin))
            .one(&self.database)
            .await;
        Ok(waiting.map_err(cannot("read"))?.is_some())
    }

    /// The project name of every workspace that ever existed.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn project_names(&self) -> Result<HashMap<String, String>, RecordsError> {
        let projects = project::Entity::find().all(&self.database).await.map_err(cannot("read"))?;
        let names: HashMap<String, String> = projects.into_iter().map(|row| (row.id, row.name)).collect();
        let jobs: Vec<(String, String)> = job::Entity::find()
            .select_only()
            .columns([job::Column::Workspace, job::Column::Project])
            .into_tuple()
            .all(&self.database)
            .await
            .map_err(cannot("read"))?;
        let named = jobs.into_iter().filter_map(|(workspace, project)| Some((workspace, names.get(&project)?.clone())));
        Ok(named.collect())
    }

    /// Claims the oldest unsettled job without a lease, or the named one if it is such a job, for
    /// `lease`. One statement, so that only one of two workers gets a job. Void leases are ended
    /// first.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be written.
    pub async fn claim(&self, lease: Duration, only: Option<&JobId>) -> Result<Option<JobRecord>, RecordsError> {
        match self.claim_free(lease, only).await? {
            None if self.void_leases(lease).await? => self.claim_free(lease, only).await,
            claimed => Ok(claimed),
        }
    }

    /// Ends the leases of dead processes, and leases that end later than any valid lease can: they
    /// were written while the clock was ahead. Returns whether there were any.
    async fn void_leases(&self, lease: Duration) -> Result<bool, RecordsError> {
        let now = self.clock.now();
        let held = job::Entity::find()
            .select_only()
            .columns([job::Column::Id, job::Column::Attempt, job::Column::LeaseUntilUs, job::Column::LeaseOwner])
            .filter(job::Column::Settled.eq(false))
            .filter(job::Column::LeaseUntilUs.gte(now.as_microsecond()))
            .into_tuple::<(String, i64, i64, Option<String>)>()
            .all(&self.database)
            .await
            .map_err(cannot("read"))?;
        let latest = time_after(now, lease.max(MAX_RETRY_DELAY) + process::CLOCK_SKEW);
        let mut voided = false;
        for (id, attempt, until, owner) in held {
            let void = match owner.as_deref().map_or(Liveness::Unknown, process::liveness) {
                Liveness::Gone => true,
                Liveness::Unknown => until > latest,
                // It renews its lease by the current clock.
                Liveness::Alive => false,
            };
            if !void {
                continue;
            }
            // Not 0, so that the next claim counts an interruption.
            let ended = job::Entity::update_many()
                .col_expr(job::Column::LeaseUntilUs, Expr::value(1_i64))
                .filter(job::Column::Id.eq(id.as_str()))
                .filter(job::Column::Attempt.eq(attempt))
                .filter(job::Column::LeaseUntilUs.eq(until))
                .exec(&self.database)
                .await
                .map_err(cannot("write"))?;
            voided |= ended.rows_affected > 0;
            info!(job = id, attempt, owner, "voided the lease of a job: its process is gone, or its clock was ahead");
        }
        Ok(voided)
    }

    async fn claim_free(&self, lease: Duration, only: Option<&JobId>) -> Result<Option<JobRecord>, RecordsError> {
        let (now, claim) = (self.clock.now(), Uuid::new_v4().to_string());
        let free = || {
            Condition::all()
                .add(job::Column::Settled.eq(false))
                .add(job::Column::LeaseUntilUs.lt(now.as_microsecond()))
                .add_option(only.map(|id| job::Column::Id.eq(id.as_str())))
        };
        // On Postgres a concurrent claim skips the locked row instead of waiting; SQLite has one
        // writer.
        let oldest = Query::select()
            .column(job::Column::Id)
            .from(job::Entity)
            .cond_where(free())
            .order_by(job::Column::CreatedAtUs, sea_orm::Order::Asc)
            .order_by(job::Column::Id, sea_orm::Order::Asc)
            .limit(1)
            .lock_with_behavior(LockType::Update, LockBehavior::SkipLocked)
            .to_owned();
        // A queued job starts; others keep their status.
        let begun = next(Status::Queued, JobStep::Claim).map_err(cannot("claim from"))?;
        let waits = || job::Column::Status.eq(Status::Queued.as_str());
        // A worker that releases a job for an immediate claim sets no lease; others count as
        // interrupted.
        let left = Expr::case(job::Column::LeaseUntilUs.gt(0), 1).finally(0);
        let label = Expr::case(waits(), begun.label()).finally(Expr::col(job::Column::StageLabel));
        let begun = Expr::case(waits(), begun.as_str()).finally(Expr::col(job::Column::Status));
        let claimed = job::Entity::update_many()
            .col_expr(job::Column::StageLabel, label.into())
            .col_expr(job::Column::Status, begun.into())
            .col_expr(job::Column::Attempt, Expr::col(job::Column::Attempt).add(1))
            .col_expr(job::Column::BrokenOff, Expr::col(job::Column::BrokenOff).add(left))
            .col_expr(job::Column::Claim, Expr::value(claim.as_str()))
            .col_expr(job::Column::LeaseUntilUs, Expr::value(time_after(now, lease)))
            .col_expr(job::Column::LeaseOwner, Expr::value(process::identify()))
            .filter(job::Column::Id.in_subquery(oldest))
            .filter(free())
            .exec(&self.database)
            .await
            .map_err(cannot("write"))?;
        if claimed.rows_affected == 0 {
            return Ok(None);
        }
        let row = job::Entity::find().filter(job::Column::Claim.eq(claim)).one(&self.database).await;
        row.map_err(cannot("read"))?.map(|row| JobRecord::from_row(row).map_err(cannot("understand"))).transpose()
    }

    /// Renews a claim. None when it is lost; else whether the user cancelled the job.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be written.
    pub async fn renew(&self, id: &JobId, attempt: i64, lease: Duration) -> Result<Option<bool>, RecordsError> {
        let kept = job::Entity::update_many()
            .col_expr(job::Column::LeaseUntilUs, Expr::value(time_after(self.clock.now(), lease)))
            .filter(job::Column::Id.eq(id.as_str()))
            .filter(job::Column::Attempt.eq(attempt))
            .exec(&self.database)
            .await
            .map_err(cannot("write"))?;
        if kept.rows_affected == 0 {
            return Ok(None);
        }
        Ok(self.job(id).await?.map(|job| job.cancel_asked))
    }

    /// Releases a claim. Another worker can claim the job after `rest`.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be written.
    pub async fn release(&self, id: &JobId, attempt: i64, rest: Duration) -> Result<(), RecordsError> {
        let free_at = if rest.is_zero() { 0 } else { time_after(self.clock.now(), rest) };
        job::Entity::update_many()
            .col_expr(job::Column::LeaseUntilUs, Expr::value(free_at))
            .col_expr(job::Column::LeaseOwner, Expr::value(None::<String>))
            .filter(job::Column::Id.eq(id.as_str()))
            .filter(job::Column::Attempt.eq(attempt))
            .exec(&self.database)
            .await
            .map(drop)
            .map_err(cannot("write"))
    }

    /// Changes a job and appends events, in one transaction. None when the job is gone or a
    /// precondition does not hold.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be written.
    pub async fn change(
        &self,
        id: &JobId,
        precondition: Precondition,
        change: Change,
        events: Vec<(Timestamp, EventBody)>,
    ) -> Result<Option<JobRecord>, RecordsError> {
        let mut events = events;
        let refund = change.refund;
        let count = to_i64(events.len() as u64) + i64::from(refund.is_some());
        let transaction = self.database.begin().await.map_err(cannot("write"))?;
        let row = apply(&transaction, id, precondition, change, count).await.map_err(cannot("write"))?;
        let Some(row) = row else { return Ok(None) };
        if let Some(reason) = refund {
            let user = row.user.parse().map_err(cannot("understand"))?;
            let charged = charge(&transaction, &user, 1, reason, Some(id)).await.map_err(cannot("write"))?;
            let CreditChange::Done(left) = charged else { return Ok(None) };
            events.push((self.clock.now(), events::credit(1, left, reason)));
        }
        append(&transaction, id.as_str(), row.events - count, &events).await.map_err(cannot("write"))?;
        transaction.commit().await.map_err(cannot("write"))?;
        JobRecord::from_row(row).map(Some).map_err(cannot("understand"))
    }

    /// Erases a deleted job, with its events and screenshots. The row keeps its owner, cost and
    /// workspace. False when this attempt lost the job.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be written.
    pub async fn erase_job(&self, id: &JobId, attempt: i64) -> Result<bool, RecordsError> {
        use job::Column;
        let transaction = self.database.begin().await.map_err(cannot("write"))?;
        let erased = job::Entity::update_many()
            .col_expr(Column::Goal, Expr::value(""))
            .col_expr(Column::Spec, Expr::value("{}"))
            .col_expr(Column::StageLabel, Expr::value(""))
            .col_expr(Column::SandboxId, Expr::value(None::<String>))
            .col_expr(Column::SandboxPaused, Expr::value(false))
            .col_expr(Column::PreviewUrl, Expr::value(None::<String>))
            .col_expr(Column::ErrorMessage, Expr::value(None::<String>))
            .col_expr(Column::Events, Expr::value(0_i64))
            .col_expr(Column::Settled, Expr::value(true))
            .filter(Column::Id.eq(id.as_str()))
            .filter(Column::Deleted.eq(true))
            .filter(Column::Attempt.eq(attempt))
            .exec(&transaction)
            .await
            .map_err(cannot("write"))?;
        if erased.rows_affected == 0 {
            return Ok(false);
        }
        let events = event::Entity::delete_many().filter(event::Column::Job.eq(id.as_str()));
        events.exec(&transaction).await.map_err(cannot("write"))?;
        let screenshots = screenshot::Entity::delete_many().filter(screenshot::Column::Job.eq(id.as_str()));
        screenshots.exec(&transaction).await.map_err(cannot("write"))?;
        transaction.commit().await.map_err(cannot("write"))?;
        Ok(true)
    }
}

/// Updates the row, and locks it until the end of the transaction.
async fn apply<C: ConnectionTrait>(
    transaction: &C,
    id: &JobId,
    precondition: Precondition,
    change: Change,
    events: i64,
) -> Result<Option<job::Model>, DbErr> {
    use job::Column;
    let Change {
        status,
        stage_label,
        finished_at,
        sandbox_id,
        sandbox_paused,
        sandbox_expires_at,
        preview,
        cost_nanos,
        error_message,
        run,
        run_entries,
        cancel_asked,
        watched,
        preview_loaded,
        settled,
        restore_to,
        deleted,
        progress,
        refund: _,
    } = change;
    let micros = |at: Timestamp| at.as_microsecond();
    let (preview_url, preview_port) = match preview {
        Some(Some((url, port))) => (Some(Some(url)), Some(Some(i32::from(port)))),
        Some(None) => (Some(None), Some(None)),
        None => (None, None),
    };
    let sets: [(Column, Option<SqlValue>); 20] = [
        (Column::Status, status.map(|(_, to)| to.as_str().into())),
        (Column::StageLabel, stage_label.map(Into::into)),
        (Column::FinishedAtUs, finished_at.map(|at| micros(at).into())),
        (Column::SandboxId, sandbox_id.map(Into::into)),
        (Column::SandboxPaused, sandbox_paused.map(Into::into)),
        (Column::SandboxExpiresAtUs, sandbox_expires_at.map(|at| at.map(micros).into())),
        (Column::PreviewUrl, preview_url.map(Into::into)),
        (Column::PreviewPort, preview_port.map(Into::into)),
        (Column::CostNanos, cost_nanos.map(|nanos| to_i64(nanos).into())),
        (Column::ErrorMessage, error_message.map(Into::into)),
        (Column::Run, run.as_ref().map(RunId::as_str).map(Into::into)),
        (Column::RunEntries, run_entries.map(|(_, to)| to_i64(to).into())),
        (Column::CancelAsked, cancel_asked.map(Into::into)),
        (Column::Watched, watched.map(Into::into)),
        (Column::PreviewLoaded, preview_loaded.map(Into::into)),
        (Column::Settled, settled.map(Into::into)),
        // The next operation on a settled job need not wait for its lease to end.
        (Column::LeaseUntilUs, settled.filter(|settled| *settled).map(|_| 0_i64.into())),
        (Column::RestoreTo, restore_to.map(|stamp| stamp.map(String::from).into())),
        (Column::Deleted, deleted.map(Into::into)),
        (Column::BrokenOff, progress.then(|| 0_i64.into())),
    ];
    let mut update = job::Entity::update_many()
        .col_expr(Column::Events, Expr::col(Column::Events).add(events))
        .filter(Column::Id.eq(id.as_str()));
    for (column, value) in sets {
        if let Some(value) = value {
            update = update.col_expr(column, Expr::value(value));
        }
    }
    if let Precondition::Attempt(attempt) = precondition {
        update = update.filter(Column::Attempt.eq(attempt));
    }
    if let Some((from, _)) = status {
        update = update.filter(Column::Status.eq(from.as_str()));
    }
    if settled == Some(false) {
        update = update.filter(Column::Settled.eq(true));
    }
    if let Some((from, _)) = run_entries {
        update = update.filter(Column::RunEntries.eq(to_i64(from)));
    }
    if update.exec(transaction).await?.rows_affected == 0 {
        return Ok(None);
    }
    job::Entity::find_by_id(id.as_str()).one(transaction).await
}
