//! The files of a job: from its sandbox where that runs, else from a snapshot. Reading wakes and extends nothing: the sandbox is
//! spoken to by a plain handle, past the workspace's fence.

use sdk::{FileError, Sandbox};
use workspace::setup::PROJECT_DIRECTORY;
use workspace::snapshot::{BrowseError, FilePath, Kind, Manifest, ProjectId as SnapshotsOf, Stamp};

use crate::error::StudioError;
use crate::id::JobId;
use crate::records::JobRecord;
use crate::seat::{self, Found};
use crate::studio::Studio;
use crate::view::{FileContent, FileEntry, FileKind, FileSource, Listing, User};

/// Of a text that is shown.
const SHOWN: usize = 512 * 1024;
/// A file in an archive is read whole, to compare its digest, or not at all.
const LONGEST: u64 = 64 * 1024 * 1024;
/// Entries of a directory that are listed, and the bytes of their paths.
const MOST_LISTED: usize = 10_000;
const MOST_PATH_BYTES: usize = 2 * 1024 * 1024;
/// Looked at to tell a text from something else.
const SAMPLE: usize = 8000;

enum Place {
    Sandbox(Box<Sandbox>),
    Snapshot(Box<Manifest>),
}

impl Studio {
    /// What is in a directory of the project: in its running sandbox, else in the newest snapshot, or in the one that is named by
    /// its key.
    ///
    /// # Errors
    /// There is no such job, snapshot or directory.
    pub async fn files(
        &self,
        user: &User,
        id: &JobId,
        path: &str,
        snapshot: Option<&str>,
    ) -> Result<Listing, StudioError> {
        let job = self.own(user, id).await?;
        let path = clean(path)?;
        let (source, mut entries, mut truncated) = match self.place(&job, snapshot).await? {
            Place::Sandbox(sandbox) => (FileSource::Sandbox, in_sandbox(&sandbox, &path).await?, false),
            Place::Snapshot(manifest) => {
                let (entries, truncated) = self.list_in_snapshot(&manifest, &path).await?;
                (FileSource::Snapshot, entries, truncated)
            }
        };
        entries.sort_by(|a, b| (a.kind != FileKind::Directory, &a.name).cmp(&(b.kind != FileKind::Directory, &b.name)));
        let mut path_bytes = 0;
        let mut fits = |entry: &&FileEntry| {
            path_bytes += entry.path.len();
            path_bytes <= MOST_PATH_BYTES
        };
        let shown = entries.iter().take(MOST_LISTED).take_while(|entry| fits(entry)).count();
        truncated |= shown < entries.len();
        entries.truncate(shown);
        Ok(Listing { source, path, entries, truncated })
    }

