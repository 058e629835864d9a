//! Reads the files of a job: from its sandbox while that runs, else from a snapshot. Reading
//! resumes and extends nothing: it uses a plain sandbox handle and not the workspace's gate.

use checkpoint::{BrowseError, CheckpointManifest, FilePath, ManifestKind, ProjectId as SnapshotsOf, Stamp};
use sdk::{FileError, Sandbox};
use workspace::setup::PROJECT_DIRECTORY;

use crate::error::StudioError;
use crate::id::JobId;
use crate::probe::{self, SandboxStatus};
use crate::records::JobRecord;
use crate::studio::Studio;
use crate::view::{FileContent, FileEntry, FileKind, FileSource, Listing, User};

/// The longest text in a response.
const MAX_TEXT_BYTES: usize = 512 * 1024;
/// A file in an archive is read whole, to verify its digest, or not at all.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;
/// Entries of a directory listing, and the bytes of their paths.
const MAX_ENTRIES: usize = 10_000;
const MAX_PATH_BYTES: usize = 2 * 1024 * 1024;
/// The prefix that decides whether a file is binary.
const SAMPLE_BYTES: usize = 8000;

enum FileLocation {
    Sandbox(Box<Sandbox>),
    Snapshot(Box<CheckpointManifest>),
}

impl Studio {
    /// Lists a directory of the project: in the running sandbox, else in the newest snapshot, or in
    /// the snapshot with the given key.
    ///
    /// # Errors
    /// [`StudioError::NotFound`] when there is no such job, snapshot or directory;
    /// [`StudioError::Invalid`] for a path that leaves the project.
    pub async fn files(
        &self,
        user: &User,
        id: &JobId,
        path: &str,
        snapshot: Option<&str>,
    ) -> Result<Listing, StudioError> {
        let job = self.find_own_job(user, id).await?;
        let path = clean_path(path)?;
        let (source, mut entries, mut truncated) = match self.locate_files(&job, snapshot).await? {
            FileLocation::Sandbox(sandbox) => (FileSource::Sandbox, list_in_sandbox(&sandbox, &path).await?, false),
            FileLocation::Snapshot(manifest) => {
                let (entries, truncated) = self.list_in_snapshot(&manifest, &path).await?;
                (FileSource::Snapshot, entries, truncated)
            }
        };
        entries.sort_by(|a, b| (a.kind != FileKind::Directory, &a.name).cmp(&(b.kind != FileKind::Directory, &b.name)));
        let mut path_bytes = 0;
        let mut fits = |entry: &&FileEntry| {
            path_bytes += entry.path.len();
            path_bytes <= MAX_PATH_BYTES
        };
        let shown = entries.iter().take(MAX_ENTRIES).take_while(|entry| fits(entry)).count();
        truncated |= shown < entries.len();
        entries.truncate(shown);
        Ok(Listing { source, path, entries, truncated })
    }

    /// Reads one file, from the same source as [`Studio::files`].
    ///
    /// # Errors
    /// [`StudioError::NotFound`] when there is no such job, snapshot or file;
    /// [`StudioError::Invalid`] for a path that leaves the project.
    pub async fn file(
        &self,
        user: &User,
        id: &JobId,
        path: &str,
        snapshot: Option<&str>,
    ) -> Result<FileContent, StudioError> {
        let job = self.find_own_job(user, id).await?;
        let path = clean_path(path)?;
        let (source, content, bytes) = match self.locate_files(&job, snapshot).await? {
            FileLocation::Sandbox(sandbox) => {
                let (content, bytes) = read_in_sandbox(&sandbox, &path).await?;
                (FileSource::Sandbox, content, bytes)
            }
            FileLocation::Snapshot(manifest) => {
                let (content, bytes) = self.read_in_snapshot(&manifest, &path).await?;
                (FileSource::Snapshot, content, bytes)
            }
        };
        let binary = content[..content.len().min(SAMPLE_BYTES)].contains(&0);
        let shown = &content[..content.len().min(MAX_TEXT_BYTES)];
        // A truncated text ends between two characters. Invalid UTF-8 makes the file binary.
        let text = match std::str::from_utf8(shown) {
            Ok(text) => Some(text),
            Err(error) if error.error_len().is_none() && shown.len() < content.len() => {
                std::str::from_utf8(&shown[..error.valid_up_to()]).ok()
            }
            Err(_) => None,
        };
        let text = text.filter(|_| !binary).map(str::to_owned);
        let truncated = u64::try_from(shown.len()).unwrap_or(u64::MAX) < bytes;
        Ok(FileContent { source, path, binary: text.is_none(), text, bytes, truncated })
    }

    async fn locate_files(&self, job: &JobRecord, snapshot: Option<&str>) -> Result<FileLocation, StudioError> {
        if snapshot.is_none()
            && job.sandbox_id.is_some()
            && let SandboxStatus::Running { sandbox, .. } =
                probe::inspect_sandbox(self.workspaces(), &job.workspace).await
        {
            return Ok(FileLocation::Sandbox(Box::new(sandbox)));
        }
        let project: SnapshotsOf = job.workspace.as_str().parse().map_err(StudioError::unavailable)?;
        let snapshots = self.workspaces().checkpoints();
        let stamp: Stamp = match snapshot {
            Some(key) => snapshots.stamp_of(&project, key).ok_or(StudioError::NotFound)?,
            None => {
                let newest = snapshots.newest(&project).await.map_err(StudioError::unavailable)?;
                newest.ok_or(StudioError::NotFound)?
            }
        };
        let manifest = snapshots.open_manifest(&project, stamp).await.map_err(from_browse_error)?;
        Ok(FileLocation::Snapshot(Box::new(manifest)))
    }

