//! Restores the files of a checkpoint in a sandbox.
//!
//! They are unpacked and verified in a directory next to the current tree, which an atomic rename
//! then replaces. A failure before that keeps the old tree; after it, the tree is exactly the
//! checkpoint's.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use protocol::SandboxId;
use text::error_chain;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::Checkpoints;
use crate::digest::{Digest, DigestHasher};
use crate::entries::Entries;
use crate::faults::{CheckpointPoint, reach};
use crate::key::{self, ProjectId, Stamp};
use crate::listing::{Generations, ManifestError};
use crate::manifest::{CheckpointManifest, FilePath};
use crate::port::{CheckpointSandbox, SandboxFailure, ScriptControl, ScriptInput};
use crate::script::{self, SandboxScript, SandboxScriptError, ScriptReport, ScriptTimeouts};
use crate::spool::Spooled;
use crate::store::ObjectStoreError;
use crate::verify::{Comparison, Mismatch, VerifyRequest};

/// The timeout for removing unpacked files after a failure.
const DISCARD_DEADLINE: Duration = Duration::from_secs(60);
/// How `tar` reports a full disk: the last one when part of a block fits.
const NO_SPACE: [&str; 3] = ["No space left on device", "Disk quota exceeded", ": Wrote only "];

/// Selects a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The newest one without flaws.
    Newest,
    /// Exactly this one.
    Exactly(Stamp),
}

/// What is wrong with a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    #[error("it has no manifest: its save was interrupted")]
    NoManifest,
    #[error("{0}")]
    ManifestUnreadable(String),
    #[error("its archive is missing")]
    ArchiveMissing,
    #[error("its archive has {found} bytes instead of {wanted}")]
    ArchiveSize { found: u64, wanted: u64 },
    #[error("its archive has the digest {found} instead of {wanted}")]
    ArchiveDigest { found: Digest, wanted: Digest },
    #[error("{path:?} came back wrong: {what}")]
    Mismatch { path: FilePath, what: &'static str },
}

/// A completed restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    pub project: ProjectId,
    pub stamp: Stamp,
    /// The archive's key in the store.
    pub key: String,
    /// The restored directory.
    pub root: String,
    pub files: u64,
    /// Generated folders that are missing and must be generated again.
    pub excluded: Vec<FilePath>,
    /// Newer checkpoints that were skipped, and why; newest first.
    pub skipped_generations: Vec<(Stamp, Flaw)>,
}

#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// Choose another one.
    #[error("project {project} has no snapshot {stamp}; it has {}", list_stamps(there))]
    NotThere { project: ProjectId, stamp: Stamp, there: Vec<Stamp> },
    /// Choose another one, or the newest without flaws.
    #[error("snapshot {stamp} of project {project} is damaged, and the files are as they were: {flaw}")]
    Damaged { project: ProjectId, stamp: Stamp, flaw: Flaw },
    /// There is none, or none without flaws.
    #[error("project {project} has no snapshot that can be restored{}", list_skipped(skipped))]
    NoCheckpoint { project: ProjectId, skipped: Vec<(Stamp, Flaw)> },
    /// The files in the sandbox are unchanged.
    #[error("no space is left in sandbox {id} for snapshot {stamp}")]
    NoSpace { id: SandboxId, stamp: Stamp },
    /// The archive is intact, but the sandbox cannot unpack it.
    #[error("snapshot {stamp} cannot be unpacked in sandbox {id}: {message}")]
    Unpacking { id: SandboxId, stamp: Stamp, message: String },
    #[error("{path} is mounted in sandbox {id} below the directory that is to be restored")]
    Mounted { id: SandboxId, path: String },
    /// The files in the sandbox are unchanged.
    #[error("snapshot {stamp} could not be put in place in sandbox {id}: {message}")]
    Swap { id: SandboxId, stamp: Stamp, message: String },
    #[error("nothing came from sandbox {id} for {after:?} while it was being restored")]
    Silent { id: SandboxId, after: Duration },
    #[error("could not restore sandbox {}", id)]
    Sandbox { id: SandboxId, source: SandboxFailure },
    /// The store failed, which says nothing about its checkpoints.
    #[error("the snapshots of project {project} could not be read")]
    Store { project: ProjectId, source: ObjectStoreError },
}

