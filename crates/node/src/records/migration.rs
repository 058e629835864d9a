//! Migrations of the database. New ones are only appended: a released one never changes.

use sea_orm_migration::prelude::*;
use sea_orm_migration::schema::{
    big_integer, big_integer_null, binary, boolean, boolean_null, string, string_null, text,
};
use sea_orm_migration::{MigrationName, MigrationTrait, MigratorTrait, SchemaManager};

pub(super) struct Migrator;

#[async_trait::async_trait]
impl MigratorTrait for Migrator {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        vec![
            Box::new(First),
            Box::new(Second),
            Box::new(Third),
            Box::new(Fourth),
            Box::new(Fifth),
            Box::new(Sixth),
            Box::new(Seventh),
        ]
    }
}

/// Adds ingress settings of sandboxes.
struct Seventh;

impl MigrationName for Seventh {
    fn name(&self) -> &str {
        "m0007_ingress"
    }
}

#[async_trait::async_trait]
impl MigrationTrait for Seventh {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let ingress = Table::alter().table("sandbox").add_column(string_null("ingress")).to_owned();
        manager.alter_table(ingress).await
    }
}

/// Adds secrets.
struct Sixth;

impl MigrationName for Sixth {
    fn name(&self) -> &str {
        "m0006_secrets"
    }
}

#[async_trait::async_trait]
impl MigrationTrait for Sixth {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let secret = Table::create()
            .table("secret")
            .col(string("id").primary_key())
            .col(string("name"))
            .col(binary("sealed"))
            .col(big_integer("version"))
            .col(text("metadata"))
            .col(big_integer("created_at_us"))
            .col(big_integer("updated_at_us"))
            .to_owned();
        manager.create_table(secret).await
    }
}

/// Adds volumes, and their mounts in sandboxes.
struct Fifth;

impl MigrationName for Fifth {
    fn name(&self) -> &str {
        "m0005_volumes"
    }
}

#[async_trait::async_trait]
impl MigrationTrait for Fifth {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let volumes = Table::alter().table("sandbox").add_column(string_null("volumes")).to_owned();
        manager.alter_table(volumes).await?;
        let volume = Table::create()
            .table("volume")
            .col(string("id").primary_key())
            .col(string("name").unique_key())
            .col(string("token"))
            .col(string("files"))
            .to_owned();
        manager.create_table(volume).await
    }
}

/// Adds egress rules of sandboxes.
struct Fourth;

impl MigrationName for Fourth {
    fn name(&self) -> &str {
        "m0004_egress"
    }
}

#[async_trait::async_trait]
impl MigrationTrait for Fourth {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let egress = Table::alter().table("sandbox").add_column(string_null("egress")).to_owned();
        manager.alter_table(egress).await
    }
}

/// Adds cached states of builds.
struct Third;

impl MigrationName for Third {
    fn name(&self) -> &str {
        "m0003_layers"
    }
}

#[async_trait::async_trait]
impl MigrationTrait for Third {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let layer = Table::create()
            .table("layer")
            .col(string("key").primary_key())
            .col(string("files"))
            .col(big_integer("used_at_us"))
            .to_owned();
        manager.create_table(layer).await
    }
}

/// Adds templates, and their defaults in sandboxes.
struct Second;

impl MigrationName for Second {
    fn name(&self) -> &str {
        "m0002_templates"
    }
}

#[async_trait::async_trait]
impl MigrationTrait for Second {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let defaults = Table::alter().table("sandbox").add_column(string_null("defaults")).to_owned();
        manager.alter_table(defaults).await?;
        let template =
            Table::create().table("template").col(string("id").primary_key()).col(text("document")).to_owned();
        manager.create_table(template).await
    }
}

/// Creates sandboxes, and create calls with an idempotency key.
struct First;

impl MigrationName for First {
    fn name(&self) -> &str {
        "m0001_sandboxes"
    }
}

#[async_trait::async_trait]
impl MigrationTrait for First {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager
            .create_table(
                Table::create()
                    .table("sandbox")
                    .col(string("id").primary_key())
                    .col(string("template_id"))
                    .col(string("template_alias"))
                    .col(string("standing"))
                    .col(big_integer_null("pid"))
                    .col(big_integer_null("start_time"))
                    .col(big_integer("started_at_us"))
                    .col(big_integer("end_at_us"))
                    .col(big_integer("lease_us"))
                    .col(big_integer("cpu_count"))
                    .col(big_integer("memory_mb"))
                    .col(big_integer("disk_mb"))
                    .col(big_integer("pids"))
                    .col(string_null("access_token"))
                    .col(string_null("traffic_token"))
                    .col(boolean_null("allow_internet"))
                    .col(string("on_timeout"))
                    .col(boolean("auto_resume"))
                    .col(text("metadata"))
                    .col(text("env_vars"))
                    .col(string_null("mcp"))
                    .col(string("boot_id"))
                    .to_owned(),
            )
            .await?;
        manager
            .create_table(
                Table::create()
                    .table("creation")
                    .col(string("key").primary_key())
                    .col(string("fingerprint"))
                    .col(big_integer("created_at_us"))
                    .col(string("sandbox_id"))
                    .col(string("template_id"))
                    .col(string("template_alias"))
                    .col(string_null("access_token"))
                    .col(string_null("traffic_token"))
                    .to_owned(),
            )
            .await
    }
}
