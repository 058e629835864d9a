//! Saves the files of a sandbox as a checkpoint.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use protocol::SandboxId;
use secret::EnvValues;
use text::error_chain;
use tokio::time::{Instant, timeout_at};
use tracing::{info, warn};

use crate::archive::{self, ArchiveContents};
use crate::digest::DigestHasher;
use crate::entries::{Entries, EntryWriter};
use crate::excludes::Excludes;
use crate::exposed::ExposedFile;
use crate::faults::{CheckpointPoint, reach};
use crate::key::{self, ProjectId, Stamp};
use crate::limits::{ArchiveLimits, Excess};
use crate::listing::{Condition, Generations, ManifestError};
use crate::manifest::{ArchiveFacts, CheckpointManifest, FORMAT, FilePath};
use crate::occasion::SaveOccasion;
use crate::port::{CheckpointSandbox, SandboxFailure, ScriptChunk, ScriptInput};
use crate::prune::Pruned;
use crate::script::{self, SandboxScript, SandboxScriptError, Stderr};
use crate::spool::Spool;
use crate::store::ObjectStoreError;
use crate::tar_warnings;
use crate::upload::Upload;
use crate::{Checkpoints, Digest};

/// What to save, and how.
#[derive(Debug, Clone)]
pub struct CheckpointOptions {
    /// The directory whose whole content is saved.
    pub root: String,
    pub excluded: Excludes,
    /// How often to retry the archive when files changed while they were read, before such files
    /// are recorded as changed. A process that writes continuously affects every archive, so by
    /// default the first one is accepted.
    pub retries_when_changed: u32,
    /// A checkpoint that pruning spares: the caller is about to restore it.
    pub spare: Option<Stamp>,
    /// Decides how long it is retained.
    pub occasion: SaveOccasion,
    /// Values that must not be in an archive.
    pub values: EnvValues,
}

impl Default for CheckpointOptions {
    fn default() -> Self {
        Self {
            root: "/home/user".to_owned(),
            excluded: Excludes::default(),
            retries_when_changed: 0,
            spare: None,
            occasion: SaveOccasion::default(),
            values: EnvValues::default(),
        }
    }
}

/// A stored checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedCheckpoint {
    pub stamp: Stamp,
    /// The newest checkpoint had these files already: none was stored, and its time is updated.
    pub unchanged: bool,
    /// The archive's key in the store.
    pub key: String,
    /// Regular files in it.
    pub files: u64,
    /// Length of the archive.
    pub bytes: u64,
    /// Digest of the archive.
    pub sha256: Digest,
    /// Files that changed while they were read.
    pub changed: Vec<FilePath>,
    /// Generated folders that are not in it.
    pub excluded: Vec<FilePath>,
    /// What was removed after the checkpoint was stored. The next save retries a failed removal.
    pub pruned: Pruned,
}

#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    #[error("{root} in sandbox {id} cannot be saved: it is no directory that can be entered")]
    NoRoot { id: SandboxId, root: String },
    /// Restore again: the tree is neither the old nor the new one.
    #[error("{root} in sandbox {id} cannot be saved: a restore was interrupted in it")]
    HalfRestored { id: SandboxId, root: String },
    #[error("tar could not read {root} in sandbox {id}: {message}")]
    Archiving { id: SandboxId, root: String, message: String },
    #[error("the archive from sandbox {id} cannot be read: {detail}")]
    Garbled { id: SandboxId, detail: String },
    /// Make the tree smaller, as the limit says. The sandbox keeps the files, and earlier
    /// checkpoints are intact.
    #[error("{root} in sandbox {id} cannot be saved, and its earlier snapshots are kept: {excess}")]
    Excess { id: SandboxId, root: String, excess: Excess },
    #[error(
        "the archive from sandbox {id} came too slowly: {bytes} bytes in {after:?}; see what keeps its processor or disk busy"
    )]
    Slow { id: SandboxId, bytes: u64, after: Duration },
    /// Every attempt together.
    #[error("sandbox {id} could not be saved within {after:?}; see what keeps its processor or disk busy")]
    TimedOut { id: SandboxId, after: Duration },
    #[error("nothing came from sandbox {id} for {after:?} while it was being saved")]
    Silent { id: SandboxId, after: Duration },
    #[error("could not save sandbox {}", id)]
    Sandbox { id: SandboxId, source: SandboxFailure },
    #[error("the snapshot of project {project} could not be stored")]
    Store { project: ProjectId, source: ObjectStoreError },
    /// Remove the values from the files, or allow them for this workspace. The sandbox keeps the
    /// files, and earlier checkpoints are intact.
    #[error(
        "values of the workspace's --env variables are in files of sandbox {id}, and a snapshot would keep \
         them in plain text: {}. Read them from the environment there instead, or allow it: `sandbar workspace snapshot NAME \
         --allow-env-values`",
        list_exposed(files)
    )]
    Exposed { id: SandboxId, files: Vec<ExposedFile> },
    /// The store acknowledged the checkpoint, and then returned something else.
    #[error("the store does not have snapshot {stamp} of project {project} as it was stored: {what}")]
    NotKept { project: ProjectId, stamp: Stamp, what: &'static str },
}

