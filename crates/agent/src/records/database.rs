//! Run records in the database of the workspaces: a SQLite file, or Postgres. A successful write is
//! durable.

use std::error::Error;

use async_trait::async_trait;
use database::{Database, SetAside};
use jiff::Timestamp;
use sdk::Secret;
use sea_orm::sea_query::{Expr, OnConflict};
use sea_orm::{ColumnTrait, EntityTrait, IntoActiveModel, QueryFilter, QueryOrder};

use super::entity::{answer, entry, run};
use super::migration::Migrator;
use super::port::{AppendError, Head, JournalEntry, RunId, RunRecord, RunRecords, RunRecordsError, RunState};
use crate::approval::ApprovalAnswer;
use crate::plan::Plan;
use crate::stop::StopReason;

/// Run records in SQLite or Postgres.
#[derive(Debug, Clone)]
pub struct DatabaseRunRecords {
    database: Database,
    set_aside: SetAside,
}

type Damage = Box<dyn Error + Send + Sync>;

fn cannot<E: Into<Damage>>(what: &'static str) -> impl Fn(E) -> RunRecordsError {
    move |error| RunRecordsError { what, source: database::unwrap_cause(error.into()) }
}

impl DatabaseRunRecords {
    /// Opens the database at a URL, in the syntax of workspace records.
    ///
    /// # Errors
    /// [`RunRecordsError`] if the database cannot be reached or opened.
    pub async fn open(url: &Secret) -> Result<Self, RunRecordsError> {
        let database = database::connect(url.expose()).await.map_err(cannot("open"))?;
        database::migrate::<Migrator>(&database).await.map_err(cannot("migrate"))?;
        Ok(Self { database, set_aside: SetAside::default() })
    }

    /// Closes the connections. Dropping it does so too, without waiting.
    pub async fn close(self) -> Result<(), RunRecordsError> {
        self.database.close().await.map_err(cannot("close"))
    }

    async fn set_cancel(&self, id: &RunId, asked: bool) -> Result<bool, RunRecordsError> {
        let asked = run::Entity::update_many()
            .col_expr(run::Column::CancelAsked, Expr::value(asked))
            .filter(run::Column::Id.eq(id.as_str()))
            .exec(&self.database)
            .await
            .map_err(cannot("change"))?;
        Ok(asked.rows_affected > 0)
    }
}

#[async_trait]
impl RunRecords for DatabaseRunRecords {
    async fn begin(&self, record: &RunRecord) -> Result<(), RunRecordsError> {
        let row = to_row(record).map_err(cannot("write"))?.into_active_model();
        run::Entity::insert(row).exec_without_returning(&self.database).await.map_err(cannot("write"))?;
        Ok(())
    }

    async fn append(&self, id: &RunId, count: u64, entries: &[JournalEntry], head: &Head) -> Result<(), AppendError> {
        let first = number(count);
        let rows: Result<Vec<_>, Damage> = entries
            .iter()
            .zip(first..)
            .map(|(one, number)| {
                let text = serde_json::to_string(one)?;
                Ok(entry::Model { run: id.to_string(), number, entry: text }.into_active_model())
            })
            .collect();
        let rows = rows.map_err(cannot("write"))?;
        let usage = serde_json::to_string(&head.usage).map_err(cannot("write"))?;
        // Every transaction starts with a write; this one also detects a concurrent writer.
        let transaction = self.database.begin().await.map_err(cannot("write"))?;
        let moved = run::Entity::update_many()
            .col_expr(run::Column::Entries, Expr::value(first + number(rows.len() as u64)))
            .col_expr(run::Column::State, Expr::value(state_word(head.state)))
            .col_expr(run::Column::StopReason, Expr::value(head.stop_reason.map(StopReason::as_str)))
            .col_expr(run::Column::Turns, Expr::value(number(head.turns)))
            .col_expr(run::Column::Usage, Expr::value(usage))
            .col_expr(run::Column::CostNanos, Expr::value(number(head.cost_nanos)))
            .col_expr(run::Column::SeenAtUs, Expr::value(head.seen_at.as_microsecond()))
            .filter(run::Column::Id.eq(id.as_str()))
            .filter(run::Column::Entries.eq(first))
            .exec(&transaction)
            .await
            .map_err(cannot("write"))?;
        if moved.rows_affected == 0 {
            return Err(AppendError::Taken(id.clone()));
        }
        if !rows.is_empty() {
            entry::Entity::insert_many(rows).exec_without_returning(&transaction).await.map_err(cannot("write"))?;
        }
        transaction.commit().await.map_err(|error| cannot("write")(error).into())
    }

