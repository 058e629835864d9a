//! Migrations of the tables. Migrations are only ever added, and each is idempotent, as in the
//! records of workspaces, which share the database.

use sea_orm_migration::prelude::*;
use sea_orm_migration::schema::{
    big_integer, big_integer_null, binary, boolean, integer, integer_null, string, string_null, text, text_null,
};
use sea_orm_migration::{MigrationName, MigrationTrait, MigratorTrait, SchemaManager};

pub(super) struct Migrator;

#[async_trait::async_trait]
impl MigratorTrait for Migrator {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        vec![
            Box::new(Users),
            Box::new(Jobs),
            Box::new(Timeline),
            Box::new(CleanupColumns),
            Box::new(BrokenOff),
            Box::new(LeaseOwner),
            Box::new(Viewers),
            Box::new(Sessions),
        ]
    }

    fn migration_table_name() -> DynIden {
        "studio_migration".into_iden()
    }
}

/// Users, their tokens and credits.
struct Users;

impl MigrationName for Users {
    fn name(&self) -> &str {
        "m0001_users"
    }
}

#[async_trait::async_trait]
impl MigrationTrait for Users {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let user = Table::create()
            .table("studio_user")
            .if_not_exists()
            .col(string("id").primary_key())
            .col(string("name").unique_key())
            .col(big_integer("created_at_us"))
            .col(big_integer("turn").default(0))
            .to_owned();
        let token = Table::create()
            .table("studio_token")
            .if_not_exists()
            .col(string("digest").primary_key())
            .col(string("owner"))
            .col(big_integer("created_at_us"))
            .to_owned();
        let credit = Table::create()
            .table("studio_credit")
            .if_not_exists()
            .col(string("id").primary_key())
            .col(string("owner"))
            .col(big_integer("at_us"))
            .col(big_integer("change"))
            .col(text("reason"))
            .col(string_null("job"))
            .to_owned();
        manager.create_table(user).await?;
        manager.create_table(token).await?;
        manager.create_table(credit).await?;
        index(manager, "studio_credit", "studio_credit_owner", &["owner"]).await
    }
}

/// Projects and their builds.
struct Jobs;

impl MigrationName for Jobs {
    fn name(&self) -> &str {
        "m0002_jobs"
    }
}

#[async_trait::async_trait]
impl MigrationTrait for Jobs {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let project = Table::create()
            .table("studio_project")
            .if_not_exists()
            .col(string("id").primary_key())
            .col(string("owner"))
            .col(string("name"))
            .col(big_integer("created_at_us"))
            .col(big_integer("builds").default(0))
            .index(Index::create().unique().name("studio_project_name").col("owner").col("name"))
            .to_owned();
        let job = Table::create()
            .table("studio_job")
            .if_not_exists()
            .col(string("id").primary_key())
            .col(string("project"))
            .col(string("owner"))
            .col(text("goal"))
            .col(text("spec"))
            .col(text("model"))
            .col(string("status"))
            .col(text("stage_label"))
            .col(big_integer("created_at_us"))
            .col(big_integer_null("finished_at_us"))
            .col(big_integer("build_version"))
            .col(string("workspace"))
            .col(string("workspace_path"))
            .col(string_null("begins_from"))
            .col(string_null("rebuilt_from"))
            .col(string_null("sandbox_id"))
            .col(boolean("sandbox_paused").default(false))
            .col(big_integer_null("sandbox_expires_at_us"))
            .col(text_null("preview_url"))
            .col(integer_null("preview_port"))
            .col(big_integer("cost_nanos").default(0))
            .col(text_null("error_message"))
            .col(string_null("run"))
            .col(big_integer("run_entries").default(0))
            .col(big_integer("attempt").default(0))
            .col(string_null("claim"))
            .col(big_integer("lease_until_us").default(0))
            .col(boolean("cancel_asked").default(false))
            .col(boolean("settled").default(false))
            .col(big_integer("events").default(0))
            .to_owned();
        manager.create_table(project).await?;
        manager.create_table(job).await?;
        index(manager, "studio_job", "studio_job_owner", &["owner", "created_at_us"]).await?;
        index(manager, "studio_job", "studio_job_open", &["settled", "lease_until_us"]).await?;
        index(manager, "studio_job", "studio_job_workspace", &["workspace"]).await
    }
}

/// Their events and screenshots.
struct Timeline;

impl MigrationName for Timeline {
    fn name(&self) -> &str {
        "m0003_timeline"
    }
}

#[async_trait::async_trait]
impl MigrationTrait for Timeline {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let event = Table::create()
            .table("studio_event")
            .if_not_exists()
            .col(string("job"))
            .col(big_integer("seq"))
            .col(big_integer("at_us"))
            .col(text("body"))
            .primary_key(Index::create().col("job").col("seq"))
            .to_owned();
        let screenshot = Table::create()
            .table("studio_screenshot")
            .if_not_exists()
            .col(string("id").primary_key())
            .col(string("job"))
            .col(string("device"))
            .col(integer("width"))
            .col(integer("height"))
            .col(big_integer("taken_at_us"))
            .col(text("reason"))
            .col(string("media_type"))
            .col(binary("content"))
            .to_owned();
        manager.create_table(event).await?;
        manager.create_table(screenshot).await?;
        index(manager, "studio_screenshot", "studio_screenshot_job", &["job", "taken_at_us"]).await
    }
}

/// Restores and deletions of ended jobs.
struct CleanupColumns;

