//! Builds as a service: a user asks for an application, a worker has an agent build it in a workspace of its own, and the
//! preview sleeps when it is done and wakes on a click.
//!
//! Knows the agent and workspaces; nothing of terminals, engines or browsers: the program gives it a [`Premises`].
#![forbid(unsafe_code)]

mod body;
mod builds;
mod credentials;
mod error;
mod files;
mod id;
mod job;
mod looks;
mod observer;
mod premises;
mod previews;
pub mod records;
pub mod rest;
mod seat;
mod settings;
mod studio;
mod terminal;
mod timeline;
pub mod token;
mod view;
mod worker;

use workspace::chain;

pub use error::{REBUILD_QUESTION, StudioError};
pub use id::{InvalidId, JobId, ProjectId, ScreenshotId, UserId};
pub use job::{Job, NewBuild, ProjectRef, Refused, Status, Step, next};
pub use premises::{Chosen, NoPicture, Picture, Premises};
pub use settings::Settings;
pub use studio::Studio;
pub use terminal::{Terminal, TerminalInput, TerminalOutput};
pub use view::{
    Dashboard, FileContent, FileEntry, FileKind, FileSource, Listing, PictureFile, PlanUse, PreviewCheck, PreviewState,
    Project, Resumed, Screenshot, SnapshotView, TimelineEvent, Totals, UsageLine, UsageReport, User,
};
pub use worker::work;
