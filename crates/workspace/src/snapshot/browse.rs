//! Looks into snapshots without a sandbox: what is in one, and what a file in it holds.

use std::io::Read;
use std::pin::pin;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use futures::StreamExt;

use super::Snapshots;
use super::archive::feed;
use super::digest::Digest;
use super::key::{self, ProjectId, Stamp};
use super::listing::ManifestError;
use super::manifest::{FilePath, Kind, Manifest};
use super::store::StoreError;

/// What cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum BrowseError {
    #[error("there is no such snapshot")]
    NoSnapshot,
    #[error("there is no such file in the snapshot")]
    NoFile,
    /// Longer than the reader wants.
    #[error("the file has {bytes} bytes")]
    TooLong { bytes: u64 },
    #[error("the snapshot is damaged: {0}")]
    Damaged(String),
    #[error(transparent)]
    Store(StoreError),
}

impl From<StoreError> for BrowseError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotFound { .. } => Self::NoSnapshot,
            error => Self::Store(error),
        }
    }
}

impl Snapshots {
    /// What is in a snapshot.
    ///
    /// # Errors
    /// [`BrowseError::NoSnapshot`], or it cannot be read.
    pub async fn look_into(&self, project: &ProjectId, stamp: Stamp) -> Result<Manifest, BrowseError> {
        self.manifest(project, stamp).await.map_err(|error| match error {
            ManifestError::Store(error) => error.into(),
            ManifestError::Unreadable(reason) => BrowseError::Damaged(reason),
        })
    }

    /// A file of a snapshot, of `longest` bytes at most. The archive is read up to it, and what is found must have the digest that
    /// the manifest has.
    ///
    /// # Errors
    /// [`BrowseError::NoFile`], [`BrowseError::TooLong`], or it cannot be read.
    pub async fn file(&self, manifest: &Manifest, path: &FilePath, longest: u64) -> Result<Bytes, BrowseError> {
        let entry = manifest.entries.iter().find(|entry| entry.path == *path).ok_or(BrowseError::NoFile)?;
        let (bytes, sha256) = entry.kind.content().ok_or(BrowseError::NoFile)?;
        // A link's content stands where it was first met.
        let place = match &entry.kind {
            Kind::HardLink { to, .. } => to.clone(),
            _ => path.clone(),
        };
        if bytes > longest {
            return Err(BrowseError::TooLong { bytes });
        }
        let (sender, archive) = feed();
        let found = tokio::task::spawn_blocking(move || find(archive, &place));
        let mut pieces =
            pin!(self.objects.read(key::archive(&manifest.project, manifest.stamp), manifest.archive.bytes));
        while let Some(piece) = pieces.next().await {
            // Whoever reads has what it wants.
            if sender.send(piece?).await.is_err() {
                break;
            }
        }
        drop(sender);
        let damaged = |reason: String| BrowseError::Damaged(reason);
        let found = found.await.map_err(|error| damaged(error.to_string()))?;
        let content = found.map_err(|error| damaged(error.to_string()))?.ok_or(BrowseError::NoFile)?;
        if Digest::of(&content) != sha256 {
            return Err(damaged("a file is not what its manifest says".to_owned()));
        }
        Ok(content.into())
    }
}

/// Blocks.
fn find(archive: impl Read, path: &FilePath) -> std::io::Result<Option<Vec<u8>>> {
    let mut archive = tar::Archive::new(MultiGzDecoder::new(archive));
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = entry.path_bytes().into_owned();
        if name.strip_prefix(b"./").unwrap_or(&name) == path.as_bytes() {
            let mut content = Vec::new();
            entry.read_to_end(&mut content)?;
            return Ok(Some(content));
        }
    }
    Ok(None)
}
