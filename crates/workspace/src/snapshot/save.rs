//! Saves the files of a sandbox.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use sdk::{Chunk, CommandError, Sandbox, SandboxId};
use tokio::time::Instant;
use tracing::{info, warn};

use super::archive::{self, Contents};
use super::complaint;
use super::digest::Hasher;
use super::entries::{Entries, EntryWriter};
use super::key::{self, ProjectId, Stamp};
use super::left_out::LeftOut;
use super::limits::{ArchiveLimits, Excess};
use super::listing::{Condition, Generations, ManifestError};
use super::manifest::{ArchiveFacts, FORMAT, FilePath, Manifest};
use super::occasion::Occasion;
use super::prune::Pruned;
use super::script::{self, Input, Said, Script, ScriptError};
use super::spool::Spool;
use super::store::StoreError;
use super::upload::Upload;
use super::values::{EnvValues, ExposedFile};
use super::{Digest, Snapshots};
use crate::chain::chain;
use crate::faults::{Point, reach};

/// What is saved.
#[derive(Debug, Clone)]
pub struct SnapshotOptions {
    /// The directory whose whole content is saved.
    pub root: String,
    pub left_out: LeftOut,
    /// How often the archive is made anew because files changed while they were read, before such files are recorded
    /// as changed. A process that writes all the time makes every archive so, so that the first one is good enough
    /// unless said otherwise.
    pub anew_when_changed: u32,
    /// Is not removed to make room for the new one: somebody is about to go back to it.
    pub spare: Option<Stamp>,
    /// Decides how long it is kept.
    pub occasion: Occasion,
    /// Values that must not be in an archive.
    pub values: EnvValues,
}

impl Default for SnapshotOptions {
    fn default() -> Self {
        Self {
            root: "/home/user".to_owned(),
            left_out: LeftOut::default(),
            anew_when_changed: 0,
            spare: None,
            occasion: Occasion::default(),
            values: EnvValues::default(),
        }
    }
}

/// A snapshot that is safe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    pub stamp: Stamp,
    /// The newest snapshot had these files already: no other was made, and its time is touched.
    pub unchanged: bool,
    /// The archive's key in the store.
    pub key: String,
    /// Regular files in it.
    pub files: u64,
    /// Length of the archive.
    pub bytes: u64,
    /// Of the archive.
    pub sha256: Digest,
    /// Files that were written to while they were read.
    pub changed: Vec<FilePath>,
    /// Generated folders that are not in it.
    pub left_out: Vec<FilePath>,
    /// What was removed after it was safe. When the store did not let us, the next save goes on with it.
    pub pruned: Pruned,
}

#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    #[error("{root} in sandbox {id} cannot be saved: it is no directory that can be entered")]
    NoRoot { id: SandboxId, root: String },
    /// Restore again: what is there is neither the old tree nor the new one.
    #[error("{root} in sandbox {id} cannot be saved: a restore was interrupted in it")]
    HalfRestored { id: SandboxId, root: String },
    #[error("tar could not read {root} in sandbox {id}: {message}")]
    Archiving { id: SandboxId, root: String, message: String },
    #[error("the archive from sandbox {id} cannot be read: {detail}")]
    Garbled { id: SandboxId, detail: String },
    /// Make the tree smaller, as the bound says. No work is lost: the sandbox has it, and earlier snapshots are as they were.
    #[error("{root} in sandbox {id} cannot be saved, and its earlier snapshots are kept: {excess}")]
    Excess { id: SandboxId, root: String, excess: Excess },
    #[error(
        "the archive from sandbox {id} came too slowly: {bytes} bytes in {after:?}; see what keeps its processor or disk busy"
    )]
    Slow { id: SandboxId, bytes: u64, after: Duration },
    #[error("nothing came from sandbox {id} for {after:?} while it was being saved")]
    Silent { id: SandboxId, after: Duration },
    #[error("could not save sandbox {}", id)]
    Sandbox { id: SandboxId, source: CommandError },
    #[error("the snapshot of project {project} could not be stored")]
    Store { project: ProjectId, source: StoreError },
    /// Remove the values from the files, or allow them for this workspace. No work is lost: the sandbox has it, and earlier
    /// snapshots are as they were.
    #[error(
        "values of the workspace's --env variables are in files of sandbox {id}, and a snapshot would keep \
         them in plain text: {}. Read them from the environment there instead, or allow it: `sandbar workspace snapshot NAME \
         --allow-env-values`",
        list_exposed(files)
    )]
    Exposed { id: SandboxId, files: Vec<ExposedFile> },
    /// The store said that it has the snapshot, and then had something else.
    #[error("the store does not have snapshot {stamp} of project {project} as it was stored: {what}")]
    NotKept { project: ProjectId, stamp: Stamp, what: &'static str },
}

