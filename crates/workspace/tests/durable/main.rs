//! Workspaces against real servers: whatever happens to sandboxes, providers and processes, nothing that was acknowledged is
//! lost.

mod attended;
mod budget;
mod dies;
mod fallback;
mod killed;
#[path = "../shared/killing.rs"]
mod killing;
mod large;
mod leases;
mod life;
mod limits;
mod losses;
mod orphans;
mod paused_time;
mod processes;
mod projects;
mod rotation;
mod server_dies;
mod stores;
mod support;
#[path = "../shared/trees.rs"]
mod trees;
#[path = "../shared/troubled.rs"]
mod troubled;
