//! The seven tools of a coding agent.
mod edit;
mod encoding;
mod input;
mod paths;
mod quote;
mod result;
pub mod text;
pub use result::{Block, ErrorCode, ToolResult};
