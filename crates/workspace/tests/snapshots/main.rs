//! Snapshots against real sandboxes and real stores: what is saved comes back, whatever happens in between.

mod bounds;
mod damage;
mod killed;
#[path = "../shared/killing.rs"]
mod killing;
mod roundtrip;
mod stores;
mod support;
#[path = "../shared/trees.rs"]
mod trees;
mod trouble;
#[path = "../shared/troubled.rs"]
mod troubled;
