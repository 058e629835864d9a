//! From whatever state a workspace is in to one where somebody can work: attached, resumed, or brought back from a
//! snapshot.
//!
//! ```text
//! Ready ── look ──┬─ running ──────────────────────────► attached
//!                 ├─ paused ── budget ── resume ────────► attached
//!                 ├─ gone ── budget ── newest snapshot ─► attached, with a notice
//!                 └─ no answer, twice ──────────────────► sandbox_unreachable
//! Moving ── settle: the old sandbox lives, or the snapshot has the files
//! ```

use std::sync::Arc;
use std::time::Duration;

use sdk::model::SandboxState;
use sdk::{Connect, Sandbox, SandboxError};
use tokio::time::Instant;
use tracing::{info, warn};

use super::core::{Core, Turn};
use super::details::{LastFiles, Place, Run, Stopped};
use super::error::{Unavailable, WorkspaceError};
use super::handover::{Succession, Why};
use super::keeper::SLACK;
use crate::chain::chain;
use crate::clock::later;
use crate::devserver::{self, Patience, Start};
use crate::events::EventKind;
use crate::faults::{Point, reach};
use crate::ledger::Verdict;
use crate::provider::ANSWER_TIME;
use crate::records::{Size, WorkspaceState};
use crate::snapshot::{Restored, Which};

fn is_files_missing(error: &WorkspaceError) -> bool {
    matches!(error, WorkspaceError::Sandbox(SandboxError::FilesMissing { .. }))
}

/// What a look at a sandbox found.
pub(super) enum Found {
    Running { sandbox: Sandbox, remaining: Duration, size: Size },
    Paused { size: Size },
    Gone,
}

/// What was done to make a workspace ready.
#[derive(Debug, Clone)]
pub(super) enum Woken {
    /// It ran.
    Attached,
    Resumed,
    /// With the files of a snapshot.
    BroughtBack(Arc<BroughtBack>),
}

impl Woken {
    pub(super) fn brought_back(self) -> Option<Arc<BroughtBack>> {
        match self {
            Self::BroughtBack(back) => Some(back),
            Self::Attached | Self::Resumed => None,
        }
    }
}

/// A workspace goes on with the files of a snapshot, since its sandbox does not have them any more.
#[derive(Debug, Clone)]
pub struct BroughtBack {
    /// A word for programs: `sandbox_lost`, `sandbox_ended`, `files_missing` or `writes_lost`.
    pub reason: &'static str,
    /// The same for people, with what is gone and since when.
    pub notice: String,
    pub restored: Restored,
}

impl Core {
    /// Asks the provider. Neither wakes nor extends anything.
    pub(super) async fn look(&self, place: &Place) -> Result<Found, WorkspaceError> {
        let client = self.client(&place.provider).await?;
        let looked = match client.within(ANSWER_TIME).look(&place.sandbox).await {
            Ok(looked) => looked,
            Err(SandboxError::NotFound { .. }) => return Ok(Found::Gone),
            Err(error) => return Err(error.into()),
        };
        let listed = &looked.detail.listed;
        let size = Size { cpu_count: listed.cpu_count, memory_mb: listed.memory_mb, disk_mb: listed.disk_size_mb };
        if listed.state == SandboxState::Paused {
            return Ok(Found::Paused { size });
        }
        let remaining = self.remaining(&place.sandbox, &looked);
        Ok(Found::Running { sandbox: client.attach(&looked.detail)?, remaining, size })
    }