    async fn run(&self, id: &RunId) -> Result<Option<RunRecord>, RunRecordsError> {
        let row = run::Entity::find_by_id(id.as_str()).one(&self.database).await.map_err(cannot("read"))?;
        row.map(|row| from_row(row).map_err(cannot("understand"))).transpose()
    }

    async fn runs(&self) -> Result<Vec<RunRecord>, RunRecordsError> {
        let rows = run::Entity::find()
            .order_by_desc(run::Column::CreatedAtUs)
            .order_by_desc(run::Column::Id)
            .all(&self.database)
            .await
            .map_err(cannot("read"))?;
        let read = |row: run::Model| {
            let id = row.id.clone();
            self.set_aside.keep("run", &id, from_row(row))
        };
        Ok(rows.into_iter().filter_map(read).collect())
    }

    async fn entries(&self, id: &RunId, skip: u64) -> Result<Vec<JournalEntry>, RunRecordsError> {
        let rows = entry::Entity::find()
            .filter(entry::Column::Run.eq(id.as_str()))
            .filter(entry::Column::Number.gte(number(skip)))
            .order_by_asc(entry::Column::Number)
            .all(&self.database)
            .await
            .map_err(cannot("read"))?;
        rows.iter().map(|row| serde_json::from_str(&row.entry).map_err(cannot("understand"))).collect()
    }

    async fn entries_of_call(&self, id: &RunId, call: &str) -> Result<Vec<JournalEntry>, RunRecordsError> {
        // The query finds every row that contains the id of the call; the few matches are filtered
        // here.
        let rows = entry::Entity::find()
            .filter(entry::Column::Run.eq(id.as_str()))
            .filter(entry::Column::Entry.contains(call))
            .order_by_asc(entry::Column::Number)
            .all(&self.database)
            .await
            .map_err(cannot("read"))?;
        let entries: Result<Vec<JournalEntry>, _> = rows.iter().map(|row| serde_json::from_str(&row.entry)).collect();
        let about = |entry: &JournalEntry| entry.happened.event.call() == Some(call);
        Ok(entries.map_err(cannot("understand"))?.into_iter().filter(about).collect())
    }

    async fn record_answer(&self, id: &RunId, call: &str, answer: &ApprovalAnswer) -> Result<bool, RunRecordsError> {
        let (allowed, reason) = match answer {
            ApprovalAnswer::Allow => (true, None),
            ApprovalAnswer::Deny(reason) => (false, reason.clone()),
        };
        let row = answer::Model { run: id.to_string(), call: call.to_owned(), allowed, reason }.into_active_model();
        let key = [answer::Column::Run, answer::Column::Call];
        let insert = answer::Entity::insert(row).on_conflict(OnConflict::columns(key).do_nothing().to_owned());
        let written = insert.exec_without_returning(&self.database).await.map_err(cannot("write"))?;
        Ok(written > 0)
    }

    async fn find_answer(&self, id: &RunId, call: &str) -> Result<Option<ApprovalAnswer>, RunRecordsError> {
        let key = (id.to_string(), call.to_owned());
        let row = answer::Entity::find_by_id(key).one(&self.database).await.map_err(cannot("read"))?;
        Ok(row.map(|row| if row.allowed { ApprovalAnswer::Allow } else { ApprovalAnswer::Deny(row.reason) }))
    }

