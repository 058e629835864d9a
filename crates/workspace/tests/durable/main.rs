//! Workspaces against real servers: failures of sandboxes, providers and processes lose nothing
//! that was acknowledged.

mod budget;
mod dies;
mod fallback;
mod killed;
mod large;
mod leases;
mod life;
mod limits;
mod losses;
mod maintenance;
mod orphans;
mod paused_time;
mod processes;
mod projects;
mod rotation;
mod server_dies;
mod stores;
mod support;