fn list_skipped(skipped: &[(Stamp, Flaw)]) -> String {
    skipped.iter().map(|(stamp, flaw)| format!("; {stamp}: {flaw}")).collect()
}

fn list_stamps(stamps: &[Stamp]) -> String {
    match stamps {
        [] => "none".to_owned(),
        stamps => stamps.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

impl RestoreError {
    /// Whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store { source, .. } => source.is_transient(),
            Self::Sandbox { source, .. } => script::is_retryable(source),
            Self::Silent { .. } => true,
            Self::NotThere { .. }
            | Self::Damaged { .. }
            | Self::NoCheckpoint { .. }
            | Self::NoSpace { .. }
            | Self::Unpacking { .. }
            | Self::Mounted { .. }
            | Self::Swap { .. } => false,
        }
    }
}

/// Why one checkpoint was not restored.
enum Failure {
    /// Another checkpoint may be intact.
    Flawed(Flaw),
    /// Another checkpoint would fail too.
    Stopped(RestoreError),
}

impl From<RestoreError> for Failure {
    fn from(error: RestoreError) -> Self {
        Self::Stopped(error)
    }
}

impl Checkpoints {
    /// Restores the files of a checkpoint of `project` in a sandbox. Other files in the saved
    /// directory are removed.
    ///
    /// Every file is verified before the swap. With [`Which::Newest`], a flawed checkpoint is
    /// skipped for the one before it. Dropping the future leaves the old files or, at the very end,
    /// the new ones.
    ///
    /// # Errors
    /// Any [`RestoreError`]; the files in the sandbox are then unchanged.
    #[tracing::instrument(skip_all, fields(sandbox = %sandbox.id(), project = %project))]
    pub async fn restore(
        &self,
        sandbox: &dyn CheckpointSandbox,
        project: &ProjectId,
        which: Which,
    ) -> Result<Restored, RestoreError> {
        let _lock = self.lock_project(project).await;
        reach(CheckpointPoint::RestoreBegun).await;
        let mut attempt = 1;
        loop {
            match self.try_restore(sandbox, project, which).await {
                Err(error) if error.is_transient() && attempt < self.settings.attempts => {
                    warn!(attempt, error = %error_chain(&error), "restore failed, retrying");
                    attempt += 1;
                    self.back_off(attempt).await;
                }
                other => return other,
            }
        }
    }

    /// Whether there is such a checkpoint, whatever its condition.
    ///
    /// # Errors
    /// [`RestoreError::NotThere`] or [`RestoreError::Store`].
    pub async fn require(&self, project: &ProjectId, stamp: Stamp) -> Result<(), RestoreError> {
        let generations = self.generations(project).await;
        let generations = generations.map_err(|source| RestoreError::Store { project: project.clone(), source })?;
        generations.require(project, stamp)
    }

    async fn try_restore(
        &self,
        sandbox: &dyn CheckpointSandbox,
        project: &ProjectId,
        which: Which,
    ) -> Result<Restored, RestoreError> {
        let generations = self.generations(project).await;
        let generations = generations.map_err(|source| RestoreError::Store { project: project.clone(), source })?;
        let chosen: Vec<Stamp> = match which {
            Which::Newest => generations.committed().rev().collect(),
            Which::Exactly(stamp) => {
                generations.require(project, stamp)?;
                vec![stamp]
            }
        };
        // Reports newer interrupted saves, which the user may expect to be restored.
        let newest = chosen.first().copied();
        let mut skipped: Vec<(Stamp, Flaw)> = match which {
            Which::Newest => {
                generations.orphans().filter(|stamp| newest.is_none_or(|newest| *stamp > newest)).collect()
            }
            Which::Exactly(_) => Vec::new(),
        }
        .into_iter()
        .rev()
        .map(|stamp: Stamp| (stamp, Flaw::NoManifest))
        .collect();
        for stamp in chosen {
            match self.restore_one(sandbox, project, stamp, generations.archive_size(stamp)).await {
                Ok(manifest) => {
                    self.record_check(project, stamp, generations.archive(stamp), None).await;
                    let CheckpointManifest { root, files, excluded, .. } = manifest;
                    let key = key::archive(project, stamp).to_string();
                    info!(key, files, skipped = skipped.len(), "checkpoint restored");
                    return Ok(Restored {
                        project: project.clone(),
                        stamp,
                        key,
                        root,
                        files,
                        excluded,
                        skipped_generations: skipped,
                    });
                }
                Err(Failure::Flawed(flaw)) => {
                    warn!(%stamp, %flaw, "checkpoint is damaged");
                    if matches!(flaw, Flaw::ArchiveDigest { .. } | Flaw::Mismatch { .. }) {
                        let object = generations.archive(stamp);
                        self.record_check(project, stamp, object, Some(flaw.to_string())).await;
                    }
                    if which == Which::Exactly(stamp) {
                        return Err(RestoreError::Damaged { project: project.clone(), stamp, flaw });
                    }
                    skipped.push((stamp, flaw));
                }
                Err(Failure::Stopped(error)) => return Err(error),
            }
        }
        Err(RestoreError::NoCheckpoint { project: project.clone(), skipped })
    }

