//! What outlives the process: workspaces, who may act on them, what was used, how providers are doing. In memory for
//! tests, in SQLite on one machine, in Postgres for a team.

mod database;
mod entity;
mod memory;
mod migration;
mod model;
mod port;
mod usage;
mod workspaces;

pub use database::DatabaseRecords;
pub use memory::MemoryRecords;
pub use model::{
    Creation, Health, Interval, Lease, Payer, Size, Spoken, Stored, Tokens, UsageQuery, UsageRows, Warning,
    WorkspaceRecord, WorkspaceState,
};
pub use port::{ChangeError, HealthRecords, LeaseError, Leases, Records, RecordsError, UsageRecords, WorkspaceRecords};
