//! The contract of the records, on memory, SQLite and a real Postgres.

mod contract;
mod files;
mod stores;
