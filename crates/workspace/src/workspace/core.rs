//! The state that all handles to a workspace share in this process: record, sandbox gate, lease and
//! operation lock.
//!
//! Invariant: a change of the record or the sandbox holds the [`OpGuard`]. Commands in the sandbox
//! do not need it; they pass the sandbox gate, which the holder of the lock may close.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use sdk::Sandbox;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tracing::warn;

use super::create::read_details;
use super::details::{Details, Run, SandboxRef};
use super::error::{OpenError, Unavailable, WorkspaceError};
use super::gate::SandboxGate;
use super::lease::HeldLease;
use super::notice_text::list_some;
use super::notices::Notices;
use super::remaining::LastAnswer;
use crate::clock::later;
use crate::context::WorkspaceContext;
use crate::devserver::DevServer;
use crate::events::{EventKind, WorkspaceEvent};
use crate::name::{ProviderName, WorkspaceName};
use crate::provider::{Placed, SandboxService};
use crate::records::{Interval, Payer, RecordChangeError, WorkspaceRecord, WorkspaceState};
use crate::settings::Settings;
use checkpoint::{CheckpointOptions, ExposedFile, ProjectId, SaveError, SaveOccasion, SavedCheckpoint, Stamp};
use secret::{EnvValues, Mask};
use text::error_chain;

/// The key of the dev server in a record's services.
const DEV_SERVER: &str = "dev_server";

/// The metadata key that identifies a workspace's sandboxes.
pub const METADATA: &str = "sandbar.workspace";

/// The metadata key of the [id](Details::id) of the workspace that a sandbox was created for.
pub(crate) const WORKSPACE_ID: &str = "sandbar.workspace.id";

/// The timeout of a probe of the object store.
const STORE_PROBE_TIMEOUT: Duration = Duration::from_secs(3);

const LEASE_RETAKEN: &str =
    "Another process worked in this workspace while this one was held up: files may have changed.";

pub(crate) struct WorkspaceCore {
    pub(super) context: Arc<WorkspaceContext>,
    pub(super) name: WorkspaceName,
    pub(super) project: ProjectId,
    pub(super) held_lease: HeldLease,
    pub(super) gate: SandboxGate,
    op_lock: tokio::sync::Mutex<()>,
    state: Mutex<LocalState>,
    mask: Mask,
    env_values: EnvValues,
    /// Whether the sandbox was used since the last check for a commit.
    pub(super) touched: AtomicBool,
    /// Whether it was used since the last checkpoint.
    pub(super) unsaved: AtomicBool,
    pub(super) closed: AtomicBool,
    /// Whether this process already tried a first checkpoint.
    first_tried: AtomicBool,
    /// Wakes the supervisor after a change.
    pub(super) changed: Notify,
}

/// The in-memory state of a workspace.
pub(super) struct LocalState {
    pub(super) record: WorkspaceRecord,
    pub(super) details: Details,
    /// Separate from the details, since callers take notices without the operation lock.
    notices: Notices,
    stored_notices: Notices,
    /// The sandbox, if the last inspection found it running.
    pub(super) attached: Option<Attached>,
    pub(super) last_answer: Option<LastAnswer>,
    /// The last save of this process, by the wall clock as in the details, and by
    /// [`WorkspaceCore::stable_now`].
    pub(super) saved: Option<(Timestamp, Timestamp)>,
}

impl LocalState {
    fn new(mut record: WorkspaceRecord, mut details: Details) -> Self {
        let stored_notices = std::mem::take(&mut details.notices);
        let mut notices = stored_notices.clone();
        if let Some(stamp) = details.restoring.take() {
            notices.add(format!("A restore was interrupted: the files may be set back to snapshot {stamp}."));
        }
        record.details = Value::Null;
        Self { record, details, stored_notices, notices, attached: None, last_answer: None, saved: None }
    }
}

/// A running sandbox.
#[derive(Clone)]
pub(super) struct Attached {
    pub(super) sandbox: Sandbox,
    /// Its start and end, by [`WorkspaceCore::stable_now`].
    pub(super) started_at: Timestamp,
    pub(super) ends_at: Timestamp,
    /// When the end was learned, by the same clock.
    pub(super) seen_at: Timestamp,
}

