//! Rows of the database, the same on SQLite and Postgres. Times are microseconds since the epoch,
//! structured values are JSON, money is billionths of a dollar.
#![expect(unreachable_pub, reason = "the derive macros refer to these as public")]

pub(super) mod run {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "agent_run")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub id: String,
        pub plan: String,
        pub created_at_us: i64,
        pub state: String,
        pub stop_reason: Option<String>,
        pub turns: i64,
        pub usage: String,
        pub cost_nanos: i64,
        pub seen_at_us: i64,
        pub cancel_asked: bool,
        pub entries: i64,
    }

    database::plain_entity!();
}

pub(super) mod entry {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "agent_entry")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub run: String,
        #[sea_orm(primary_key, auto_increment = false)]
        pub number: i64,
        pub entry: String,
    }

    database::plain_entity!();
}

pub(super) mod answer {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "agent_answer")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub run: String,
        #[sea_orm(primary_key, auto_increment = false)]
        pub call: String,
        pub allowed: bool,
        pub reason: Option<String>,
    }

    database::plain_entity!();
}
