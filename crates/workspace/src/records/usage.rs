//! Usage and the health of providers in a database.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use sdk::SandboxId;
use sea_orm::sea_query::{CaseStatement, Expr, ExprTrait, OnConflict, Query};
use sea_orm::{
    ColumnTrait, Condition, ConnectionTrait, DbErr, EntityTrait, IntoActiveModel, QueryFilter, QueryOrder, QuerySelect,
};
use uuid::Uuid;

use super::database::{DatabaseRecords, cannot};
use super::entity::{creation, health, interval, stored, tokens, warning};
use super::model::{
    Creation, Health, Interval, Payer, Size, Stored, TokenUsage, Tokens, UsageQuery, UsageRows, Warning, micros,
};
use super::port::{HealthRecords, RecordsError, UsageRecords};
use crate::ledger::Usd;
use crate::name::ProviderName;
use crate::provider::Breaker;

type Damage = Box<dyn Error + Send + Sync>;

/// Matches the open intervals of a sandbox.
fn open_intervals(provider: &ProviderName, sandbox: &SandboxId) -> Condition {
    Condition::all()
        .add(interval::Column::Provider.eq(provider.as_str()))
        .add(interval::Column::Sandbox.eq(sandbox.as_str()))
        .add(interval::Column::EndedAtUs.is_null())
}

/// `at`, clamped to the interval's start and latest end, in SQL that both databases support.
fn end_at(at: Timestamp) -> CaseStatement {
    let at = at.as_microsecond();
    CaseStatement::new()
        .case(Expr::col(interval::Column::StartedAtUs).gt(at), Expr::col(interval::Column::StartedAtUs))
        .case(Expr::col(interval::Column::UntilUs).lt(at), Expr::col(interval::Column::UntilUs))
        .finally(at)
}

async fn open<C: ConnectionTrait>(database: &C, new: &Interval) -> Result<(), DbErr> {
    let row = interval_row(new).map_err(|error| DbErr::Custom(error.to_string()))?;
    let known =
        OnConflict::columns([interval::Column::Provider, interval::Column::Sandbox, interval::Column::StartedAtUs])
            .do_nothing()
            .to_owned();
    let opened =
        interval::Entity::insert(row.into_active_model()).on_conflict(known).exec_without_returning(database).await?;
    if opened == 0 {
        return Ok(());
    }
    interval::Entity::update_many()
        .col_expr(interval::Column::EndedAtUs, end_at(new.started_at).into())
        .filter(open_intervals(&new.provider, &new.sandbox))
        .filter(interval::Column::StartedAtUs.ne(new.started_at.as_microsecond()))
        .exec(database)
        .await?;
    Ok(())
}

#[async_trait]
impl UsageRecords for DatabaseRecords {
    async fn begin_creation(&self, creation: &Creation) -> Result<(), RecordsError> {
        let Creation { id, at, provider, payer: Payer { project, job }, sandbox } = creation;
        let row = creation::Model {
            id: id.to_string(),
            at_us: at.as_microsecond(),
            provider: provider.to_string(),
            project: project.clone(),
            job: job.clone(),
            sandbox: sandbox.as_ref().map(ToString::to_string),
        };
        let known = OnConflict::column(creation::Column::Id).do_nothing().to_owned();
        let noted = creation::Entity::insert(row.into_active_model()).on_conflict(known);
        noted.exec_without_returning(&self.database).await.map(|_| ()).map_err(cannot("write"))
    }

    async fn finish_creation(&self, id: Uuid, interval: &Interval) -> Result<(), RecordsError> {
        let both = async {
            let transaction = self.database.begin().await?;
            creation::Entity::update_many()
                .col_expr(creation::Column::Sandbox, Expr::value(interval.sandbox.as_str()))
                .filter(creation::Column::Id.eq(id.to_string()))
                .exec(&transaction)
                .await?;
            open(&transaction, interval).await?;
            transaction.commit().await
        };
        both.await.map_err(cannot("write"))
    }

    async fn drop_creation(&self, id: Uuid) -> Result<(), RecordsError> {
        let dropped = creation::Entity::delete_many()
            .filter(creation::Column::Id.eq(id.to_string()))
            .filter(creation::Column::Sandbox.is_null())
            .exec(&self.database)
            .await;
        dropped.map(|_| ()).map_err(cannot("change"))
    }