impl SaveError {
    /// Whether trying again may help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store { source, .. } => source.is_transient(),
            Self::Sandbox { source, .. } => script::may_pass(source),
            Self::Silent { .. } | Self::Garbled { .. } | Self::NotKept { .. } => true,
            // Something may have been in the way for a moment.
            Self::Archiving { .. } => true,
            Self::NoRoot { .. }
            | Self::HalfRestored { .. }
            | Self::Exposed { .. }
            | Self::Excess { .. }
            | Self::Slow { .. } => false,
        }
    }
}

/// Of more, the first are enough to begin with.
const EXPOSED_SHOWN: usize = 5;

fn list_exposed(files: &[ExposedFile]) -> String {
    let mut text = files.iter().take(EXPOSED_SHOWN).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if files.len() > EXPOSED_SHOWN {
        text.push_str(&format!(" and {} more", files.len() - EXPOSED_SHOWN));
    }
    text
}

/// Below the root, where our own tools keep their sessions.
const OWN_FILES: &[u8] = b".sandbar/";
/// Archives that are made again without own files that have values. New ones may come meanwhile.
const OWN_FILES_TRIES: usize = 3;

/// Bytes a second that an archive comes with on average, once [`Settings::silence`](super::Settings::silence) has passed:
/// a sandbox that sends a byte now and then would hold up its caller for as long as one that works.
const SLOWEST: u64 = 16 * 1024;
/// Of a manifest, sent at once.
const LINES: usize = 1 << 20;

/// An archive that has come from a sandbox.
struct Streamed {
    contents: Contents,
    entries: Entries,
    facts: ArchiveFacts,
    owners: bool,
    left_out: Vec<FilePath>,
    changed: Vec<FilePath>,
}

impl Snapshots {
    /// Saves the files of a sandbox as a new snapshot of `project`, then removes the oldest ones. Where the newest snapshot has the
    /// same files, no other is made.
    ///
    /// The sandbox goes on working meanwhile. Dropping the future leaves no snapshot, and `tar` in the sandbox running
    /// until it finds that nobody reads it.
    ///
    /// # Errors
    /// After all attempts, the last one's. Earlier snapshots are then as they were.
    #[tracing::instrument(skip_all, fields(sandbox = %sandbox.id(), project = %project))]
    pub async fn save(
        &self,
        sandbox: &Sandbox,
        project: &ProjectId,
        options: &SnapshotOptions,
    ) -> Result<Saved, SaveError> {
        let _turn = self.turn(project).await;
        reach(Point::SaveBegun).await;
        let mut attempt = 1;
        let mut saved = loop {
            match self.try_save(sandbox, project, options).await {
                Ok(saved) => break saved,
                Err(error) if error.is_transient() && attempt < self.settings.attempts => {
                    warn!(attempt, error = %chain(&error), "a snapshot failed and is tried again");
                    attempt += 1;
                    self.back_off(attempt).await;
                }
                Err(error) => return Err(error),
            }
        };
        match self.prune_in_turn(project, self.settings.keep, options.spare).await {
            Ok(pruned) => saved.pruned = pruned,
            Err(error) => warn!(error = %chain(&error), "old snapshots were not removed"),
        }
        let unchanged = saved.unchanged;
        info!(key = saved.key, files = saved.files, bytes = saved.bytes, attempt, unchanged, "snapshot saved");
        Ok(saved)
    }

