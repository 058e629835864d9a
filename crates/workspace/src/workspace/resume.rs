//! Brings a workspace from any state to a running one: attached, resumed, or restored from a
//! checkpoint.
//!
//! ```text
//! Ready ── inspect ──┬─ running ────────────────────────────► attached
//!                    ├─ paused ── budget ── resume ─────────► attached
//!                    ├─ gone ── budget ── newest checkpoint ► attached, with a notice
//!                    └─ no answer, twice ───────────────────► sandbox_unreachable
//! Moving ── settle: the old sandbox lives, or the checkpoint has the files
//! ```

use std::sync::Arc;
use std::time::Duration;

use sdk::model::SandboxState;
use sdk::{Sandbox, SandboxError};
use tokio::time::Instant;
use tracing::{info, warn};

use super::core::{OpGuard, WorkspaceCore};
use super::details::{LastFiles, NoSandbox, Run, SandboxRef};
use super::error::{Unavailable, WorkspaceError};
use super::handover::{HandoverPlan, Why};
use super::supervisor::SLACK;
use super::transitions;
use crate::clock::later;
use crate::devserver::{self, Start, StartTimeouts};
use crate::events::EventKind;
use crate::faults::{WorkspacePoint, reach};
use crate::ledger::Verdict;
use crate::records::{Size, WorkspaceState};
use checkpoint::{Restored, Which};
use text::error_chain;

fn is_files_missing(error: &WorkspaceError) -> bool {
    matches!(error, WorkspaceError::Sandbox(SandboxError::FilesMissing { .. }))
}

/// The state of a sandbox at its provider.
pub(super) enum SandboxStatus {
    Running { sandbox: Sandbox, remaining: Duration, size: Size },
    Paused { size: Size },
    Gone,
}

/// How a workspace was made ready.
#[derive(Debug, Clone)]
pub(super) enum ResumeOutcome {
    /// It was running.
    Attached,
    Resumed,
    /// With the files of a checkpoint.
    AutoRestore(Arc<AutoRestore>),
}

impl ResumeOutcome {
    pub(super) fn auto_restore(self) -> Option<Arc<AutoRestore>> {
        match self {
            Self::AutoRestore(back) => Some(back),
            Self::Attached | Self::Resumed => None,
        }
    }
}

/// A workspace that continues with the files of a checkpoint, since its sandbox no longer has them.
#[derive(Debug, Clone)]
pub struct AutoRestore {
    /// A stable code for programs: `sandbox_lost`, `sandbox_ended`, `files_missing` or
    /// `writes_lost`.
    pub reason: &'static str,
    /// A readable line, with what is lost and since when.
    pub notice: String,
    pub restored: Restored,
}

impl WorkspaceCore {
    /// Asks the provider for the state of a sandbox. Neither resumes nor extends it.
    pub(super) async fn inspect_sandbox(&self, place: &SandboxRef) -> Result<SandboxStatus, WorkspaceError> {
        let found = match self.service(&place.provider).await?.inspect(&place.sandbox).await {
            Ok(found) => found,
            Err(SandboxError::NotFound { .. }) => return Ok(SandboxStatus::Gone),
            Err(error) => return Err(error.into()),
        };
        let size = found.size;
        if found.state == SandboxState::Paused {
            return Ok(SandboxStatus::Paused { size });
        }
        let remaining = self.remaining(&found);
        Ok(SandboxStatus::Running { sandbox: found.sandbox, remaining, size })
    }

    /// Makes the workspace usable.
    pub(super) async fn ensure_ready(&self, op: &OpGuard<'_>) -> Result<ResumeOutcome, Unavailable> {
        let state = self.state().record.state;
        match state {
            WorkspaceState::SettingUp => return Err(Unavailable::NotSetUp(self.name.clone())),
            WorkspaceState::Moving => self.settle(op).await.map_err(|error| self.to_unavailable(error))?,
            WorkspaceState::Ready | WorkspaceState::Stopped => {}
        }
        let (state, stopped) = {
            let state = self.state();
            (state.record.state, state.details.stopped)
        };
        let place = match (state, stopped, self.current_sandbox()) {
            (WorkspaceState::Stopped, Some(NoSandbox::TimeOver), _) => {
                return Err(Unavailable::Stopped(self.name.clone()));
            }
            (WorkspaceState::Ready, _, Some(place)) => place,
            _ => return self.restore_newest_checkpoint(op).await,
        };
        let first = match self.reach_sandbox(op, &place).await {
            Ok(Some(outcome)) => return Ok(outcome),
            Ok(None) => return self.restore_lost(op, &place).await,
            Err(Unavailable::Failed { source, .. }) if is_files_missing(&source) => {
                return self.leave_missing(op, &place).await;
            }
            Err(Unavailable::Failed { source, .. }) => source,
            Err(error) => return Err(error),
        };
        warn!(workspace = %self.name, error = %error_chain(&first), "the sandbox did not answer, retrying");
        tokio::time::sleep(self.settings().resume_backoff).await;
        match self.reach_sandbox(op, &place).await {
            Ok(Some(outcome)) => Ok(outcome),
            Ok(None) => self.restore_lost(op, &place).await,
            Err(Unavailable::Failed { source, .. }) if is_files_missing(&source) => {
                self.leave_missing(op, &place).await
            }
            Err(Unavailable::Failed { source, .. }) => Err(Unavailable::Unreachable {
                workspace: self.name.clone(),
                id: place.sandbox,
                provider: place.provider,
                reason: self.mask_text(&error_chain(&source)),
            }),
            Err(error) => Err(error),
        }
    }