impl SaveError {
    /// Whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store { source, .. } => source.is_transient(),
            Self::Sandbox { source, .. } => script::is_retryable(source),
            Self::Silent { .. } | Self::NotKept { .. } => true,
            // The cause may be temporary.
            Self::Archiving { .. } => true,
            Self::NoRoot { .. }
            | Self::HalfRestored { .. }
            | Self::Exposed { .. }
            | Self::Excess { .. }
            | Self::Slow { .. }
            | Self::TimedOut { .. }
            // A broken connection is another error: the sandbox itself sent what cannot be read.
            | Self::Garbled { .. } => false,
        }
    }
}

/// The most files that an error names.
const EXPOSED_SHOWN: usize = 5;

fn list_exposed(files: &[ExposedFile]) -> String {
    let mut text = files.iter().take(EXPOSED_SHOWN).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if files.len() > EXPOSED_SHOWN {
        text.push_str(&format!(" and {} more", files.len() - EXPOSED_SHOWN));
    }
    text
}

/// The directory, below the root, of sessions of Sandbar's own tools.
const OWN_FILES: &[u8] = b".sandbar/";
/// Attempts to archive without session files that contain values. New ones may appear meanwhile.
const OWN_FILES_TRIES: usize = 3;

/// The lowest average rates of an archive in bytes per second: from
/// [`CheckpointSettings::silence`](super::CheckpointSettings::silence) on, and in addition from
/// [`LONG`] on. They stop a sandbox that sends a byte now and then from blocking its caller.
const SLOWEST: u64 = 16 * 1024;
const SLOWEST_OF_LONG: u64 = 256 * 1024;
/// So much time takes a tree that is large, slow to read, or very compressible.
const LONG: Duration = Duration::from_secs(600);
/// The chunk size of a manifest upload.
const LINES: usize = 1 << 20;

/// The limits of a save with all its attempts.
#[derive(Debug, Clone, Copy)]
struct SaveLimits {
    archive: ArchiveLimits,
    deadline: Instant,
    timeout: Duration,
}

/// An archive that was received from a sandbox.
struct Streamed {
    contents: ArchiveContents,
    entries: Entries,
    facts: ArchiveFacts,
    owners: bool,
    excluded: Vec<FilePath>,
    changed: Vec<FilePath>,
}

impl Checkpoints {
    /// Saves the files of a sandbox as a new checkpoint of `project`, then prunes the oldest ones.
    /// If the newest checkpoint has the same files, none is stored.
    ///
    /// The sandbox keeps running meanwhile. Dropping the future leaves no checkpoint; `tar` in the
    /// sandbox runs until its output pipe breaks.
    ///
    /// # Errors
    /// The [`SaveError`] of the last attempt. Earlier checkpoints are then intact.
    #[tracing::instrument(skip_all, fields(sandbox = %sandbox.id(), project = %project))]
    pub async fn save(
        &self,
        sandbox: &dyn CheckpointSandbox,
        project: &ProjectId,
        options: &CheckpointOptions,
    ) -> Result<SavedCheckpoint, SaveError> {
        let _lock = self.lock_project(project).await;
        reach(CheckpointPoint::SaveBegun).await;
        let archive = match self.settings.limits {
            Some(limits) => limits,
            None => ArchiveLimits::for_sandbox(sandbox).await,
        };
        let timeout = archive.save_timeout(self.settings.longest);
        let limits = SaveLimits { archive, deadline: Instant::now() + timeout, timeout };
        let mut attempt = 1;
        let mut saved = loop {
            match self.try_save(sandbox, project, options, &limits).await {
                Ok(saved) => break saved,
                Err(error) if error.is_transient() && attempt < self.settings.attempts => {
                    warn!(attempt, error = %error_chain(&error), "checkpoint failed, retrying");
                    attempt += 1;
                    self.back_off(attempt).await;
                }
                Err(error) => return Err(error),
            }
        };
        match self.prune_locked(project, self.settings.keep, options.spare).await {
            Ok(pruned) => saved.pruned = pruned,
            Err(error) => warn!(error = %error_chain(&error), "old checkpoints were not removed"),
        }
        let unchanged = saved.unchanged;
        info!(key = saved.key, files = saved.files, bytes = saved.bytes, attempt, unchanged, "checkpoint saved");
        Ok(saved)
    }

