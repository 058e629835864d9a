//! Builds as a service: a user asks for an application, a worker lets an agent build it in a
//! workspace of its own, and the sandbox is paused when the build is ready and resumed on request.
//!
//! The studio knows agents and workspaces. It does not know terminals, engines or browsers: the
//! program supplies a [`StudioHost`].
#![forbid(unsafe_code)]

mod builds;
mod credentials;
mod error;
mod events;
mod files;
mod host;
mod id;
mod job;
mod new_build;
mod observer;
mod previews;
mod probe;
mod queries;
pub mod records;
pub mod rest;
mod settings;
mod studio;
mod terminal;
mod text;
mod timeline;
pub mod token;
mod view;
mod worker;

pub use error::{REBUILD_QUESTION, StudioError};
pub use events::{EventBody, EventImage, StudioEvent, TimelineEvent, TimelineEventKind};
pub use host::{CapturedScreenshot, ChosenModel, ScreenshotFailed, StudioHost};
pub use id::{InvalidId, JobId, ProjectId, ScreenshotId, UserId};
pub use job::{JobStep, Status, StepRefused, next};
pub use new_build::NewBuild;
pub use settings::Settings;
pub use studio::Studio;
pub use terminal::{Terminal, TerminalInput, TerminalOutput};
pub use view::{
    Dashboard, FileContent, FileEntry, FileKind, FileSource, Job, Listing, Me, PlanUse, PreviewCheck, PreviewState,
    Project, ResumedPreview, ScreenshotFile, ScreenshotView, SnapshotView, Totals, UsageLine, UsageReport, User,
};
pub use worker::work;