    /// The entries of a directory in a snapshot, and whether the list is truncated.
    async fn list_in_snapshot(
        &self,
        manifest: &CheckpointManifest,
        path: &str,
    ) -> Result<(Vec<FileEntry>, bool), StudioError> {
        let directory = path_in_snapshot(manifest, path)?;
        let path_inside = FilePath::new(directory.as_str());
        let listed =
            self.workspaces().checkpoints().directory(manifest, &path_inside).await.map_err(from_browse_error)?;
        let prefix = format!("{directory}/");
        let entries = listed.entries.into_iter().filter_map(|entry| {
            let name = entry.path.text().strip_prefix(&prefix)?.to_owned();
            let (kind, bytes) = match &entry.kind {
                ManifestKind::Directory => (FileKind::Directory, 0),
                ManifestKind::File { size, .. } | ManifestKind::HardLink { size, .. } => (FileKind::File, *size),
                ManifestKind::Symlink { .. } => (FileKind::Link, 0),
                ManifestKind::Fifo | ManifestKind::CharDevice | ManifestKind::BlockDevice => return None,
            };
            Some(FileEntry { path: join(path, &name), name, kind, bytes })
        });
        Ok((entries.collect(), listed.truncated))
    }

    async fn read_in_snapshot(&self, manifest: &CheckpointManifest, path: &str) -> Result<(Vec<u8>, u64), StudioError> {
        let path_inside = FilePath::new(path_in_snapshot(manifest, path)?);
        match self.workspaces().checkpoints().file(manifest, &path_inside, MAX_FILE_BYTES, MAX_TEXT_BYTES + 1).await {
            Ok(file) => Ok((file.content, file.bytes)),
            // A file that is too long is reported as binary.
            Err(BrowseError::TooLong { bytes }) => Ok((vec![0], bytes)),
            Err(error) => Err(from_browse_error(error)),
        }
    }
}

fn from_browse_error(error: BrowseError) -> StudioError {
    match error {
        BrowseError::NoCheckpoint | BrowseError::NoFile => StudioError::NotFound,
        error => StudioError::unavailable(error),
    }
}

/// Normalises a path below the project and refuses `..`.
fn clean_path(path: &str) -> Result<String, StudioError> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => return Err(StudioError::invalid("path", "it must stay inside of the project")),
            part if part.contains('\0') => return Err(StudioError::invalid("path", "it must not contain NUL")),
            part => parts.push(part),
        }
    }
    Ok(parts.join("/"))
}

fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

/// The path of a project file below the root of a snapshot.
fn path_in_snapshot(manifest: &CheckpointManifest, path: &str) -> Result<String, StudioError> {
    let root = format!("{}/", manifest.root.trim_end_matches('/'));
    let project = PROJECT_DIRECTORY.strip_prefix(&root).ok_or(StudioError::NotFound)?;
    Ok(if path.is_empty() { project.to_owned() } else { format!("{project}/{path}") })
}

fn from_file_error(error: FileError) -> StudioError {
    match error {
        FileError::NotFound { .. } | FileError::Invalid { .. } => StudioError::NotFound,
        error => StudioError::unavailable(error),
    }
}

async fn list_in_sandbox(sandbox: &Sandbox, path: &str) -> Result<Vec<FileEntry>, StudioError> {
    let listed = sandbox.files().list(&join(PROJECT_DIRECTORY, path)).await.map_err(from_file_error)?;
    let entry = |entry: sdk::Entry| {
        let kind = match () {
            () if entry.is_symlink() => FileKind::Link,
            () if entry.is_directory() => FileKind::Directory,
            () => FileKind::File,
        };
        let bytes = if kind == FileKind::File { entry.size } else { 0 };
        FileEntry { path: join(path, &entry.name), name: entry.name, kind, bytes }
    };
    Ok(listed.into_iter().map(entry).collect())
}

/// The beginning of a file, and its size.
async fn read_in_sandbox(sandbox: &Sandbox, path: &str) -> Result<(Vec<u8>, u64), StudioError> {
    use futures::StreamExt as _;
    let path_inside = join(PROJECT_DIRECTORY, path);
    let entry = sandbox.files().stat(&path_inside).await.map_err(from_file_error)?;
    if entry.is_directory() {
        return Err(StudioError::NotFound);
    }
    let mut pieces = sandbox.files().read_stream(&path_inside).await.map_err(from_file_error)?;
    let mut content = Vec::new();
    while content.len() <= MAX_TEXT_BYTES {
        match pieces.next().await {
            Some(piece) => content.extend_from_slice(&piece.map_err(from_file_error)?),
            None => break,
        }
    }
    let read = u64::try_from(content.len()).unwrap_or(u64::MAX);
    Ok((content, entry.size.max(read)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_cannot_leave_the_project() {
        for (path, cleaned) in [("", ""), ("/", ""), ("src//a.js", "src/a.js"), ("./src/", "src")] {
            assert_eq!(clean_path(path).expect("inside"), cleaned, "{path}");
        }
        for path in ["..", "src/../../x", "../../../etc/passwd", "a\0b"] {
            assert!(clean_path(path).is_err(), "{path:?}");
        }
    }
}