    async fn try_save(
        &self,
        sandbox: &dyn CheckpointSandbox,
        project: &ProjectId,
        options: &CheckpointOptions,
        limits: &SaveLimits,
    ) -> Result<SavedCheckpoint, SaveError> {
        let failed = |source| SaveError::Store { project: project.clone(), source };
        let generations = self.generations(project).await.map_err(failed)?;
        let stamp = Stamp::after(generations.newest(), Timestamp::now());
        reach(CheckpointPoint::SaveStamped).await;

        let key = key::archive(project, stamp);
        let mut retries = options.retries_when_changed;
        let mut own_files: Vec<Vec<FilePath>> = Vec::new();
        let (streamed, upload) = loop {
            let mut upload = self.objects.upload(key.clone());
            match self.stream(sandbox, project, options, limits, &own_files.concat(), &mut upload).await {
                Ok(streamed) if !streamed.contents.exposed.is_empty() => {
                    upload.abort().await;
                    let ArchiveContents { exposed, more_exposed, .. } = streamed.contents;
                    let own = |file: &&ExposedFile| file.path.as_bytes().starts_with(OWN_FILES);
                    if more_exposed || own_files.len() >= OWN_FILES_TRIES || !exposed.iter().all(|file| own(&file)) {
                        let files: Vec<ExposedFile> = exposed.iter().filter(|file| !own(file)).cloned().collect();
                        let files = if files.is_empty() { exposed } else { files };
                        return Err(SaveError::Exposed { id: sandbox.id().clone(), files });
                    }
                    info!(files = exposed.len(), "session files contain values of variables, retrying without them");
                    own_files.push(exposed.into_iter().map(|file| file.path).collect());
                }
                Ok(streamed) if !streamed.changed.is_empty() && retries > 0 => {
                    info!(files = streamed.changed.len(), "files changed while they were archived, retrying");
                    retries -= 1;
                    upload.abort().await;
                }
                Ok(streamed) => break (streamed, upload),
                Err(error) => {
                    upload.abort().await;
                    return Err(error);
                }
            }
        };
        reach(CheckpointPoint::SaveStreamed).await;

        let Streamed { contents, entries, facts, owners, excluded, changed } = streamed;
        let ArchiveContents { files, bytes, .. } = contents;
        let manifest = CheckpointManifest {
            format: FORMAT,
            project: project.clone(),
            stamp,
            root: options.root.clone(),
            archive: facts,
            files,
            bytes,
            owners,
            excluded,
            changed,
            occasion: options.occasion,
            searched: true,
            listing: entries.facts(),
        };
        if let Some(newest) = self.find_identical(project, &generations, &manifest).await.map_err(failed)? {
            upload.abort().await;
            self.record_unchanged(project, newest.stamp, options.occasion, Timestamp::now()).await;
            let CheckpointManifest { stamp, files, archive: ArchiveFacts { bytes, sha256 }, .. } = newest;
            let (key, pruned) = (key::archive(project, stamp).to_string(), Pruned::default());
            let CheckpointManifest { changed, excluded, .. } = manifest;
            return Ok(SavedCheckpoint {
                stamp,
                unchanged: true,
                key,
                files,
                bytes,
                sha256,
                changed,
                excluded,
                pruned,
            });
        }
        upload.finish().await.map_err(failed)?;
        reach(CheckpointPoint::SaveArchiveStored).await;

        self.commit(&manifest, &entries).await.map_err(failed)?;
        reach(CheckpointPoint::SaveCommitted).await;

        let what = self.find_missing(&manifest).await.map_err(failed)?;
        if let Some(what) = what {
            self.objects.delete(&key::manifest(project, stamp)).await.map_err(failed)?;
            return Err(SaveError::NotKept { project: project.clone(), stamp, what });
        }
        reach(CheckpointPoint::SaveVerified).await;

        let CheckpointManifest { changed, excluded, .. } = manifest;
        let ArchiveFacts { bytes, sha256 } = facts;
        let pruned = Pruned::default();
        let key = key.to_string();
        Ok(SavedCheckpoint { stamp, unchanged: false, key, files, bytes, sha256, changed, excluded, pruned })
    }

