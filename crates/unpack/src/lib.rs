//! Reads archives of container images and unpacks their layers into a tree of files.
//!
//! Nothing that an image holds is trusted. Names are followed by the kernel with the tree as their
//! root, digests are checked, sizes are bounded, and nothing of it is run. All of it happens in a
//! confined process (see [`launcher::confined`]), whose program this crate is: the server sends a
//! [`Request`] with open files and a directory, and gets an [`Answer`], which it does not trust
//! either. Knows nothing of registries and sandboxes.

mod archive;
mod config;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod layer;
mod manifest;
mod program;
mod remove;
mod request;
mod sys;
#[cfg(test)]
mod tests;
mod tree;

#[cfg(test)]
testing::in_namespaces!();

pub use archive::{Contents, Place};
pub use config::{ImageConfig, MOST_BYTES, architecture, digest, written};
pub use error::ImageError;
pub use manifest::{DEEPEST, Descriptor, Index, Manifest, is_index, parse};
pub use program::{EXHAUSTED, PANICKED, main};
pub use request::{Answer, Completed, Failure, Layer, MOST_ANSWER, Request};
pub use sys::ExitWhenExhausted;
pub use tree::{Limits, Owners, Unpacked};
