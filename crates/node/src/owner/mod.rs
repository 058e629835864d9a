//! The owner of one sandbox: the only task that changes it. It serializes commands, kills or pauses
//! the sandbox when its lease ends, notices when its machine dies, and reads its metrics and log.
//!
//! Invariants: a change is recorded before it is acknowledged; the view reports that a sandbox
//! cannot be reached before its connections are closed, so that a client that reconnects after a
//! broken stream sees the new state.

mod certificate;
pub(crate) mod change;
mod copy;
mod egress;
mod restore;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use engine::{Boot, BootFiles, EngineError, FilesId, Machine};
use futures::future::BoxFuture;
use protocol::guest::{GuestConfig, Lease};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::clock;
use crate::description::Description;
use crate::egress::Egress;
use crate::error::{FilesOwner, SandboxError};
use crate::guest_call;
use crate::guest_config;
use crate::lifecycle::{self, Event, PauseMode, State};
use crate::log::LogLevel;
use crate::metrics::SAMPLE_INTERVAL;
use crate::sandbox::{OnTimeout, Record};
use crate::start_command::{self, GuestAccess};
use crate::state::{Handle, NodeState, RunningSandbox, SandboxNotes, View};
use crate::volume::VolumeMount;

/// Longest wait for one call of the engine. A boot or a kill takes milliseconds; only a machine in
/// trouble takes this long.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay between two attempts to send the guest its lease, or to complete the end of one.
const RETRY_BACKOFF: Duration = Duration::from_secs(1);
/// Longest delay between attempts to send the lease to a guest that does not answer; the guest's
/// grace period is longer than this.
const MAX_RETRY_BACKOFF: Duration = Duration::from_secs(8);
/// The first sample is taken early, so that metrics are available soon after the create call.
const FIRST_SAMPLE_DELAY: Duration = Duration::from_secs(1);
/// The guest keeps its log itself, and a call that reads the log fetches the newest entries.
/// Fetching it with every sixth sample loses nothing and lets idle guests stay idle.
const SAMPLES_PER_LOG: u32 = 6;
/// The owner does nothing else meanwhile, and a lease must end on time however busy the guest is.
const LOG_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a guest whose lease ends in a pause waits for a server that pauses it. Its memory would
/// be lost if it exited; after this time only its files are kept.
const PAUSE_GRACE_SECONDS: u32 = 12 * 60 * 60;
/// A synchronized clock deviates by less than this between two samples.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(2);
const COMMAND_CAPACITY: usize = 64;

pub(crate) type Reply<T> = oneshot::Sender<Result<T, SandboxError>>;

/// Commands to a sandbox's owner.
pub(crate) enum Command {
    Kill(Reply<()>),
    Pause {
        kept: PauseMode,
        require_healthy_guest: bool,
        reply: Reply<()>,
    },
    Resume {
        resume: Resume,
        reply: Reply<Resumed>,
    },
    SetTimeout {
        timeout: Duration,
        reply: Reply<()>,
    },
    Refresh {
        duration: Duration,
        reply: Reply<()>,
    },
    ReadLog(Reply<()>),
    /// Replaces the egress rules.
    SetEgress {
        egress: Box<Egress>,
        allow_internet: Option<bool>,
        reply: Reply<()>,
    },
    /// Copies the files to `to` and returns the sandbox's record at that moment.
    CopyFiles {
        to: FilesId,
        purpose: &'static str,
        reply: Reply<Record>,
    },
}

/// How to resume.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resume {
    pub timeout: Duration,
    /// What to restore of a sandbox that was paused with its memory.
    pub kept: PauseMode,
    pub on_running: OnRunning,
    /// Replaces what happens at the end of the lease.
    pub on_timeout: Option<OnTimeout>,
}

/// What a resume does to a sandbox that runs already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnRunning {
    Extend,
    Leave,
    Refuse,
}

/// Whether a resume found the sandbox running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resumed {
    WasRunning,
    FromPause,
}

pub(crate) struct Owner {
    node_state: Arc<NodeState>,
    commands: mpsc::Receiver<Command>,
    view: watch::Sender<View>,
    notes: Arc<SandboxNotes>,
    record: Record,
    state: State,
    machine: Option<Arc<dyn Machine>>,
    live: Option<Arc<RunningSandbox>>,
    /// The end of the lease by the uptime. The record has the same moment by the wall clock, which
    /// an administrator or NTP may set.
    lease_end: Duration,
    /// Sends the newest lease to the guest, with retries; a newer one replaces it.
    lease_push: Option<BoxFuture<'static, ()>>,
    /// The end of the lease is not retried before this.
    expiry_retry: Option<Instant>,
    samples: u32,
    /// How many processes the kernel had killed at the last sample because memory ran out; unknown
    /// before the first sample.
    oom_kills: Option<u64>,
}

