//! The seven tools of a coding agent, behind one dispatcher.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use sandbar_tools::{InMemoryToolDispatcher, ToolDispatcher};
//! use serde_json::json;
//!
//! let tools = InMemoryToolDispatcher::new();
//! let written = tools.dispatch("write_file", json!({ "path": "notes.txt", "content": "buy bread\n" })).await;
//! assert_eq!(written.text(), "Created /home/user/notes.txt (1 line, 10 bytes).");
//! let run = tools.dispatch("bash", json!({ "command": "cat notes.txt" })).await;
//! assert_eq!(run.text(), "buy bread\n[exit 0]");
//! # });
//! ```

mod capture;
mod definitions;
mod diagnosis;
mod diff;
mod dispatch;
mod edit;
mod encoding;
mod image;
mod input;
mod ledger;
mod live;
mod memory;
mod paths;
mod port;
mod quote;
mod result;
mod sandbox;
mod screenshots;
mod search;
pub mod text;
mod tools;

pub use definitions::{Annotations, Definition, NAMES, definitions};
pub use dispatch::{OverwriteGuard, Progress, ToolDispatcher, Watch};
pub use live::Said;
pub use memory::{InMemoryToolDispatcher, Step};
pub use port::Stream;
pub use result::{Block, ErrorCode, Image, ToolResult};
pub use sandbox::SandboxToolDispatcher;
pub use screenshots::{Capture, CaptureError, Screenshots, Shot, Shots};
