//! The database rows, the same on SQLite and Postgres. Times are microseconds since the epoch,
//! structured values are JSON text, money is in billionths of a dollar.
#![expect(unreachable_pub, reason = "the derive macros refer to these as public")]

pub(super) mod user {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "studio_user")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub id: String,
        pub name: String,
        pub created_at_us: i64,
        /// Incremented by every change of the user's credits, tokens or sessions, to serialise
        /// them.
        pub turn: i64,
    }

    database::plain_entity!();
}

pub(super) mod token {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "studio_token")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub digest: String,
        #[sea_orm(column_name = "owner")]
        pub user: String,
        pub created_at_us: i64,
    }

    database::plain_entity!();
}

pub(super) mod session {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "studio_session")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub digest: String,
        #[sea_orm(column_name = "owner")]
        pub user: String,
        pub created_at_us: i64,
        pub expires_at_us: i64,
    }

    database::plain_entity!();
}

pub(super) mod credit {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "studio_credit")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub id: String,
        #[sea_orm(column_name = "owner")]
        pub user: String,
        pub at_us: i64,
        pub change: i64,
        pub reason: String,
        pub job: Option<String>,
    }

    database::plain_entity!();
}

pub(super) mod project {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "studio_project")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub id: String,
        #[sea_orm(column_name = "owner")]
        pub user: String,
        pub name: String,
        pub created_at_us: i64,
        /// The last build version that was assigned.
        pub builds: i64,
    }

    database::plain_entity!();
}

pub(super) mod job {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "studio_job")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub id: String,
        pub project: String,
        #[sea_orm(column_name = "owner")]
        pub user: String,
        pub goal: String,
        pub spec: String,
        pub model: String,
        pub status: String,
        pub stage_label: String,
        pub created_at_us: i64,
        pub finished_at_us: Option<i64>,
        pub build_version: i64,
        pub workspace: String,
        pub workspace_path: String,
        pub begins_from: Option<String>,
        pub rebuilt_from: Option<String>,
        pub sandbox_id: Option<String>,
        pub sandbox_paused: bool,
        pub sandbox_expires_at_us: Option<i64>,
        pub preview_url: Option<String>,
        pub preview_port: Option<i32>,
        pub cost_nanos: i64,
        pub error_message: Option<String>,
        pub run: Option<String>,
        pub run_entries: i64,
        pub attempt: i64,
        pub claim: Option<String>,
        pub lease_until_us: i64,
        pub cancel_asked: bool,
        pub settled: bool,
        pub events: i64,
        pub restore_to: Option<String>,
        pub deleted: bool,
        pub broken_off: i64,
        pub watched: bool,
        pub preview_loaded: bool,
        /// The process that has the lease.
        pub lease_owner: Option<String>,
    }

    database::plain_entity!();
}

pub(super) mod event {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "studio_event")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub job: String,
        #[sea_orm(primary_key, auto_increment = false)]
        pub seq: i64,
        pub at_us: i64,
        pub body: String,
    }

    database::plain_entity!();
}

pub(super) mod screenshot {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "studio_screenshot")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub id: String,
        pub job: String,
        pub device: String,
        pub width: i32,
        pub height: i32,
        pub taken_at_us: i64,
        pub reason: String,
        pub media_type: String,
        pub content: Vec<u8>,
    }

    database::plain_entity!();
}
