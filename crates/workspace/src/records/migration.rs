//! The database schema as a list of migrations. Migrations are only appended: a released one never
//! changes, and there are no down migrations.
//!
//! SQLite does not roll back half a migration when the process is killed, and two processes may
//! start at once. So every statement says `IF NOT EXISTS` and a migration can be retried.

use sea_orm_migration::prelude::*;
use sea_orm_migration::schema::{big_integer, big_integer_null, boolean, string, string_null, text};
use sea_orm_migration::{MigrationName, MigrationTrait, MigratorTrait, SchemaManager};

pub(super) struct Migrator;

#[async_trait::async_trait]
impl MigratorTrait for Migrator {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        vec![Box::new(First), Box::new(Orphans)]
    }

    /// Each part of the program has a migration table of its own, since the database may be shared.
    fn migration_table_name() -> DynIden {
        "workspace_migration".into_iden()
    }
}

/// Workspaces, leases, usage, health of providers.
struct First;

impl MigrationName for First {
    fn name(&self) -> &str {
        "m0001_workspaces"
    }
}

fn table(name: &'static str) -> TableCreateStatement {
    Table::create().table(name).if_not_exists().to_owned()
}

#[async_trait::async_trait]
impl MigrationTrait for First {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let mut tables = [
            table("workspace"),
            table("lease"),
            table("usage_creation"),
            table("usage_interval"),
            table("usage_stored"),
            table("usage_tokens"),
            table("usage_warning"),
            table("provider_health"),
        ];
        let [workspace, lease, creation, interval, stored, tokens, warning, health] = &mut tables;
        workspace
            .col(string("name").primary_key())
            .col(string("project"))
            .col(string("provider"))
            .col(string_null("sandbox"))
            .col(string("state"))
            .col(boolean("paused"))
            .col(string_null("template"))
            .col(big_integer("created_at_us"))
            .col(big_integer("expires_at_us"))
            .col(text("services"))
            .col(text("env"))
            .col(text("details"));
        lease
            .col(string("workspace").primary_key())
            .col(string("owner"))
            .col(big_integer("fence"))
            .col(big_integer("until_us"));
        creation
            .col(string("id").primary_key())
            .col(big_integer("at_us"))
            .col(string("provider"))
            .col(string("project"))
            .col(string_null("job"))
            .col(string_null("sandbox"));
        interval
            .col(string("provider"))
            .col(string("sandbox"))
            .col(big_integer("started_at_us"))
            .col(string("project"))
            .col(string_null("job"))
            .col(big_integer("cpu_count"))
            .col(big_integer("memory_mb"))
            .col(big_integer("disk_mb"))
            .col(big_integer("until_us"))
            .col(big_integer_null("ended_at_us"))
            .primary_key(Index::create().col("provider").col("sandbox").col("started_at_us"));
        stored
            .col(string("project"))
            .col(big_integer("at_us"))
            .col(big_integer("bytes"))
            .primary_key(Index::create().col("project").col("at_us"));
        tokens
            .col(string("id").primary_key())
            .col(big_integer("at_us"))
            .col(string("project"))
            .col(string_null("job"))
            .col(string("model"))
            .col(big_integer("input"))
            .col(big_integer("output"))
            .col(big_integer("cost_nanos"));
        warning
            .col(string("limit_name"))
            .col(string("period"))
            .col(big_integer("percent"))
            .col(big_integer("at_us"))
            .primary_key(Index::create().col("limit_name").col("period").col("percent"));
        health
            .col(string("provider").primary_key())
            .col(string("state"))
            .col(big_integer("failures"))
            .col(big_integer("until_us"))
            .col(big_integer("rest_us"))
            .col(text("reason"))
            .col(big_integer("version"));
        for table in tables {
            manager.create_table(table).await?;
        }
        for (name, table, column) in [
            ("usage_creation_at", "usage_creation", "at_us"),
            ("usage_interval_end", "usage_interval", "ended_at_us"),
            ("usage_tokens_at", "usage_tokens", "at_us"),
        ] {
            let index = Index::create().name(name).table(table).col(column).if_not_exists().to_owned();
            manager.create_index(index).await?;
        }
        Ok(())
    }
}

/// When a sandbox was first seen to be an orphan.
struct Orphans;

impl MigrationName for Orphans {
    fn name(&self) -> &str {
        "m0002_orphans"
    }
}

#[async_trait::async_trait]
impl MigrationTrait for Orphans {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let mut orphan = table("orphan");
        orphan
            .col(string("sandbox").primary_key())
            .col(string("provider"))
            .col(string("workspace"))
            .col(big_integer("seen_at_us"))
            .col(big_integer("watched_us"));
        manager.create_table(orphan).await
    }
}