    async fn try_save(
        &self,
        sandbox: &Sandbox,
        project: &ProjectId,
        options: &SnapshotOptions,
    ) -> Result<Saved, SaveError> {
        let failed = |source| SaveError::Store { project: project.clone(), source };
        let generations = self.generations(project).await.map_err(failed)?;
        let stamp = Stamp::after(generations.newest(), Timestamp::now());
        reach(Point::SaveStamped).await;

        let key = key::archive(project, stamp);
        let limits = match self.settings.limits {
            Some(limits) => limits,
            None => ArchiveLimits::for_sandbox(sandbox).await,
        };
        let mut anew = options.anew_when_changed;
        let mut own_files: Vec<Vec<FilePath>> = Vec::new();
        let (streamed, upload) = loop {
            let mut upload = self.objects.upload(key.clone());
            match self.stream(sandbox, project, options, &limits, &own_files.concat(), &mut upload).await {
                Ok(streamed) if !streamed.contents.exposed.is_empty() => {
                    upload.abort().await;
                    let Contents { exposed, more_exposed, .. } = streamed.contents;
                    let own = |file: &&ExposedFile| file.path.as_bytes().starts_with(OWN_FILES);
                    if more_exposed || own_files.len() >= OWN_FILES_TRIES || !exposed.iter().all(|file| own(&file)) {
                        let files: Vec<ExposedFile> = exposed.iter().filter(|file| !own(file)).cloned().collect();
                        let files = if files.is_empty() { exposed } else { files };
                        return Err(SaveError::Exposed { id: sandbox.id().clone(), files });
                    }
                    info!(files = exposed.len(), "session files with values of variables are left out: once more");
                    own_files.push(exposed.into_iter().map(|file| file.path).collect());
                }
                Ok(streamed) if !streamed.changed.is_empty() && anew > 0 => {
                    info!(files = streamed.changed.len(), "files changed while they were archived: once more");
                    anew -= 1;
                    upload.abort().await;
                }
                Ok(streamed) => break (streamed, upload),
                Err(error) => {
                    upload.abort().await;
                    return Err(error);
                }
            }
        };
        reach(Point::SaveStreamed).await;

        let Streamed { contents, entries, facts, owners, left_out, changed } = streamed;
        let Contents { files, bytes, .. } = contents;
        let manifest = Manifest {
            format: FORMAT,
            project: project.clone(),
            stamp,
            root: options.root.clone(),
            archive: facts,
            files,
            bytes,
            owners,
            left_out,
            changed,
            occasion: options.occasion,
            searched: true,
            listing: entries.facts(),
        };
        if let Some(newest) = self.newest_if_same(project, &generations, &manifest).await.map_err(failed)? {
            upload.abort().await;
            self.note_same(project, newest.stamp, options.occasion, Timestamp::now()).await;
            let Manifest { stamp, files, archive: ArchiveFacts { bytes, sha256 }, .. } = newest;
            let (key, pruned) = (key::archive(project, stamp).to_string(), Pruned::default());
            let Manifest { changed, left_out, .. } = manifest;
            return Ok(Saved { stamp, unchanged: true, key, files, bytes, sha256, changed, left_out, pruned });
        }
        upload.finish().await.map_err(failed)?;
        reach(Point::SaveArchiveStored).await;

        self.commit(&manifest, &entries).await.map_err(failed)?;
        reach(Point::SaveCommitted).await;

        let what = self.forgotten(&manifest).await.map_err(failed)?;
        if let Some(what) = what {
            self.objects.delete(&key::manifest(project, stamp)).await.map_err(failed)?;
            return Err(SaveError::NotKept { project: project.clone(), stamp, what });
        }
        reach(Point::SaveVerified).await;

        let Manifest { changed, left_out, .. } = manifest;
        let ArchiveFacts { bytes, sha256 } = facts;
        let pruned = Pruned::default();
        let key = key.to_string();
        Ok(Saved { stamp, unchanged: false, key, files, bytes, sha256, changed, left_out, pruned })
    }

