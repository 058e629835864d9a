//! Records of sandboxes: SQLite in the data directory.

mod entity;
mod migration;
mod seal;
mod sqlite;

pub use sqlite::SqliteRecords;
