//! Looks into snapshots without a sandbox: what is in one, and what a file in it holds. The manifest is read through for
//! every look, so that no more of it is in memory than what was asked for.

use std::ops::ControlFlow;
use std::pin::pin;

use futures::StreamExt;

use super::Snapshots;
use super::archive;
use super::key::{self, ProjectId, Stamp};
use super::limits::ArchiveLimits;
use super::listing::ManifestError;
use super::manifest::{Entry, FilePath, Kind, Manifest};
use super::store::StoreError;

/// Entries of a directory that are listed.
const MOST_LISTED: usize = 10_000;
/// And the bytes of their paths.
const MOST_PATH_BYTES: usize = 4 << 20;

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

impl From<ManifestError> for BrowseError {
    fn from(error: ManifestError) -> Self {
        match error {
            ManifestError::Store(error) => error.into(),
            ManifestError::Unreadable(reason) => Self::Damaged(reason),
        }
    }
}

/// What is in a directory of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntries {
    /// In the archive's order.
    pub entries: Vec<Entry>,
    /// There are more.
    pub truncated: bool,
}

/// The beginning of a file of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileBeginning {
    pub content: Vec<u8>,
    /// Of the whole file.
    pub bytes: u64,
}

struct Looking {
    found: Option<Kind>,
    listed: DirectoryEntries,
    path_bytes: usize,
}

impl Snapshots {
    /// What a snapshot says of itself.
    ///
    /// # Errors
    /// [`BrowseError::NoSnapshot`], or it cannot be read.
    pub async fn look_into(&self, project: &ProjectId, stamp: Stamp) -> Result<Manifest, BrowseError> {
        Ok(self.manifest(project, stamp).await?)
    }

    /// What is in a directory of a snapshot: the first 10,000 entries, or 4 MiB of paths.
    ///
    /// # Errors
    /// [`BrowseError::NoFile`], or it cannot be read.
    pub async fn directory(&self, manifest: &Manifest, path: &FilePath) -> Result<DirectoryEntries, BrowseError> {
        let directory = path.as_bytes().to_vec();
        let listed = DirectoryEntries { entries: Vec::new(), truncated: false };
        let state = Looking { found: None, listed, path_bytes: 0 };
        let take = move |state: &mut Looking, entry: Entry| {
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
            // The directory itself comes before what is in it.
            if state.listed.truncated && state.found.is_some() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let (_, state) = self.scan(&manifest.project, manifest.stamp, state, take).await?;
        match state.found {
            Some(Kind::Directory) => Ok(state.listed),
            _ => Err(BrowseError::NoFile),
        }
    }

    /// The first `most` bytes of a file of a snapshot, which has `longest` bytes at most. The archive is read up to its
    /// end, and what is found must have the digest that the manifest has.
    ///
    /// # Errors
    /// [`BrowseError::NoFile`], [`BrowseError::TooLong`], or it cannot be read.
    pub async fn file(
        &self,
        manifest: &Manifest,
        path: &FilePath,
        longest: u64,
        most: usize,
    ) -> Result<FileBeginning, BrowseError> {
        let wanted = path.clone();
        let take = move |found: &mut Option<Kind>, entry: Entry| match entry.path == wanted {
            true => {
                *found = Some(entry.kind);
                ControlFlow::Break(())
            }
            false => ControlFlow::Continue(()),
        };
        let (_, found) = self.scan(&manifest.project, manifest.stamp, None, take).await?;
        let kind = found.ok_or(BrowseError::NoFile)?;
        let (bytes, sha256) = kind.content().ok_or(BrowseError::NoFile)?;
        // A link's content stands where it was first met.
        let place = match kind {
            Kind::HardLink { to, .. } => to,
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
            // A reader that has found the file takes no more.
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
