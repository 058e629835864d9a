//! Rows of the database. Times are microseconds since the epoch, maps are JSON texts.
#![expect(unreachable_pub, reason = "the derive macros refer to these as public")]

pub(super) mod sandbox {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "sandbox")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub id: String,
        pub template_id: String,
        pub template_alias: String,
        /// `running`, `paused_memory` or `paused_files`.
        pub standing: String,
        pub pid: Option<i64>,
        pub start_time: Option<i64>,
        pub started_at_us: i64,
        pub end_at_us: i64,
        pub lease_us: i64,
        pub cpu_count: i64,
        pub memory_mb: i64,
        pub disk_mb: i64,
        pub pids: i64,
        pub access_token: Option<String>,
        pub traffic_token: Option<String>,
        pub allow_internet: Option<bool>,
        /// `kill`, `pause_memory` or `pause_files`.
        pub on_timeout: String,
        pub auto_resume: bool,
        pub metadata: String,
        pub env_vars: String,
        pub mcp: Option<String>,
        pub boot_id: String,
        /// The template's defaults; absent in rows of versions without templates.
        pub defaults: Option<String>,
        /// Its egress rules; absent in rows of versions without rules.
        pub egress: Option<String>,
        /// Its volumes; absent in rows of versions without volumes.
        pub volumes: Option<String>,
        /// Its ingress settings; absent in rows of versions without them.
        pub ingress: Option<String>,
    }

    database::plain_entity!();
}

/// Templates, each as one JSON document.
pub(super) mod template {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "template")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub id: String,
        pub document: String,
    }

    database::plain_entity!();
}

/// Volumes.
pub(super) mod volume {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "volume")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub id: String,
        pub name: String,
        pub token: String,
        pub files: String,
    }

    database::plain_entity!();
}

/// Secrets, with encrypted values.
pub(super) mod secret {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "secret")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub id: String,
        pub name: String,
        pub sealed: Vec<u8>,
        pub version: i64,
        pub metadata: String,
        pub created_at_us: i64,
        pub updated_at_us: i64,
    }

    database::plain_entity!();
}

/// Cached states of files that builds start from.
pub(super) mod layer {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "layer")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub key: String,
        pub files: String,
        pub used_at_us: i64,
    }

    database::plain_entity!();
}

/// Create calls with an idempotency key, and their answers.
pub(super) mod creation {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "creation")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub key: String,
        pub fingerprint: String,
        pub created_at_us: i64,
        pub sandbox_id: String,
        pub template_id: String,
        pub template_alias: String,
        pub access_token: Option<String>,
        pub traffic_token: Option<String>,
    }

    database::plain_entity!();
}