    async fn open_interval(&self, interval: &Interval) -> Result<(), RecordsError> {
        let whole = async {
            let transaction = self.database.begin().await?;
            open(&transaction, interval).await?;
            transaction.commit().await
        };
        whole.await.map_err(cannot("write"))
    }

    async fn extend_interval(
        &self,
        provider: &ProviderName,
        sandbox: &SandboxId,
        until: Timestamp,
    ) -> Result<(), RecordsError> {
        let extended = interval::Entity::update_many()
            .col_expr(interval::Column::UntilUs, Expr::value(until.as_microsecond()))
            .filter(open_intervals(provider, sandbox))
            .exec(&self.database)
            .await;
        extended.map(|_| ()).map_err(cannot("write"))
    }

    async fn close_interval(
        &self,
        provider: &ProviderName,
        sandbox: &SandboxId,
        at: Timestamp,
    ) -> Result<(), RecordsError> {
        let closed = interval::Entity::update_many()
            .col_expr(interval::Column::EndedAtUs, end_at(at).into())
            .filter(open_intervals(provider, sandbox))
            .exec(&self.database)
            .await;
        closed.map(|_| ()).map_err(cannot("write"))
    }

    async fn record_stored(&self, noted: &Stored) -> Result<(), RecordsError> {
        let row = stored::Model {
            project: noted.project.clone(),
            at_us: noted.at.as_microsecond(),
            bytes: i64::try_from(noted.bytes).unwrap_or(i64::MAX),
        };
        let newer = OnConflict::columns([stored::Column::Project, stored::Column::AtUs])
            .update_column(stored::Column::Bytes)
            .to_owned();
        let insert = stored::Entity::insert(row.into_active_model()).on_conflict(newer);
        insert.exec_without_returning(&self.database).await.map(|_| ()).map_err(cannot("write"))
    }

    async fn record_tokens(&self, noted: &Tokens) -> Result<(), RecordsError> {
        let Tokens { id, at, payer: Payer { project, job }, model, input, output, cost } = noted;
        let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let row = tokens::Model {
            id: id.to_string(),
            at_us: at.as_microsecond(),
            project: project.clone(),
            job: job.clone(),
            model: model.clone(),
            input: whole(*input),
            output: whole(*output),
            cost_nanos: whole(cost.nanos()),
        };
        let known = OnConflict::column(tokens::Column::Id).do_nothing().to_owned();
        let insert = tokens::Entity::insert(row.into_active_model()).on_conflict(known);
        insert.exec_without_returning(&self.database).await.map(|_| ()).map_err(cannot("write"))
    }