    /// Stores the manifest, which commits the checkpoint.
    async fn commit(&self, manifest: &CheckpointManifest, entries: &Entries) -> Result<(), ObjectStoreError> {
        let mut head = serde_json::to_vec(manifest).expect("names and numbers can be written as JSON");
        head.push(b'\n');
        let mut upload = self.objects.upload(key::manifest(&manifest.project, manifest.stamp));
        let mut lines = entries.lines();
        let mut piece = Some(Bytes::from(head));
        while let Some(bytes) = piece {
            if let Err(error) = upload.push(&bytes).await {
                upload.abort().await;
                return Err(error);
            }
            piece = match lines.next_piece(LINES) {
                Ok(piece) => piece,
                Err(error) => {
                    upload.abort().await;
                    return Err(self.spool_error(error));
                }
            };
        }
        upload.finish().await
    }

    pub(crate) fn spool_error(&self, error: std::io::Error) -> ObjectStoreError {
        ObjectStoreError::Directory { path: self.objects.spool_directory().as_ref().clone(), source: error.into() }
    }

    /// The newest checkpoint, if it is verified and restores the same tree.
    async fn find_identical(
        &self,
        project: &ProjectId,
        generations: &Generations,
        manifest: &CheckpointManifest,
    ) -> Result<Option<CheckpointManifest>, ObjectStoreError> {
        let Some(stamp) = generations.committed().next_back() else { return Ok(None) };
        match self.condition(project, generations, stamp).await? {
            Some(Condition::Whole { verified: true, .. }) => {}
            _ => return Ok(None),
        }
        match self.manifest(project, stamp).await {
            Ok(newest) => Ok(Some(newest).filter(|newest| newest.searched && newest.has_same_tree(manifest))),
            Err(ManifestError::Store(ObjectStoreError::NotFound { .. }) | ManifestError::Unreadable(_)) => Ok(None),
            Err(ManifestError::Store(error)) => Err(error),
        }
    }

    /// Lists the folders that a checkpoint of the sandbox would exclude now, without saving one.
    ///
    /// # Errors
    /// [`SaveError::NoRoot`], [`SaveError::HalfRestored`], [`SaveError::Sandbox`] or
    /// [`SaveError::Silent`].
    pub async fn list_excluded(
        &self,
        sandbox: &dyn CheckpointSandbox,
        options: &CheckpointOptions,
    ) -> Result<Vec<FilePath>, SaveError> {
        let explain = |error| from_script_error(sandbox, error);
        let script =
            SandboxScript::start(sandbox, script::EXCLUDES, arguments(options), ScriptInput::None, self.timeouts())
                .await;
        let ended = script.map_err(explain)?.finish(|_| {}).await.map_err(explain)?;
        if let Some(refused) = root_error(sandbox, options, ended.exit.code) {
            return Err(refused);
        }
        Ok(parse_excludes(ended.stderr.bytes()).0)
    }