    /// Makes the workspace one that can be worked in.
    pub(super) async fn wake(&self, turn: &Turn<'_>) -> Result<Woken, Unavailable> {
        let state = self.seat().record.state;
        match state {
            WorkspaceState::SettingUp => return Err(Unavailable::NotSetUp(self.name.clone())),
            WorkspaceState::Moving => self.settle(turn).await.map_err(|error| self.failed(error))?,
            WorkspaceState::Ready | WorkspaceState::Stopped => {}
        }
        let (state, stopped) = {
            let seat = self.seat();
            (seat.record.state, seat.details.stopped)
        };
        let place = match (state, stopped, self.place()) {
            (WorkspaceState::Stopped, Some(Stopped::TimeOver), _) => {
                return Err(Unavailable::Stopped(self.name.clone()));
            }
            (WorkspaceState::Ready, _, Some(place)) => place,
            _ => return self.bring_back(turn).await,
        };
        let first = match self.reach_sandbox(turn, &place).await {
            Ok(Some(woken)) => return Ok(woken),
            Ok(None) => return self.lost(turn, &place).await,
            Err(Unavailable::Failed { source, .. }) if is_files_missing(&source) => {
                return self.leave_missing(turn, &place).await;
            }
            Err(Unavailable::Failed { source, .. }) => source,
            Err(error) => return Err(error),
        };
        warn!(workspace = %self.name, error = %chain(&first), "the sandbox did not answer; once more");
        tokio::time::sleep(self.settings().resume_again).await;
        match self.reach_sandbox(turn, &place).await {
            Ok(Some(woken)) => Ok(woken),
            Ok(None) => self.lost(turn, &place).await,
            Err(Unavailable::Failed { source, .. }) if is_files_missing(&source) => {
                self.leave_missing(turn, &place).await
            }
            Err(Unavailable::Failed { source, .. }) => Err(Unavailable::Unreachable {
                workspace: self.name.clone(),
                id: place.sandbox,
                provider: place.provider,
                reason: self.hidden(&chain(&source)),
            }),
            Err(error) => Err(error),
        }
    }

    pub(super) fn failed(&self, error: impl Into<WorkspaceError>) -> Unavailable {
        match error.into() {
            WorkspaceError::Unavailable(error) => error,
            source => Unavailable::Failed { workspace: self.name.clone(), source: Box::new(source) },
        }
    }

    /// Attaches to the sandbox if it runs, and resumes it if it is paused. None when it is gone.
    async fn reach_sandbox(&self, turn: &Turn<'_>, place: &Place) -> Result<Option<Woken>, Unavailable> {
        match self.look(place).await.map_err(|error| self.failed(error))? {
            Found::Gone => Ok(None),
            Found::Running { sandbox, remaining, size } => {
                let was_paused = self.seat().record.paused;
                if was_paused {
                    // Somebody else resumed it, or a pause was never carried out.
                    let run = Run { started_at: self.now(), ends_at: later(self.now(), remaining), size };
                    let changed = self.update(turn, |record, details| {
                        record.paused = false;
                        details.saved_at_pause = None;
                        details.run = Some(run);
                    });
                    changed.await.map_err(|error| self.failed(error))?;
                    self.open_interval(place, &run).await;
                    self.tell_resumed(place, &run, Duration::ZERO).await;
                }
                self.attach(sandbox, remaining);
                if let Err(Unavailable::OverBudget { workspace, limit }) = self.within_budget().await {
                    let paused = self.pause_for_budget(turn, limit.clone()).await;
                    paused.map_err(|error| self.failed(error))?;
                    return Err(Unavailable::OverBudget { workspace, limit });
                }
                Ok(Some(Woken::Attached))
            }
            Found::Paused { size } => {
                self.within_budget().await?;
                match self.resume_sandbox(turn, place, size).await {
                    Ok(None) => Ok(Some(Woken::Resumed)),
                    Ok(Some(back)) => Ok(Some(Woken::BroughtBack(Arc::new(back)))),
                    Err(WorkspaceError::Sandbox(SandboxError::NotFound { .. })) => Ok(None),
                    Err(error) => Err(self.failed(error)),
                }
            }
        }
    }