impl MigrationName for CleanupColumns {
    fn name(&self) -> &str {
        "m0004_errands"
    }
}

#[async_trait::async_trait]
impl MigrationTrait for CleanupColumns {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        add_column(manager, "studio_job", "restore_to", string_null("restore_to")).await?;
        add_column(manager, "studio_job", "deleted", boolean("deleted").default(false).to_owned()).await
    }
}

/// Counts interrupted workers per job.
struct BrokenOff;

impl MigrationName for BrokenOff {
    fn name(&self) -> &str {
        "m0005_broken_off"
    }
}

#[async_trait::async_trait]
impl MigrationTrait for BrokenOff {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        add_column(manager, "studio_job", "broken_off", big_integer("broken_off").default(0).to_owned()).await
    }
}

/// The process that holds a job's lease.
struct LeaseOwner;

impl MigrationName for LeaseOwner {
    fn name(&self) -> &str {
        "m0006_lease_owner"
    }
}

#[async_trait::async_trait]
impl MigrationTrait for LeaseOwner {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        add_column(manager, "studio_job", "lease_owner", string_null("lease_owner")).await
    }
}

/// Whether a page watches a build, and whether it has loaded the preview.
struct Viewers;

impl MigrationName for Viewers {
    fn name(&self) -> &str {
        "m0007_viewers"
    }
}

#[async_trait::async_trait]
impl MigrationTrait for Viewers {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        add_column(manager, "studio_job", "watched", boolean("watched").default(false).to_owned()).await?;
        add_column(manager, "studio_job", "preview_loaded", boolean("preview_loaded").default(false).to_owned()).await
    }
}

/// Browser sessions.
struct Sessions;

impl MigrationName for Sessions {
    fn name(&self) -> &str {
        "m0008_sessions"
    }
}

#[async_trait::async_trait]
impl MigrationTrait for Sessions {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let session = Table::create()
            .table("studio_session")
            .if_not_exists()
            .col(string("digest").primary_key())
            .col(string("owner"))
            .col(big_integer("created_at_us"))
            .col(big_integer("expires_at_us"))
            .to_owned();
        manager.create_table(session).await?;
        index(manager, "studio_session", "studio_session_owner", &["owner"]).await
    }
}

/// An interrupted migration may have added the column.
async fn add_column(
    manager: &SchemaManager<'_>,
    table: &'static str,
    name: &str,
    column: ColumnDef,
) -> Result<(), DbErr> {
    if manager.has_column(table, name).await? {
        return Ok(());
    }
    manager.alter_table(Table::alter().table(table).add_column(column).to_owned()).await
}

async fn index(
    manager: &SchemaManager<'_>,
    table: &'static str,
    name: &'static str,
    columns: &[&'static str],
) -> Result<(), DbErr> {
    let mut index = Index::create().if_not_exists().name(name).table(table).to_owned();
    for column in columns {
        index.col(*column);
    }
    manager.create_index(index).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::Records;
    use crate::token::{TokenDigest, new_token};
    use sdk::Secret;

    /// Migrates from every earlier schema, with rows in it.
    async fn from_every_version(url: impl Fn() -> Secret) {
        for done in (0..).take(Migrator::migrations().len() + 1) {
            let url = url();
            let database = database::connect(url.expose()).await.expect("a database");
            if done > 0 {
                Migrator::up(&database, Some(done)).await.expect("an earlier form");
                let old =
                    "INSERT INTO studio_user (id, name, created_at_us) VALUES ('usr_0123456789abcdef0123', 'old', 1)";
                database.execute_unprepared(old).await.expect("a user from before");
            }
            if done >= 2 {
                let old = "INSERT INTO studio_job (id, project, owner, goal, spec, model, status, stage_label, created_at_us, \
                     build_version, workspace, workspace_path) VALUES ('job_0123456789abcdef0123', 'prj_0123456789abcdef0123', \
                     'usr_0123456789abcdef0123', 'g', '{}', 'm', 'ready', 'Ready', 1, 1, 'job-0123456789abcdef0123', '/p')";
                database.execute_unprepared(old).await.expect("a job from before");
            }
            drop(database);
            for _ in 0..2 {
                let records = Records::open(&url).await.expect("the newest form");
                let old = records.user_by_name("old").await.expect("read");
                assert_eq!(old.is_some(), done > 0, "{done} steps done before");
                let job = records.job(&"job_0123456789abcdef0123".parse().expect("an id")).await.expect("read");
                let as_new = job.as_ref().map(|job| (job.deleted, job.restore_to, job.sandbox_paused));
                assert_eq!(as_new, (done >= 2).then_some((false, None, false)), "{done} steps done before");
                records.close().await.expect("closed");
            }
            let records = Records::open(&url).await.expect("the newest form");
            let token = TokenDigest::from_token(new_token().expose()).expect("a token");
            let user = records.add_user("new", &token, 1).await.expect("written");
            assert!(records.jobs(&user.id, None).await.expect("read").is_empty());
        }
    }

    #[tokio::test]
    async fn on_sqlite() {
        let directory = tempfile::tempdir().expect("a directory");
        let number = std::cell::Cell::new(0);
        from_every_version(|| {
            number.set(number.get() + 1);
            Secret::from(format!("sqlite://{}/{}.sqlite", directory.path().display(), number.get()))
        })
        .await;
    }

    #[tokio::test]
    async fn on_postgres() {
        from_every_version(|| Secret::from(testing::postgres::database())).await;
    }
}
