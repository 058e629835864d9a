//! The owner of one sandbox: the only task that changes it. It serialises what is asked, ends or pauses the sandbox when
//! its lease ends, notices when its machine dies, and reads its metrics and log.
//!
//! Invariants: a change is recorded before it is acknowledged; the view says that a sandbox cannot be reached before the
//! connections to it are cut, so that whoever finds its stream broken and asks again learns the truth.

mod certificate;
pub(crate) mod change;
mod copy;
mod egress;
mod restore;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use engine::BootFiles;
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
use crate::id::FilesId;
use crate::lifecycle::{self, Event, Kept, State};
use crate::log::LogLevel;
use crate::metrics::SAMPLE_INTERVAL;
use crate::ports::{Boot, EngineError, Machine};
use crate::sandbox::{OnTimeout, Record};
use crate::start_command::{self, Guest};
use crate::world::{Handle, Live, Notes, View, World};

/// Longest wait for one act of the engine. Booting and killing take milliseconds; only a machine in trouble takes this long.
const ENGINE_PATIENCE: Duration = Duration::from_secs(30);
/// Between two attempts to tell the guest of its lease, or to carry out the end of one.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// A guest that does not hear is asked less and less often; it waits longer than this before it
/// ends by itself.
const LONGEST_RETRY_DELAY: Duration = Duration::from_secs(8);
/// The first reading comes early, so that a sandbox shows metrics soon after it was made.
const FIRST_SAMPLE: Duration = Duration::from_secs(1);
/// The guest keeps its log itself, and whoever reads it asks for the newest: collecting it at every sixth reading is
/// enough to lose nothing, and lets idle guests sleep.
const SAMPLES_PER_LOG: u32 = 6;
/// The owner does nothing else meanwhile, and a lease must end on time whatever the guest is busy with.
const LOG_PATIENCE: Duration = Duration::from_millis(500);
/// How long a guest whose lease ends in a pause waits for a server that pauses it. Its memory would
/// be lost if it ended; after this only its files are kept.
const PAUSE_GRACE_SECONDS: u32 = 12 * 60 * 60;
/// A clock that is kept right goes faster or slower by less than this between two readings.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(2);
const WAITING_COMMANDS: usize = 64;

pub(crate) type Reply<T> = oneshot::Sender<Result<T, SandboxError>>;

