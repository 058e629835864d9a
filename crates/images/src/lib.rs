//! Container images: where they come from, what they are, and how their layers become a tree of files.
//!
//! Nothing that an image holds is trusted. Names are followed by the kernel with the tree as their root, digests are checked, sizes are
//! bounded, and nothing of it is run here. Knows nothing of sandboxes.
#![forbid(unsafe_code)]

mod archive;
mod config;
mod error;
mod layer;
mod manifest;
mod registry;
mod remove;
#[cfg(test)]
mod tests;
mod unpack;

pub use archive::{ArchiveImage, unpack_files};
pub use config::ImageConfig;
pub use error::ImageError;
pub use registry::{Credentials, IsPublic, Mirrors, RegistryImage};
pub use unpack::{Limits, Owners, Unpacked};
