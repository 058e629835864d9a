//! A marker file in the sandbox that names the newest checkpoint of its files.
//!
//! A host that loses power may bring a sandbox back with the files that its disk had seconds
//! before: older than what was saved, without any other sign. The marker is written when all
//! earlier writes are on disk (`syncfs`), so a sandbox whose marker is older than the record says
//! has lost writes that the checkpoint has. Checkpoints exclude the marker.

use std::sync::atomic::Ordering;

use sdk::Sandbox;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::core::{OpGuard, SavedFor, WorkspaceCore};
use super::details::Details;
use super::error::WorkspaceError;
use super::handover::Why;
use super::resume::{AutoRestore, SandboxStatus};
use crate::records::RecordChangeError;
use checkpoint::{ObjectStoreError, Restored, Stamp, Which};
use text::error_chain;

/// The marker that was written into a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) stamp: Stamp,
    /// The boot id of the sandbox. While it is the same, no write can have been lost.
    pub(crate) boot: String,
    /// A newer checkpoint of the same files, which the marker does not name yet: a handover saved
    /// it and was rolled back. Nothing enters the sandbox while it is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unmarked: Option<Stamp>,
}

impl Mark {
    pub(crate) fn new(stamp: Stamp, boot: String) -> Self {
        Self { stamp, boot, unmarked: None }
    }

    /// The newest checkpoint of the files.
    pub(crate) fn newest(&self) -> Stamp {
        self.unmarked.unwrap_or(self.stamp)
    }
}

/// A sandbox lost its last writes, and they are not restored yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Loss {
    /// The mark that the sandbox lost.
    pub(crate) mark: Mark,
    /// The newest checkpoint when the loss was found.
    pub(crate) newest: Option<Stamp>,
}

impl WorkspaceCore {
    /// Marks a sandbox as having all files of a checkpoint on its disk. [`None`] when it could not
    /// be marked in time.
    pub(super) async fn write_mark(&self, sandbox: &Sandbox, stamp: Stamp) -> Option<Mark> {
        let written = self.context.upkeep.write_mark(sandbox, self.root(), stamp).await;
        written
            .inspect_err(
                |reason| warn!(workspace = %self.name, reason, "the sandbox could not be marked with its checkpoint"),
            )
            .ok()
    }

    /// The checkpoint whose files the sandbox had on its disk and lost. [`None`] when it has them.
    /// A marker that cannot be read is an error: older files would be used without a notice.
    pub(super) async fn find_lost_checkpoint(
        &self,
        op: &OpGuard<'_>,
        sandbox: &Sandbox,
    ) -> Result<Option<Stamp>, WorkspaceError> {
        let Some(mark) = self.state().details.mark.clone() else { return Ok(None) };
        let (boot, found) = self.context.upkeep.read_mark(sandbox, self.root()).await?;
        if boot == mark.boot {
            if let Some(unmarked) = mark.unmarked {
                let written = self.write_mark(sandbox, unmarked).await.filter(|written| written.boot == boot);
                // Without the marker, what is written from now on would be taken for lost.
                let mark = written.unwrap_or(Mark { unmarked: None, ..mark });
                self.set_mark(op, Some(mark)).await?;
            }
            return Ok(None);
        }
        let newest = mark.newest();
        Ok(found.is_none_or(|found| found < newest).then_some(newest))
    }

    /// The mark of a running sandbox whose handover is rolled back: with the checkpoint that the
    /// handover saved. [`None`] if it could not be marked, or booted again.
    pub(super) async fn mark_saved(&self, sandbox: &Sandbox, saved: Option<Stamp>) -> Option<Mark> {
        let mark = self.state().details.mark.clone()?;
        let Some(saved) = saved.filter(|saved| *saved > mark.newest()) else { return Some(mark) };
        self.write_mark(sandbox, saved).await.filter(|written| written.boot == mark.boot)
    }

    /// Restores a checkpoint, marks the sandbox with it, and starts the services meanwhile. Fails
    /// if the sandbox stopped or booted again in between: its disk may not have the files. Callers
    /// box it, since a deeper future is more than the compiler takes.
    pub(super) async fn restore_and_mark(
        &self,
        sandbox: &Sandbox,
        which: Which,
        services: impl Future<Output = ()>,
    ) -> Result<(Restored, Option<Mark>), WorkspaceError> {
        let restore = self.context.store.restore(sandbox, &self.project, which);
        let (restored, before) = tokio::join!(restore, self.read_boot(sandbox));
        let restored = restored?;
        let ((), mark) = tokio::join!(services, self.write_mark(sandbox, restored.stamp));
        let after = match &mark {
            Some(mark) => Some(mark.boot.clone()),
            None => self.read_boot(sandbox).await,
        };
        match (before, after) {
            (Some(before), Some(after)) if before == after => Ok((restored, mark)),
            // Without an answer before, the boot may be another.
            (None, Some(_)) => Ok((restored, mark)),
            _ => Err(WorkspaceError::RestoreCut { workspace: self.name.clone(), stamp: restored.stamp }),
        }
    }

