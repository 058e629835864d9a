//! Snapshots against real sandboxes and real stores: what is saved comes back, whatever happens in between.

mod damage;
mod killed;
mod roundtrip;
mod stores;
mod support;
mod trouble;
mod troubled;