    /// Reads the checkpoint back, and returns what the store lacks of it.
    async fn find_missing(&self, manifest: &CheckpointManifest) -> Result<Option<&'static str>, ObjectStoreError> {
        let CheckpointManifest { project, stamp, archive: facts, .. } = manifest;
        let stamp = *stamp;
        let object = self.objects.stat(&key::archive(project, stamp)).await?;
        let Some(object) = object.filter(|object| object.size == facts.bytes) else {
            return Ok(Some("the archive is missing or has another length"));
        };
        match self.manifest(project, stamp).await {
            Ok(there) if there == *manifest => {}
            Ok(_) | Err(ManifestError::Unreadable(_) | ManifestError::Store(ObjectStoreError::NotFound { .. })) => {
                return Ok(Some("the manifest is missing or another one"));
            }
            Err(ManifestError::Store(error)) => return Err(error),
        }
        // Older checkpoints are pruned after this one, so all of it is read. If the store cannot be
        // read now, the checkpoint exists and counts as unverified.
        match self.compute_digest(project, stamp, facts.bytes).await {
            Ok(found) if found == facts.sha256 => self.record_check(project, stamp, Some(&object), None).await,
            Ok(_) => return Ok(Some("the archive has another content")),
            Err(error) => {
                warn!(%stamp, error = %error_chain(&error), "checkpoint could not be verified after it was stored");
            }
        }
        Ok(None)
    }

    /// Streams the archive from the sandbox into the store, and reads it on the way. A failure of
    /// the reader stops both.
    async fn stream(
        &self,
        sandbox: &dyn CheckpointSandbox,
        project: &ProjectId,
        options: &CheckpointOptions,
        limits: &SaveLimits,
        own_files: &[FilePath],
        upload: &mut Upload,
    ) -> Result<Streamed, SaveError> {
        let explain = |error| from_script_error(sandbox, error);
        let files = own_files.iter().map(|path| path.text().into_owned());
        let arguments = arguments(options).into_iter().chain(["--".to_owned()]).chain(files).collect();
        let timed_out = || SaveError::TimedOut { id: sandbox.id().clone(), after: limits.timeout };
        let left = limits.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(timed_out());
        }
        let script =
            SandboxScript::start(sandbox, script::ARCHIVE, arguments, ScriptInput::None, self.timeouts_within(left))
                .await;
        let mut script = script.map_err(explain)?;
        reach(CheckpointPoint::SaveArchiving).await;

        let (feed, pieces) = archive::feed();
        let (values, bounds, directory) = (options.values.clone(), limits.archive, self.objects.spool_directory());
        let reader = tokio::task::spawn_blocking(move || {
            let mut entries = EntryWriter::new(directory.clone());
            let contents = archive::read(pieces, &bounds, &values, Spool::new(directory), |entry| entries.push(entry))?;
            Ok((contents, entries.finish()?))
        });
        let mut stderr = Stderr::default();
        let transfer = ArchiveTransfer { max_bytes: limits.archive.archive_bytes, grace: self.settings.silence };
        let transferred = timeout_at(limits.deadline, transfer.run(&mut script, upload, &feed, &mut stderr)).await;
        let transferred = transferred.unwrap_or(Err(TransferError::TimedOut));
        drop(feed);
        if transferred.is_err() {
            script.kill().await;
        }
        // The reader ends by itself: its channel is closed.
        let contents: std::io::Result<(ArchiveContents, Entries)> =
            reader.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        let (id, root) = (sandbox.id().clone(), options.root.clone());
        let exceeded = |excess: Excess| SaveError::Excess { id: id.clone(), root: root.clone(), excess };
        let unread = |error: std::io::Error| match (Excess::from_io(&error), error.raw_os_error()) {
            (Some(excess), _) => exceeded(excess.clone()),
            (None, Some(_)) => SaveError::Store { project: project.clone(), source: self.spool_error(error) },
            (None, None) => SaveError::Garbled { id: id.clone(), detail: error.to_string() },
        };
        let facts = match transferred {
            Ok(facts) => facts,
            Err(TransferError::Script(error)) => return Err(explain(error)),
            Err(TransferError::Store(source)) => return Err(SaveError::Store { project: project.clone(), source }),
            Err(TransferError::Excess(excess)) => return Err(exceeded(excess)),
            Err(TransferError::Slow { bytes, after }) => return Err(SaveError::Slow { id, bytes, after }),
            Err(TransferError::TimedOut) => return Err(timed_out()),
            Err(TransferError::Reader) => {
                let gone = || std::io::Error::other("its reader ended before the archive did");
                return Err(unread(contents.err().unwrap_or_else(gone)));
            }
        };
        let exit = script.exit().await.map_err(explain)?;
        if let Some(refused) = root_error(sandbox, options, exit.code) {
            return Err(refused);
        }
        let (excluded, warnings) = parse_excludes(stderr.bytes());
        let changed = match exit.code {
            0 => Some(Vec::new()),
            // `tar` names the files that changed.
            1 => tar_warnings::parse_changed(warnings),
            _ => None,
        };
        let Some(changed) = changed else {
            let message = match script::summary(warnings) {
                text if text.is_empty() => exit.status,
                text => text,
            };
            return Err(SaveError::Archiving { id, root, message });
        };
        if excluded.len().max(changed.len()) > limits.archive.reported_paths {
            return Err(exceeded(Excess::Reported(limits.archive.reported_paths)));
        }
        let (contents, entries) = contents.map_err(unread)?;
        Ok(Streamed { contents, entries, facts, owners: script.as_root(), excluded, changed })
    }
}