    async fn update_plan(&self, id: &RunId, plan: &Plan) -> Result<(), RunRecordsError> {
        let plan = serde_json::to_string(plan).map_err(cannot("write"))?;
        run::Entity::update_many()
            .col_expr(run::Column::Plan, Expr::value(plan))
            .filter(run::Column::Id.eq(id.as_str()))
            .exec(&self.database)
            .await
            .map_err(cannot("change"))?;
        Ok(())
    }

    async fn remove(&self, id: &RunId) -> Result<(), RunRecordsError> {
        let transaction = self.database.begin().await.map_err(cannot("change"))?;
        let run = run::Entity::delete_by_id(id.as_str()).exec(&transaction).await;
        run.map_err(cannot("change"))?;
        let entries = entry::Entity::delete_many().filter(entry::Column::Run.eq(id.as_str())).exec(&transaction).await;
        entries.map_err(cannot("change"))?;
        let answers =
            answer::Entity::delete_many().filter(answer::Column::Run.eq(id.as_str())).exec(&transaction).await;
        answers.map_err(cannot("change"))?;
        transaction.commit().await.map_err(cannot("change"))
    }

    async fn request_cancel(&self, id: &RunId) -> Result<bool, RunRecordsError> {
        self.set_cancel(id, true).await
    }

    async fn clear_cancel_request(&self, id: &RunId) -> Result<(), RunRecordsError> {
        self.set_cancel(id, false).await.map(|_| ())
    }

    async fn heartbeat(&self, id: &RunId, now: Timestamp) -> Result<bool, RunRecordsError> {
        run::Entity::update_many()
            .col_expr(run::Column::SeenAtUs, Expr::value(now.as_microsecond()))
            .filter(run::Column::Id.eq(id.as_str()))
            .exec(&self.database)
            .await
            .map_err(cannot("change"))?;
        let row = run::Entity::find_by_id(id.as_str()).one(&self.database).await.map_err(cannot("read"))?;
        Ok(row.is_some_and(|row| row.cancel_asked))
    }
}

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn state_word(state: RunState) -> &'static str {
    match state {
        RunState::Running => "running",
        RunState::Finished => "finished",
    }
}

fn to_row(record: &RunRecord) -> Result<run::Model, Damage> {
    let RunRecord { id, plan, created_at, head, cancel_asked, entries } = record;
    let Head { state, stop_reason, turns, usage, cost_nanos, seen_at } = head;
    Ok(run::Model {
        id: id.to_string(),
        plan: serde_json::to_string(plan)?,
        created_at_us: created_at.as_microsecond(),
        state: state_word(*state).to_owned(),
        stop_reason: stop_reason.map(|reason| reason.as_str().to_owned()),
        turns: number(*turns),
        usage: serde_json::to_string(usage)?,
        cost_nanos: number(*cost_nanos),
        seen_at_us: seen_at.as_microsecond(),
        cancel_asked: *cancel_asked,
        entries: number(*entries),
    })
}

fn from_row(row: run::Model) -> Result<RunRecord, Damage> {
    let state = match row.state.as_str() {
        "running" => RunState::Running,
        "finished" => RunState::Finished,
        other => return Err(format!("unknown state `{other}`").into()),
    };
    let stop_reason = row.stop_reason.map(|word| {
        StopReason::ALL
            .into_iter()
            .find(|reason| reason.as_str() == word)
            .ok_or(format!("unknown stop reason `{word}`"))
    });
    Ok(RunRecord {
        id: row.id.parse()?,
        plan: serde_json::from_str(&row.plan)?,
        created_at: Timestamp::from_microsecond(row.created_at_us)?,
        head: Head {
            state,
            stop_reason: stop_reason.transpose()?,
            turns: u64::try_from(row.turns)?,
            usage: serde_json::from_str(&row.usage)?,
            cost_nanos: u64::try_from(row.cost_nanos)?,
            seen_at: Timestamp::from_microsecond(row.seen_at_us)?,
        },
        cancel_asked: row.cancel_asked,
        entries: u64::try_from(row.entries)?,
    })
}
