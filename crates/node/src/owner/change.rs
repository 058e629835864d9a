//! The changes an owner makes to its sandbox: start, pause, resume, end, and what a lease's end or a lost machine brings.

use std::sync::Arc;
use std::time::Duration;

use engine::BootFiles;
use protocol::guest::Lease;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{OnRunning, Owner, RETRY_DELAY, Resume, Resumed, chain, within};
use crate::clock;
use crate::error::SandboxError;
use crate::guest_call;
use crate::id::FilesId;
use crate::lifecycle::{Event, Kept, State};
use crate::log::LogLevel;
use crate::ports::{EngineError, Machine};
use crate::sandbox::{OnTimeout, Repeatable, Standing};

/// A healthy guest takes well under a millisecond; a starved one must not hold up its own pause.
const LEASE_PATIENCE: Duration = Duration::from_millis(250);

/// Longest wait for files to be written to the disk. All that sandboxes have not written out yet is written with them.
const SYNC_TIMEOUT: Duration = Duration::from_secs(60);

/// What a pause does when the disk does not take the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Durability {
    /// It fails, and the sandbox runs on: the caller is not told that something is safe which is not.
    Required,
    /// It goes on: no caller waits for it, and the lease has ended.
    BestEffort,
}

/// What the files of a new sandbox are.
#[derive(Debug)]
pub(crate) enum Beginning {
    /// Nothing but the base.
    Base,
    CopyOf(FilesId),
    /// They are there already.
    InPlace,
}

impl Owner {
    /// The first boot. When it fails nothing of the sandbox is left.
    pub(crate) async fn start(
        &mut self,
        beginning: Beginning,
        repeatable: Option<&Repeatable>,
    ) -> Result<(), SandboxError> {
        let started = match self.begin(beginning).await {
            Ok(machine) => {
                self.record.instance = Some(machine.instance());
                self.machine = Some(machine);
                self.world.records.insert(&self.record, repeatable).await.map_err(SandboxError::from)
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
                self.world.forget(&self.record.id);
            }
        }
        self.publish();
        started
    }

    /// Puts the files in place and boots.
    async fn begin(&mut self, beginning: Beginning) -> Result<Arc<dyn Machine>, EngineError> {
        let files = match beginning {
            Beginning::Base => BootFiles::Create,
            Beginning::InPlace => BootFiles::Open,
            Beginning::CopyOf(files) => {
                let engine = Arc::clone(&self.world.engine);
                let id = FilesId::from(&self.record.id);
                within("copying the template's files", engine.copy_files(&files, &id)).await?;
                BootFiles::Open
            }
        };
        let machine = self.boot(files).await?;
        self.describe().await;
        Ok(machine)
    }

    pub(super) async fn kill(&mut self) -> Result<(), SandboxError> {
        self.world.records.remove(&self.record.id).await?;
        self.end("sandbox killed").await;
        Ok(())
    }