/// What can be asked of a sandbox's owner.
pub(crate) enum Command {
    Kill(Reply<()>),
    Pause {
        kept: Kept,
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
    /// Replaces what the sandbox may reach.
    SetEgress {
        egress: Box<Egress>,
        allow_internet: Option<bool>,
        reply: Reply<()>,
    },
    /// Gives `to` a copy of the files, and tells what the sandbox was at that moment.
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
    /// What of a sandbox paused with its memory to bring back.
    pub kept: Kept,
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
    world: Arc<World>,
    commands: mpsc::Receiver<Command>,
    view: watch::Sender<View>,
    notes: Arc<Notes>,
    record: Record,
    state: State,
    machine: Option<Arc<dyn Machine>>,
    live: Option<Arc<Live>>,
    /// When the lease ends, by the uptime: the record has the same moment by the wall clock, which
    /// others may set.
    lease_end: Duration,
    /// Tells the guest of its newest lease; a newer one replaces it.
    lease_push: Option<BoxFuture<'static, ()>>,
    /// Not before this is the end of the lease tried again.
    expiry_retry: Option<Instant>,
    samples: u32,
    /// How many the kernel had killed for want of memory at the last reading; unknown before the first one.
    oom_kills: Option<u64>,
}

impl Owner {
    pub(crate) fn new(world: &Arc<World>, record: Record, state: State) -> (Self, Handle) {
        let (sender, commands) = mpsc::channel(WAITING_COMMANDS);
        let (view, seen) = watch::channel(View { record: Arc::new(record.clone()), state, live: None, frozen: None });
        let notes = Arc::new(Notes::default());
        let handle = Handle { commands: sender, view: seen, notes: Arc::clone(&notes) };
        // A clock that was set back does not make a lease longer than it was asked to be.
        let left = clock::until(world.clock.now(), record.end_at).min(record.lease);
        let owner = Self {
            world: Arc::clone(world),
            lease_end: world.clock.uptime().saturating_add(left),
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

    /// Serves the sandbox until it is gone or the server stops.
    pub(crate) async fn run(mut self) {
        let mut sample = tokio::time::interval_at(Instant::now() + FIRST_SAMPLE, SAMPLE_INTERVAL);
        sample.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stop = self.world.stop.clone();
        while self.state != State::Gone {
            let machine = self.machine.clone();
            let runs = self.state == State::Running;
            let expiry = tokio::time::sleep(self.until_expiry());
            tokio::select! {
                // What has happened comes before what is asked, always in this order.
                biased;
                () = stop.cancelled() => return self.leave().await,
                // Readings also bring the loop round after the machine slept, which this timer does
                // not notice.
                () = expiry, if runs => self.expire().await,
                () = exited(machine.as_deref()), if machine.is_some() => self.lose_machine().await,
                () = wait(self.lease_push.as_mut()), if self.lease_push.is_some() => self.lease_push = None,
                _ = sample.tick(), if runs => self.sample().await,
                command = self.commands.recv() => match command {
                    Some(command) => self.obey(command).await,
                    None => break,
                },
            }
        }
        self.world.forget(&self.record.id);
    }

    async fn obey(&mut self, command: Command) {
        // A reply that nobody waits for any more is no failure: the change was made all the same.
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

    /// Moves to the state after `event`. Refusals were excluded by whoever calls.
    fn advance(&mut self, event: Event) {
        match lifecycle::next(self.state, event) {
            Ok(state) => self.state = state,
            Err(refused) => warn!(sandbox = %self.record.id, %refused, "a change of state was refused"),
        }
    }

    /// Shows others the present state; opens or closes the way in, as the state has it.
    fn publish(&mut self) {
        let closed = if self.state == State::Running {
            if self.live.is_none() {
                self.live =
                    self.machine.clone().map(|machine| Arc::new(Live { machine, cut: CancellationToken::new() }));
            }
            None
        } else {
            self.live.take()
        };
        self.view.send_replace(View {
            record: Arc::new(self.record.clone()),
            state: self.state,
            live: self.live.clone(),
            frozen: self.machine.clone().filter(|_| self.state == State::Paused(Kept::Memory)),
        });
        if let Some(closed) = closed {
            closed.cut.cancel();
        }
    }

    fn until_expiry(&self) -> Duration {
        let lease = self.lease_end.saturating_sub(self.world.clock.uptime());
        let retry = self.expiry_retry.map(|at| at.saturating_duration_since(Instant::now()));
        lease.max(retry.unwrap_or(Duration::ZERO))
    }

    /// Starts process 1 for the present boot ID.
    async fn boot(&mut self, files: BootFiles) -> Result<Arc<dyn Machine>, EngineError> {
        let boot = Boot {
            id: self.record.id.clone(),
            files,
            resources: self.record.resources,
            egress: self.egress_policy(),
            volumes: self.record.volumes.clone(),
            boot_id: self.record.boot_id.clone(),
            guest: guest_config(&self.record),
        };
        let machine = within("booting the sandbox", self.world.engine.boot(boot)).await?;
        self.notes.log().start_anew();
        self.notes.readings().start_anew();
        self.oom_kills = Some(0);
        self.certify(&machine).await;
        let shortcomings = self.world.engine.shortcomings();
        if !shortcomings.is_empty() {
            self.note(LogLevel::Warn, &format!("this server is not root: {}", shortcomings.join("; ")));
        }
        let guest = Guest { socket: machine.guest_socket(), token: self.record.access_token.as_ref() };
        if let Err(error) = start_command::launch(guest, &self.record.defaults).await {
            warn!(sandbox = %self.record.id, error = %chain(&error), "the template's start command was not started");
            self.note(LogLevel::Error, "the template's start command could not be started");
        }
        Ok(machine)
    }

    /// Keeps beside the files what the sandbox is, for the day its record is lost.
    async fn describe(&mut self) {
        let (world, files) = (Arc::clone(&self.world), FilesId::from(&self.record.id));
        let description = Description::for_sandbox(&self.record);
        world.describe(&files, &description).await;
    }

    /// Says whose files are missing, where the engine knows only their name in the pool.
    fn name_missing(&self, error: EngineError) -> SandboxError {
        let EngineError::FilesMissing { files, path } = error else { return error.into() };
        let mount = self.record.volumes.iter().find(|mount| mount.files == files);
        let owner = match mount {
            Some(mount) => FilesOwner::Volume(mount.name.clone()),
            None if files == FilesId::from(&self.record.id) => FilesOwner::Sandbox(self.record.id.clone()),
            None => FilesOwner::Template(self.record.template.id.clone()),
        };
        SandboxError::FilesMissing { owner, path }
    }

    /// Tells the guest until when it may live, now or as soon as it listens, without keeping anybody waiting.
    fn push_lease(&mut self) {
        let Some(machine) = self.machine.clone() else { return };
        let lease = lease_of(&self.record);
        self.lease_push = Some(Box::pin(async move {
            let mut delay = RETRY_DELAY;
            while let Err(error) = guest_call::put_lease(machine.guest_socket(), lease).await {
                debug!(%error, "the guest was not told of its lease");
                tokio::time::sleep(delay).await;
                delay = (2 * delay).min(LONGEST_RETRY_DELAY);
            }
        }));
    }

    /// The end of the lease as the wall clock has it now. Where that clock was set, the record
    /// follows: the lease itself does not.
    async fn follow_clock(&mut self) {
        let left = self.lease_end.saturating_sub(self.world.clock.uptime());
        let end = clock::after(self.world.clock.now(), left);
        if end.duration_since(self.record.end_at).unsigned_abs() < CLOCK_TOLERANCE {
            return;
        }
        let before = std::mem::replace(&mut self.record.end_at, end);
        if let Err(error) = self.world.records.update(&self.record).await {
            // The next reading tries again.
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
        match within("reading what the sandbox uses", machine.usage()).await {
            Ok(usage) => {
                let (now, cpus) = (self.world.clock.now(), self.record.resources.cpu_count);
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

    /// Says that the kernel killed processes of the sandbox, which otherwise just end. Those of before a restart of
    /// the server were reported by the server of that time.
    fn report_oom_kills(&mut self, total: u64) {
        let killed = total.saturating_sub(self.oom_kills.replace(total).unwrap_or(total));
        if killed == 0 {
            return;
        }
        let processes = if killed == 1 { "process was" } else { "processes were" };
        let limit = self.record.resources.memory_mb;
        let message = format!("out of memory: {killed} {processes} killed (limit {limit} MB)");
        warn!(sandbox = %self.record.id, "{message}");
        self.note(LogLevel::Warn, &message);
    }

    async fn read_log(&mut self) {
        self.notes.settle_decisions(self.world.clock.now());
        if self.state != State::Running {
            return;
        }
        let Some(machine) = self.machine.clone() else { return };
        let after = self.notes.log().seen();
        let reading = tokio::time::timeout(LOG_PATIENCE, guest_call::read_log(machine.guest_socket(), after));
        match reading.await {
            Ok(Ok(entries)) => self.notes.log().take_from_guest(entries),
            Ok(Err(error)) => debug!(sandbox = %self.record.id, %error, "the guest's log was not read"),
            Err(_) => debug!(sandbox = %self.record.id, "the guest took too long over its log"),
        }
    }

    fn note(&self, level: LogLevel, message: &str) {
        self.notes.log().write(self.world.clock.now(), level, message);
    }

    /// Leaves the machine to its lease. The guest should know the newest one, since nobody will tell it later.
    async fn leave(&mut self) {
        if let Some(push) = self.lease_push.take() {
            // Without it the guest keeps the lease it knows; the next server tells it again.
            let _ = tokio::time::timeout(RETRY_DELAY, push).await;
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

/// Bounds one act of the engine.
async fn within<T>(what: &'static str, act: impl Future<Output = Result<T, EngineError>>) -> Result<T, EngineError> {
    match tokio::time::timeout(ENGINE_PATIENCE, act).await {
        Ok(result) => result,
        Err(late) => Err(EngineError::failed(what, late)),
    }
}

/// An error with its causes, on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// What the guest is told: until when it may live, and how long it waits after that for a server.
fn lease_of(record: &Record) -> Lease {
    let grace_seconds = match record.on_timeout {
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
    let given = record.defaults.env.iter().chain(&record.env_vars).map(|(name, value)| (name.clone(), value.clone()));
    GuestConfig {
        sandbox_id: record.id.to_string(),
        template_id: record.template.id.clone(),
        access_token: record.access_token.as_ref().map(|token| token.reveal().to_owned()),
        env_vars: certificate::variables(record).chain(given).collect(),
        system_env: system_env.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        default_user: record.defaults.user.clone().unwrap_or_else(|| start_command::DEFAULT_USER.to_owned()),
        default_workdir: record.defaults.workdir.clone(),
        lease_ends_unix_ms: lease_of(record).ends_unix_ms,
        lease_grace_seconds: lease_of(record).grace_seconds,
        memory_limit_bytes: u64::from(record.resources.memory_mb) * MIB,
        cpu_count: record.resources.cpu_count,
        disk_limit_bytes: u64::from(record.resources.disk_mb) * MIB,
    }
}
