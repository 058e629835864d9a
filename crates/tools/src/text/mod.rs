//! Prepares text for a model: decodes bytes, removes escape codes, and cuts the middle of long
//! texts.

mod clean;
mod decode;
mod notice;
mod truncate;

pub use clean::{collapse_repeats, fold_overwrites, strip_escapes};
pub use notice::{Producer, Provenance, Saved};
pub use truncate::{ExitKind, Truncated, Truncation, truncate};

pub(crate) use decode::readable;
