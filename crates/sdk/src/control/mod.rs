//! The control plane: sandboxes, templates, snapshots, volumes and secrets, by id.

mod attach;
mod capabilities;
mod create;
mod fork;
mod life;
mod list;
mod logs;
mod metrics;
mod network;
mod pages;
mod query;
mod request;
pub mod secrets;
mod snapshot;
pub mod templates;
mod trash;
pub mod volumes;

pub use create::{Create, CreateError};
pub use fork::{Fork, ForkError};
pub use life::{Connect, Inspection, Pause, PauseOutcome, Resume, SandboxError};
pub use list::{ListQuery, Order, SandboxPage};
pub use logs::LogQuery;
pub use metrics::TimeRange;
pub use snapshot::{NewSnapshot, SnapshotQuery};
