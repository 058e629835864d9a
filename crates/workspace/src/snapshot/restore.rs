//! Brings the files of a snapshot back into a sandbox.
//!
//! They are unpacked beside what is there, verified there, and then put in its place by renaming. Whatever goes wrong before
//! that leaves the old tree; afterwards the tree is exactly the snapshot's.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use sdk::{CommandError, Process, Sandbox, SandboxId};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::Snapshots;
use super::digest::{Digest, Hasher};
use super::entries::Entries;
use super::key::{self, ProjectId, Stamp};
use super::listing::{Generations, ManifestError};
use super::manifest::{FilePath, Manifest};
use super::script::{self, Ended, Input, Patience, Script, ScriptError};
use super::spool::Spooled;
use super::store::StoreError;
use super::verify::{Comparison, Mismatch, Question};
use crate::chain::chain;
use crate::faults::{Point, reach};

/// For removing what was unpacked in vain.
const DISCARD_DEADLINE: Duration = Duration::from_secs(60);
/// How `tar` says that the disk is full: the last one when there was room for a part of a block.
const NO_SPACE: [&str; 3] = ["No space left on device", "Disk quota exceeded", ": Wrote only "];

/// Which snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The newest that is good.
    Newest,
    /// This one or none.
    Exactly(Stamp),
}

/// What is wrong with a snapshot.
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

/// What was brought back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    pub project: ProjectId,
    pub stamp: Stamp,
    /// The archive's key in the store.
    pub key: String,
    /// The directory that is now as it was.
    pub root: String,
    pub files: u64,
    /// Generated folders that are not there: something has to make them again.
    pub left_out: Vec<FilePath>,
    /// Newer snapshots that were no good, and why; the newest first.
    pub skipped_generations: Vec<(Stamp, Flaw)>,
}

#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// Choose another one.
    #[error("project {project} has no snapshot {stamp}; it has {}", listed(there))]
    NotThere { project: ProjectId, stamp: Stamp, there: Vec<Stamp> },
    /// Choose another one, or the newest that is good.
    #[error("snapshot {stamp} of project {project} is damaged, and the files are as they were: {flaw}")]
    Damaged { project: ProjectId, stamp: Stamp, flaw: Flaw },
    /// There is none, or none that is good.
    #[error("project {project} has no snapshot that can be restored{}", tried(skipped))]
    NoSnapshot { project: ProjectId, skipped: Vec<(Stamp, Flaw)> },
    /// The files in the sandbox are as they were.
    #[error("no space is left in sandbox {id} for snapshot {stamp}")]
    NoSpace { id: SandboxId, stamp: Stamp },
    /// The archive is as it was stored, and the sandbox cannot unpack it.
    #[error("snapshot {stamp} cannot be unpacked in sandbox {id}: {message}")]
    Unpacking { id: SandboxId, stamp: Stamp, message: String },
    #[error("{path} is mounted in sandbox {id} below the directory that is to be restored")]
    Mounted { id: SandboxId, path: String },
    /// The files in the sandbox are as they were.
    #[error("snapshot {stamp} could not be put in place in sandbox {id}: {message}")]
    Swap { id: SandboxId, stamp: Stamp, message: String },
    #[error("nothing came from sandbox {id} for {after:?} while it was being restored")]
    Silent { id: SandboxId, after: Duration },
    #[error("could not restore sandbox {}", id)]
    Sandbox { id: SandboxId, source: CommandError },
    /// The store is in trouble, which says nothing about the snapshots in it.
    #[error("the snapshots of project {project} could not be read")]
    Store { project: ProjectId, source: StoreError },
}

fn tried(skipped: &[(Stamp, Flaw)]) -> String {
    skipped.iter().map(|(stamp, flaw)| format!("; {stamp}: {flaw}")).collect()
}

fn listed(stamps: &[Stamp]) -> String {
    match stamps {
        [] => "none".to_owned(),
        stamps => stamps.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

impl RestoreError {
    /// Whether trying again may help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store { source, .. } => source.is_transient(),
            Self::Sandbox { source, .. } => script::may_pass(source),
            Self::Silent { .. } => true,
            Self::NotThere { .. }
            | Self::Damaged { .. }
            | Self::NoSnapshot { .. }
            | Self::NoSpace { .. }
            | Self::Unpacking { .. }
            | Self::Mounted { .. }
            | Self::Swap { .. } => false,
        }
    }
}

/// Why one snapshot was not restored.
enum Failure {
    /// Another one may be good.
    Flawed(Flaw),
    /// Another one would fare no better.
    Stopped(RestoreError),
}

impl From<RestoreError> for Failure {
    fn from(error: RestoreError) -> Self {
        Self::Stopped(error)
    }
}

