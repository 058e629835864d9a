//! Persistent state of runs: the plan, the progress, and every event with its change. In
//! SQLite or Postgres, beside the records of workspaces.

mod database;
mod entity;
mod image;
mod migration;
mod port;

pub use database::DatabaseRunRecords;
pub use image::{StoredImage, load_image};
pub use port::{
    AppendError, Head, InvalidRunId, JournalEntry, RunId, RunRecord, RunRecords, RunRecordsError, RunState,
};