    /// Ends the sandbox for good. Its record is gone: should the server die on the way, the next one sweeps up the rest.
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
            && let Err(error) = within("ending the sandbox's processes", machine.kill()).await
        {
            warn!(sandbox = %self.record.id, error = %chain(&error), "processes may be left until the next start");
        }
        let engine = Arc::clone(&self.world.engine);
        if let Err(error) =
            within("removing the sandbox's files", engine.remove_files(&FilesId::from(&self.record.id))).await
        {
            warn!(sandbox = %self.record.id, error = %chain(&error), "files may be left until the next start");
        }
    }

    pub(super) async fn pause_on_request(
        &mut self,
        kept: Kept,
        require_healthy_guest: bool,
    ) -> Result<(), SandboxError> {
        match self.state {
            State::Running => {}
            State::Paused(_) => return Err(SandboxError::AlreadyPaused(self.record.id.clone())),
            state => return Err(SandboxError::NotRunning { id: self.record.id.clone(), state }),
        }
        if require_healthy_guest
            && let Some(machine) = &self.machine
            && guest_call::check_health(machine.guest_socket()).await.is_err()
        {
            return Err(SandboxError::GuestUnresponsive(self.record.id.clone()));
        }
        self.pause(kept, Durability::Required).await
    }

    /// Pauses a running sandbox; when that fails it runs on.
    async fn pause(&mut self, kept: Kept, durability: Durability) -> Result<(), SandboxError> {
        if kept == Kept::Files {
            self.read_log().await;
        }
        self.advance(Event::PauseAsked(kept));
        self.publish();
        let before = self.record.clone();
        let stilled = match self.still(kept).await {
            Ok(()) => self.write_files_out(durability).await,
            Err(error) => Err(error),
        };
        let paused = match stilled {
            Ok(()) => {
                self.record.standing = Standing::Paused(kept);
                self.record.end_at = self.world.clock.now();
                if kept == Kept::Files {
                    self.record.instance = None;
                }
                self.world.records.update(&self.record).await.map_err(SandboxError::from)
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

    /// Brings the machine to rest.
    async fn still(&mut self, kept: Kept) -> Result<(), EngineError> {
        let Some(machine) = self.machine.clone() else {
            return Ok(());
        };
        self.lease_push = None;
        match kept {
            Kept::Memory => {
                // A frozen guest must not wake into a lease that ended long ago and end itself before it is told of the
                // new one. One that does not answer now is frozen all the same.
                let never = guest_call::put_lease(machine.guest_socket(), Lease::default());
                let _ = tokio::time::timeout(LEASE_PATIENCE, never).await;
                within("freezing the sandbox", machine.freeze()).await
            }
            Kept::Files => {
                within("ending the sandbox's processes", machine.kill()).await?;
                self.machine = None;
                Ok(())
            }
        }
    }

    /// Syncs the files to the disk before the pause is acknowledged, so that a power cut loses
    /// none of them.
    async fn write_files_out(&mut self, durability: Durability) -> Result<(), EngineError> {
        let synced = tokio::time::timeout(SYNC_TIMEOUT, self.world.engine.sync_files()).await;
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

    /// After a pause that could not be completed: the sandbox runs on if its machine does.
    async fn undo_pause(&mut self) {
        let thawed = match self.machine.clone() {
            Some(machine) => within("thawing the sandbox", machine.thaw()).await.is_ok(),
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
        if kept == Kept::Files {
            self.world.check_room()?;
        }
        let before = self.record.clone();
        self.advance(Event::ResumeAsked);
        self.publish();
        self.record.standing = Standing::Running;
        self.begin_lease(timeout);
        self.record.on_timeout = on_timeout.unwrap_or(self.record.on_timeout);
        let resumed = match self.wake(kept, wanted).await {
            Ok(machine) => {
                self.record.instance = Some(machine.instance());
                self.machine = Some(machine);
                self.world.records.update(&self.record).await.map_err(SandboxError::from)
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

    /// Brings a paused machine back: thawed with its memory, or booted anew from the files.
    async fn wake(&mut self, kept: Kept, wanted: Kept) -> Result<Arc<dyn Machine>, EngineError> {
        if let Some(machine) = self.machine.clone().filter(|_| kept == Kept::Memory) {
            if wanted == Kept::Memory {
                match within("thawing the sandbox", machine.thaw()).await {
                    Ok(()) => {
                        // Before anybody is served: a guest with an ended lease may end at any moment.
                        self.machine = Some(Arc::clone(&machine));
                        self.push_lease();
                        if let Some(push) = self.lease_push.as_mut()
                            && tokio::time::timeout(LEASE_PATIENCE, push).await.is_ok()
                        {
                            self.lease_push = None;
                        }
                        // Rules may have come while it slept.
                        self.certify(&machine).await;
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
            within("ending the sandbox's processes", machine.kill()).await?;
            self.machine = None;
        }
        self.record.boot_id = uuid::Uuid::new_v4().to_string();
        self.boot(BootFiles::Open).await
    }

    /// After a resume that could not be completed: paused as before, or with the files alone if the memory went with it.
    async fn undo_resume(&mut self, before: crate::sandbox::Record) {
        let had_memory = before.standing == Standing::Paused(Kept::Memory);
        let same_machine = self.machine.as_ref().is_some_and(|machine| before.instance == Some(machine.instance()));
        self.record = before;
        if had_memory && same_machine {
            let machine = self.machine.clone().expect("it was compared above");
            if within("freezing the sandbox", machine.freeze()).await.is_ok() {
                self.advance(Event::StartFailed);
                self.publish();
                return;
            }
        }
        if let Some(machine) = self.machine.take()
            && let Err(error) = within("ending the sandbox's processes", machine.kill()).await
        {
            warn!(sandbox = %self.record.id, error = %chain(&error), "processes may be left until the next start");
        }
        if had_memory {
            self.settle_on_files().await;
        } else {
            self.advance(Event::StartFailed);
            self.publish();
        }
    }

    /// Makes the lease end `timeout` from now, by both clocks.
    fn begin_lease(&mut self, timeout: Duration) {
        self.record.lease = timeout;
        self.record.end_at = clock::after(self.world.clock.now(), timeout);
        self.lease_end = self.world.clock.uptime().saturating_add(timeout);
    }

    pub(super) async fn set_timeout(&mut self, timeout: Duration) -> Result<(), SandboxError> {
        self.check_running()?;
        self.change_lease(timeout).await
    }

    /// Makes the lease end `duration` from now unless it ends later anyway.
    pub(super) async fn extend(&mut self, duration: Duration) -> Result<(), SandboxError> {
        self.check_running()?;
        let end = self.world.clock.uptime().saturating_add(duration);
        if end > self.lease_end { self.change_lease(duration).await } else { Ok(()) }
    }

    async fn change_lease(&mut self, timeout: Duration) -> Result<(), SandboxError> {
        let before = (self.record.lease, self.record.end_at, self.lease_end);
        self.begin_lease(timeout);
        if let Err(error) = self.world.records.update(&self.record).await {
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

    /// The lease has ended: kill or pause, as it says. A sandbox whose memory cannot be kept keeps its files.
    pub(super) async fn expire(&mut self) {
        let outcome = match self.record.on_timeout {
            // Its files stay as long as a record names them: without the database the end is tried
            // again.
            OnTimeout::Kill => match self.world.records.remove(&self.record.id).await {
                Ok(()) => {
                    self.end("lease ended, sandbox killed").await;
                    Ok(())
                }
                Err(error) => Err(error.into()),
            },
            OnTimeout::Pause(kept) => match self.pause(kept, Durability::BestEffort).await {
                Err(error) if kept == Kept::Memory && self.state == State::Running => {
                    warn!(sandbox = %self.record.id, error = %chain(&error), "cannot keep the memory, keeping the files");
                    self.pause(Kept::Files, Durability::BestEffort).await
                }
                other => other,
            },
        };
        match outcome {
            Ok(()) => self.expiry_retry = None,
            Err(error) => {
                warn!(sandbox = %self.record.id, error = %chain(&error), "the end of a lease failed, trying again");
                self.expiry_retry = Some(Instant::now() + RETRY_DELAY);
            }
        }
    }

    /// Process 1 is gone although nobody asked: the files are all that is left, and they are kept.
    pub(super) async fn lose_machine(&mut self) {
        if let Some(machine) = self.machine.take() {
            // Children of process 1 die with it; this clears away what is left of the machine.
            if let Err(error) = within("ending the sandbox's processes", machine.kill()).await {
                warn!(sandbox = %self.record.id, error = %chain(&error), "the dead machine was not cleared away");
            }
        }
        warn!(sandbox = %self.record.id, "the sandbox's first process ended by itself");
        self.note(
            LogLevel::Error,
            "the sandbox's processes ended unexpectedly; its files are kept and it can be resumed",
        );
        self.settle_on_files().await;
    }

    /// Records that only the files are left.
    pub(super) async fn settle_on_files(&mut self) {
        self.lease_push = None;
        if self.record.standing == Standing::Running {
            self.record.end_at = self.world.clock.now();
        }
        self.record.standing = Standing::Paused(Kept::Files);
        self.record.instance = None;
        if let Err(error) = self.world.records.update(&self.record).await {
            // The next start finds the machine dead and comes to the same conclusion.
            warn!(sandbox = %self.record.id, error = %chain(&error), "the loss of a machine was not recorded");
        }
        self.advance(Event::MachineLost);
        self.publish();
    }
}