impl Snapshots {
    /// Makes the files of a sandbox what they were when a snapshot of `project` was taken. What else is in the saved
    /// directory is removed.
    ///
    /// Every file is verified before it is put in place. With [`Which::Newest`] a snapshot that is not as it must be gives
    /// way to the one before it. Dropping the future leaves the old files or, at the very end, the new ones.
    ///
    /// # Errors
    /// Any [`RestoreError`]; the files in the sandbox are then as they were.
    #[tracing::instrument(skip_all, fields(sandbox = %sandbox.id(), project = %project))]
    pub async fn restore(
        &self,
        sandbox: &Sandbox,
        project: &ProjectId,
        which: Which,
    ) -> Result<Restored, RestoreError> {
        let _turn = self.turn(project).await;
        reach(Point::RestoreBegun).await;
        let mut attempt = 1;
        loop {
            match self.try_restore(sandbox, project, which).await {
                Err(error) if error.is_transient() && attempt < self.settings.attempts => {
                    warn!(attempt, error = %chain(&error), "a restore failed and is tried again");
                    attempt += 1;
                    self.back_off(attempt).await;
                }
                other => return other,
            }
        }
    }

    /// Whether there is such a snapshot, whatever it is worth.
    ///
    /// # Errors
    /// [`RestoreError::NotThere`], or the store is in trouble.
    pub(crate) async fn must_have(&self, project: &ProjectId, stamp: Stamp) -> Result<(), RestoreError> {
        let generations = self.generations(project).await;
        let generations = generations.map_err(|source| RestoreError::Store { project: project.clone(), source })?;
        generations.has(project, stamp)
    }