    pub(super) fn to_unavailable(&self, error: impl Into<WorkspaceError>) -> Unavailable {
        match error.into() {
            WorkspaceError::Unavailable(error) => error,
            source => Unavailable::Failed { workspace: self.name.clone(), source: Box::new(source) },
        }
    }

    /// Attaches to the sandbox if it runs, and resumes it if it is paused. [`None`] when it is
    /// gone.
    async fn reach_sandbox(&self, op: &OpGuard<'_>, place: &SandboxRef) -> Result<Option<ResumeOutcome>, Unavailable> {
        match self.inspect_sandbox(place).await.map_err(|error| self.to_unavailable(error))? {
            SandboxStatus::Gone => Ok(None),
            SandboxStatus::Running { sandbox, remaining, size } => {
                let (was_paused, is_known) = {
                    let state = self.state();
                    let attached = state.attached.as_ref().is_some_and(|known| *known.sandbox.id() == place.sandbox);
                    (state.record.paused, attached)
                };
                if was_paused {
                    // Another client resumed it, or a pause never took effect.
                    let run = Run { started_at: self.now(), ends_at: later(self.now(), remaining), size };
                    let changed = self.update(op, |record, details| {
                        record.paused = false;
                        details.saved_at_pause = None;
                        details.run = Some(run);
                    });
                    changed.await.map_err(|error| self.to_unavailable(error))?;
                    self.open_interval(place, &run).await;
                    self.emit_resumed(place, &run, Duration::ZERO).await;
                }
                let inspected = Instant::now();
                if let Err(Unavailable::OverBudget { workspace, limit }) = self.check_budget().await {
                    let paused = self.pause_for_budget(op, limit.clone()).await;
                    paused.map_err(|error| self.to_unavailable(error))?;
                    return Err(Unavailable::OverBudget { workspace, limit });
                }
                // Another client may have resumed it after its host lost power. Nothing enters it
                // before its files are restored.
                let back = match was_paused || !is_known {
                    true => self.restore_if_lost(op, &sandbox).await.map_err(|error| self.to_unavailable(error))?,
                    false => None,
                };
                if back.is_some() {
                    self.start_services_again(&sandbox, Start::AfterRestore).await;
                }
                self.attach(sandbox, remaining.saturating_sub(inspected.elapsed()));
                Ok(Some(back.map_or(ResumeOutcome::Attached, |back| ResumeOutcome::AutoRestore(Arc::new(back)))))
            }
            SandboxStatus::Paused { size } => {
                self.check_budget().await?;
                match self.resume_sandbox(op, place, size).await {
                    Ok(None) => Ok(Some(ResumeOutcome::Resumed)),
                    Ok(Some(back)) => Ok(Some(ResumeOutcome::AutoRestore(Arc::new(back)))),
                    // Providers answer this also when the sandbox was paused again meanwhile.
                    Err(error @ WorkspaceError::Sandbox(SandboxError::NotFound { .. })) => {
                        match self.inspect_sandbox(place).await {
                            Ok(SandboxStatus::Gone) => Ok(None),
                            Ok(_) => Err(self.to_unavailable(error)),
                            Err(unknown) => Err(self.to_unavailable(unknown)),
                        }
                    }
                    Err(error) => Err(self.to_unavailable(error)),
                }
            }
        }
    }