    async fn restore_one(
        &self,
        sandbox: &dyn CheckpointSandbox,
        project: &ProjectId,
        stamp: Stamp,
        archive_size: Option<u64>,
    ) -> Result<CheckpointManifest, Failure> {
        let (manifest, entries) = match self.manifest_and_entries(project, stamp).await {
            Ok(read) => read,
            Err(ManifestError::Store(ObjectStoreError::NotFound { .. })) => {
                return Err(Failure::Flawed(Flaw::NoManifest));
            }
            Err(ManifestError::Unreadable(reason)) => return Err(Failure::Flawed(Flaw::ManifestUnreadable(reason))),
            Err(ManifestError::Store(source)) => {
                return Err(RestoreError::Store { project: project.clone(), source }.into());
            }
        };
        let wanted = manifest.archive.bytes;
        match archive_size {
            None => return Err(Failure::Flawed(Flaw::ArchiveMissing)),
            Some(found) if found != wanted => return Err(Failure::Flawed(Flaw::ArchiveSize { found, wanted })),
            Some(_) => {}
        }
        reach(CheckpointPoint::RestoreChosen).await;
        let stage = format!(".sandbar-restore.{:016x}", rand::random::<u64>());
        let staged = self.stage(sandbox, &manifest, entries, &stage).await;
        if let Err(failure) = staged {
            self.discard(sandbox, &manifest.root, &stage).await;
            return Err(failure);
        }
        reach(CheckpointPoint::RestoreVerified).await;
        self.swap(sandbox, &manifest, &stage).await?;
        reach(CheckpointPoint::RestoreSwapped).await;
        Ok(manifest)
    }

