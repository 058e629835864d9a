//! Brings a workspace back to a snapshot: in its sandbox where that runs, else in a new one, with another provider if need
//! be.

use std::sync::atomic::Ordering;
use std::time::Duration;

use sdk::Sandbox;
use tracing::warn;

use super::core::{Core, SavedFor, Turn};
use super::details::Stopped;
use super::error::{Unavailable, WorkspaceError};
use super::handover::{Succession, Target, Why};
use super::notice::{skipped, when};
use super::pause::Unsaved;
use super::wake::Found;
use crate::chain::chain;
use crate::clock::later;
use crate::devserver::Start;
use crate::events::EventKind;
use crate::records::WorkspaceState;
use crate::shell;
use crate::snapshot::{Restored, Stamp, Which};

impl Core {
    /// Brings the workspace to the files of a snapshot: in its sandbox where that runs, else in a new one.
    pub(super) async fn restore(&self, which: Which, unsaved: Unsaved) -> Result<Restored, WorkspaceError> {
        let turn = self.turn().await;
        self.check().await?;
        if let Which::Exactly(stamp) = which {
            self.house.snapshots.must_have(&self.project, stamp).await?;
        }
        let state = self.seat().record.state;
        match state {
            WorkspaceState::SettingUp => return Err(Unavailable::NotSetUp(self.name.clone()).into()),
            WorkspaceState::Moving => self.settle(&turn).await?,
            WorkspaceState::Ready | WorkspaceState::Stopped => {}
        }
        let ready = match self.is_ready() {
            Some(_) => true,
            None => self.seat().record.sandbox.is_some() && self.wake_for_restore(&turn).await?,
        };
        if let Some(attached) = self.attached().filter(|_| ready) {
            return self.restore_in_place(&turn, &attached.sandbox, which, unsaved).await;
        }
        self.within_budget().await?;
        let old = self.place();
        if self.seat().details.stopped == Some(Stopped::TimeOver) {
            let (now, ttl) = (self.now(), Duration::from_secs(self.seat().details.ttl_seconds));
            self.update(&turn, |record, _| record.expires_at = later(now, ttl)).await?;
        }
        let target = Target::First(self.seat().record.provider.clone());
        let succession = Succession { why: Why::Restore, target, which, old, saved: None, running: Vec::new() };
        let (restored, _) = self.succeed(&turn, succession).await?;
        let (provider, sandbox) = self.whereabouts();
        self.tell(EventKind::Restored { stamp: restored.stamp, sandbox, provider }).await;
        Ok(restored)
    }

    /// Removes a snapshot. What rests on it is forgotten: a sandbox that was saved in it has to be saved again before it goes.
    pub(super) async fn delete_snapshot(&self, stamp: Stamp) -> Result<bool, WorkspaceError> {
        let turn = self.turn().await;
        self.check().await?;
        let newest = self.house.snapshots.newest(&self.project).await?;
        self.update(&turn, |_, details| {
            details.saved_at_pause = details.saved_at_pause.filter(|saved| *saved != stamp);
            details.mark = details.mark.take().filter(|mark| mark.stamp != stamp);
            details.unsaved |= newest == Some(stamp);
        })
        .await?;
        if newest == Some(stamp) {
            self.unsaved.store(true, Ordering::Release);
        }
        let deleted = self.house.snapshots.delete(&self.project, stamp).await?;
        self.house.note_stored(&self.project, self.now()).await;
        Ok(deleted)
    }

    /// Whether the sandbox runs now. One that does not answer is given up, since somebody wants a snapshot instead.
    async fn wake_for_restore(&self, turn: &Turn<'_>) -> Result<bool, WorkspaceError> {
        let Some(place) = self.place() else { return Ok(false) };
        match self.look(&place).await {
            Ok(Found::Running { sandbox, remaining, .. }) => {
                self.attach(sandbox, remaining);
                Ok(true)
            }
            Ok(Found::Paused { .. }) => Ok(self.wake(turn).await.is_ok()),
            Ok(Found::Gone) => {
                self.close_interval(&place).await;
                self.update(turn, |record, _| record.sandbox = None).await?;
                Ok(false)
            }
            Err(error) => {
                warn!(workspace = %self.name, error = %chain(&error), "the sandbox does not answer; a new one is made");
                Ok(false)
            }
        }
    }

    async fn restore_in_place(
        &self,
        turn: &Turn<'_>,
        sandbox: &Sandbox,
        which: Which,
        unsaved: Unsaved,
    ) -> Result<Restored, WorkspaceError> {
        let closed = self.fence.close();
        closed.emptied(self.settings().leave_wait).await;
        // So that going back can be undone. Who wants the newest wants none that is newer still.
        if let (Which::Exactly(stamp), Unsaved::Keep) = (which, unsaved) {
            self.save_sparing(turn, sandbox, SavedFor::Request, Some(stamp)).await?;
        }
        // What ran on would write into the files that come back.
        if let Err(error) = shell::end_all(sandbox).await {
            warn!(workspace = %self.name, error = %chain(&error), "processes may have gone on through a restore");
        }
        let restored = self.house.snapshots.restore(sandbox, &self.project, which).await?;
        self.unsaved.store(false, Ordering::Release);
        let ((), mark) = tokio::join!(
            self.start_services_again(sandbox, Start::AfterRestore),
            self.write_mark(sandbox, restored.stamp)
        );
        let head = self.head(sandbox).await;
        self.update(turn, |_, details| {
            details.head = head.or(details.head.take());
            details.mark = mark;
            details.unsaved = false;
        })
        .await?;
        let absent = self.absent(&restored.left_out);
        let skipped = skipped(&restored);
        let (stamp, saved) = (restored.stamp, when(restored.stamp));
        self.notice(&format!(
            "The files were set back to snapshot {stamp}, saved {saved}; running processes were ended.{skipped}{absent}"
        ));
        let (provider, id) = self.whereabouts();
        self.tell(EventKind::Restored { stamp: restored.stamp, sandbox: id, provider }).await;
        Ok(restored)
    }
}