    async fn usage(&self, query: &UsageQuery) -> Result<UsageRows, RecordsError> {
        let since = query.since.unwrap_or(Timestamp::MIN).as_microsecond();
        let project = |column: Expr| query.project.as_deref().map(|project| column.eq(project));
        let provider = |column: Expr| query.provider.as_ref().map(|provider| column.eq(provider.as_str()));

        let creations = creation::Entity::find()
            .filter(creation::Column::AtUs.gte(since))
            .filter(
                Condition::all()
                    .add_option(project(Expr::col(creation::Column::Project)))
                    .add_option(provider(Expr::col(creation::Column::Provider))),
            )
            .order_by_asc(creation::Column::AtUs)
            .order_by_asc(creation::Column::Id)
            .all(&self.database)
            .await
            .map_err(cannot("read"))?;
        let lasts =
            Condition::any().add(interval::Column::EndedAtUs.is_null()).add(interval::Column::EndedAtUs.gte(since));
        let intervals = interval::Entity::find()
            .filter(lasts)
            .filter(
                Condition::all()
                    .add_option(project(Expr::col(interval::Column::Project)))
                    .add_option(provider(Expr::col(interval::Column::Provider))),
            )
            .order_by_asc(interval::Column::StartedAtUs)
            .order_by_asc(interval::Column::Sandbox)
            .all(&self.database)
            .await
            .map_err(cannot("read"))?;
        let mut rows = UsageRows::default();
        let creations: Result<_, Damage> = creations.into_iter().map(read_creation).collect();
        let intervals: Result<_, Damage> = intervals.into_iter().map(read_interval).collect();
        rows.creations = creations.map_err(cannot("decode"))?;
        rows.intervals = intervals.map_err(cannot("decode"))?;
        if query.provider.is_some() {
            return Ok(rows);
        }
        let levels = stored::Entity::find()
            .filter(Condition::all().add_option(project(Expr::col(stored::Column::Project))))
            .order_by_asc(stored::Column::AtUs)
            .order_by_asc(stored::Column::Project)
            .all(&self.database)
            .await
            .map_err(cannot("read"))?;
        // Rows are ordered by time, so the last insert is the latest level.
        let before = levels.iter().filter(|level| level.at_us <= since);
        let latest: BTreeMap<&str, i64> = before.map(|level| (level.project.as_str(), level.at_us)).collect();
        let counts =
            |level: &&stored::Model| latest.get(level.project.as_str()).is_none_or(|&latest| level.at_us >= latest);
        let levels: Result<_, Damage> = levels.iter().filter(counts).map(read_stored).collect();
        let first = || Expr::col(tokens::Column::AtUs).min();
        // The type of a sum differs from its column's, and between the databases.
        let sum = |column: tokens::Column| Expr::col(column).sum().cast_as("bigint");
        let token_usage: Vec<TokenUsageRow> = tokens::Entity::find()
            .select_only()
            .column_as(first(), "first")
            .columns([tokens::Column::Project, tokens::Column::Job, tokens::Column::Model])
            .column_as(sum(tokens::Column::Input), "all_input")
            .column_as(sum(tokens::Column::Output), "all_output")
            .column_as(sum(tokens::Column::CostNanos), "all_cost")
            .filter(tokens::Column::AtUs.gte(since))
            .filter(Condition::all().add_option(project(Expr::col(tokens::Column::Project))))
            .group_by(tokens::Column::Project)
            .group_by(tokens::Column::Job)
            .group_by(tokens::Column::Model)
            .group_by(Expr::col(tokens::Column::AtUs).div(TokenUsage::BUCKET_US))
            .order_by_asc(first())
            .into_tuple()
            .all(&self.database)
            .await
            .map_err(cannot("read"))?;
        let token_usage: Result<_, Damage> = token_usage.into_iter().map(read_token_usage).collect();
        rows.stored = levels.map_err(cannot("decode"))?;
        rows.token_usage = token_usage.map_err(cannot("decode"))?;
        Ok(rows)
    }

    async fn record_warning(&self, noted: &Warning) -> Result<bool, RecordsError> {
        let Warning { limit, period, percent, at } = noted;
        let row = warning::Model {
            limit_name: limit.clone(),
            period: period.clone(),
            percent: (*percent).into(),
            at_us: at.as_microsecond(),
        };
        let known =
            OnConflict::columns([warning::Column::LimitName, warning::Column::Period, warning::Column::Percent])
                .do_nothing()
                .to_owned();
        let insert = warning::Entity::insert(row.into_active_model()).on_conflict(known);
        insert.exec_without_returning(&self.database).await.map(|rows| rows == 1).map_err(cannot("write"))
    }

    async fn warnings(&self) -> Result<Vec<Warning>, RecordsError> {
        let rows = warning::Entity::find()
            .order_by_asc(warning::Column::AtUs)
            .order_by_asc(warning::Column::LimitName)
            .order_by_asc(warning::Column::Percent)
            .all(&self.database)
            .await
            .map_err(cannot("read"))?;
        let read = |row: warning::Model| -> Result<Warning, Damage> {
            Ok(Warning {
                limit: row.limit_name,
                period: row.period,
                percent: row.percent.try_into()?,
                at: Timestamp::from_microsecond(row.at_us)?,
            })
        };
        rows.into_iter().map(|row| read(row).map_err(cannot("decode"))).collect()
    }
}

#[async_trait]
impl HealthRecords for DatabaseRecords {
    async fn health(&self, provider: &ProviderName) -> Result<Health, RecordsError> {
        let row = health::Entity::find_by_id(provider.as_str()).one(&self.database).await.map_err(cannot("read"))?;
        row.map_or_else(|| Ok(Health::default()), |row| read_health(row).map_err(cannot("decode")))
    }