impl Owner {
    pub(crate) fn new(node_state: &Arc<NodeState>, record: Record, state: State) -> (Self, Handle) {
        let (sender, commands) = mpsc::channel(COMMAND_CAPACITY);
        let (view, seen) = watch::channel(View { record: Arc::new(record.clone()), state, live: None, frozen: None });
        let notes = Arc::new(SandboxNotes::default());
        let handle = Handle { commands: sender, view: seen, notes: Arc::clone(&notes) };
        // A clock that was set back does not extend a lease beyond its length.
        let left = clock::until(node_state.clock.now(), record.end_at).min(record.lease);
        let owner = Self {
            node_state: Arc::clone(node_state),
            lease_end: node_state.clock.uptime().saturating_add(left),
            commands,
            view,
            notes,
            record,
            state,
            machine: None,
            live: None,
            lease_push: None,
            expiry_retry: None,
            samples: 0,
            oom_kills: None,
        };
        (owner, handle)
    }

    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    /// Serves the sandbox until it ends or the server stops.
    pub(crate) async fn run(mut self) {
        let mut sample = tokio::time::interval_at(Instant::now() + FIRST_SAMPLE_DELAY, SAMPLE_INTERVAL);
        sample.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stop = self.node_state.stop.clone();
        while self.state != State::Gone {
            let machine = self.machine.clone();
            let runs = self.state == State::Running;
            let expiry = tokio::time::sleep(self.until_expiry());
            tokio::select! {
                // Events are handled before commands, always in this order.
                biased;
                () = stop.cancelled() => return self.leave().await,
                // The timer does not count time in which the machine was suspended; after that the
                // next sample wakes the loop.
                () = expiry, if runs => self.expire().await,
                () = exited(machine.as_deref()), if machine.is_some() => self.lose_machine().await,
                () = wait(self.lease_push.as_mut()), if self.lease_push.is_some() => self.lease_push = None,
                _ = sample.tick(), if runs => self.sample().await,
                command = self.commands.recv() => match command {
                    Some(command) => self.handle_command(command).await,
                    None => break,
                },
            }
        }
        self.node_state.forget(&self.record.id);
    }

    async fn handle_command(&mut self, command: Command) {
        // The caller may have stopped waiting for the reply, which is no failure: the change was
        // made.
        match command {
            Command::Kill(reply) => drop(reply.send(self.kill().await)),
            Command::Pause { kept, require_healthy_guest, reply } => {
                drop(reply.send(self.pause_on_request(kept, require_healthy_guest).await));
            }
            Command::Resume { resume, reply } => drop(reply.send(self.resume(resume).await)),
            Command::SetTimeout { timeout, reply } => drop(reply.send(self.set_timeout(timeout).await)),
            Command::Refresh { duration, reply } => drop(reply.send(self.extend(duration).await)),
            Command::CopyFiles { to, purpose, reply } => drop(reply.send(self.copy_files(&to, purpose).await)),
            Command::SetEgress { egress, allow_internet, reply } => {
                drop(reply.send(self.set_egress(*egress, allow_internet).await));
            }
            Command::ReadLog(reply) => {
                self.read_log().await;
                drop(reply.send(Ok(())));
            }
        }
    }

    /// Moves to the state after `event`. The caller has checked that the event is allowed.
    fn advance(&mut self, event: Event) {
        match lifecycle::next(self.state, event) {
            Ok(state) => self.state = state,
            Err(refused) => warn!(sandbox = %self.record.id, %refused, "a change of state was refused"),
        }
    }

    /// Publishes the current state, and allows or cuts connections accordingly.
    fn publish(&mut self) {
        let closed = if self.state == State::Running {
            if self.live.is_none() {
                self.live = self
                    .machine
                    .clone()
                    .map(|machine| Arc::new(RunningSandbox { machine, disconnect: CancellationToken::new() }));
            }
            None
        } else {
            self.live.take()
        };
        self.view.send_replace(View {
            record: Arc::new(self.record.clone()),
            state: self.state,
            live: self.live.clone(),
            frozen: self.machine.clone().filter(|_| self.state == State::Paused(PauseMode::Full)),
        });
        if let Some(closed) = closed {
            closed.disconnect.cancel();
        }
    }

    fn until_expiry(&self) -> Duration {
        let lease = self.lease_end.saturating_sub(self.node_state.clock.uptime());
        let retry = self.expiry_retry.map(|at| at.saturating_duration_since(Instant::now()));
        lease.max(retry.unwrap_or(Duration::ZERO))
    }

