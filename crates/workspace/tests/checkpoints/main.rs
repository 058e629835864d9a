//! Checkpoints against real sandboxes and real stores: saved files are restored, whatever fails in
//! between.

mod bounds;
mod damage;
mod disk_faults;
#[path = "../shared/faulty_store.rs"]
mod faulty_store;
mod killed;
#[path = "../shared/killing.rs"]
mod killing;
mod roundtrip;
mod store_faults;
mod stores;
mod support;
#[path = "../shared/trees.rs"]
mod trees;