    /// Wakes a paused sandbox, and what is declared to run in it.
    /// Says whether it had lost what was written last.
    async fn resume_sandbox(
        &self,
        turn: &Turn<'_>,
        place: &Place,
        size: Size,
    ) -> Result<Option<BroughtBack>, WorkspaceError> {
        let started = Instant::now();
        let client = self.client(&place.provider).await?;
        let provider = self.house.orchestrator.provider(&place.provider)?;
        let lifetime = provider.plan().lifetime(self.settings().resumed.min(self.ttl_left()));
        let sandbox = client.connect(&place.sandbox, Connect::timeout(lifetime)).await?;
        reach(Point::ResumeConnected).await;
        sandbox.set_timeout(lifetime).await?;
        let run = Run { started_at: self.now(), ends_at: later(self.now(), lifetime), size };
        self.update(turn, |record, details| {
            record.paused = false;
            details.saved_at_pause = None;
            details.run = Some(run);
        })
        .await?;
        reach(Point::ResumeNoted).await;
        self.open_interval(place, &run).await;
        // Before its services, which may take long or never answer: it runs and costs, whatever becomes of them.
        self.tell_resumed(place, &run, started.elapsed()).await;
        let (ended, lost) = tokio::join!(devserver::end_leftovers(&sandbox), self.find_lost_snapshot(&sandbox));
        if let Err(error) = ended {
            warn!(workspace = %self.name, error = %chain(&error), "left-over processes may still run");
        }
        let back = match lost {
            Some(stamp) => self.restore_lost_writes(turn, &sandbox, stamp).await?,
            None => None,
        };
        let how = if back.is_some() { Start::AfterRestore } else { Start::Plain };
        self.start_services_again(&sandbox, how).await;
        self.attach(sandbox, lifetime);
        self.let_live(turn, place).await;
        info!(workspace = %self.name, sandbox = %place, took = ?started.elapsed(), "resumed");
        Ok(back)
    }

    async fn tell_resumed(&self, place: &Place, run: &Run, took: Duration) {
        let (sandbox, until) = (place.sandbox.to_string(), run.ends_at);
        self.tell(EventKind::Resumed { sandbox, until, took }).await;
    }

    /// Gives a resumed sandbox the life of any other. Nobody may come by to extend it before its hour is over.
    async fn let_live(&self, turn: &Turn<'_>, place: &Place) {
        let Some(attached) = self.attached() else { return };
        let Ok(provider) = self.house.orchestrator.provider(&place.provider) else { return };
        let lifetime = provider.plan().lifetime(self.ttl_left());
        if later(self.stable_now(), lifetime) <= later(attached.ends_at, SLACK) {
            return;
        }
        if let Err(error) = self.extend_to(turn, &attached.sandbox, place, lifetime).await {
            warn!(workspace = %self.name, error = %chain(&error), "it lives for as long as a resume gives");
        }
    }

    /// As [`Core::start_services`], for a command that waits for it and may need no server.
    pub(super) async fn start_services_again(&self, sandbox: &Sandbox, how: Start) {
        let patience = Patience { ready: self.settings().service_timeout, ..Patience::default() };
        self.start_services_within(sandbox, how, patience).await;
    }

    /// Starts what is declared to run. What does not start is told to whoever works here, and stops nobody.
    pub(super) async fn start_services(&self, sandbox: &Sandbox, how: Start) {
        self.start_services_within(sandbox, how, Patience::default()).await;
    }

    async fn start_services_within(&self, sandbox: &Sandbox, how: Start, patience: Patience) {
        let Some(server) = self.dev_server() else { return };
        let mut start = std::pin::pin!(devserver::start_within(sandbox, &server, how, patience));
        let started = match tokio::time::timeout(patience.ready / 4, &mut start).await {
            Ok(started) => started,
            Err(_) => {
                let (command, port) = (self.hidden(&server.command), server.port);
                let installs = how == Start::AfterRestore && server.install_command.is_some();
                let within = patience.ready + if installs { patience.install } else { Duration::ZERO };
                self.tell(EventKind::DevServerAwaited { command, port, within }).await;
                start.await
            }
        };
        match started {
            Ok(ready) => {
                let url = sandbox.url(ready.port);
                self.tell(EventKind::DevServerReady { sandbox: sandbox.id().to_string(), port: ready.port, url }).await;
            }
            Err(error) => {
                let reason = self.hidden(&chain(&error));
                self.notice(&format!("The dev server was not started: {reason}"));
                self.tell(EventKind::DevServerFailed { reason }).await;
            }
        }
    }

    pub(super) fn ttl_left(&self) -> Duration {
        let ends = self.seat().record.expires_at;
        self.settings().clock.until(ends)
    }