    /// Unpacks the files next to the current ones, and verifies each as soon as it is written.
    async fn stage(
        &self,
        sandbox: &dyn CheckpointSandbox,
        manifest: &CheckpointManifest,
        entries: Entries,
        stage: &str,
    ) -> Result<(), Failure> {
        let CheckpointManifest { project, root, stamp, archive, .. } = manifest;
        let (id, stamp) = (sandbox.id().clone(), *stamp);
        let explain = |error| from_script_error(sandbox, error);
        let unread = |error| RestoreError::Store { project: project.clone(), source: self.spool_error(error) };
        let (entries_to_verify, directory) = (entries.clone(), self.objects.spool_directory());
        let request = tokio::task::spawn_blocking(move || VerifyRequest::new(&entries_to_verify, directory)).await;
        let request = request.unwrap_or_else(|error| Err(std::io::Error::other(error))).map_err(unread)?;
        let (input, who) = match sandbox.inflates_input().await {
            true => (ScriptInput::Gzip, "guest"),
            false => (ScriptInput::Open, "script"),
        };
        let compressed = request.compressed.clone();
        let bytes = compressed.len() + archive.bytes;
        let numbers = [bytes, request.bytes, request.files].map(|number| number.to_string());
        let arguments: Vec<String> =
            [root.clone(), stage.to_owned()].into_iter().chain(numbers).chain([who.to_owned()]).collect();
        let script =
            SandboxScript::start(sandbox, script::UNPACK, arguments, input, self.quiet()).await.map_err(explain)?;
        reach(CheckpointPoint::RestoreUnpacking).await;

        let process = script.control();
        let mut comparison = Comparison::new(&entries, request, manifest.owners && script.as_root());
        let last_output = watch::Sender::new(Instant::now());
        let content = self.objects.read(key::archive(project, stamp), archive.bytes);
        let mut sending = pin!(send(process.as_ref(), &compressed, content, input));
        let reading = script.finish(|bytes| {
            last_output.send_replace(Instant::now());
            comparison.push(&bytes);
        });
        // Boxed, so that it can be dropped before the comparison is used.
        let mut reading = Box::pin(reading);
        // Either may fail first. A `tar` that exits early takes no more input, and the digest of
        // the rest of the archive shows why; an archive that cannot be read leaves `tar` waiting.
        let (sent, ended) = tokio::select! {
            sent = &mut sending => match sent {
                Ok(sent) => {
                    last_output.send_replace(Instant::now());
                    (Ok(sent), wait_with_idle_timeout(&mut reading, &last_output, self.settings.silence).await)
                }
                Err(error) => (Err(error), None),
            },
            ended = &mut reading => (sending.await, Some(ended)),
        };
        drop(reading);
        let sent = match sent {
            Ok(sent) => sent,
            Err(error) => {
                kill(process.as_ref()).await;
                return Err(match error {
                    SendError::Store(ObjectStoreError::NotFound { .. }) => Failure::Flawed(Flaw::ArchiveMissing),
                    SendError::Store(source) => RestoreError::Store { project: project.clone(), source }.into(),
                    SendError::Spool(error) => unread(error).into(),
                    SendError::Sandbox(source) => RestoreError::Sandbox { id, source }.into(),
                });
            }
        };
        let Some(ended) = ended else {
            kill(process.as_ref()).await;
            return Err(RestoreError::Silent { id, after: self.settings.silence }.into());
        };
        if sent != archive.sha256 {
            return Err(Failure::Flawed(Flaw::ArchiveDigest { found: sent, wanted: archive.sha256 }));
        }
        let ScriptReport { exit, stderr } = ended.map_err(explain)?;
        if !exit.success {
            let message = stderr.summary();
            let full = NO_SPACE.iter().any(|text| message.contains(text));
            return Err(match full {
                true => RestoreError::NoSpace { id, stamp }.into(),
                false => RestoreError::Unpacking { id, stamp, message }.into(),
            });
        }
        reach(CheckpointPoint::RestoreUnpacked).await;

        match comparison.finish().map_err(unread)? {
            None => Ok(()),
            Some(Mismatch { path, what }) => Err(Failure::Flawed(Flaw::Mismatch { path, what })),
        }
    }

    async fn swap(
        &self,
        sandbox: &dyn CheckpointSandbox,
        manifest: &CheckpointManifest,
        stage: &str,
    ) -> Result<(), RestoreError> {
        let arguments = vec![manifest.root.clone(), stage.to_owned()];
        let explain = |error| from_script_error(sandbox, error);
        let script = SandboxScript::start(sandbox, script::SWAP, arguments, ScriptInput::None, self.quiet())
            .await
            .map_err(explain)?;
        let ScriptReport { exit, stderr } = script.finish_reconnecting().await.map_err(explain)?;
        if exit.success {
            return Ok(());
        }
        self.discard(sandbox, &manifest.root, stage).await;
        let (id, message) = (sandbox.id().clone(), stderr.summary());
        Err(match exit.code {
            script::MOUNTED => RestoreError::Mounted { id, path: message },
            _ => RestoreError::Swap { id, stamp: manifest.stamp, message },
        })
    }

    /// Removes unpacked files after a failure. If that fails too, the next restore removes them.
    async fn discard(&self, sandbox: &dyn CheckpointSandbox, root: &str, stage: &str) {
        let timeouts = ScriptTimeouts { total: DISCARD_DEADLINE, silence: DISCARD_DEADLINE };
        let arguments = vec![root.to_owned(), stage.to_owned()];
        match run(sandbox, script::DISCARD, arguments, timeouts).await {
            Ok(ScriptReport { exit, .. }) if exit.success => {}
            Ok(ScriptReport { stderr, .. }) => warn!(output = stderr.summary(), "unpacked files could not be removed"),
            Err(error) => warn!(%error, "unpacked files could not be removed"),
        }
    }