    async fn try_restore(
        &self,
        sandbox: &Sandbox,
        project: &ProjectId,
        which: Which,
    ) -> Result<Restored, RestoreError> {
        let generations = self.generations(project).await;
        let generations = generations.map_err(|source| RestoreError::Store { project: project.clone(), source })?;
        let chosen: Vec<Stamp> = match which {
            Which::Newest => generations.committed().rev().collect(),
            Which::Exactly(stamp) => {
                generations.has(project, stamp)?;
                vec![stamp]
            }
        };
        // Somebody may have hoped for these.
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
                    self.note_check(project, stamp, generations.archive(stamp), None).await;
                    let Manifest { root, files, left_out, .. } = manifest;
                    let key = key::archive(project, stamp).to_string();
                    info!(key, files, skipped = skipped.len(), "snapshot restored");
                    return Ok(Restored {
                        project: project.clone(),
                        stamp,
                        key,
                        root,
                        files,
                        left_out,
                        skipped_generations: skipped,
                    });
                }
                Err(Failure::Flawed(flaw)) => {
                    warn!(%stamp, %flaw, "a snapshot is no good");
                    if matches!(flaw, Flaw::ArchiveDigest { .. } | Flaw::Mismatch { .. }) {
                        let object = generations.archive(stamp);
                        self.note_check(project, stamp, object, Some(flaw.to_string())).await;
                    }
                    if which == Which::Exactly(stamp) {
                        return Err(RestoreError::Damaged { project: project.clone(), stamp, flaw });
                    }
                    skipped.push((stamp, flaw));
                }
                Err(Failure::Stopped(error)) => return Err(error),
            }
        }
        Err(RestoreError::NoSnapshot { project: project.clone(), skipped })
    }

    async fn restore_one(
        &self,
        sandbox: &Sandbox,
        project: &ProjectId,
        stamp: Stamp,
        archive_size: Option<u64>,
    ) -> Result<Manifest, Failure> {
        let (manifest, entries) = match self.manifest_and_entries(project, stamp).await {
            Ok(read) => read,
            Err(ManifestError::Store(StoreError::NotFound { .. })) => return Err(Failure::Flawed(Flaw::NoManifest)),
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
        reach(Point::RestoreChosen).await;
        let stage = format!(".sandbar-restore.{:016x}", rand::random::<u64>());
        let staged = self.stage(sandbox, &manifest, entries, &stage).await;
        if let Err(failure) = staged {
            self.discard(sandbox, &manifest.root, &stage).await;
            return Err(failure);
        }
        reach(Point::RestoreVerified).await;
        self.swap(sandbox, &manifest, &stage).await?;
        reach(Point::RestoreSwapped).await;
        Ok(manifest)
    }

    /// Unpacks the files beside those that are there, and verifies them: every one is read back as soon as it is there.
    async fn stage(
        &self,
        sandbox: &Sandbox,
        manifest: &Manifest,
        entries: Entries,
        stage: &str,
    ) -> Result<(), Failure> {
        let Manifest { project, root, stamp, archive, .. } = manifest;
        let (id, stamp) = (sandbox.id().clone(), *stamp);
        let trouble = |error| of_script(sandbox, error);
        let unread = |error| RestoreError::Store { project: project.clone(), source: self.spool_trouble(error) };
        let (asked, directory) = (entries.clone(), self.objects.spool_directory());
        let question = tokio::task::spawn_blocking(move || Question::about(&asked, directory)).await;
        let question = question.unwrap_or_else(|error| Err(std::io::Error::other(error))).map_err(unread)?;
        let (input, who) = match inflates(sandbox).await {
            true => (Input::Gzip, "guest"),
            false => (Input::Open, "script"),
        };
        let compressed = question.compressed.clone();
        let bytes = compressed.len() + archive.bytes;
        let numbers = [bytes, question.bytes, question.files].map(|number| number.to_string());
        let arguments: Vec<String> =
            [root.clone(), stage.to_owned()].into_iter().chain(numbers).chain([who.to_owned()]).collect();
        let script = Script::start(sandbox, script::UNPACK, arguments, input, self.quiet()).await.map_err(trouble)?;
        reach(Point::RestoreUnpacking).await;

        let process = script.process();
        let mut comparison = Comparison::new(&entries, question, manifest.owners && script.as_root);
        let heard = watch::Sender::new(Instant::now());
        let content = self.objects.read(key::archive(project, stamp), archive.bytes);
        let mut sending = pin!(send(&process, &compressed, content, input));
        let reading = script.finish(|bytes| {
            heard.send_replace(Instant::now());
            comparison.push(&bytes);
        });
        // Not pinned where it is: the comparison is needed when it is done.
        let mut reading = Box::pin(reading);
        // Whoever fails first: a `tar` that ended early takes no more, and then the rest of the archive shows why; an archive
        // that cannot be read leaves `tar` waiting.
        let (sent, ended) = tokio::select! {
            sent = &mut sending => match sent {
                Ok(sent) => {
                    heard.send_replace(Instant::now());
                    (Ok(sent), unless_silent(&mut reading, &heard, self.settings.silence).await)
                }
                Err(error) => (Err(error), None),
            },
            ended = &mut reading => (sending.await, Some(ended)),
        };
        drop(reading);
        let sent = match sent {
            Ok(sent) => sent,
            Err(error) => {
                kill(&process).await;
                return Err(match error {
                    Sending::Store(StoreError::NotFound { .. }) => Failure::Flawed(Flaw::ArchiveMissing),
                    Sending::Store(source) => RestoreError::Store { project: project.clone(), source }.into(),
                    Sending::Spool(error) => unread(error).into(),
                    Sending::Sandbox(source) => RestoreError::Sandbox { id, source }.into(),
                });
            }
        };
        let Some(ended) = ended else {
            kill(&process).await;
            return Err(RestoreError::Silent { id, after: self.settings.silence }.into());
        };
        if sent != archive.sha256 {
            return Err(Failure::Flawed(Flaw::ArchiveDigest { found: sent, wanted: archive.sha256 }));
        }
        let Ended { exit, said } = ended.map_err(trouble)?;
        if !exit.success() {
            let message = said.summary();
            let full = NO_SPACE.iter().any(|text| message.contains(text));
            return Err(match full {
                true => RestoreError::NoSpace { id, stamp }.into(),
                false => RestoreError::Unpacking { id, stamp, message }.into(),
            });
        }
        reach(Point::RestoreUnpacked).await;

        match comparison.finish().map_err(unread)? {
            None => Ok(()),
            Some(Mismatch { path, what }) => Err(Failure::Flawed(Flaw::Mismatch { path, what })),
        }
    }

    async fn swap(&self, sandbox: &Sandbox, manifest: &Manifest, stage: &str) -> Result<(), RestoreError> {
        let arguments = vec![manifest.root.clone(), stage.to_owned()];
        let trouble = |error| of_script(sandbox, error);
        let script =
            Script::start(sandbox, script::SWAP, arguments, Input::None, self.quiet()).await.map_err(trouble)?;
        let Ended { exit, said } = script.finish_surely().await.map_err(trouble)?;
        if exit.success() {
            return Ok(());
        }
        self.discard(sandbox, &manifest.root, stage).await;
        let (id, message) = (sandbox.id().clone(), said.summary());
        Err(match exit.code {
            script::MOUNTED => RestoreError::Mounted { id, path: message },
            _ => RestoreError::Swap { id, stamp: manifest.stamp, message },
        })
    }

    /// Removes what was unpacked in vain. What cannot be removed now goes with the next restore.
    async fn discard(&self, sandbox: &Sandbox, root: &str, stage: &str) {
        let patience = Patience { whole: DISCARD_DEADLINE, silence: DISCARD_DEADLINE };
        let arguments = vec![root.to_owned(), stage.to_owned()];
        match run(sandbox, script::DISCARD, arguments, patience).await {
            Ok(Ended { exit, .. }) if exit.success() => {}
            Ok(Ended { said, .. }) => warn!(said = said.summary(), "what was unpacked in vain is still there"),
            Err(error) => warn!(%error, "what was unpacked in vain is still there"),
        }
    }

    /// For scripts that say nothing while they work. That the sandbox lives is watched by the client.
    fn quiet(&self) -> Patience {
        Patience { whole: self.settings.longest, silence: self.settings.longest }
    }
}

