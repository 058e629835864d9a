//! Container images: fetches them and turns their layers into a tree of files.
//!
//! This crate fetches images and checks their digests. A confined process, one per image
//! (`unpacker`), reads archives, decompresses layers and writes the tree: of an image, only the
//! manifest and the configuration of a registry are parsed here. Knows nothing of sandboxes.
#![forbid(unsafe_code)]

mod archive;
mod registry;
#[cfg(test)]
mod tests;
mod unpacker;

pub use archive::{ArchiveImage, unpack_files};
pub use registry::{Credentials, IsPublic, Mirrors, RegistryImage};
pub use unpack::{ImageConfig, ImageError, Limits, Owners, Unpacked};
pub use unpacker::{Alive, Target, cancellation, try_unpacker};
