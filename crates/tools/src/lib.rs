//! The seven tools of a coding agent, behind one dispatcher. They work on any E2B sandbox, on
//! whatever a [`SandboxSource`] provides, or for tests in memory, with the feature `testing`.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use sandbar_tools::{InMemoryToolDispatcher, ToolDispatcher};
//! use serde_json::json;
//!
//! let tools = InMemoryToolDispatcher::new();
//! let input = json!({ "path": "notes.txt", "content": "buy bread\n" });
//! let written = tools.dispatch("write_file", input).await;
//! assert_eq!(written.text(), "Created /home/user/notes.txt (1 line, 10 bytes).");
//! let run = tools.dispatch("bash", json!({ "command": "cat notes.txt" })).await;
//! assert_eq!(run.text(), "buy bread\n[exit 0]");
//! # });
//! ```

mod definitions;
mod diagnosis;
mod dispatch;
mod file_cache;
mod image;
mod input;
mod live_output;
mod mask;
#[cfg(feature = "testing")]
mod memory;
mod notice;
mod output_buffer;
mod paths;
mod port;
mod quote;
mod result;
mod sandbox;
mod screenshots;
mod search;
mod structured;
mod tools;

pub use definitions::{Annotations, Definition, NAMES, definitions};
pub use dispatch::{OverwriteGuard, Progress, ToolDispatcher, Watch};
pub use live_output::OutputChunk;
#[cfg(feature = "testing")]
pub use memory::{InMemoryToolDispatcher, Step};
pub use notice::{Producer, Provenance, Saved};
pub use port::{Stream, Survivor};
pub use result::{Block, ErrorCode, Image, ToolResult};
pub use sandbox::{AcquireError, LeaseGuard, SandboxLease, SandboxSource, SandboxToolDispatcher};
pub use screenshots::{Screenshot, ScreenshotError, ScreenshotProvider, ScreenshotRequest, ScreenshotSet};
pub use structured::{
    BackgroundTask, BashOutput, CallFacts, CapturedOutput, DirectoryPage, EditFileOutput, EndedTask, ErrorFact,
    FailureFacts, ForegroundEnd, GlobOutput, GrepMatch, GrepMode, GrepOutput, ImageFacts, ReadContent, ReadFileOutput,
    ScreenshotFacts, ShellRestarted, ShownImage, SkippedFiles, StructuredResult, TakeScreenshotOutput, TextPage,
    ToolOutput, WriteFileOutput,
};
