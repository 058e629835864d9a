//! Restores a workspace to a checkpoint: in its sandbox if that runs, else in a new one, with
//! another provider if necessary.

use std::sync::atomic::Ordering;
use std::time::Duration;

use sdk::Sandbox;
use tracing::warn;

use super::core::{OpGuard, SavedFor, WorkspaceCore};
use super::details::NoSandbox;
use super::error::{Unavailable, WorkspaceError};
use super::handover::{HandoverPlan, Target, Why};
use super::mark::Mark;
use super::notice_text::{describe_skipped, format_time};
use super::pause::Unsaved;
use super::resume::SandboxStatus;
use crate::clock::later;
use crate::devserver::Start;
use crate::events::EventKind;
use crate::records::WorkspaceState;
use checkpoint::{Restored, Stamp, Which};
use text::error_chain;

impl WorkspaceCore {
    /// Restores the files of a checkpoint: in the sandbox if it runs, else in a new one.
    pub(super) async fn restore(&self, which: Which, unsaved: Unsaved) -> Result<Restored, WorkspaceError> {
        let op = self.begin_op().await;
        self.check().await?;
        if let Which::Exactly(stamp) = which {
            self.context.store.require(&self.project, stamp).await?;
        }
        let state = self.state().record.state;
        match state {
            WorkspaceState::SettingUp => return Err(Unavailable::NotSetUp(self.name.clone()).into()),
            WorkspaceState::Moving => self.settle(&op).await?,
            WorkspaceState::Ready | WorkspaceState::Stopped => {}
        }
        let ready = match self.ready_sandbox() {
            Some(_) => true,
            None => self.state().record.sandbox.is_some() && self.resume_for_restore(&op).await?,
        };
        if let Some(attached) = self.attached().filter(|_| ready) {
            return self.restore_in_place(&op, &attached.sandbox, which, unsaved).await;
        }
        self.check_budget().await?;
        let old = self.current_sandbox();
        if self.state().details.stopped == Some(NoSandbox::TimeOver) {
            let (now, ttl) = (self.now(), Duration::from_secs(self.state().details.ttl_seconds));
            self.update(&op, |record, _| record.expires_at = later(now, ttl)).await?;
        }
        let target = Target::First(self.state().record.provider.clone());
        let plan = HandoverPlan { why: Why::Restore, target, which, old, saved: None, running: Vec::new() };
        let (restored, _) = self.execute_handover(&op, plan).await?;
        let (provider, sandbox) = self.location();
        self.emit(EventKind::Restored { stamp: restored.stamp, sandbox, provider }).await;
        Ok(restored)
    }

    /// Removes a checkpoint and all references to it: a sandbox that was saved in it must be saved
    /// again before it is killed.
    pub(super) async fn delete_checkpoint(&self, stamp: Stamp) -> Result<bool, WorkspaceError> {
        let op = self.begin_op().await;
        self.check().await?;
        let newest = self.context.store.newest(&self.project).await?;
        self.update(&op, |_, details| {
            details.saved_at_pause = details.saved_at_pause.filter(|saved| *saved != stamp);
            details.mark = details.mark.take().filter(|mark| mark.stamp != stamp);
            if let Some(mark) = &mut details.mark {
                mark.unmarked = mark.unmarked.filter(|unmarked| *unmarked != stamp);
            }
            details.unsaved |= newest == Some(stamp);
        })
        .await?;
        if newest == Some(stamp) {
            self.unsaved.store(true, Ordering::Release);
        }
        let deleted = self.context.store.delete(&self.project, stamp).await?;
        self.context.record_stored(&self.project, self.now()).await;
        Ok(deleted)
    }