    /// Stores the manifest: from then on the snapshot exists.
    async fn commit(&self, manifest: &Manifest, entries: &Entries) -> Result<(), StoreError> {
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
                    return Err(self.spool_trouble(error));
                }
            };
        }
        upload.finish().await
    }

    pub(super) fn spool_trouble(&self, error: std::io::Error) -> StoreError {
        StoreError::Directory { path: self.objects.spool_directory().as_ref().clone(), source: error.into() }
    }

    /// The newest snapshot, if it is known to be whole and brings back the same tree.
    async fn newest_if_same(
        &self,
        project: &ProjectId,
        generations: &Generations,
        manifest: &Manifest,
    ) -> Result<Option<Manifest>, StoreError> {
        let Some(stamp) = generations.committed().next_back() else { return Ok(None) };
        match self.condition(project, generations, stamp).await? {
            Some(Condition::Whole { verified: true, .. }) => {}
            _ => return Ok(None),
        }
        match self.manifest(project, stamp).await {
            Ok(newest) => Ok(Some(newest).filter(|newest| newest.searched && newest.has_same_tree(manifest))),
            Err(ManifestError::Store(StoreError::NotFound { .. }) | ManifestError::Unreadable(_)) => Ok(None),
            Err(ManifestError::Store(error)) => Err(error),
        }
    }

    /// Lists the folders that a snapshot of the sandbox would leave out now, without taking one.
    ///
    /// # Errors
    /// [`SaveError::NoRoot`], [`SaveError::HalfRestored`], [`SaveError::Sandbox`] or [`SaveError::Silent`].
    pub async fn list_excluded(
        &self,
        sandbox: &Sandbox,
        options: &SnapshotOptions,
    ) -> Result<Vec<FilePath>, SaveError> {
        let trouble = |error| of_script(sandbox, error);
        let script = Script::start(sandbox, script::EXCLUDES, arguments(options), Input::None, self.patience()).await;
        let ended = script.map_err(trouble)?.finish(|_| {}).await.map_err(trouble)?;
        if let Some(refused) = refusal(sandbox, options, ended.exit.code) {
            return Err(refused);
        }
        Ok(heading(ended.said.bytes()).0)
    }

    /// What the store does not have, of that which it said it has.
    async fn forgotten(&self, manifest: &Manifest) -> Result<Option<&'static str>, StoreError> {
        let Manifest { project, stamp, archive: facts, .. } = manifest;
        let stamp = *stamp;
        let object = self.objects.look(&key::archive(project, stamp)).await?;
        let Some(object) = object.filter(|object| object.size == facts.bytes) else {
            return Ok(Some("the archive is missing or has another length"));
        };
        match self.manifest(project, stamp).await {
            Ok(there) if there == *manifest => {}
            Ok(_) | Err(ManifestError::Unreadable(_) | ManifestError::Store(StoreError::NotFound { .. })) => {
                return Ok(Some("the manifest is missing or another one"));
            }
            Err(ManifestError::Store(error)) => return Err(error),
        }
        // Older snapshots go when this one is safe, so all of it is read. A store that cannot be read now may be later: the
        // snapshot is there, and counts as unverified.
        match self.digest_of(project, stamp, facts.bytes).await {
            Ok(found) if found == facts.sha256 => self.note_check(project, stamp, Some(&object), None).await,
            Ok(_) => return Ok(Some("the archive has another content")),
            Err(error) => warn!(%stamp, error = %chain(&error), "a snapshot was not verified after it was stored"),
        }
        Ok(None)
    }

    /// Brings the archive from the sandbox into the store, and reads it on the way. A reader that fails ends both.
    async fn stream(
        &self,
        sandbox: &Sandbox,
        project: &ProjectId,
        options: &SnapshotOptions,
        limits: &ArchiveLimits,
        own_files: &[FilePath],
        upload: &mut Upload,
    ) -> Result<Streamed, SaveError> {
        let trouble = |error| of_script(sandbox, error);
        let files = own_files.iter().map(|path| path.text().into_owned());
        let arguments = arguments(options).into_iter().chain(["--".to_owned()]).chain(files).collect();
        let script = Script::start(sandbox, script::ARCHIVE, arguments, Input::None, self.patience()).await;
        let mut script = script.map_err(trouble)?;
        reach(Point::SaveArchiving).await;

        let (feed, pieces) = archive::feed();
        let (values, bounds, directory) = (options.values.clone(), *limits, self.objects.spool_directory());
        let reader = tokio::task::spawn_blocking(move || {
            let mut entries = EntryWriter::new(directory.clone());
            let contents = archive::read(pieces, &bounds, &values, Spool::new(directory), |entry| entries.push(entry))?;
            Ok((contents, entries.finish()?))
        });
        let mut said = Said::default();
        let passing = Passing { most: limits.archive_bytes, grace: self.settings.silence };
        let passed = passing.pass(&mut script, upload, &feed, &mut said).await;
        drop(feed);
        if passed.is_err() {
            script.kill().await;
        }
        // It ends by itself: nothing more comes.
        let contents: std::io::Result<(Contents, Entries)> =
            reader.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        let (id, root) = (sandbox.id().clone(), options.root.clone());
        let exceeded = |excess: Excess| SaveError::Excess { id: id.clone(), root: root.clone(), excess };
        let unread = |error: std::io::Error| match (Excess::of(&error), error.raw_os_error()) {
            (Some(excess), _) => exceeded(excess.clone()),
            (None, Some(_)) => SaveError::Store { project: project.clone(), source: self.spool_trouble(error) },
            (None, None) => SaveError::Garbled { id: id.clone(), detail: error.to_string() },
        };
        let facts = match passed {
            Ok(facts) => facts,
            Err(Stopped::Script(error)) => return Err(trouble(error)),
            Err(Stopped::Store(source)) => return Err(SaveError::Store { project: project.clone(), source }),
            Err(Stopped::Excess(excess)) => return Err(exceeded(excess)),
            Err(Stopped::Slow { bytes, after }) => return Err(SaveError::Slow { id, bytes, after }),
            Err(Stopped::Reader) => {
                let gone = || std::io::Error::other("its reader ended before the archive did");
                return Err(unread(contents.err().unwrap_or_else(gone)));
            }
        };
        let exit = script.exit();
        if let Some(refused) = refusal(sandbox, options, exit.code) {
            return Err(refused);
        }
        let (left_out, complaints) = heading(said.bytes());
        let changed = match exit.code {
            0 => Some(Vec::new()),
            // Some files differ: `tar` says which.
            1 => complaint::changed(complaints),
            _ => None,
        };
        let Some(changed) = changed else {
            let message = match script::summary(complaints) {
                said if said.is_empty() => exit.status,
                said => said,
            };
            return Err(SaveError::Archiving { id, root, message });
        };
        if left_out.len().max(changed.len()) > limits.reported_paths {
            return Err(exceeded(Excess::Reported(limits.reported_paths)));
        }
        let (contents, entries) = contents.map_err(unread)?;
        Ok(Streamed { contents, entries, facts, owners: script.as_root, left_out, changed })
    }
}

