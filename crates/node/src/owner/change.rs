//! Changes of an owner to its sandbox: start, pause, resume and end, also after the end of a lease
//! or the loss of the machine.

use std::sync::Arc;
use std::time::Duration;

use engine::{BootFiles, EngineError, FilesId, Machine};
use protocol::guest::Lease;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{OnRunning, Owner, RETRY_BACKOFF, Resume, Resumed, chain, with_timeout};
use crate::clock;
use crate::error::SandboxError;
use crate::guest_call;
use crate::lifecycle::{Event, PauseMode, State};
use crate::log::LogLevel;
use crate::ports::RecordsError;
use crate::sandbox::{IdempotencyKey, OnTimeout, PersistedState};

/// A healthy guest answers in well under a millisecond; a starved one must not delay its own pause.
const LEASE_TIMEOUT: Duration = Duration::from_millis(250);

/// Longest wait for the sync of files, which writes the dirty data of all sandboxes.
const SYNC_TIMEOUT: Duration = Duration::from_secs(60);

/// What a pause does if the files cannot be synced to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Durability {
    /// The pause fails and the sandbox continues: a caller must not take unsynced files for safe.
    Required,
    /// The pause continues: no caller waits for it, and the lease has ended.
    BestEffort,
}

/// Where the root file system of a new sandbox comes from.
#[derive(Debug)]
pub(crate) enum RootfsSource {
    /// The base without changes.
    Base,
    CopyOf(FilesId),
    /// The files exist already.
    InPlace,
    /// The files were prepared ahead; contains the source to use if they are not there.
    Spare(Box<RootfsSource>),
}

impl Owner {
    /// Boots the sandbox for the first time. If that fails, nothing of it is left.
    pub(crate) async fn start(
        &mut self,
        rootfs: RootfsSource,
        idempotency: Option<&IdempotencyKey>,
    ) -> Result<(), SandboxError> {
        let started = match self.prepare_and_boot(rootfs).await {
            Ok(machine) => {
                self.record.instance = Some(machine.instance());
                self.machine = Some(machine);
                // The record waits for the disk, the description beside the files does not.
                let description = self.describe();
                let insert = self.node_state.records.insert(&self.record, idempotency);
                let (inserted, ()) = tokio::join!(insert, description);
                if inserted.is_err() {
                    // An insert can fail after its row is stored, which would name files that are
                    // removed below. Fails itself while nothing can be written.
                    let _ = self.node_state.records.remove(&self.record.id).await;
                }
                inserted.map_err(SandboxError::from)
            }
            Err(error) => Err(self.name_missing(error)),
        };
        match &started {
            Ok(()) => {
                self.advance(Event::Started);
                self.note(LogLevel::Info, "sandbox started");
                info!(sandbox = %self.record.id, "sandbox started");
            }
            Err(_) => {
                self.advance(Event::StartFailed);
                self.remove_machine_and_files().await;
                self.node_state.forget(&self.record.id);
            }
        }
        self.publish();
        started
    }

    /// Prepares the files and boots.
    async fn prepare_and_boot(&mut self, rootfs: RootfsSource) -> Result<Arc<dyn Machine>, EngineError> {
        let rootfs = match rootfs {
            RootfsSource::Spare(_) if self.node_state.engine.take_spare(&self.record.id).await? => {
                RootfsSource::InPlace
            }
            RootfsSource::Spare(otherwise) => *otherwise,
            rootfs => rootfs,
        };
        let files = match rootfs {
            RootfsSource::Base => BootFiles::Create,
            RootfsSource::InPlace | RootfsSource::Spare(_) => BootFiles::Open,
            RootfsSource::CopyOf(files) => {
                let engine = Arc::clone(&self.node_state.engine);
                let id = FilesId::from(&self.record.id);
                with_timeout("copying the template's files", engine.copy_files(&files, &id)).await?;
                BootFiles::Open
            }
        };
        self.boot(files).await
    }

    pub(super) async fn kill(&mut self) -> Result<(), SandboxError> {
        self.node_state.records.remove(&self.record.id).await?;
        self.end("sandbox killed").await;
        Ok(())
    }

    /// Ends the sandbox. Its record is removed already: if the server dies meanwhile, the next one
    /// sweeps up the rest.
    async fn end(&mut self, why: &'static str) {
        self.advance(Event::EndAsked);
        self.publish();
        self.remove_machine_and_files().await;
        self.advance(Event::Ended);
        self.publish();
        info!(sandbox = %self.record.id, "{why}");
    }

