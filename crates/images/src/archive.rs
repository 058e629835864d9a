//! Images in a file: the output of `docker save`, or a tar archive of an OCI layout. Layers are
//! read in place.

use std::fs::File;
use std::path::{Path, PathBuf};

use unpack::{Contents, ImageConfig, ImageError, Layer, Unpacked};

use crate::unpacker::{self, Target};

/// An image in an archive on disk.
#[derive(Debug)]
pub struct ArchiveImage {
    path: PathBuf,
    contents: Contents,
}

impl ArchiveImage {
    /// Reads the manifest and the configuration of the archive at `path`. Blocks.
    ///
    /// # Errors
    /// [`ImageError::Malformed`], [`ImageError::Platform`], [`ImageError::Digest`] and
    /// [`ImageError::TooMany`] are the archive's fault; [`ImageError::Confinement`] and
    /// [`ImageError::Process`] say why no process could read it.
    pub fn open(path: &Path) -> Result<Self, ImageError> {
        let contents = unpacker::read_contents(open(path)?)?;
        Ok(Self { path: path.to_owned(), contents })
    }

    pub fn config(&self) -> &ImageConfig {
        &self.contents.config
    }

    /// Unpacks the image. When that fails, the content of the target is incomplete. Blocks.
    ///
    /// # Errors
    /// As [`ArchiveImage::open`], and [`ImageError::Hostile`], [`ImageError::TooLarge`] or
    /// [`ImageError::Io`].
    pub fn unpack(&self, target: &Target<'_>) -> Result<Unpacked, ImageError> {
        let layers = self.contents.layers.iter().zip(&self.contents.config.diff_ids);
        let layers = layers.map(|(place, id)| Layer { file: 0, place: Some(*place), diff_id: Some(id.clone()) });
        unpacker::unpack(layers.collect(), vec![open(&self.path)?], target)
    }
}

/// Unpacks a plain tree of files, compressed or not. Blocks.
///
/// # Errors
/// As [`ArchiveImage::unpack`].
pub fn unpack_files(archive: &Path, target: &Target<'_>) -> Result<Unpacked, ImageError> {
    let layers = vec![Layer { file: 0, place: None, diff_id: None }];
    unpacker::unpack(layers, vec![open(archive)?], target)
}

fn open(path: &Path) -> Result<File, ImageError> {
    File::open(path).map_err(ImageError::io("open the archive"))
}