    /// Notes that the sandbox is gone. Whoever wants to work next gets a new one.
    pub(super) async fn gone(&self, turn: &Turn<'_>, place: &Place) -> Result<(), WorkspaceError> {
        self.stopped(turn, place, Stopped::Lost).await?;
        self.tell(EventKind::SandboxLost { sandbox: place.sandbox.to_string() }).await;
        Ok(())
    }

    async fn stopped(&self, turn: &Turn<'_>, place: &Place, why: Stopped) -> Result<(), WorkspaceError> {
        self.detach();
        self.close_interval(place).await;
        self.update(turn, |record, details| {
            record.sandbox = None;
            record.paused = false;
            record.state = WorkspaceState::Stopped;
            details.stopped = Some(why);
            details.run = None;
            if why == Stopped::Lost {
                details.note_lost(place.clone());
            }
        })
        .await?;
        Ok(())
    }

    /// The same, by the word of somebody who ended it. Of another sandbox than the workspace's own nothing is noted.
    pub(super) async fn ended(&self, sandbox: &str, files: LastFiles) -> Result<(), WorkspaceError> {
        let turn = self.turn().await;
        self.check().await?;
        let ready = self.seat().record.state == WorkspaceState::Ready;
        match self.place().filter(|place| ready && place.sandbox.as_str() == sandbox) {
            Some(place) => self.stopped(&turn, &place, Stopped::Ended(files)).await,
            None => Ok(()),
        }
    }

    /// The sandbox is gone without having been asked to: a new one takes its place.
    async fn lost(&self, turn: &Turn<'_>, place: &Place) -> Result<Woken, Unavailable> {
        self.gone(turn, place).await.map_err(|error| self.failed(error))?;
        self.bring_back(turn).await
    }

    /// The provider has the sandbox, and not its files: a new one takes its place. The old one is left as it is, since its files
    /// may be found again.
    async fn leave_missing(&self, turn: &Turn<'_>, place: &Place) -> Result<Woken, Unavailable> {
        self.tell(EventKind::SandboxLost { sandbox: place.sandbox.to_string() }).await;
        self.bring_back_for(turn, Why::FilesMissing, Some(place.clone())).await
    }

    /// A new sandbox with the files of the newest good snapshot.
    async fn bring_back(&self, turn: &Turn<'_>) -> Result<Woken, Unavailable> {
        let why = match self.seat().details.stopped {
            Some(Stopped::Ended(files)) => Why::Ended(files),
            _ => Why::Lost,
        };
        self.bring_back_for(turn, why, None).await
    }

    async fn bring_back_for(&self, turn: &Turn<'_>, why: Why, old: Option<Place>) -> Result<Woken, Unavailable> {
        self.within_budget().await?;
        let succession = Succession {
            why,
            target: self.seat().record.provider.clone().into(),
            which: Which::Newest,
            old,
            saved: None,
            running: Vec::new(),
        };
        match self.succeed(turn, succession).await {
            Ok((restored, notice)) => {
                let reason = match why {
                    Why::FilesMissing => "files_missing",
                    Why::Ended(_) => "sandbox_ended",
                    _ => "sandbox_lost",
                };
                Ok(Woken::BroughtBack(Arc::new(BroughtBack { reason, notice, restored })))
            }
            Err(WorkspaceError::Unavailable(error)) => Err(error),
            Err(error) => Err(Unavailable::Expired { workspace: self.name.clone(), source: Box::new(error) }),
        }
    }

    /// Reports shares of limits that are reached, and refuses when one is used up.
    pub(super) async fn within_budget(&self) -> Result<(), Unavailable> {
        let findings = match self.house.ledger.check(self.now()).await {
            Ok(findings) => findings,
            Err(error) => {
                warn!(workspace = %self.name, error = %chain(&error), "the limits could not be looked at");
                return Ok(());
            }
        };
        let provider = self.seat().record.provider.clone();
        let verdict = findings.verdict(self.project.as_str(), &provider);
        for warning in findings.warnings {
            self.tell(EventKind::LimitWarning(warning)).await;
        }
        match verdict {
            Verdict::GoOn => Ok(()),
            Verdict::SnapshotAndPause { limit } => Err(Unavailable::OverBudget { workspace: self.name.clone(), limit }),
        }
    }
}