    async fn remove_machine_and_files(&mut self) {
        self.lease_push = None;
        if let Some(machine) = self.machine.take()
            && let Err(error) = with_timeout("ending the sandbox's processes", machine.kill()).await
        {
            warn!(sandbox = %self.record.id, error = %chain(&error), "processes may be left until the next start");
        }
        let engine = Arc::clone(&self.node_state.engine);
        if let Err(error) =
            with_timeout("removing the sandbox's files", engine.remove_files(&FilesId::from(&self.record.id))).await
        {
            warn!(sandbox = %self.record.id, error = %chain(&error), "files may be left until the next start");
        }
    }

    pub(super) async fn pause_on_request(
        &mut self,
        kept: PauseMode,
        require_healthy_guest: bool,
    ) -> Result<(), SandboxError> {
        match self.state {
            State::Running => {}
            State::Paused(_) => return Err(SandboxError::AlreadyPaused(self.record.id.clone())),
            state => return Err(SandboxError::NotRunning { id: self.record.id.clone(), state }),
        }
        // A pause of files ends the processes before the disk is asked.
        if let Some(fault) = self.node_state.engine.fault() {
            return Err(EngineError::ReadOnly(fault).into());
        }
        if let Some(refused) = self.node_state.records.fault() {
            return Err(RecordsError { what: "write", source: refused.into() }.into());
        }
        if require_healthy_guest
            && let Some(machine) = &self.machine
            && guest_call::check_health(machine.guest_socket()).await.is_err()
        {
            return Err(SandboxError::GuestUnresponsive(self.record.id.clone()));
        }
        self.pause(kept, Durability::Required).await
    }

    /// Pauses a running sandbox; if that fails, it continues to run.
    async fn pause(&mut self, kept: PauseMode, durability: Durability) -> Result<(), SandboxError> {
        if kept == PauseMode::Filesystem {
            self.read_log().await;
        }
        self.advance(Event::PauseAsked(kept));
        self.publish();
        let before = self.record.clone();
        let stopped = match self.stop_machine(kept).await {
            Ok(()) => self.write_files_out(durability).await,
            Err(error) => Err(error),
        };
        let paused = match stopped {
            Ok(()) => {
                self.record.standing = PersistedState::Paused(kept);
                self.record.end_at = self.node_state.clock.now();
                if kept == PauseMode::Filesystem {
                    self.record.instance = None;
                }
                self.node_state.records.put(&self.record).await.map_err(SandboxError::from)
            }
            Err(error) => Err(error.into()),
        };
        match paused {
            Ok(()) => {
                self.advance(Event::PauseDone);
                self.note(LogLevel::Info, "sandbox paused");
                info!(sandbox = %self.record.id, ?kept, "sandbox paused");
                self.publish();
                Ok(())
            }
            Err(error) => {
                self.record = before;
                self.undo_pause().await;
                Err(error)
            }
        }
    }

    /// Freezes or kills the machine.
    async fn stop_machine(&mut self, kept: PauseMode) -> Result<(), EngineError> {
        let Some(machine) = self.machine.clone() else {
            return Ok(());
        };
        self.lease_push = None;
        match kept {
            PauseMode::Full => {
                // A frozen guest must not resume with a lease that ended long ago and end itself
                // before it receives the new one. A guest that does not answer now is frozen all
                // the same.
                let never = guest_call::put_lease(machine.guest_socket(), Lease::default());
                let _ = tokio::time::timeout(LEASE_TIMEOUT, never).await;
                with_timeout("freezing the sandbox", machine.freeze()).await
            }
            PauseMode::Filesystem => {
                with_timeout("ending the sandbox's processes", machine.kill()).await?;
                self.machine = None;
                Ok(())
            }
        }
    }

    /// Syncs the files to the disk before the pause is acknowledged, so that a power cut loses none
    /// of them.
    async fn write_files_out(&mut self, durability: Durability) -> Result<(), EngineError> {
        let synced = tokio::time::timeout(SYNC_TIMEOUT, self.node_state.engine.sync_files()).await;
        let synced = synced.unwrap_or_else(|late| Err(EngineError::failed("cannot write files out", late)));
        match synced {
            Err(error) if durability == Durability::BestEffort => {
                warn!(sandbox = %self.record.id, error = %chain(&error), "paused with files that are not on the disk");
                self.note(LogLevel::Warn, "the sandbox's files could not be written to the disk when it was paused");
                Ok(())
            }
            other => other,
        }
    }