/// Why files are saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SavedFor {
    /// The sandbox is about to be replaced.
    Handover,
    /// The sandbox is about to stop.
    Stop,
    /// The workspace was used, and its last checkpoint is old.
    Interval,
    Request,
    Phase,
}

impl SavedFor {
    fn occasion(self) -> SaveOccasion {
        match self {
            Self::Handover | Self::Stop => SaveOccasion::Stop,
            Self::Interval => SaveOccasion::Interval,
            Self::Request => SaveOccasion::Requested,
            Self::Phase => SaveOccasion::Phase,
        }
    }
}

/// The operation lock: the right to change the record and the sandbox, in this process.
pub(super) struct OpGuard<'a> {
    _guard: tokio::sync::MutexGuard<'a, ()>,
}

impl WorkspaceCore {
    pub(crate) fn new(
        context: Arc<WorkspaceContext>,
        held_lease: HeldLease,
        record: WorkspaceRecord,
        details: Details,
    ) -> Self {
        let mask = Mask::for_variables(record.env.iter().map(|(name, value)| (name.as_str(), value.expose())));
        let env_values =
            EnvValues::for_variables(record.env.iter().map(|(name, value)| (name.as_str(), value.expose())));
        let unsaved = details.unsaved;
        Self {
            context,
            name: record.name.clone(),
            project: record.project.clone(),
            held_lease,
            gate: SandboxGate::new(),
            op_lock: tokio::sync::Mutex::new(()),
            state: Mutex::new(LocalState::new(record, details)),
            mask,
            env_values,
            touched: AtomicBool::new(false),
            unsaved: AtomicBool::new(unsaved),
            closed: AtomicBool::new(false),
            first_tried: AtomicBool::new(false),
            changed: Notify::new(),
        }
    }

    pub(crate) fn held_lease(&self) -> &HeldLease {
        &self.held_lease
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.context.settings
    }

    pub(super) fn now(&self) -> Timestamp {
        self.context.settings.clock.now()
    }

    /// The clock for decisions of this process. It does not jump when the wall clock is set.
    pub(super) fn stable_now(&self) -> Timestamp {
        self.context.stable_now()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, LocalState> {
        self.state.lock()
    }

    /// Waits for the operation lock. A lost lease is retaken here, where no operation under it is
    /// in progress; [`WorkspaceCore::check`] reports whether that succeeded.
    pub(super) async fn begin_op(&self) -> OpGuard<'_> {
        let op = OpGuard { _guard: self.op_lock.lock().await };
        if self.is_open()
            && self.held_lease.is_lost()
            && let Err(error) = self.retake_lease(&op).await
        {
            warn!(workspace = %self.name, error = %error_chain(&error), "the lost lease could not be retaken");
        }
        op
    }

    /// Retakes the lease, and reads the record that its last holder left.
    async fn retake_lease(&self, op: &OpGuard<'_>) -> Result<(), OpenError> {
        self.held_lease.retake(self.settings().lease_timeout).await.map_err(OpenError::from_lease)?;
        let read = async {
            let record = self.context.records.workspace(&self.name).await?;
            let record = record.ok_or_else(|| OpenError::NotFound(self.name.clone()))?;
            let details = read_details(&record)?;
            Ok::<_, OpenError>((record, details))
        };
        let (record, details) = match read.await {
            Ok(read) => read,
            Err(error) => {
                self.held_lease.release().await;
                return Err(error);
            }
        };
        {
            let mut state = self.state();
            *state = LocalState::new(record, details);
        }
        self.add_notice(LEASE_RETAKEN);
        if let Err(error) = self.update(op, |_, details| details.epoch += 1).await {
            warn!(workspace = %self.name, error = %error_chain(&error), "the retaken lease could not be recorded");
        }
        Ok(())
    }

