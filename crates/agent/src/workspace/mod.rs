//! A workspace as the loop and the tools see it: where calls run, and what a phase is saved in.

mod checkpointer;
mod sandbox;

pub use checkpointer::WorkspaceCheckpointer;
pub use sandbox::{WorkspaceSandbox, workspace_tools};
