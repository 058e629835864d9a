//! The parts of a workspace, each against real sandboxes: setup, dev servers, phase commits.

mod devserver;
mod directory;
mod phase;
mod remote;
mod resumed;
mod support;
