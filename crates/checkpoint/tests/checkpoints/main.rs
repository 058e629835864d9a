//! Checkpoints against real sandboxes and real stores: saved files are restored, whatever fails in
//! between.

mod bounds;
mod damage;
mod disk_faults;
mod killed;
mod roundtrip;
mod store_faults;
mod stores;
mod support;