    /// Whether the sandbox runs now. One that does not answer is given up, since the caller wants a
    /// checkpoint instead.
    async fn resume_for_restore(&self, op: &OpGuard<'_>) -> Result<bool, WorkspaceError> {
        let Some(place) = self.current_sandbox() else { return Ok(false) };
        match self.inspect_sandbox(&place).await {
            Ok(SandboxStatus::Running { sandbox, remaining, .. }) => {
                // A checkpoint before the restore would hide that it lost its last writes.
                if let Err(error) = self.restore_if_lost(op, &sandbox).await {
                    warn!(workspace = %self.name, error = %error_chain(&error), "the sandbox does not answer; creating a new one");
                    return Ok(false);
                }
                self.attach(sandbox, remaining);
                Ok(true)
            }
            Ok(SandboxStatus::Paused { .. }) => Ok(self.ensure_ready(op).await.is_ok()),
            Ok(SandboxStatus::Gone) => {
                self.close_interval(&place).await;
                self.update(op, |record, _| record.sandbox = None).await?;
                Ok(false)
            }
            Err(error) => {
                warn!(workspace = %self.name, error = %error_chain(&error), "the sandbox does not answer; creating a new one");
                Ok(false)
            }
        }
    }

    async fn restore_in_place(
        &self,
        op: &OpGuard<'_>,
        sandbox: &Sandbox,
        which: Which,
        unsaved: Unsaved,
    ) -> Result<Restored, WorkspaceError> {
        let closed = self.gate.close();
        closed.drain(self.settings().drain_timeout).await;
        // Makes the restore reversible. For the newest checkpoint, a newer one would defeat the
        // purpose.
        if let (Which::Exactly(stamp), Unsaved::Keep) = (which, unsaved) {
            self.save_sparing(op, sandbox, SavedFor::Request, Some(stamp)).await?;
        }
        // Running processes would write into the restored files.
        if let Err(error) = self.context.upkeep.kill_processes(sandbox).await {
            warn!(workspace = %self.name, error = %error_chain(&error), "processes may have survived the restore");
        }
        // What another process acknowledged since is not set back.
        self.check().await?;
        let (restored, mark) = self.restore_recorded(op, sandbox, which).await?;
        self.unsaved.store(false, Ordering::Release);
        let head = self.head(sandbox).await;
        // Stored with the change, so that a crash after it does not lose the notice.
        let missing = self.describe_missing(&restored.excluded);
        let skipped = describe_skipped(&restored);
        let (stamp, saved) = (restored.stamp, format_time(restored.stamp));
        self.add_notice(&format!(
            "The files were set back to snapshot {stamp}, saved {saved}; running processes were ended.{skipped}{missing}"
        ));
        self.update(op, |_, details| {
            details.head = head.or(details.head.take());
            details.mark = mark;
            details.restoring = None;
            details.unsaved = false;
        })
        .await?;
        let (provider, id) = self.location();
        self.emit(EventKind::Restored { stamp: restored.stamp, sandbox: id, provider }).await;
        Ok(restored)
    }

    /// Restores a checkpoint in the sandbox. Recorded before, so that sessions have a notice when
    /// it is interrupted or fails: the files may be set back then too. Nor is its marker expected
    /// any more: what is written after a failed restore must not be taken for lost.
    async fn restore_recorded(
        &self,
        op: &OpGuard<'_>,
        sandbox: &Sandbox,
        which: Which,
    ) -> Result<(Restored, Option<Mark>), WorkspaceError> {
        let expected = match which {
            Which::Exactly(stamp) => Some(stamp),
            Which::Newest => self.context.store.newest(&self.project).await?,
        };
        self.unsaved.store(true, Ordering::Release);
        self.update(op, |_, details| {
            details.mark = None;
            details.loss = None;
            details.restoring = expected;
            details.unsaved = true;
        })
        .await?;
        let services = self.start_services_again(sandbox, Start::AfterRestore);
        let failed = match Box::pin(self.restore_and_mark(sandbox, which, services)).await {
            Ok(restored) => return Ok(restored),
            Err(failed) => failed,
        };
        if let Some(stamp) = expected {
            self.add_notice(&format!("A restore failed: the files may be set back to snapshot {stamp}."));
        }
        if let Err(error) = self.update(op, |_, details| details.restoring = None).await {
            warn!(workspace = %self.name, error = %error_chain(&error), "the failed restore could not be recorded");
        }
        Err(failed)
    }
}