    /// Reverts an incomplete pause: the sandbox continues if its machine does.
    async fn undo_pause(&mut self) {
        let thawed = match self.machine.clone() {
            Some(machine) => with_timeout("thawing the sandbox", machine.thaw()).await.is_ok(),
            None => false,
        };
        if thawed {
            self.advance(Event::PauseFailed);
            self.publish();
            self.push_lease();
        } else {
            self.lose_machine().await;
        }
    }

    pub(super) async fn resume(&mut self, resume: Resume) -> Result<Resumed, SandboxError> {
        let Resume { timeout, kept: wanted, on_running, on_timeout } = resume;
        let kept = match (self.state, on_running) {
            (State::Running, OnRunning::Leave) => return Ok(Resumed::WasRunning),
            (State::Running, OnRunning::Extend) => return self.extend(timeout).await.map(|()| Resumed::WasRunning),
            (State::Running, OnRunning::Refuse) => {
                return Err(SandboxError::AlreadyRunning(self.record.id.clone()));
            }
            (State::Paused(kept), _) => kept,
            (state, _) => return Err(SandboxError::NotRunning { id: self.record.id.clone(), state }),
        };
        if kept == PauseMode::Filesystem {
            self.node_state.check_capacity()?;
        }
        let before = self.record.clone();
        self.advance(Event::ResumeAsked);
        self.publish();
        self.record.standing = PersistedState::Running;
        self.set_lease_end(timeout);
        self.record.spec.on_timeout = on_timeout.unwrap_or(self.record.spec.on_timeout);
        let resumed = match self.resume_machine(kept, wanted).await {
            Ok(machine) => {
                self.record.instance = Some(machine.instance());
                self.machine = Some(machine);
                self.node_state.records.put(&self.record).await.map_err(SandboxError::from)
            }
            Err(error) => Err(self.name_missing(error)),
        };
        match resumed {
            Ok(()) => {
                self.advance(Event::Started);
                self.note(LogLevel::Info, "sandbox resumed");
                info!(sandbox = %self.record.id, ?kept, "sandbox resumed");
                self.publish();
                Ok(Resumed::FromPause)
            }
            Err(error) => {
                self.undo_resume(before).await;
                Err(error)
            }
        }
    }

    /// Restores the machine of a paused sandbox: thaws it with its memory, or boots it again from
    /// the files.
    async fn resume_machine(&mut self, kept: PauseMode, wanted: PauseMode) -> Result<Arc<dyn Machine>, EngineError> {
        if let Some(machine) = self.machine.clone().filter(|_| kept == PauseMode::Full) {
            if wanted == PauseMode::Full {
                match with_timeout("thawing the sandbox", machine.thaw()).await {
                    Ok(()) => {
                        // Before any request is served: a guest whose lease has ended may exit at
                        // any moment.
                        self.machine = Some(Arc::clone(&machine));
                        self.push_lease();
                        if let Some(push) = self.lease_push.as_mut()
                            && tokio::time::timeout(LEASE_TIMEOUT, push).await.is_ok()
                        {
                            self.lease_push = None;
                        }
                        // The rules may have changed while the sandbox was paused.
                        self.install_certificate(&machine).await;
                        return Ok(machine);
                    }
                    Err(error) => {
                        warn!(sandbox = %self.record.id, error = %chain(&error), "memory lost, booting from the files");
                        self.note(
                            LogLevel::Warn,
                            "the memory of the paused sandbox was lost; it starts from its files",
                        );
                    }
                }
            }
            with_timeout("ending the sandbox's processes", machine.kill()).await?;
            self.machine = None;
        }
        self.record.boot_id = uuid::Uuid::new_v4().to_string();
        self.boot(BootFiles::Open).await
    }

    /// Reverts an incomplete resume: paused as before, or with the files only if the memory was
    /// lost.
    async fn undo_resume(&mut self, before: crate::sandbox::Record) {
        let had_memory = before.standing == PersistedState::Paused(PauseMode::Full);
        let same_machine = self.machine.as_ref().is_some_and(|machine| before.instance == Some(machine.instance()));
        self.record = before;
        if had_memory && same_machine {
            let machine = self.machine.clone().expect("it was compared above");
            if with_timeout("freezing the sandbox", machine.freeze()).await.is_ok() {
                self.advance(Event::StartFailed);
                self.publish();
                return;
            }
        }
        if let Some(machine) = self.machine.take()
            && let Err(error) = with_timeout("ending the sandbox's processes", machine.kill()).await
        {
            warn!(sandbox = %self.record.id, error = %chain(&error), "processes may be left until the next start");
        }
        if had_memory {
            self.record_files_only().await;
        } else {
            self.advance(Event::StartFailed);
            self.publish();
        }
    }