    /// The same for one file.
    ///
    /// # Errors
    /// There is no such job, snapshot or file.
    pub async fn file(
        &self,
        user: &User,
        id: &JobId,
        path: &str,
        snapshot: Option<&str>,
    ) -> Result<FileContent, StudioError> {
        let job = self.own(user, id).await?;
        let path = clean(path)?;
        let (source, content, bytes) = match self.place(&job, snapshot).await? {
            Place::Sandbox(sandbox) => {
                let (content, bytes) = read_in_sandbox(&sandbox, &path).await?;
                (FileSource::Sandbox, content, bytes)
            }
            Place::Snapshot(manifest) => {
                let (content, bytes) = self.read_in_snapshot(&manifest, &path).await?;
                (FileSource::Snapshot, content, bytes)
            }
        };
        let binary = content[..content.len().min(SAMPLE)].contains(&0);
        let shown = &content[..content.len().min(SHOWN)];
        // Cut between two characters; what is no text anywhere is no text at all.
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

    async fn place(&self, job: &JobRecord, snapshot: Option<&str>) -> Result<Place, StudioError> {
        if snapshot.is_none()
            && job.sandbox_id.is_some()
            && let Found::Running { sandbox, .. } = seat::look(self.workspaces(), &job.workspace).await
        {
            return Ok(Place::Sandbox(Box::new(sandbox)));
        }
        let project: SnapshotsOf = job.workspace.as_str().parse().map_err(StudioError::unavailable)?;
        let snapshots = self.workspaces().snapshots();
        let stamp: Stamp = match snapshot {
            Some(key) => snapshots.stamp_of(&project, key).ok_or(StudioError::NotFound)?,
            None => {
                let newest = snapshots.newest(&project).await.map_err(StudioError::unavailable)?;
                newest.ok_or(StudioError::NotFound)?
            }
        };
        let manifest = snapshots.look_into(&project, stamp).await.map_err(unread)?;
        Ok(Place::Snapshot(Box::new(manifest)))
    }

    /// What is in a directory of a snapshot, and whether there is more.
    async fn list_in_snapshot(&self, manifest: &Manifest, path: &str) -> Result<(Vec<FileEntry>, bool), StudioError> {
        let directory = within(manifest, path)?;
        let place = FilePath::new(directory.as_str());
        let listed = self.workspaces().snapshots().directory(manifest, &place).await.map_err(unread)?;
        let prefix = format!("{directory}/");
        let entries = listed.entries.into_iter().filter_map(|entry| {
            let name = entry.path.text().strip_prefix(&prefix)?.to_owned();
            let (kind, bytes) = match &entry.kind {
                Kind::Directory => (FileKind::Directory, 0),
                Kind::File { size, .. } | Kind::HardLink { size, .. } => (FileKind::File, *size),
                Kind::Symlink { .. } => (FileKind::Link, 0),
                Kind::Fifo | Kind::CharDevice | Kind::BlockDevice => return None,
            };
            Some(FileEntry { path: join(path, &name), name, kind, bytes })
        });
        Ok((entries.collect(), listed.truncated))
    }

    async fn read_in_snapshot(&self, manifest: &Manifest, path: &str) -> Result<(Vec<u8>, u64), StudioError> {
        let place = FilePath::new(within(manifest, path)?);
        match self.workspaces().snapshots().file(manifest, &place, LONGEST, SHOWN + 1).await {
            Ok(file) => Ok((file.content, file.bytes)),
            // Shown as one that is too long to be shown.
            Err(BrowseError::TooLong { bytes }) => Ok((vec![0], bytes)),
            Err(error) => Err(unread(error)),
        }
    }
}

fn unread(error: BrowseError) -> StudioError {
    match error {
        BrowseError::NoSnapshot | BrowseError::NoFile => StudioError::NotFound,
        error => StudioError::unavailable(error),
    }
}

/// A path below the project, without a way out of it.
fn clean(path: &str) -> Result<String, StudioError> {
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

/// Where a path of the project is below the root of a snapshot.
fn within(manifest: &Manifest, path: &str) -> Result<String, StudioError> {
    let root = format!("{}/", manifest.root.trim_end_matches('/'));
    let project = PROJECT_DIRECTORY.strip_prefix(&root).ok_or(StudioError::NotFound)?;
    Ok(if path.is_empty() { project.to_owned() } else { format!("{project}/{path}") })
}

fn of_file(error: FileError) -> StudioError {
    match error {
        FileError::NotFound { .. } | FileError::Invalid { .. } => StudioError::NotFound,
        error => StudioError::unavailable(error),
    }
}

async fn in_sandbox(sandbox: &Sandbox, path: &str) -> Result<Vec<FileEntry>, StudioError> {
    let listed = sandbox.files().list(&join(PROJECT_DIRECTORY, path)).await.map_err(of_file)?;
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

/// The beginning, and how long it is.
async fn read_in_sandbox(sandbox: &Sandbox, path: &str) -> Result<(Vec<u8>, u64), StudioError> {
    use futures::StreamExt as _;
    let place = join(PROJECT_DIRECTORY, path);
    let entry = sandbox.files().stat(&place).await.map_err(of_file)?;
    if entry.is_directory() {
        return Err(StudioError::NotFound);
    }
    let mut pieces = sandbox.files().read_stream(&place).await.map_err(of_file)?;
    let mut content = Vec::new();
    while content.len() <= SHOWN {
        match pieces.next().await {
            Some(piece) => content.extend_from_slice(&piece.map_err(of_file)?),
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
    fn no_path_leads_out_of_the_project() {
        for (path, cleaned) in [("", ""), ("/", ""), ("src//a.js", "src/a.js"), ("./src/", "src")] {
            assert_eq!(clean(path).expect("inside"), cleaned, "{path}");
        }
        for path in ["..", "src/../../x", "../../../etc/passwd", "a\0b"] {
            assert!(clean(path).is_err(), "{path:?}");
        }
    }
}
