//! Text on its way to a model: bytes made readable, escape codes taken out, and the middle cut when there is too much.

mod clean;
mod decode;
mod notice;
mod truncate;

pub use clean::{collapse_repeats, fold_overwrites, strip_escapes};
pub use notice::{Producer, Provenance, Saved};
pub use truncate::{Ended, Truncated, Truncation, truncate};

pub(crate) use decode::readable;