    /// Sets the end of the lease to `timeout` from now, by both clocks.
    fn set_lease_end(&mut self, timeout: Duration) {
        self.record.lease = timeout;
        self.record.end_at = clock::after(self.node_state.clock.now(), timeout);
        self.lease_end = self.node_state.clock.uptime().saturating_add(timeout);
    }

    pub(super) async fn set_timeout(&mut self, timeout: Duration) -> Result<(), SandboxError> {
        self.check_running()?;
        self.change_lease(timeout).await
    }

    /// Extends the lease to `duration` from now, unless it ends later anyway.
    pub(super) async fn extend(&mut self, duration: Duration) -> Result<(), SandboxError> {
        self.check_running()?;
        let end = self.node_state.clock.uptime().saturating_add(duration);
        if end > self.lease_end { self.change_lease(duration).await } else { Ok(()) }
    }

    async fn change_lease(&mut self, timeout: Duration) -> Result<(), SandboxError> {
        let before = (self.record.lease, self.record.end_at, self.lease_end);
        self.set_lease_end(timeout);
        if let Err(error) = self.node_state.records.put(&self.record).await {
            (self.record.lease, self.record.end_at, self.lease_end) = before;
            return Err(error.into());
        }
        self.publish();
        self.push_lease();
        Ok(())
    }

    fn check_running(&self) -> Result<(), SandboxError> {
        match self.state {
            State::Running => Ok(()),
            state => Err(SandboxError::NotRunning { id: self.record.id.clone(), state }),
        }
    }

    /// Kills or pauses the sandbox after the end of its lease, as its record states. If the memory
    /// cannot be kept, the files are.
    pub(super) async fn expire(&mut self) {
        let outcome = match self.record.spec.on_timeout {
            // The files stay as long as a record names them: if the database fails, the owner
            // retries.
            OnTimeout::Kill => match self.node_state.records.remove(&self.record.id).await {
                Ok(()) => {
                    self.end("lease ended, sandbox killed").await;
                    Ok(())
                }
                Err(error) => Err(error.into()),
            },
            OnTimeout::Pause(kept) => match self.pause(kept, Durability::BestEffort).await {
                Err(error) if kept == PauseMode::Full && self.state == State::Running => {
                    warn!(sandbox = %self.record.id, error = %chain(&error), "cannot keep the memory, keeping the files");
                    self.pause(PauseMode::Filesystem, Durability::BestEffort).await
                }
                other => other,
            },
        };
        match outcome {
            Ok(()) => self.expiry_retry = None,
            Err(error) => {
                warn!(sandbox = %self.record.id, error = %chain(&error), "the end of a lease failed, trying again");
                self.expiry_retry = Some(Instant::now() + RETRY_BACKOFF);
            }
        }
    }

    /// Handles the end of process 1 without a request: the files are all that is left, and they are
    /// kept.
    pub(super) async fn lose_machine(&mut self) {
        if let Some(machine) = self.machine.take() {
            // Children of process 1 die with it; this releases what is left of the machine.
            if let Err(error) = with_timeout("ending the sandbox's processes", machine.kill()).await {
                warn!(sandbox = %self.record.id, error = %chain(&error), "the dead machine was not cleared away");
            }
        }
        warn!(sandbox = %self.record.id, "the sandbox's first process ended by itself");
        self.note(
            LogLevel::Error,
            "the sandbox's processes ended unexpectedly; its files are kept and it can be resumed",
        );
        self.record_files_only().await;
    }

    /// Records that only the files are left.
    pub(super) async fn record_files_only(&mut self) {
        self.lease_push = None;
        if self.record.standing == PersistedState::Running {
            self.record.end_at = self.node_state.clock.now();
        }
        self.record.standing = PersistedState::Paused(PauseMode::Filesystem);
        self.record.instance = None;
        if let Err(error) = self.node_state.records.put(&self.record).await {
            // The next start finds the machine dead and records the same.
            warn!(sandbox = %self.record.id, error = %chain(&error), "the loss of a machine was not recorded");
        }
        self.advance(Event::MachineLost);
        self.publish();
    }
}
