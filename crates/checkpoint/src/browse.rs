//! Reads checkpoints without a sandbox: their directories and files. Each query scans the manifest,
//! so that only the result is held in memory.

use std::ops::ControlFlow;
use std::pin::pin;

use futures::StreamExt;

use crate::Checkpoints;
use crate::archive;
use crate::key::{self, ProjectId, Stamp};
use crate::limits::ArchiveLimits;
use crate::listing::ManifestError;
use crate::manifest::{CheckpointManifest, FilePath, ManifestEntry, ManifestKind};
use crate::store::ObjectStoreError;

/// The most entries of a directory that are listed.
const MOST_LISTED: usize = 10_000;
/// The most bytes of their paths.
const MOST_PATH_BYTES: usize = 4 << 20;

/// Why a checkpoint cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BrowseError {
    #[error("there is no such snapshot")]
    NoCheckpoint,
    #[error("there is no such file in the snapshot")]
    NoFile,
    /// Longer than the caller accepts.
    #[error("the file has {bytes} bytes")]
    TooLong { bytes: u64 },
    #[error("the snapshot is damaged: {0}")]
    Damaged(String),
    #[error(transparent)]
    Store(ObjectStoreError),
}

impl From<ObjectStoreError> for BrowseError {
    fn from(error: ObjectStoreError) -> Self {
        match error {
            ObjectStoreError::NotFound { .. } => Self::NoCheckpoint,
            error => Self::Store(error),
        }
    }
}

impl From<ManifestError> for BrowseError {
    fn from(error: ManifestError) -> Self {
        match error {
            ManifestError::Store(error) => error.into(),
            ManifestError::Unreadable(reason) => Self::Damaged(reason),
        }
    }
}

/// The entries of a directory in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntries {
    /// In the archive's order.
    pub entries: Vec<ManifestEntry>,
    /// Whether there are more.
    pub truncated: bool,
}

/// The first bytes of a file in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileBeginning {
    pub content: Vec<u8>,
    /// The length of the whole file.
    pub bytes: u64,
}

struct DirectoryScan {
    found: Option<ManifestKind>,
    listed: DirectoryEntries,
    path_bytes: usize,
}

impl Checkpoints {
    /// The manifest of a checkpoint.
    ///
    /// # Errors
    /// [`BrowseError::NoCheckpoint`], [`BrowseError::Damaged`] or [`BrowseError::Store`].
    pub async fn open_manifest(&self, project: &ProjectId, stamp: Stamp) -> Result<CheckpointManifest, BrowseError> {
        Ok(self.manifest(project, stamp).await?)
    }

    /// The entries of a directory in a checkpoint: at most 10,000 entries or 4 MiB of paths.
    ///
    /// # Errors
    /// [`BrowseError::NoFile`], [`BrowseError::Damaged`] or [`BrowseError::Store`].
    pub async fn directory(
        &self,
        manifest: &CheckpointManifest,
        path: &FilePath,
    ) -> Result<DirectoryEntries, BrowseError> {
        let directory = path.as_bytes().to_vec();
        let listed = DirectoryEntries { entries: Vec::new(), truncated: false };
        let state = DirectoryScan { found: None, listed, path_bytes: 0 };
        let take = move |state: &mut DirectoryScan, entry: ManifestEntry| {
            let path = entry.path.as_bytes();
            if path == directory {
                state.found = Some(entry.kind);
                return ControlFlow::Continue(());
            }
            let name = path.strip_prefix(&directory[..]).and_then(|rest| rest.strip_prefix(b"/"));
            if name.is_none_or(|name| name.contains(&b'/')) {
                return ControlFlow::Continue(());
            }
            state.path_bytes += path.len();
            if state.listed.entries.len() >= MOST_LISTED || state.path_bytes > MOST_PATH_BYTES {
                state.listed.truncated = true;
            } else {
                state.listed.entries.push(entry);
            }
            // A directory precedes its entries.
            if state.listed.truncated && state.found.is_some() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let (_, state) = self.scan(&manifest.project, manifest.stamp, state, take).await?;
        match state.found {
            Some(ManifestKind::Directory) => Ok(state.listed),
            _ => Err(BrowseError::NoFile),
        }
    }

    /// The first `most` bytes of a file in a checkpoint, which may have at most `longest` bytes.
    /// Reads the archive until the file is found, and verifies the file against the digest in the
    /// manifest.
    ///
    /// # Errors
    /// [`BrowseError::NoFile`], [`BrowseError::TooLong`], [`BrowseError::Damaged`] or
    /// [`BrowseError::Store`].
    pub async fn file(
        &self,
        manifest: &CheckpointManifest,
        path: &FilePath,
        longest: u64,
        most: usize,
    ) -> Result<FileBeginning, BrowseError> {
        let wanted = path.clone();
        let take = move |found: &mut Option<ManifestKind>, entry: ManifestEntry| match entry.path == wanted {
            true => {
                *found = Some(entry.kind);
                ControlFlow::Break(())
            }
            false => ControlFlow::Continue(()),
        };
        let (_, found) = self.scan(&manifest.project, manifest.stamp, None, take).await?;
        let kind = found.ok_or(BrowseError::NoFile)?;
        let (bytes, sha256) = kind.content().ok_or(BrowseError::NoFile)?;
        // The content of a hard link is stored with the first entry that shares it.
        let place = match kind {
            ManifestKind::HardLink { to, .. } => to,
            _ => path.clone(),
        };
        if bytes > longest {
            return Err(BrowseError::TooLong { bytes });
        }
        let _reader = self.readers.acquire().await.expect("it is never closed");
        let (sender, feed) = archive::feed_stored();
        let limits = ArchiveLimits::for_disk(manifest.bytes.max(manifest.archive.bytes));
        let found = tokio::task::spawn_blocking(move || archive::find(feed, &limits, place.as_bytes(), most));
        let mut pieces =
            pin!(self.objects.read(key::archive(&manifest.project, manifest.stamp), manifest.archive.bytes));
        while let Some(piece) = pieces.next().await {
            // The reader stops once it has found the file.
            if sender.send(piece?).await.is_err() {
                break;
            }
        }
        drop(sender);
        let damaged = |reason: String| BrowseError::Damaged(reason);
        let found = found.await.map_err(|error| damaged(error.to_string()))?;
        let (content, found) = found.map_err(|error| damaged(error.to_string()))?.ok_or(BrowseError::NoFile)?;
        if found != sha256 {
            return Err(damaged("a file is not what its manifest says".to_owned()));
        }
        Ok(FileBeginning { content, bytes })
    }
}