    /// For scripts without output while they work. The client watches whether the sandbox is alive.
    fn quiet(&self) -> ScriptTimeouts {
        ScriptTimeouts { total: self.settings.longest, silence: self.settings.longest }
    }
}

impl Generations {
    fn require(&self, project: &ProjectId, stamp: Stamp) -> Result<(), RestoreError> {
        if self.committed().any(|there| there == stamp) {
            return Ok(());
        }
        Err(RestoreError::NotThere { project: project.clone(), stamp, there: self.committed().collect() })
    }
}

async fn run(
    sandbox: &dyn CheckpointSandbox,
    text: &str,
    arguments: Vec<String>,
    timeouts: ScriptTimeouts,
) -> Result<ScriptReport, SandboxScriptError> {
    SandboxScript::start(sandbox, text, arguments, ScriptInput::None, timeouts).await?.finish(|_| {}).await
}

/// The chunk size of the verification request.
const REQUEST_CHUNK: usize = 1 << 20;

enum SendError {
    Store(ObjectStoreError),
    Spool(std::io::Error),
    Sandbox(SandboxFailure),
}

/// Waits for `reading`; [`None`] when there is no output for `silence`.
async fn wait_with_idle_timeout<T>(
    reading: &mut (impl Future<Output = T> + Unpin),
    last_output: &watch::Sender<Instant>,
    silence: Duration,
) -> Option<T> {
    loop {
        let until = *last_output.borrow() + silence;
        match tokio::time::timeout_at(until, &mut *reading).await {
            Ok(read) => return Some(read),
            Err(_) if *last_output.borrow() + silence > until => {}
            Err(_) => return None,
        }
    }
}

/// Sends the verification request and the archive, and returns the archive's digest. Continues to
/// read when `tar` takes no more.
async fn send(
    process: &dyn ScriptControl,
    request: &Spooled,
    content: impl Stream<Item = Result<Bytes, ObjectStoreError>>,
    input: ScriptInput,
) -> Result<Digest, SendError> {
    let mut content = pin!(content);
    let mut hasher = DigestHasher::default();
    let mut half = false;
    let mut open = true;
    let mut request = request.reader();
    while let Some(piece) = request.next_piece(REQUEST_CHUNK).map_err(SendError::Spool)?.filter(|_| open) {
        open = process.send(piece).await.map_err(SendError::Sandbox)?;
    }
    while let Some(piece) = content.next().await {
        let piece = piece.map_err(SendError::Store)?;
        // Hashes in parallel with sending, so that `tar` does not wait for digests.
        let hashed = piece.clone();
        let hashing = tokio::task::spawn_blocking(move || {
            hasher.update(&hashed);
            hasher
        });
        open = open && process.send(piece).await.map_err(SendError::Sandbox)?;
        hasher = hashing.await.expect("a digest is made of any bytes");
        if !half {
            half = true;
            reach(CheckpointPoint::RestoreHalfSent).await;
        }
    }
    // When the script inflates, it counts bytes instead of waiting for the end of input.
    if open && input == ScriptInput::Gzip {
        process.close().await.map_err(SendError::Sandbox)?;
    }
    Ok(hasher.finish())
}

async fn kill(process: &dyn ScriptControl) {
    let killed = tokio::time::timeout(DISCARD_DEADLINE, process.kill()).await;
    if let Ok(Err(error)) = killed {
        warn!(%error, "tar may still be waiting in the sandbox; its timeout will end it");
    }
}

fn from_script_error(sandbox: &dyn CheckpointSandbox, error: SandboxScriptError) -> RestoreError {
    let id = sandbox.id().clone();
    match error {
        SandboxScriptError::Call(source) => RestoreError::Sandbox { id, source },
        SandboxScriptError::Silent(after) => RestoreError::Silent { id, after },
    }
}