/// As both scripts take them.
fn arguments(options: &SnapshotOptions) -> Vec<String> {
    [options.root.clone()].into_iter().chain(options.left_out.arguments()).collect()
}

/// How both scripts say that there is nothing to be saved.
fn refusal(sandbox: &Sandbox, options: &SnapshotOptions, code: i32) -> Option<SaveError> {
    let (id, root) = (sandbox.id().clone(), options.root.clone());
    match code {
        script::NO_ROOT => Some(SaveError::NoRoot { id, root }),
        script::HALF_RESTORED => Some(SaveError::HalfRestored { id, root }),
        _ => None,
    }
}

/// Why the archive was not passed on to its end.
enum Stopped {
    Script(ScriptError),
    Store(StoreError),
    Excess(Excess),
    Slow {
        bytes: u64,
        after: Duration,
    },
    /// The reader has given up, and says why.
    Reader,
}

/// Passes the archive on to the store and to the reader.
struct Passing {
    /// Bytes of the archive.
    most: u64,
    /// For how long it may come as slowly as it likes.
    grace: Duration,
}

impl Passing {
    async fn pass(
        &self,
        script: &mut Script,
        upload: &mut Upload,
        feed: &tokio::sync::mpsc::Sender<Bytes>,
        said: &mut Said,
    ) -> Result<ArchiveFacts, Stopped> {
        let mut hasher = Hasher::default();
        let mut bytes = 0;
        let mut half = false;
        let begun = Instant::now();
        loop {
            let chunk = tokio::select! {
                biased;
                () = feed.closed() => return Err(Stopped::Reader),
                chunk = script.next() => chunk.map_err(Stopped::Script)?,
            };
            let Some(chunk) = chunk else { break };
            match chunk {
                Chunk::Stderr(text) => said.push(&text),
                Chunk::Stdout(piece) | Chunk::Pty(piece) => {
                    hasher.update(&piece);
                    bytes += piece.len() as u64;
                    if bytes > self.most {
                        return Err(Stopped::Excess(Excess::Archive(self.most)));
                    }
                    upload.push(&piece).await.map_err(Stopped::Store)?;
                    feed.send(piece).await.map_err(|_| Stopped::Reader)?;
                    if !half && upload.is_under_way() {
                        half = true;
                        reach(Point::SaveHalfStored).await;
                    }
                }
            }
            let after = begun.elapsed();
            if bytes < after.saturating_sub(self.grace).as_secs() * SLOWEST {
                return Err(Stopped::Slow { bytes, after });
            }
        }
        Ok(ArchiveFacts { bytes, sha256: hasher.finish() })
    }
}