    /// The boot id of a sandbox. Asks twice: without it, a loss would not be noticed.
    async fn read_boot(&self, sandbox: &Sandbox) -> Option<String> {
        for _ in 0..2 {
            if let Ok((boot, _)) = self.context.upkeep.read_mark(sandbox, self.root()).await {
                return Some(boot);
            }
        }
        None
    }

    /// Restores the checkpoint that has the last writes of a sandbox that lost them. Its current
    /// files are saved first, in case only the marker was removed. [`None`] when nothing was lost,
    /// or the restore failed.
    pub(super) async fn restore_lost_writes(
        &self,
        op: &OpGuard<'_>,
        sandbox: &Sandbox,
        lost: Stamp,
    ) -> Result<Option<AutoRestore>, WorkspaceError> {
        let newest = match self.note_loss(op).await? {
            Ok(newest) => newest,
            Err(error) => return self.keep_older_files(op, lost, &error_chain(&error)).await,
        };
        let aside = match self.save_sparing(op, sandbox, SavedFor::Handover, Some(lost)).await {
            // Only the marker was lost.
            Ok(aside) if aside.unchanged && aside.stamp >= lost && newest >= Some(aside.stamp) => {
                let mark = self.write_mark(sandbox, aside.stamp).await;
                self.set_mark(op, mark).await?;
                return Ok(None);
            }
            Ok(aside) => aside.stamp,
            Err(error) => return self.keep_older_files(op, lost, &error_chain(&error)).await,
        };
        info!(workspace = %self.name, %lost, %aside, "the sandbox lost its last writes; restoring the checkpoint");
        let (restored, mark) = match Box::pin(self.restore_and_mark(sandbox, Which::Exactly(lost), async {})).await {
            Ok(restored) => restored,
            // The next inspection finds the loss again.
            Err(error @ WorkspaceError::RestoreCut { .. }) => return Err(error),
            // Without the sandbox, its older files are none to continue with.
            Err(error) if !self.runs(sandbox).await => return Err(error),
            Err(error) => return self.keep_older_files(op, lost, &error_chain(&error)).await,
        };
        let notice = self.describe_handover(Why::LostWrites { aside }, &restored, &[], None);
        self.add_notice(&notice);
        // Without its mark, what is written from now on would be taken for lost.
        self.update(op, |_, details| {
            details.loss = details
                .newest_before_loss()
                .zip(mark.clone())
                .map(|(newest, mark)| Loss { mark, newest: Some(newest) });
            details.mark = mark;
        })
        .await?;
        // Saved again, so that the newest checkpoint is the one to restore after a later loss.
        // Until then, the one from before this loss is.
        if let Err(error) = self.save(op, sandbox, SavedFor::Stop).await {
            warn!(workspace = %self.name, error = %error_chain(&error), "the newest checkpoint is the one of the older files");
        }
        Ok(Some(AutoRestore { reason: "writes_lost", notice, restored }))
    }

    /// Continues with the files that a sandbox has. Without the mark, what is written from now on
    /// is not taken for lost and set back later.
    async fn keep_older_files(
        &self,
        op: &OpGuard<'_>,
        lost: Stamp,
        reason: &str,
    ) -> Result<Option<AutoRestore>, WorkspaceError> {
        self.add_notice(&format!(
            "The sandbox came back with older files than snapshot {lost} has, which happens when its host loses power. They \
             could not be set back to it: {reason}. `sandbar workspace restore {} --snapshot {lost}` does it.",
            self.name
        ));
        self.unsaved.store(true, Ordering::Release);
        self.update(op, |_, details| {
            details.mark = None;
            details.loss = None;
            details.unsaved = true;
        })
        .await?;
        Ok(None)
    }

    /// Records a loss before the older files are saved, and returns the newest checkpoint of that
    /// time. When the restore is interrupted, a newer checkpoint may have the older files, so that
    /// it is no sign that only the marker was lost.
    async fn note_loss(&self, op: &OpGuard<'_>) -> Result<Result<Option<Stamp>, ObjectStoreError>, RecordChangeError> {
        let (mark, loss) = {
            let Details { mark, loss, .. } = &self.state().details;
            (mark.clone(), loss.clone())
        };
        if let Some(loss) = loss.filter(|loss| Some(&loss.mark) == mark.as_ref()) {
            return Ok(Ok(loss.newest));
        }
        let newest = match self.context.store.newest(&self.project).await {
            Ok(newest) => newest,
            Err(error) => return Ok(Err(error)),
        };
        self.update(op, |_, details| details.loss = mark.map(|mark| Loss { mark, newest })).await?;
        Ok(Ok(newest))
    }

    /// Whether the provider says that the workspace's sandbox runs.
    async fn runs(&self, sandbox: &Sandbox) -> bool {
        let Some(place) = self.current_sandbox().filter(|place| place.sandbox == *sandbox.id()) else { return false };
        matches!(self.inspect_sandbox(&place).await, Ok(SandboxStatus::Running { .. }))
    }

    async fn set_mark(&self, op: &OpGuard<'_>, mark: Option<Mark>) -> Result<(), RecordChangeError> {
        self.update(op, |_, details| {
            details.mark = mark;
            details.loss = None;
        })
        .await
    }

    pub(super) fn root(&self) -> &str {
        &self.settings().checkpoint.root
    }
}