    async fn change_health(
        &self,
        provider: &ProviderName,
        seen: &Health,
        breaker: Breaker,
        reason: &str,
    ) -> Result<bool, RecordsError> {
        let (state, failures, until, backoff) = match breaker {
            Breaker::Healthy => ("healthy", 0, Timestamp::UNIX_EPOCH, Duration::ZERO),
            Breaker::Failing { failures } => ("failing", failures, Timestamp::UNIX_EPOCH, Duration::ZERO),
            Breaker::Open { until, backoff } => ("open", 0, until, backoff),
            Breaker::Probing { until, backoff } => ("probing", 0, until, backoff),
        };
        let (until, backoff) = (until.as_microsecond(), micros(backoff));
        let write = Query::insert()
            .into_table(health::Entity)
            .columns([
                health::Column::Provider,
                health::Column::State,
                health::Column::Failures,
                health::Column::UntilUs,
                health::Column::RestUs,
                health::Column::Reason,
                health::Column::Version,
            ])
            .values_panic([
                provider.as_str().into(),
                state.into(),
                i64::from(failures).into(),
                until.into(),
                backoff.into(),
                reason.into(),
                (seen.version + 1).into(),
            ])
            .on_conflict(
                OnConflict::column(health::Column::Provider)
                    .update_columns([
                        health::Column::State,
                        health::Column::Failures,
                        health::Column::UntilUs,
                        health::Column::RestUs,
                        health::Column::Reason,
                        health::Column::Version,
                    ])
                    .action_and_where(Expr::col((health::Entity, health::Column::Version)).eq(seen.version))
                    .to_owned(),
            )
            .to_owned();
        self.database.execute(&write).await.map(|done| done.rows_affected() == 1).map_err(cannot("write"))
    }
}

fn interval_row(interval: &Interval) -> Result<interval::Model, Damage> {
    let Interval { provider, sandbox, payer: Payer { project, job }, size, started_at, until, ended_at } = interval;
    Ok(interval::Model {
        provider: provider.to_string(),
        sandbox: sandbox.to_string(),
        started_at_us: started_at.as_microsecond(),
        project: project.clone(),
        job: job.clone(),
        cpu_count: size.cpu_count.into(),
        memory_mb: size.memory_mb.into(),
        disk_mb: size.disk_mb.into(),
        until_us: until.as_microsecond(),
        ended_at_us: ended_at.map(Timestamp::as_microsecond),
    })
}

fn read_interval(row: interval::Model) -> Result<Interval, Damage> {
    Ok(Interval {
        provider: row.provider.parse()?,
        sandbox: row.sandbox.parse()?,
        payer: Payer { project: row.project, job: row.job },
        size: Size {
            cpu_count: row.cpu_count.try_into()?,
            memory_mb: row.memory_mb.try_into()?,
            disk_mb: row.disk_mb.try_into()?,
        },
        started_at: Timestamp::from_microsecond(row.started_at_us)?,
        until: Timestamp::from_microsecond(row.until_us)?,
        ended_at: row.ended_at_us.map(Timestamp::from_microsecond).transpose()?,
    })
}

fn read_creation(row: creation::Model) -> Result<Creation, Damage> {
    Ok(Creation {
        id: row.id.parse()?,
        at: Timestamp::from_microsecond(row.at_us)?,
        provider: row.provider.parse()?,
        payer: Payer { project: row.project, job: row.job },
        sandbox: row.sandbox.map(|id| id.parse()).transpose()?,
    })
}

fn read_stored(row: &stored::Model) -> Result<Stored, Damage> {
    let at = Timestamp::from_microsecond(row.at_us)?;
    Ok(Stored { project: row.project.clone(), at, bytes: row.bytes.try_into()? })
}

/// Time, project, job, model, input, output, cost.
type TokenUsageRow = (i64, String, Option<String>, String, i64, i64, i64);

fn read_token_usage((at, project, job, model, input, output, cost): TokenUsageRow) -> Result<TokenUsage, Damage> {
    Ok(TokenUsage {
        at: Timestamp::from_microsecond(at)?,
        payer: Payer { project, job },
        model,
        input: input.try_into()?,
        output: output.try_into()?,
        cost: Usd::from_nanos(cost.try_into()?),
    })
}

fn read_health(row: health::Model) -> Result<Health, Damage> {
    let until = Timestamp::from_microsecond(row.until_us)?;
    let backoff = Duration::from_micros(row.rest_us.try_into()?);
    let breaker = match row.state.as_str() {
        "healthy" => Breaker::Healthy,
        "failing" => Breaker::Failing { failures: row.failures.try_into()? },
        "open" => Breaker::Open { until, backoff },
        "probing" => Breaker::Probing { until, backoff },
        other => return Err(format!("unknown health `{other}`").into()),
    };
    Ok(Health { breaker, reason: row.reason, version: row.version })
}
