//! What outlives the process of a run: its plan, where it stands, and every event with the change it made. In memory for
//! tests, in SQLite or Postgres beside the records of workspaces.

mod database;
mod entity;
mod memory;
mod migration;
mod picture;
mod port;

pub use database::DatabaseRunRecords;
pub use memory::MemoryRunRecords;
pub use picture::{Picture, picture};
pub use port::{AppendError, Entry, Head, InvalidRunId, RunId, RunRecord, RunRecords, RunRecordsError, RunState};
