//! Workspaces against real servers: whatever happens to sandboxes, providers and processes, nothing that was acknowledged is
//! lost.

mod attended;
mod budget;
mod dies;
mod fallback;
mod killed;
mod large;
mod leases;
mod life;
mod limits;
mod paused_time;
mod processes;
mod projects;
mod rotation;
mod stores;
mod support;
#[path = "../snapshots/troubled.rs"]
mod troubled;