    /// Starts process 1 for the current boot id.
    async fn boot(&mut self, files: BootFiles) -> Result<Arc<dyn Machine>, EngineError> {
        let (engine, id) = (Arc::clone(&self.node_state.engine), &self.record.id);
        let guest_config = guest_config::encode(&*engine, id, guest_config(&self.record));
        let boot = Boot {
            id: id.clone(),
            files,
            resources: self.record.spec.resources,
            egress: self.egress_policy(),
            volumes: self.record.spec.volumes.iter().map(VolumeMount::to_mount).collect(),
            boot_id: self.record.boot_id.clone(),
            hostname: id.to_string(),
            guest_config: with_timeout("booting the sandbox", guest_config).await?,
        };
        let machine = with_timeout("booting the sandbox", engine.boot(boot)).await?;
        self.notes.log().reset();
        self.notes.readings().reset();
        self.oom_kills = Some(0);
        self.install_certificate(&machine).await;
        let rootless_limitations = self.node_state.engine.rootless_limitations();
        if !rootless_limitations.is_empty() {
            self.note(LogLevel::Warn, &format!("this server is not root: {}", rootless_limitations.join("; ")));
        }
        let guest = GuestAccess { socket: machine.guest_socket(), token: self.record.access_token.as_ref() };
        if let Err(error) = start_command::launch(guest, &self.record.defaults).await {
            warn!(sandbox = %self.record.id, error = %chain(&error), "the template's start command was not started");
            self.note(LogLevel::Error, "the template's start command could not be started");
        }
        Ok(machine)
    }

    /// Writes a description beside the files, in case the record is lost.
    fn describe(&self) -> impl Future<Output = ()> + use<> {
        let (node_state, files) = (Arc::clone(&self.node_state), FilesId::from(&self.record.id));
        let description = Description::for_sandbox(&self.record);
        async move { node_state.describe(&files, &description).await }
    }

    /// Names the owner of missing files; the engine knows only their name in the pool.
    fn name_missing(&self, error: EngineError) -> SandboxError {
        let EngineError::FilesMissing { files, path } = error else { return error.into() };
        let mount = self.record.spec.volumes.iter().find(|mount| mount.files == files);
        let owner = match mount {
            Some(mount) => FilesOwner::Volume(mount.name.clone()),
            None if files == FilesId::from(&self.record.id) => FilesOwner::Sandbox(self.record.id.clone()),
            None => FilesOwner::Template(self.record.template.id.clone()),
        };
        SandboxError::FilesMissing { owner, path }
    }

    /// Sends the guest its lease, now or as soon as it listens, in the background.
    fn push_lease(&mut self) {
        let Some(machine) = self.machine.clone() else { return };
        let lease = guest_lease(&self.record);
        self.lease_push = Some(Box::pin(async move {
            let mut delay = RETRY_BACKOFF;
            while let Err(error) = guest_call::put_lease(machine.guest_socket(), lease).await {
                debug!(%error, "the guest was not told of its lease");
                tokio::time::sleep(delay).await;
                delay = (2 * delay).min(MAX_RETRY_BACKOFF);
            }
        }));
    }

    /// Adjusts the recorded end of the lease after the wall clock was set. The remaining time stays
    /// the same.
    async fn follow_clock(&mut self) {
        let left = self.lease_end.saturating_sub(self.node_state.clock.uptime());
        let end = clock::after(self.node_state.clock.now(), left);
        if end.duration_since(self.record.end_at).unsigned_abs() < CLOCK_TOLERANCE {
            return;
        }
        let before = std::mem::replace(&mut self.record.end_at, end);
        if let Err(error) = self.node_state.records.put(&self.record).await {
            // The next sample retries.
            self.record.end_at = before;
            warn!(sandbox = %self.record.id, error = %chain(&error), "the lease was not recorded by the clock as it is now");
            return;
        }
        info!(sandbox = %self.record.id, %before, now = %end, "the clock was set; the lease has as long to go as before");
        self.publish();
        self.push_lease();
    }

    async fn sample(&mut self) {
        self.follow_clock().await;
        let Some(machine) = self.machine.clone() else { return };
        match with_timeout("reading what the sandbox uses", machine.usage()).await {
            Ok(usage) => {
                let (now, cpus) = (self.node_state.clock.now(), self.record.spec.resources.cpu_count);
                self.notes.readings().record(now, cpus, usage);
                self.report_oom_kills(usage.oom_kills);
            }
            Err(error) => debug!(sandbox = %self.record.id, error = %chain(&error), "no reading"),
        }
        if self.samples.is_multiple_of(SAMPLES_PER_LOG) {
            self.read_log().await;
        }
        self.samples = self.samples.wrapping_add(1);
    }