impl Generations {
    fn has(&self, project: &ProjectId, stamp: Stamp) -> Result<(), RestoreError> {
        if self.committed().any(|there| there == stamp) {
            return Ok(());
        }
        Err(RestoreError::NotThere { project: project.clone(), stamp, there: self.committed().collect() })
    }
}

async fn run(sandbox: &Sandbox, text: &str, arguments: Vec<String>, patience: Patience) -> Result<Ended, ScriptError> {
    Script::start(sandbox, text, arguments, Input::None, patience).await?.finish(|_| {}).await
}

/// Of the question, sent at once.
const QUESTION_PIECE: usize = 1 << 20;

enum Sending {
    Store(StoreError),
    Spool(std::io::Error),
    Sandbox(CommandError),
}

/// Whether the sandbox inflates what is sent to a process, which is twice as quick as `gzip`. A server that cannot be asked is taken for
/// plain E2B.
async fn inflates(sandbox: &Sandbox) -> bool {
    match sandbox.client().capabilities().await {
        Ok(found) => found.is_some_and(|found| found.capabilities.contains_key("stdinEncodings")),
        Err(error) => {
            debug!(error = %chain(&error), "the server does not say what it can");
            false
        }
    }
}

/// What `reading` comes to; none when nothing was heard for so long.
async fn unless_silent<T>(
    reading: &mut (impl Future<Output = T> + Unpin),
    heard: &watch::Sender<Instant>,
    silence: Duration,
) -> Option<T> {
    loop {
        let until = *heard.borrow() + silence;
        match tokio::time::timeout_at(until, &mut *reading).await {
            Ok(read) => return Some(read),
            Err(_) if *heard.borrow() + silence > until => {}
            Err(_) => return None,
        }
    }
}

/// Sends the question and the archive, and says what the archive's digest is. Goes on reading when `tar` takes no more.
async fn send(
    process: &Process,
    question: &Spooled,
    content: impl Stream<Item = Result<Bytes, StoreError>>,
    input: Input,
) -> Result<Digest, Sending> {
    let mut content = pin!(content);
    let mut hasher = Hasher::default();
    let mut half = false;
    let mut open = true;
    let mut question = question.reader();
    while let Some(piece) = question.next_piece(QUESTION_PIECE).map_err(Sending::Spool)?.filter(|_| open) {
        open = taken(process.send_stdin(piece).await)?;
    }
    while let Some(piece) = content.next().await {
        let piece = piece.map_err(Sending::Store)?;
        // While the sandbox takes it: one after the other, `tar` would wait for every digest.
        let hashed = piece.clone();
        let hashing = tokio::task::spawn_blocking(move || {
            hasher.update(&hashed);
            hasher
        });
        open = open && taken(process.send_stdin(piece).await)?;
        hasher = hashing.await.expect("a digest is made of any bytes");
        if !half {
            half = true;
            reach(Point::RestoreHalfSent).await;
        }
    }
    // Where the script inflates, it counts.
    if open && input == Input::Gzip {
        taken(process.close_stdin().await)?;
    }
    Ok(hasher.finish())
}

/// Whether the process took it; one that has ended takes no more.
fn taken(sent: Result<(), CommandError>) -> Result<bool, Sending> {
    match sent {
        Ok(()) => Ok(true),
        Err(CommandError::NotFound { .. } | CommandError::InputRefused { .. }) => Ok(false),
        Err(error) => Err(Sending::Sandbox(error)),
    }
}

async fn kill(process: &Process) {
    let killed = tokio::time::timeout(DISCARD_DEADLINE, process.kill()).await;
    if let Ok(Err(error)) = killed {
        warn!(%error, "tar may still be waiting in the sandbox; its timeout will end it");
    }
}

fn of_script(sandbox: &Sandbox, error: ScriptError) -> RestoreError {
    let id = sandbox.id().clone();
    match error {
        ScriptError::Command(source) => RestoreError::Sandbox { id, source },
        ScriptError::Silent(after) => RestoreError::Silent { id, after },
    }
}
