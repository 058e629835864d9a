//! What a workspace is made of, each part against real sandboxes: set-up, dev servers, phase commits.

mod devserver;
mod directory;
mod phase;
mod remote;
mod resumed;
mod support;