    /// Resumes a paused sandbox and its dev server. Returns what was restored, if it had lost its
    /// last writes.
    async fn resume_sandbox(
        &self,
        op: &OpGuard<'_>,
        place: &SandboxRef,
        size: Size,
    ) -> Result<Option<AutoRestore>, WorkspaceError> {
        let started = Instant::now();
        let service = self.service(&place.provider).await?;
        let provider = self.context.orchestrator.provider(&place.provider)?;
        let lifetime = provider.plan().lifetime(self.settings().resumed.min(self.ttl_left()));
        let sandbox = service.connect(&place.sandbox, lifetime).await?;
        reach(WorkspacePoint::ResumeConnected).await;
        service.set_timeout(&place.sandbox, lifetime).await?;
        let run = Run { started_at: self.now(), ends_at: later(self.now(), lifetime), size };
        self.update(op, |record, details| {
            record.paused = false;
            details.saved_at_pause = None;
            details.run = Some(run);
        })
        .await?;
        reach(WorkspacePoint::ResumeNoted).await;
        self.open_interval(place, &run).await;
        // Emitted before the services start, which may take long: the sandbox already runs and
        // costs.
        self.emit_resumed(place, &run, started.elapsed()).await;
        let (ended, lost) =
            tokio::join!(self.context.upkeep.stop_leftovers(&sandbox), self.find_lost_checkpoint(op, &sandbox));
        if let Err(error) = ended {
            warn!(workspace = %self.name, error = %error_chain(&error), "leftover processes may still run");
        }
        let back = match lost? {
            Some(stamp) => self.restore_lost_writes(op, &sandbox, stamp).await?,
            None => None,
        };
        let how = if back.is_some() { Start::AfterRestore } else { Start::Plain };
        self.start_services_again(&sandbox, how).await;
        self.attach(sandbox, lifetime);
        self.extend_resumed(op, place).await;
        info!(workspace = %self.name, sandbox = %place, took = ?started.elapsed(), "sandbox resumed");
        Ok(back)
    }

    /// Restores the last writes of a sandbox that lost them.
    pub(super) async fn restore_if_lost(
        &self,
        op: &OpGuard<'_>,
        sandbox: &Sandbox,
    ) -> Result<Option<AutoRestore>, WorkspaceError> {
        match self.find_lost_checkpoint(op, sandbox).await? {
            Some(lost) => self.restore_lost_writes(op, sandbox, lost).await,
            None => Ok(None),
        }
    }

    async fn emit_resumed(&self, place: &SandboxRef, run: &Run, took: Duration) {
        let (sandbox, until) = (place.sandbox.to_string(), run.ends_at);
        self.emit(EventKind::Resumed { sandbox, until, took }).await;
    }

    /// Extends a resumed sandbox to the normal lifetime. No process may come by to extend it within
    /// the hour.
    async fn extend_resumed(&self, op: &OpGuard<'_>, place: &SandboxRef) {
        let Some(attached) = self.attached() else { return };
        let Ok(provider) = self.context.orchestrator.provider(&place.provider) else { return };
        let lifetime = provider.plan().lifetime(self.ttl_left());
        if later(self.stable_now(), lifetime) <= later(attached.ends_at, SLACK) {
            return;
        }
        if let Err(error) = self.extend_to(op, &attached.sandbox, place, lifetime).await {
            warn!(workspace = %self.name, error = %error_chain(&error), "the resumed sandbox could not be extended");
        }
    }

    /// Like [`WorkspaceCore::start_services`], with the shorter timeout for a caller that may not
    /// need a server.
    pub(super) async fn start_services_again(&self, sandbox: &Sandbox, how: Start) {
        let timeouts = StartTimeouts { ready: self.settings().service_timeout, ..StartTimeouts::default() };
        self.start_services_within(sandbox, how, timeouts).await;
    }

    /// Starts the declared dev server. A failure becomes a notice and an event, not an error.
    pub(super) async fn start_services(&self, sandbox: &Sandbox, how: Start) {
        self.start_services_within(sandbox, how, StartTimeouts::default()).await;
    }

    async fn start_services_within(&self, sandbox: &Sandbox, how: Start, timeouts: StartTimeouts) {
        let Some(server) = self.dev_server() else { return };
        let mut start = std::pin::pin!(devserver::start_within(sandbox, &server, how, timeouts));
        let started = match tokio::time::timeout(timeouts.ready / 4, &mut start).await {
            Ok(started) => started,
            Err(_) => {
                let (command, port) = (self.mask_text(&server.command), server.port);
                let installs = how == Start::AfterRestore && server.install_command.is_some();
                let within = timeouts.ready + if installs { timeouts.install } else { Duration::ZERO };
                self.emit(EventKind::DevServerAwaited { command, port, within }).await;
                start.await
            }
        };
        match started {
            Ok(ready) => {
                let url = sandbox.url(ready.port);
                self.emit(EventKind::DevServerReady { sandbox: sandbox.id().to_string(), port: ready.port, url }).await;
            }
            Err(error) => {
                let reason = self.mask_text(&error_chain(&error));
                self.add_notice(&format!("The dev server was not started: {reason}"));
                self.emit(EventKind::DevServerFailed { reason }).await;
            }
        }
    }

