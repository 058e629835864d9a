//! The loop of a coding agent: think, act, observe, repeat, on whatever the seven tools work on.
//!
//! A [`Run`] asks a [`Model`] what to do, does it with a `ToolDispatcher`, tells the model what came of it, and goes on until
//! one of the [`StopReason`]s holds. Everything that happens is an [`Event`]; what a later process must know is written
//! to [`RunRecords`] before it is acted on, so that a run survives its process.
//!
//! Knows the tools and a small port to the workspace behind them ([`Workplace`]); nothing of sandboxes, servers or
//! terminals.
#![forbid(unsafe_code)]

pub mod approval;
mod books;
mod change;
mod event;
mod feed;
mod ledger;
mod message;
pub mod model;
mod on_workspace;
mod plan;
pub mod records;
mod run;
mod stop;
mod workplace;

pub use books::Books;
pub use change::{Change, Ended, Fact, Strikes};
pub use event::{Event, Happened, Image};
pub use feed::{Feed, Watcher};
pub use ledger::Ledger;
pub use message::{Block, Message, Part, Role, ToolOutcome, ToolUse};
pub use model::Model;
pub use on_workspace::OnWorkspace;
pub use plan::{Phase, Plan, Settings, system_prompt};
pub use records::{RunId, RunRecords};
pub use run::{Parts, Report, Run, RunError};
pub use stop::StopReason;
pub use workplace::{Committed, PlainWorkplace, Workplace, WorkplaceError};