/// What the script says first: the folders that it leaves out. The rest is `tar`'s.
fn heading(said: &[u8]) -> (Vec<FilePath>, &[u8]) {
    let mut left_out = Vec::new();
    let mut rest = said;
    while let Some(end) = rest.iter().position(|byte| *byte == 0) {
        let path = &rest[..end];
        rest = &rest[end + 1..];
        if path.is_empty() {
            break;
        }
        left_out.push(FilePath::new(path.strip_prefix(b"./").unwrap_or(path)));
    }
    (left_out, rest)
}

fn of_script(sandbox: &Sandbox, error: ScriptError) -> SaveError {
    let id = sandbox.id().clone();
    match error {
        ScriptError::Command(source) => SaveError::Sandbox { id, source },
        ScriptError::Silent(after) => SaveError::Silent { id, after },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heading_is_told_from_complaints() {
        let check = |said: &[u8], folders: &[&str], rest: &[u8]| {
            let folders: Vec<FilePath> = folders.iter().map(|folder| FilePath::from(*folder)).collect();
            assert_eq!(heading(said), (folders, rest));
        };
        check(b"", &[], b"");
        check(b"\0tar: x\n", &[], b"tar: x\n");
        check(b"./a/node_modules\0./b/dist\0\0tar: x\n", &["a/node_modules", "b/dist"], b"tar: x\n");
    }
}
