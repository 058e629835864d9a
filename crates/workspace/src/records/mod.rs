//! State that outlives the process: workspaces, leases, usage, and health of providers. In memory
//! for tests, in SQLite on one machine, in Postgres for a team.

mod database;
mod entity;
mod memory;
mod migration;
mod model;
mod orphans;
mod port;
mod usage;
mod workspaces;

pub use database::DatabaseRecords;
pub use memory::MemoryRecords;
pub use model::{
    Creation, Health, Interval, Lease, OrphanRecord, Payer, Size, Stored, TokenUsage, Tokens, UsageQuery, UsageRows,
    Warning, WorkspaceRecord, WorkspaceState,
};
pub use port::{
    HealthRecords, LeaseError, Leases, OrphanRecords, RecordChangeError, Records, RecordsError, UsageRecords,
    WorkspaceRecords,
};
