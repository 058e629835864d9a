//! Schema migrations. They are only ever appended, and each is idempotent: see the records of
//! workspaces, which share the database.

use sea_orm_migration::prelude::*;
use sea_orm_migration::schema::{big_integer, boolean, string, string_null, text, text_null};
use sea_orm_migration::{MigrationName, MigrationTrait, MigratorTrait, SchemaManager};

pub(super) struct Migrator;

#[async_trait::async_trait]
impl MigratorTrait for Migrator {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        vec![Box::new(Runs), Box::new(Answers)]
    }

    fn migration_table_name() -> DynIden {
        "agent_migration".into_iden()
    }
}

/// Tables of runs and their entries.
struct Runs;

impl MigrationName for Runs {
    fn name(&self) -> &str {
        "m0001_runs"
    }
}

#[async_trait::async_trait]
impl MigrationTrait for Runs {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let run = Table::create()
            .table("agent_run")
            .if_not_exists()
            .col(string("id").primary_key())
            .col(text("plan"))
            .col(big_integer("created_at_us"))
            .col(string("state"))
            .col(string_null("stop_reason"))
            .col(big_integer("turns"))
            .col(text("usage"))
            .col(big_integer("cost_nanos"))
            .col(big_integer("seen_at_us"))
            .col(boolean("cancel_asked"))
            .col(big_integer("entries"))
            .to_owned();
        let entry = Table::create()
            .table("agent_entry")
            .if_not_exists()
            .col(string("run"))
            .col(big_integer("number"))
            .col(text("entry"))
            .primary_key(Index::create().col("run").col("number"))
            .to_owned();
        manager.create_table(run).await?;
        manager.create_table(entry).await
    }
}

/// Table of approval answers.
struct Answers;

impl MigrationName for Answers {
    fn name(&self) -> &str {
        "m0002_answers"
    }
}

#[async_trait::async_trait]
impl MigrationTrait for Answers {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let answer = Table::create()
            .table("agent_answer")
            .if_not_exists()
            .col(string("run"))
            .col(string("call"))
            .col(boolean("allowed"))
            .col(text_null("reason"))
            .primary_key(Index::create().col("run").col("call"))
            .to_owned();
        manager.create_table(answer).await
    }
}
