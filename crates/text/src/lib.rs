//! Text of programs and files as a model reads and changes it: decoded, freed of escape codes, cut
//! in the middle, edited by search and replace, and compared; and errors as one line.

mod clean;
mod decode;
pub mod diff;
pub mod edit;
pub mod encoding;
mod error;
mod truncate;

pub use clean::{collapse_repeats, fold_overwrites, strip_escapes};
pub use decode::readable;
pub use error::error_chain;
pub use truncate::{Cut, ExitKind, Truncated, Truncation, truncate};
