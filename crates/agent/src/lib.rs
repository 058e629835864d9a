//! The loop of a coding agent: think, act, observe, repeat, on top of the seven tools.
//!
//! A [`Run`] asks a [`Model`] for the next step, calls tools with a `ToolDispatcher`, sends the
//! results to the model, and continues until a [`StopReason`] applies. Everything that happens is
//! an [`Event`]. Facts that a later process needs are written to [`RunRecords`] before they take
//! effect, so that a run survives a crash.
//!
//! The crate knows the tools and a small port to the workspace behind them ([`Checkpointer`]);
//! nothing of sandboxes, servers or terminals.
#![forbid(unsafe_code)]

pub mod approval;
mod change;
mod checkpoint;
mod event;
mod feed;
mod message;
pub mod model;
mod plan;
pub mod records;
mod run;
mod stop;
mod usage;
mod work_summary;
mod workspace;

pub use self::workspace::{WorkspaceCheckpointer, WorkspaceSandbox, workspace_tools};
pub use change::{Change, Fact, FinishedCall, Strikes};
pub use checkpoint::{CheckpointError, Checkpointer, NoCheckpoints, PhaseCheckpoint};
pub use event::{Event, Happened, Image};
pub use feed::{Feed, Watcher};
pub use message::{Block, Message, Part, Role, ToolOutcome, ToolUse};
pub use model::Model;
pub use plan::{Plan, PlanPhase, Settings, system_prompt};
pub use records::{RunId, RunRecords};
pub use run::{Parts, Report, Run, RunError};
pub use stop::StopReason;
pub use usage::UsageRecorder;
pub use work_summary::WorkSummary;
