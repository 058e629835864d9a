//! Fuzz targets for the edges that read hostile bytes.
//!
//! A target is a function of bytes that panics when a property is violated: the parser neither
//! panics nor reads beyond its input, its result does not depend on how bytes arrive, and decisions
//! agree with what the other end decides. The functions are next to the code, in the module
//! `fuzzing` of each crate; [`TARGETS`] lists them.
//!
//! ```text
//! corpus/NAME/* ─► tests/corpus.rs      replay, then mutation without coverage: `./dev test`
//!              └─► fuzz_targets/NAME.rs libFuzzer with coverage: `./dev fuzz`, `cargo fuzz run`
//! ```

mod archives;
mod blind;
mod mutation;
mod sys;
mod target;

pub use blind::{Report, replay, run};
pub use sys::CountingAllocator;
pub use target::{TARGETS, Target, find};