    /// Retakes a lost lease.
    ///
    /// # Errors
    /// [`OpenError`] when another process holds it, or the record cannot be read.
    pub(crate) async fn ensure_held(&self) -> Result<(), OpenError> {
        if self.held_lease.is_lost() {
            let op = OpGuard { _guard: self.op_lock.lock().await };
            if self.is_open() && self.held_lease.is_lost() {
                self.retake_lease(&op).await?;
            }
        }
        Ok(())
    }

    /// Whether this process may act on the workspace.
    pub(super) async fn check(&self) -> Result<(), Unavailable> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Unavailable::Closed(self.name.clone()));
        }
        if !self.held_lease.ensure_valid().await {
            let workspace = self.name.clone();
            return Err(match self.held_lease.renewal_error() {
                Some(reason) => Unavailable::LeaseNotRenewed { workspace, reason },
                None => Unavailable::LeaseLost(workspace),
            });
        }
        Ok(())
    }

    /// Whether it can be handed out again.
    pub(crate) fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }

    /// Removes the record of a workspace without any sandbox: a retry has nothing to continue from.
    pub(crate) async fn remove_if_unused(&self) {
        let begun = {
            let LocalState { record, details, .. } = &*self.state();
            record.sandbox.is_some() || !details.retired.is_empty() || record.state != WorkspaceState::SettingUp
        };
        if !begun && let Err(error) = self.context.records.remove_workspace(&self.held_lease.lease()).await {
            warn!(workspace = %self.name, error = %error_chain(&error), "the record of an unfinished workspace could not be removed");
        }
    }

    /// Releases the lease before any work was started.
    pub(crate) async fn release(&self) {
        self.held_lease.release().await;
    }

    pub(super) fn mask(&self) -> &Mask {
        &self.mask
    }

    pub(super) fn mask_text(&self, text: &str) -> String {
        self.mask.mask(text).into_owned()
    }

    /// Changes the record, in the store first.
    pub(super) async fn update(
        &self,
        _op: &OpGuard<'_>,
        change: impl FnOnce(&mut WorkspaceRecord, &mut Details),
    ) -> Result<(), RecordChangeError> {
        let (mut record, mut details) = {
            let state = self.state();
            (state.record.clone(), Details { notices: state.notices.clone(), ..state.details.clone() })
        };
        change(&mut record, &mut details);
        record.details = to_value(&details);
        let mut written = self.context.records.update_workspace(&record, &self.held_lease.lease()).await;
        if let Err(RecordChangeError::Records(_)) = &written
            && self.is_stored(&record).await
        {
            written = Ok(());
        }
        if let Err(RecordChangeError::LeaseLost(_)) = &written {
            self.held_lease.lose();
        }
        written?;
        let mut state = self.state();
        state.stored_notices = std::mem::take(&mut details.notices);
        record.details = Value::Null;
        state.record = record;
        state.details = details;
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Whether a change that failed is in the store nevertheless: its answer was lost. Without it,
    /// this process would continue in a sandbox that the record no longer names.
    async fn is_stored(&self, record: &WorkspaceRecord) -> bool {
        let found = self.context.records.workspace(&self.name).await;
        found.ok().flatten().is_some_and(|found| {
            let is_same_place = (found.state, found.paused) == (record.state, record.paused);
            is_same_place && found.sandbox == record.sandbox && found.details == record.details
        })
    }

    /// Adds a notice for the sessions of this workspace. It is stored with the next change of the
    /// record.
    pub(super) fn add_notice(&self, line: &str) {
        let line = self.mask_text(line);
        warn!(workspace = %self.name, "{line}");
        self.state().notices.add(line);
    }

    /// Takes the notices that this reader has not received.
    pub(super) fn take_notices(&self, reader: &str) -> Vec<String> {
        self.state().notices.take(reader)
    }

    /// Stores which notices were delivered, if the record does not say so yet.
    pub(super) async fn store_notices(&self, op: &OpGuard<'_>) -> Result<(), RecordChangeError> {
        let differ = {
            let state = self.state();
            state.notices != state.stored_notices
        };
        if differ { self.update(op, |_, _| {}).await } else { Ok(()) }
    }

    /// Stores whether the sandbox has unsaved changes, for the next process.
    pub(super) async fn store_unsaved(&self, op: &OpGuard<'_>) -> Result<(), RecordChangeError> {
        let unsaved = self.unsaved.load(Ordering::Acquire);
        let stored = self.state().details.unsaved;
        if stored == unsaved { Ok(()) } else { self.update(op, |_, details| details.unsaved = unsaved).await }
    }

    pub(super) async fn emit(&self, kind: EventKind) {
        let event =
            WorkspaceEvent { workspace: self.name.clone(), project: self.project.clone(), at: self.now(), kind };
        self.context.observer.event(&event).await;
    }

    /// The sandbox that the record names.
    pub(super) fn current_sandbox(&self) -> Option<SandboxRef> {
        let state = self.state();
        let sandbox = state.record.sandbox.clone()?;
        Some(SandboxRef { provider: state.record.provider.clone(), sandbox })
    }

    pub(super) fn attached(&self) -> Option<Attached> {
        self.state().attached.clone()
    }

    /// Forgets that the sandbox runs: the next use inspects it.
    pub(super) fn detach(&self) {
        self.state().attached = None;
    }

    pub(super) fn attach(&self, sandbox: Sandbox, remaining: Duration) {
        let now = self.stable_now();
        let mut state = self.state();
        let known = state.attached.as_ref().filter(|known| known.sandbox.id() == sandbox.id());
        // Recorded by the wall clock, which may have been set since.
        let recorded = || state.details.run.map_or(now, |run| run.started_at.min(now));
        let started_at = known.map_or_else(recorded, |known| known.started_at);
        state.attached = Some(Attached { sandbox, started_at, ends_at: later(now, remaining), seen_at: now });
        drop(state);
        self.changed.notify_one();
    }

    /// The running sandbox and its epoch, if it can be used without waiting.
    pub(super) fn ready_sandbox(&self) -> Option<(Attached, u64)> {
        let state = self.state();
        let ready = state.record.state == WorkspaceState::Ready && !state.record.paused;
        let attached = state.attached.clone().filter(|attached| ready && attached.ends_at > self.stable_now())?;
        Some((attached, state.details.epoch))
    }

    pub(super) async fn service(&self, provider: &ProviderName) -> Result<Arc<dyn SandboxService>, WorkspaceError> {
        let found = self.context.orchestrator.provider(provider)?;
        found.service().await.map_err(|source| WorkspaceError::Provider { provider: provider.clone(), source })
    }

    pub(super) fn payer(&self) -> Payer {
        Payer { project: self.project.to_string(), job: self.state().details.job.clone() }
    }

    pub(super) fn dev_server(&self) -> Option<DevServer> {
        dev_server(&self.state().record)
    }

    /// Whether a running workspace has no checkpoint yet, and this process did not try one.
    pub(super) fn needs_first_checkpoint(&self) -> bool {
        let fresh = !self.settings().first_checkpoint_for.is_zero() && !self.state().details.saved;
        fresh && !self.first_tried.load(Ordering::Acquire) && self.ready_sandbox().is_some()
    }

    /// Saves it, unless another operation did. A failure is reported by an event; the next phase
    /// saves again. Returns false if the store does not answer.
    pub(super) async fn save_first_checkpoint(&self, op: &OpGuard<'_>) -> bool {
        let Some((attached, _)) = self.ready_sandbox().filter(|_| self.needs_first_checkpoint()) else { return true };
        let responds = self.store_responds().await;
        if responds {
            let _reported = self.save(op, &attached.sandbox, SavedFor::Request).await;
            self.first_tried.store(true, Ordering::Release);
        }
        responds
    }

    /// Whether the object store answers now. Probed before a checkpoint that no caller waits for,
    /// so that a store that hangs delays no other command. The files are then saved later, by this
    /// process or the next.
    pub(super) async fn store_responds(&self) -> bool {
        let listed = self.context.store.newest(&self.project);
        let answers = matches!(tokio::time::timeout(STORE_PROBE_TIMEOUT, listed).await, Ok(Ok(_)));
        if !answers {
            warn!(workspace = %self.name, "the object store does not answer; the checkpoint is postponed");
        }
        answers
    }

    /// Saves the files of a sandbox, and records it. The sandbox gate may be open.
    pub(super) async fn save(
        &self,
        op: &OpGuard<'_>,
        sandbox: &Sandbox,
        saved_for: SavedFor,
    ) -> Result<SavedCheckpoint, SaveError> {
        self.save_sparing(op, sandbox, saved_for, None).await
    }

    /// Like [`WorkspaceCore::save`], without pruning `spare`.
    pub(super) async fn save_sparing(
        &self,
        op: &OpGuard<'_>,
        sandbox: &Sandbox,
        saved_for: SavedFor,
        spare: Option<Stamp>,
    ) -> Result<SavedCheckpoint, SaveError> {
        let values = match self.state().details.allow_env_values {
            true => EnvValues::default(),
            false => self.env_values.clone(),
        };
        let occasion = saved_for.occasion();
        let options = CheckpointOptions { spare, occasion, values, ..self.settings().checkpoint.clone() };
        // Changes from here on may not be in it.
        let saving = SaveGuard::begin(&self.unsaved);
        match self.context.store.save(sandbox, &self.project, &options).await {
            Ok(saved) => {
                saving.finish();
                self.record_saved(op, sandbox, saved_for, &saved).await;
                let SavedCheckpoint { stamp, unchanged, ref key, files, bytes, .. } = saved;
                let kind = match unchanged {
                    true => EventKind::CheckpointUnchanged { stamp },
                    false => EventKind::CheckpointSaved { stamp, key: key.clone(), files, bytes },
                };
                self.emit(kind).await;
                Ok(saved)
            }
            Err(error) => {
                drop(saving);
                if let SaveError::Exposed { files, .. } = &error {
                    self.notify_exposed(op, files).await;
                }
                let reason = self.mask_text(&error_chain(&error));
                warn!(workspace = %self.name, reason, "checkpoint failed; the sandbox keeps running");
                self.emit(EventKind::CheckpointFailed { reason }).await;
                Err(error)
            }
        }
    }

    /// Records the checkpoint, marks the sandbox with it, and notifies sessions of excluded folders
    /// while these still exist.
    async fn record_saved(&self, op: &OpGuard<'_>, sandbox: &Sandbox, saved_for: SavedFor, saved: &SavedCheckpoint) {
        let stays = saved_for != SavedFor::Handover;
        let marked = self.state().details.mark.clone().filter(|mark| mark.stamp == saved.stamp);
        let mark = match marked {
            None if stays => self.write_mark(sandbox, saved.stamp).await,
            marked => marked,
        };
        let known = self.state().details.reported_excludes.clone();
        let excluded: BTreeSet<String> = saved.excluded.iter().map(|path| path.text().into_owned()).collect();
        let new: Vec<&str> = excluded.difference(&known).map(String::as_str).collect();
        let notify = stays && !new.is_empty();
        if notify {
            self.add_notice(&format!(
                "Snapshots leave out generated folders, and a change of sandbox does not keep them: {}.",
                list_some(new.into_iter())
            ));
        }
        let now = self.now();
        self.state().saved = Some((now, self.stable_now()));
        // Before it is attached, its older files may be saved aside.
        let has_newest = self.attached().is_some();
        let noted = self.update(op, |_, details| {
            details.saved = true;
            details.saved_at = Some(now);
            details.unsaved = false;
            details.reported_exposed.clear();
            if has_newest {
                details.loss = None;
            }
            if stays {
                details.mark = mark;
            }
            if notify {
                details.reported_excludes = excluded;
            }
        });
        if let Err(error) = noted.await {
            warn!(workspace = %self.name, error = %error_chain(&error), "the checkpoint could not be recorded");
        }
        if !saved.unchanged {
            self.context.record_stored(&self.project, now).await;
        }
    }

    /// Notifies sessions, once, why checkpoints fail.
    async fn notify_exposed(&self, op: &OpGuard<'_>, files: &[ExposedFile]) {
        let files: BTreeSet<String> = files.iter().map(ToString::to_string).collect();
        if self.state().details.reported_exposed == files {
            return;
        }
        self.add_notice(&format!(
            "This workspace is not saved any more: files contain values of its --env variables, which snapshots must not: {}. \
             Read the values from the environment instead of writing them into files.",
            list_some(files.iter().map(String::as_str).collect::<Vec<_>>().into_iter())
        ));
        if let Err(error) = self.update(op, |_, details| details.reported_exposed = files).await {
            warn!(workspace = %self.name, error = %error_chain(&error), "the notice could not be recorded and may be repeated");
        }
    }

    /// Kills a sandbox that is no longer used. Returns false on failure, so that the caller retries
    /// later.
    pub(super) async fn kill_sandbox(&self, place: &SandboxRef) -> bool {
        let killed = match self.service(&place.provider).await {
            Ok(service) => service.kill(&place.sandbox).await.map_err(Into::into),
            Err(error) => Err(error),
        };
        match killed {
            Ok(()) => {
                self.close_interval(place).await;
                true
            }
            Err(error) => {
                warn!(workspace = %self.name, sandbox = %place, error = %error_chain(&error), "the sandbox could not be killed");
                false
            }
        }
    }

    pub(super) async fn close_interval(&self, place: &SandboxRef) {
        let closed = self.context.records.close_interval(&place.provider, &place.sandbox, self.now()).await;
        if let Err(error) = closed {
            warn!(sandbox = %place, error = %error_chain(&error), "the end of a run could not be recorded");
        }
    }

    /// Records that a sandbox runs.
    pub(super) async fn open_interval(&self, place: &SandboxRef, run: &Run) {
        let Run { started_at, ends_at, size } = *run;
        let interval = Interval {
            provider: place.provider.clone(),
            sandbox: place.sandbox.clone(),
            payer: self.payer(),
            size,
            started_at,
            until: ends_at,
            ended_at: None,
        };
        if let Err(error) = self.context.records.open_interval(&interval).await {
            warn!(sandbox = %place, error = %error_chain(&error), "the start of a run could not be recorded");
        }
    }
}