    pub(super) fn ttl_left(&self) -> Duration {
        let ends = self.state().record.expires_at;
        self.settings().clock.until(ends)
    }

    /// Records that the sandbox is gone. The next use creates a new one.
    pub(super) async fn record_gone(&self, op: &OpGuard<'_>, place: &SandboxRef) -> Result<(), WorkspaceError> {
        self.record_stopped(op, place, NoSandbox::Lost).await?;
        self.emit(EventKind::SandboxLost { sandbox: place.sandbox.to_string() }).await;
        Ok(())
    }

    async fn record_stopped(&self, op: &OpGuard<'_>, place: &SandboxRef, why: NoSandbox) -> Result<(), WorkspaceError> {
        self.detach();
        self.close_interval(place).await;
        Ok(self.update(op, |record, details| transitions::stop(record, details, place, why)).await?)
    }

    /// Records that the caller killed the sandbox. Ignores a sandbox that is not the workspace's
    /// own.
    pub(super) async fn record_killed(&self, sandbox: &str, files: LastFiles) -> Result<(), WorkspaceError> {
        let op = self.begin_op().await;
        self.check().await?;
        let ready = self.state().record.state == WorkspaceState::Ready;
        match self.current_sandbox().filter(|place| ready && place.sandbox.as_str() == sandbox) {
            Some(place) => self.record_stopped(&op, &place, NoSandbox::Ended(files)).await,
            None => Ok(()),
        }
    }

    /// Replaces a sandbox that disappeared.
    async fn restore_lost(&self, op: &OpGuard<'_>, place: &SandboxRef) -> Result<ResumeOutcome, Unavailable> {
        self.record_gone(op, place).await.map_err(|error| self.to_unavailable(error))?;
        self.restore_newest_checkpoint(op).await
    }

    /// Replaces a sandbox whose files are missing at its provider. The old one is left as it is,
    /// since its files may become available again.
    async fn leave_missing(&self, op: &OpGuard<'_>, place: &SandboxRef) -> Result<ResumeOutcome, Unavailable> {
        self.emit(EventKind::SandboxLost { sandbox: place.sandbox.to_string() }).await;
        self.restore_newest_for(op, Why::FilesMissing, Some(place.clone())).await
    }

    /// Creates a new sandbox with the files of the newest complete checkpoint.
    async fn restore_newest_checkpoint(&self, op: &OpGuard<'_>) -> Result<ResumeOutcome, Unavailable> {
        let why = match self.state().details.stopped {
            Some(NoSandbox::Ended(files)) => Why::Ended(files),
            _ => Why::Lost,
        };
        self.restore_newest_for(op, why, None).await
    }

    async fn restore_newest_for(
        &self,
        op: &OpGuard<'_>,
        why: Why,
        old: Option<SandboxRef>,
    ) -> Result<ResumeOutcome, Unavailable> {
        self.check_budget().await?;
        let before_loss = self.state().details.newest_before_loss();
        let which = before_loss.map_or(Which::Newest, Which::Exactly);
        let plan = HandoverPlan {
            why,
            target: self.state().record.provider.clone().into(),
            which,
            old,
            saved: None,
            running: Vec::new(),
        };
        match self.execute_handover(op, plan).await {
            Ok((restored, notice)) => {
                let reason = match why {
                    Why::FilesMissing => "files_missing",
                    Why::Ended(_) => "sandbox_ended",
                    _ => "sandbox_lost",
                };
                Ok(ResumeOutcome::AutoRestore(Arc::new(AutoRestore { reason, notice, restored })))
            }
            Err(WorkspaceError::Unavailable(error)) => Err(error),
            Err(error) => Err(Unavailable::Expired { workspace: self.name.clone(), source: Box::new(error) }),
        }
    }

    /// Reports reached thresholds of limits. Fails when a limit is used up.
    pub(super) async fn check_budget(&self) -> Result<(), Unavailable> {
        let findings = match self.context.ledger.check(self.now()).await {
            Ok(findings) => findings,
            Err(error) => {
                warn!(workspace = %self.name, error = %error_chain(&error), "the limits could not be checked");
                return Ok(());
            }
        };
        let provider = self.state().record.provider.clone();
        let verdict = findings.verdict(self.project.as_str(), &provider);
        for warning in findings.warnings {
            self.emit(EventKind::LimitWarning(warning)).await;
        }
        match verdict {
            Verdict::Continue => Ok(()),
            Verdict::CheckpointAndPause { limit } => {
                Err(Unavailable::OverBudget { workspace: self.name.clone(), limit })
            }
        }
    }
}