    /// Logs that the kernel killed processes of the sandbox because memory ran out. Kills before a
    /// restart of the server were reported by the earlier server.
    fn report_oom_kills(&mut self, total: u64) {
        let killed = total.saturating_sub(self.oom_kills.replace(total).unwrap_or(total));
        if killed == 0 {
            return;
        }
        let processes = if killed == 1 { "process was" } else { "processes were" };
        let limit = self.record.spec.resources.memory_mb;
        let message = format!("out of memory: {killed} {processes} killed (limit {limit} MB)");
        warn!(sandbox = %self.record.id, "{message}");
        self.note(LogLevel::Warn, &message);
    }

    async fn read_log(&mut self) {
        self.notes.flush_decisions(self.node_state.clock.now());
        if self.state != State::Running {
            return;
        }
        let Some(machine) = self.machine.clone() else { return };
        let after = self.notes.log().seen();
        let reading = tokio::time::timeout(LOG_TIMEOUT, guest_call::read_log(machine.guest_socket(), after));
        match reading.await {
            Ok(Ok(entries)) => self.notes.log().take_from_guest(entries),
            Ok(Err(error)) => debug!(sandbox = %self.record.id, %error, "the guest's log was not read"),
            Err(_) => debug!(sandbox = %self.record.id, "the guest took too long over its log"),
        }
    }

    fn note(&self, level: LogLevel, message: &str) {
        self.notes.log().write(self.node_state.clock.now(), level, message);
    }

    /// Leaves the machine to its lease. The guest should have the newest one, since no server will
    /// send another soon.
    async fn leave(&mut self) {
        if let Some(push) = self.lease_push.take() {
            // If it is not sent, the guest keeps the lease it has; the next server sends it again.
            let _ = tokio::time::timeout(RETRY_BACKOFF, push).await;
        }
    }
}

async fn exited(machine: Option<&dyn Machine>) {
    match machine {
        Some(machine) => machine.exited().await,
        None => std::future::pending().await,
    }
}

async fn wait(future: Option<&mut BoxFuture<'static, ()>>) {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Limits the time of one call of the engine.
async fn with_timeout<T>(
    what: &'static str,
    act: impl Future<Output = Result<T, EngineError>>,
) -> Result<T, EngineError> {
    match tokio::time::timeout(ENGINE_TIMEOUT, act).await {
        Ok(result) => result,
        Err(late) => Err(EngineError::failed(what, late)),
    }
}

/// Joins an error and its causes on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The guest's lease: when it ends, and how long the guest then waits for a server.
fn guest_lease(record: &Record) -> Lease {
    let grace_seconds = match record.spec.on_timeout {
        OnTimeout::Kill => None,
        OnTimeout::Pause(_) => Some(PAUSE_GRACE_SECONDS),
    };
    Lease { ends_unix_ms: Some(unix_ms(record.end_at)), grace_seconds }
}

fn unix_ms(moment: jiff::Timestamp) -> u64 {
    u64::try_from(moment.as_millisecond()).unwrap_or(0)
}

fn guest_config(record: &Record) -> GuestConfig {
    const MIB: u64 = 1 << 20;
    let system_env = [
        ("E2B_SANDBOX", "true"),
        ("E2B_SANDBOX_ID", record.id.as_str()),
        ("E2B_TEMPLATE_ID", record.template.id.as_str()),
    ];
    let given =
        record.defaults.env.iter().chain(&record.spec.env_vars).map(|(name, value)| (name.clone(), value.clone()));
    GuestConfig {
        sandbox_id: record.id.to_string(),
        template_id: record.template.id.clone(),
        access_token: record.access_token.as_ref().map(|token| token.reveal().to_owned()),
        env_vars: certificate::variables(record).chain(given).collect(),
        system_env: system_env.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        default_user: record.defaults.user.clone().unwrap_or_else(|| start_command::DEFAULT_USER.to_owned()),
        default_workdir: record.defaults.workdir.clone(),
        lease_ends_unix_ms: guest_lease(record).ends_unix_ms,
        lease_grace_seconds: guest_lease(record).grace_seconds,
        memory_limit_bytes: u64::from(record.spec.resources.memory_mb) * MIB,
        cpu_count: record.spec.resources.cpu_count,
        disk_limit_bytes: u64::from(record.spec.resources.disk_mb) * MIB,
    }
}