/// A save in progress. The workspace counts as unsaved again if the save fails or its future is
/// dropped.
struct SaveGuard<'a> {
    unsaved: &'a AtomicBool,
    finished: bool,
}

impl<'a> SaveGuard<'a> {
    fn begin(unsaved: &'a AtomicBool) -> Self {
        unsaved.store(false, Ordering::Release);
        Self { unsaved, finished: false }
    }

    /// The changes are in a checkpoint.
    fn finish(mut self) {
        self.finished = true;
    }
}

impl Drop for SaveGuard<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.unsaved.store(true, Ordering::Release);
        }
    }
}

impl Run {
    pub(super) fn from_placed(placed: &Placed) -> Self {
        Self { started_at: placed.started_at, ends_at: placed.ends_at, size: placed.size }
    }
}

pub(super) fn to_value(details: &Details) -> Value {
    serde_json::to_value(details).expect("names, numbers and texts can be written as JSON")
}

/// The dev server that a record declares.
pub(crate) fn dev_server(record: &WorkspaceRecord) -> Option<DevServer> {
    record.services.get(DEV_SERVER).and_then(|value| serde_json::from_value(value.clone()).ok())
}

pub(super) fn services(dev_server: Option<&DevServer>) -> Value {
    dev_server.map_or_else(|| json!({}), |server| json!({ DEV_SERVER: server }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dropped_save_leaves_the_workspace_unsaved() {
        let unsaved = AtomicBool::new(true);
        let save = async {
            let _saving = SaveGuard::begin(&unsaved);
            std::future::pending::<()>().await;
        };
        assert!(tokio::time::timeout(Duration::ZERO, save).await.is_err());
        assert!(unsaved.load(Ordering::Acquire));
        SaveGuard::begin(&unsaved).finish();
        assert!(!unsaved.load(Ordering::Acquire));
    }
}