/// The arguments of both scripts.
fn arguments(options: &CheckpointOptions) -> Vec<String> {
    [options.root.clone()].into_iter().chain(options.excluded.arguments()).collect()
}

/// The exit codes of both scripts for a root that cannot be saved.
fn root_error(sandbox: &dyn CheckpointSandbox, options: &CheckpointOptions, code: i32) -> Option<SaveError> {
    let (id, root) = (sandbox.id().clone(), options.root.clone());
    match code {
        script::NO_ROOT => Some(SaveError::NoRoot { id, root }),
        script::HALF_RESTORED => Some(SaveError::HalfRestored { id, root }),
        _ => None,
    }
}

/// Why the transfer of the archive stopped early.
enum TransferError {
    Script(SandboxScriptError),
    Store(ObjectStoreError),
    Excess(Excess),
    Slow {
        bytes: u64,
        after: Duration,
    },
    TimedOut,
    /// The reader failed, and holds the error.
    Reader,
}

/// Transfers the archive from the script to the store and to the reader.
struct ArchiveTransfer {
    /// The most bytes of the archive.
    max_bytes: u64,
    /// How long the rate is not checked.
    grace: Duration,
}

impl ArchiveTransfer {
    async fn run(
        &self,
        script: &mut SandboxScript,
        upload: &mut Upload,
        feed: &tokio::sync::mpsc::Sender<Bytes>,
        stderr: &mut Stderr,
    ) -> Result<ArchiveFacts, TransferError> {
        let mut hasher = DigestHasher::default();
        let mut bytes = 0;
        let mut half = false;
        let begun = Instant::now();
        loop {
            let chunk = tokio::select! {
                biased;
                () = feed.closed() => return Err(TransferError::Reader),
                chunk = script.next() => chunk.map_err(TransferError::Script)?,
            };
            let Some(chunk) = chunk else { break };
            match chunk {
                ScriptChunk::Stderr(text) => stderr.push(&text),
                ScriptChunk::Stdout(piece) => {
                    hasher.update(&piece);
                    bytes += piece.len() as u64;
                    if bytes > self.max_bytes {
                        return Err(TransferError::Excess(Excess::Archive(self.max_bytes)));
                    }
                    upload.push(&piece).await.map_err(TransferError::Store)?;
                    feed.send(piece).await.map_err(|_| TransferError::Reader)?;
                    if !half && upload.is_under_way() {
                        half = true;
                        reach(CheckpointPoint::SaveHalfStored).await;
                    }
                }
            }
            let after = begun.elapsed();
            let least = after.saturating_sub(self.grace).as_secs() * SLOWEST
                + after.saturating_sub(self.grace.max(LONG)).as_secs() * SLOWEST_OF_LONG;
            if bytes < least {
                return Err(TransferError::Slow { bytes, after });
            }
        }
        Ok(ArchiveFacts { bytes, sha256: hasher.finish() })
    }
}

/// Parses the script's output: first the excluded folders, then the warnings of `tar`.
fn parse_excludes(stderr: &[u8]) -> (Vec<FilePath>, &[u8]) {
    let mut excluded = Vec::new();
    let mut rest = stderr;
    while let Some(end) = rest.iter().position(|byte| *byte == 0) {
        let path = &rest[..end];
        rest = &rest[end + 1..];
        if path.is_empty() {
            break;
        }
        excluded.push(FilePath::new(path.strip_prefix(b"./").unwrap_or(path)));
    }
    (excluded, rest)
}

fn from_script_error(sandbox: &dyn CheckpointSandbox, error: SandboxScriptError) -> SaveError {
    let id = sandbox.id().clone();
    match error {
        SandboxScriptError::Call(source) => SaveError::Sandbox { id, source },
        SandboxScriptError::Silent(after) => SaveError::Silent { id, after },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excluded_folders_are_split_from_warnings() {
        let check = |stderr: &[u8], folders: &[&str], rest: &[u8]| {
            let folders: Vec<FilePath> = folders.iter().map(|folder| FilePath::from(*folder)).collect();
            assert_eq!(parse_excludes(stderr), (folders, rest));
        };
        check(b"", &[], b"");
        check(b"\0tar: x\n", &[], b"tar: x\n");
        check(b"./a/node_modules\0./b/dist\0\0tar: x\n", &["a/node_modules", "b/dist"], b"tar: x\n");
    }
}
