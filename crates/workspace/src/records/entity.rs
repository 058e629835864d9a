//! The rows of the database, the same on SQLite and Postgres. Times are microseconds since the
//! epoch, structured values are JSON texts, money is in billionths of a dollar.
#![expect(unreachable_pub, reason = "the derive macros refer to these as public")]

pub(super) mod workspace {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "workspace")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub name: String,
        pub project: String,
        pub provider: String,
        pub sandbox: Option<String>,
        pub state: String,
        pub paused: bool,
        pub template: Option<String>,
        pub created_at_us: i64,
        pub expires_at_us: i64,
        pub services: String,
        pub env: String,
        pub details: String,
    }

    /// Only the name: a row contains the values of variables.
    impl std::fmt::Debug for Model {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Model").field("name", &self.name).finish_non_exhaustive()
        }
    }

    database::plain_entity!();
}

/// A row stays when the lease is released, so that fencing numbers only grow.
pub(super) mod lease {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "lease")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub workspace: String,
        pub owner: String,
        pub fence: i64,
        /// 0 when it is released.
        pub until_us: i64,
    }

    database::plain_entity!();
}

/// A sandbox that no workspace record names.
pub(super) mod orphan {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "orphan")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub sandbox: String,
        pub provider: String,
        pub workspace: String,
        pub seen_at_us: i64,
        pub watched_us: i64,
    }

    database::plain_entity!();
}

pub(super) mod creation {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "usage_creation")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub id: String,
        pub at_us: i64,
        pub provider: String,
        pub project: String,
        pub job: Option<String>,
        pub sandbox: Option<String>,
    }

    database::plain_entity!();
}

pub(super) mod interval {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "usage_interval")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub provider: String,
        #[sea_orm(primary_key, auto_increment = false)]
        pub sandbox: String,
        #[sea_orm(primary_key, auto_increment = false)]
        pub started_at_us: i64,
        pub project: String,
        pub job: Option<String>,
        pub cpu_count: i64,
        pub memory_mb: i64,
        pub disk_mb: i64,
        pub until_us: i64,
        pub ended_at_us: Option<i64>,
    }

    database::plain_entity!();
}

pub(super) mod stored {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "usage_stored")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub project: String,
        #[sea_orm(primary_key, auto_increment = false)]
        pub at_us: i64,
        pub bytes: i64,
    }

    database::plain_entity!();
}

pub(super) mod tokens {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "usage_tokens")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub id: String,
        pub at_us: i64,
        pub project: String,
        pub job: Option<String>,
        pub model: String,
        pub input: i64,
        pub output: i64,
        pub cost_nanos: i64,
    }

    database::plain_entity!();
}

pub(super) mod warning {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "usage_warning")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub limit_name: String,
        #[sea_orm(primary_key, auto_increment = false)]
        pub period: String,
        #[sea_orm(primary_key, auto_increment = false)]
        pub percent: i64,
        pub at_us: i64,
    }

    database::plain_entity!();
}

pub(super) mod health {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "provider_health")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub provider: String,
        /// `healthy`, `failing`, `open` or `probing`.
        pub state: String,
        pub failures: i64,
        pub until_us: i64,
        pub rest_us: i64,
        pub reason: String,
        pub version: i64,
    }

    database::plain_entity!();
}
