//! A deterministic simulation of processes that share workspaces: the real operations, supervisors,
//! leases, maintenance and sweeps, over records in memory, providers and a store of checkpoints
//! that a seed drives. Processes crash and are suspended at any call of a port, clocks are set,
//! sandboxes die, calls fail, answer late or lose their answers. Files are the number of their last
//! write, and each write knows the one before it. After every effect the invariants are checked:
//!
//! - A command enters a sandbox only in the process with the newest lease.
//! - What was acknowledged is where the workspace continues from: in its sandbox, in the one it
//!   came from, or in the newest checkpoint.
//! - No sandbox is killed that its workspace continues in, unless the plan allows one only.
//! - A session whose files were set back has a notice that names the checkpoint they are from.
//! - A sandbox is killed as an orphan only while its workspace has no record, or a record of
//!   another id.
//! - Once nothing fails any more, the workspace is usable. No sandbox is left that its record does
//!   not name; those of earlier workspaces of its name are killed as orphans.
//!
//! Time is tokio's paused clock, so hours pass in milliseconds. A call has its effect at once and
//! its answer later: a crash or a suspension lies between the two. A suspended process sends
//! nothing; a call that its timers begin meanwhile fails without effect. `SANDBAR_SEED=N` replays
//! one seed; `SANDBAR_SOAK` runs for minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use checkpoint::{
    CheckpointOptions, Checkpoints, Digest, ObjectStoreError, Objects, ProjectId, Pruned, RestoreError, Restored,
    SaveError, SavedCheckpoint, Stamp, Which,
};
use futures::FutureExt;
use jiff::{SignedDuration, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use sdk::model::{self, Capabilities, SandboxState};
use sdk::{CallError, Client, CommandError, Create, CreateError, PauseOutcome, Sandbox, SandboxError, SandboxId};
use serde_json::json;
use testing::simulation::{Random, Seeds};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use uuid::Uuid;

use crate::checkpoint_sandbox::to_failure;
use crate::checkpoints::CheckpointStore;
use crate::clock::{Clock, ManualClock};
use crate::config::{PlanConfig, ProviderConfig, ProviderKind, WorkspaceConfig};
use crate::context::{Parts, WorkspaceContext};
use crate::devserver::{DevServer, DevServerError};
use crate::events::NoopObserver;
use crate::ledger::Ledger;
use crate::name::{ProviderName, WorkspaceName};
use crate::process::Liveness;
use crate::provider::{Breaker, Inspected, ListedSandbox, Orchestrator, Provider, SandboxService};
use crate::records::{
    Creation, Health, HealthRecords, Interval, Lease, LeaseError, Leases, MemoryRecords, OrphanRecord, OrphanRecords,
    RecordChangeError, Records, RecordsError, Size, Stored, Tokens, UsageQuery, UsageRecords, UsageRows, Warning,
    WorkspaceRecord, WorkspaceRecords, WorkspaceState,
};
use crate::settings::Settings;
use crate::setup::Setup;
use crate::shell::KillError;
use crate::workspace::{
    METADATA, Mark, MoveOptions, SandboxUpkeep, Unavailable, Unsaved, WORKSPACE_ID, Workspace, read_details,
};
use crate::workspaces::{ORPHAN_GRACE, OwnServer, Workspaces};

const SEEDS: Seeds = Seeds { short: 60, soak: Duration::from_secs(120) };
const ACTIONS: usize = 120;
const PROCESSES: usize = 3;
const WORKSPACE: &str = "shop";
const PROVIDERS: [&str; 2] = ["one", "two"];
/// The lifetime of a sandbox at its provider.
const LIFETIME: Duration = Duration::from_secs(900);
/// How many checkpoints the store retains.
const KEEP: usize = 3;
/// An answer that takes longer than any caller waits.
const LATE: Duration = Duration::from_secs(100);
/// How long the end of a run waits for strays and retired sandboxes to be killed.
const SETTLING: Duration = Duration::from_secs(1800);
/// Sweeps over an orphan's day of grace, and one more for each pause that another process ended.
const ORPHAN_SWEEPS: u32 = 8;
/// How many lines of the trace a failing seed prints.
const LAST_LINES: usize = 100;
const READER: &str = "user";

tokio::task_local! {
    /// Set in the tasks that sweep.
    static SWEEPING: ();
}

/// The id of the workspace that a sandbox was created for.
fn id_of(metadata: &BTreeMap<String, String>) -> Option<Uuid> {
    metadata.get(WORKSPACE_ID)?.parse().ok()
}

fn done<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("records in memory answer at once")
}

fn name() -> WorkspaceName {
    WORKSPACE.parse().expect("a name")
}

fn provider(name: &str) -> ProviderName {
    name.parse().expect("a name")
}

fn lost(call: &str) -> CallError {
    CallError::ConnectionLost { call: call.to_owned(), host: "simulated".to_owned(), cause: "reset".to_owned() }
}

fn not_stored(key: &str) -> ObjectStoreError {
    ObjectStoreError::TimedOut { verb: "store", key: key.to_owned(), within: LATE }
}

/// A sandbox of a simulated provider.
#[derive(Debug)]
struct Machine {
    provider: ProviderName,
    state: SandboxState,
    metadata: BTreeMap<String, String>,
    requested_at: Timestamp,
    started_at: Timestamp,
    ends_at: Timestamp,
    /// The number of the last write.
    files: u64,
    mark: Option<Stamp>,
    boot: u64,
    /// What its disk had after each write and mark, oldest first.
    disk: Vec<(u64, Option<Stamp>)>,
    /// The newest checkpoint of its files that its workspace's record has named.
    noted: Option<Stamp>,
    /// The checkpoint with the files that it lost with the power of its host.
    cut: Option<Stamp>,
}

/// The record of the workspace: from which sandbox it continues.
struct Place {
    state: WorkspaceState,
    paused: bool,
    sandbox: Option<SandboxId>,
    retired: Vec<SandboxId>,
    mark: Option<Stamp>,
    /// The id of the workspace.
    id: Option<Uuid>,
    /// The checkpoint to continue from without the sandbox, if it is not the newest.
    newest_before_loss: Option<Stamp>,
}

impl Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, paused, sandbox, retired, .. } = self;
        write!(f, "{state:?}{} in", if *paused { ", paused," } else { "" })?;
        sandbox.iter().try_for_each(|id| write!(f, " {id}"))?;
        retired.iter().try_for_each(|id| write!(f, ", retired {id}"))
    }
}

/// What survives all processes.
struct World {
    random: Random,
    /// Whether calls fail now and then.
    faults: bool,
    /// Whether the plan allows one sandbox only, so that the old one ends before the next begins.
    is_small: bool,
    records: Arc<MemoryRecords>,
    place: Option<Place>,
    began: (Timestamp, Instant),
    made: u64,
    boots: u64,
    machines: BTreeMap<SandboxId, Machine>,
    /// Providers that do not answer until then.
    outages: BTreeMap<ProviderName, Instant>,
    store_outage: Instant,
    checkpoints: BTreeMap<Stamp, u64>,
    /// The files of all checkpoints that ever were.
    all_checkpoints: BTreeMap<Stamp, u64>,
    /// The write before each.
    before: Vec<u64>,
    acknowledged: u64,
    /// What was acknowledged before the last loss. A save that was under way may still store it.
    before_loss: u64,
    /// What a session saw last, and the notices that sessions were given since.
    seen: u64,
    received: Vec<String>,
    /// Operations by which a user gives up the last changes.
    discarding: u32,
    writes: u64,
    trace: Vec<String>,
    violation: Option<String>,
}

type SharedWorld = Arc<Mutex<World>>;

impl World {
    fn new(seed: u64) -> Self {
        let now = Instant::now();
        Self {
            random: Random::new(seed),
            faults: true,
            is_small: false,
            records: Arc::default(),
            place: None,
            began: (Timestamp::from_second(1_800_000_000).expect("a moment"), now),
            made: 0,
            boots: 0,
            machines: BTreeMap::new(),
            outages: BTreeMap::new(),
            store_outage: now,
            checkpoints: BTreeMap::new(),
            all_checkpoints: BTreeMap::new(),
            before: vec![0],
            acknowledged: 0,
            before_loss: 0,
            seen: 0,
            received: Vec::new(),
            discarding: 0,
            writes: 0,
            trace: Vec::new(),
            violation: None,
        }
    }

    /// By the clock of the providers, which is never set.
    fn now(&self) -> Timestamp {
        let (at, since) = self.began;
        at + SignedDuration::try_from(since.elapsed()).expect("short")
    }

    fn note(&mut self, line: impl Display) {
        let at = self.began.1.elapsed();
        self.trace.push(format!("{at:.1?}: {line}"));
    }

    fn fail(&mut self, line: String) {
        self.note(format_args!("VIOLATION {line}"));
        self.violation.get_or_insert(line);
    }

    fn chance(&self, percent: u64) -> bool {
        self.faults && self.random.below(100) < percent
    }

    fn make(&mut self, at: &ProviderName, metadata: BTreeMap<String, String>) -> SandboxId {
        self.made += 1;
        self.boots += 1;
        let id: SandboxId = format!("i{:04}", self.made).parse().expect("an id");
        let now = self.now();
        let machine = Machine {
            provider: at.clone(),
            state: SandboxState::Running,
            metadata,
            requested_at: now,
            started_at: now,
            ends_at: now + LIFETIME,
            files: 0,
            mark: None,
            boot: self.boots,
            disk: vec![(0, None)],
            noted: None,
            cut: None,
        };
        self.machines.insert(id.clone(), machine);
        id
    }

    /// A sandbox as it is now: at its end it is paused.
    fn machine(&mut self, at: &ProviderName, id: &SandboxId) -> Option<&mut Machine> {
        let now = self.now();
        let machine = self.machines.get_mut(id).filter(|machine| machine.provider == *at)?;
        if machine.ends_at <= now {
            machine.state = SandboxState::Paused;
        }
        Some(machine)
    }

    /// A running sandbox, at whatever provider.
    fn running(&mut self, id: &SandboxId) -> Option<&mut Machine> {
        let at = self.machines.get(id)?.provider.clone();
        self.machine(&at, id).filter(|machine| machine.state == SandboxState::Running)
    }

    /// Whether the files after write `files` have write `number`.
    fn contains(&self, mut files: u64, number: u64) -> bool {
        while files > number {
            files = self.before[usize::try_from(files).expect("few")];
        }
        files == number
    }

    fn newest(&self) -> (Option<Stamp>, u64) {
        self.checkpoints.last_key_value().map_or((None, 0), |(stamp, files)| (Some(*stamp), *files))
    }

    /// The files with which the workspace continues, by its record.
    fn continues_with(&self) -> u64 {
        match self.place.as_ref().and_then(|place| self.machines.get(place.sandbox.as_ref()?)) {
            Some(Machine { cut: Some(stamp), .. }) => self.all_checkpoints[stamp],
            Some(machine) => machine.files,
            None => {
                let before_loss = self.place.as_ref().and_then(|place| place.newest_before_loss);
                before_loss.and_then(|stamp| self.checkpoints.get(&stamp)).copied().unwrap_or_else(|| self.newest().1)
            }
        }
    }

    /// Reads the record after a change.
    fn read_place(&mut self) {
        let record = done(self.records.workspace(&name())).expect("memory");
        self.place = record.map(|record| {
            let details = read_details(&record).expect("our own");
            let newest_before_loss = details.newest_before_loss();
            let sandbox = match record.state {
                WorkspaceState::Ready => record.sandbox,
                WorkspaceState::Moving => {
                    details.handover.clone().and_then(|handover| handover.old).map(|place| place.sandbox)
                }
                WorkspaceState::Stopped | WorkspaceState::SettingUp => None,
            };
            let (mark, id) = (details.mark.map(|mark| mark.newest()), details.id);
            let handed_over = details.handover.and_then(|handover| handover.checkpoint);
            if let Some(machine) = sandbox.as_ref().and_then(|id| self.machines.get_mut(id)) {
                machine.noted = mark.and(machine.noted.max(mark).max(handed_over));
            }
            let retired = details.retired.into_iter().map(|place| place.sandbox).collect();
            Place { state: record.state, paused: record.paused, sandbox, retired, mark, id, newest_before_loss }
        });
    }

    /// What was acknowledged must be where the workspace continues from.
    fn check(&mut self) {
        let files = self.continues_with();
        if self.contains(files, self.acknowledged) {
            return;
        }
        if self.discarding > 0 {
            self.acknowledged = files;
        } else if self.contains(files, self.before_loss) {
            self.acknowledged = self.before_loss;
        } else {
            self.fail(format!("write {} is lost, {files} is there", self.acknowledged));
        }
    }

    /// The sandbox is paused, boots again and has the files that its disk had before. They may be
    /// older than its newest checkpoint.
    fn cut_power(&mut self, id: &SandboxId) {
        if !self.machines.contains_key(id) {
            return;
        }
        self.boots += 1;
        let (boot, back) = (self.boots, self.random.index(3));
        let machine = self.machines.get_mut(id).expect("it is there");
        let at = machine.disk.len().saturating_sub(1 + back);
        machine.disk.truncate(at + 1);
        let (files, mark) = machine.disk[at];
        (machine.files, machine.mark, machine.boot, machine.state) = (files, mark, boot, SandboxState::Paused);
        let noted = machine.noted;
        let is_own = self.place.as_ref().is_some_and(|place| place.sandbox.as_ref() == Some(id));
        let cut = noted.filter(|noted| {
            let is_marked = mark.is_some_and(|mark| mark >= *noted);
            is_own && !is_marked && !self.contains(files, self.all_checkpoints[noted])
        });
        self.machines.get_mut(id).expect("it is there").cut = cut;
        self.note(format_args!("{id} loses power, and has {files}"));
        if !is_own {
            return;
        }
        // What no checkpoint has is lost without a sign.
        if cut.is_none() && !self.contains(files, self.seen) {
            self.seen = files;
        }
        self.accept_loss();
    }

    /// A workspace whose record no longer has the mark of a sandbox that lost its last writes
    /// continues with the older files. Its sessions must have a notice.
    fn give_up_cut(&mut self) {
        let Some(Place { sandbox: Some(own), mark, .. }) = &self.place else { return };
        let machine = self.machines.get_mut(own);
        if let Some(machine) = machine.filter(|machine| machine.cut.is_some() && machine.cut != *mark) {
            machine.cut = None;
            self.accept_loss();
        }
    }

    /// The provider lost something: what is left is what counts.
    fn accept_loss(&mut self) {
        let files = self.continues_with();
        if !self.contains(files, self.acknowledged) {
            self.before_loss = self.acknowledged;
            self.acknowledged = files;
        }
    }

    /// The notices tell truly since when the changes are gone.
    fn check_notices(&mut self, files: u64) {
        if self.contains(files, self.seen) {
            return;
        }
        let names = |line: &str, stamp: &Stamp| line.contains(&stamp.to_string());
        let is_true = |line: &String| {
            let received = self.all_checkpoints.iter().filter(|(stamp, _)| names(line, stamp));
            line.contains("older files")
                || received
                    .map(|(_, saved)| *saved)
                    .any(|saved| self.contains(files, saved) && !self.contains(saved, self.seen))
        };
        if !self.received.iter().any(is_true) {
            let (seen, received) = (self.seen, self.received.join("\n"));
            self.fail(format!("files were set back from {seen} to {files}, and no notice says so:\n{received}"));
        }
    }
}

/// A process, as the ports see it.
struct Side {
    owner: String,
    world: SharedWorld,
    client: Client,
    gone: AtomicBool,
    suspended_until: Mutex<Instant>,
}

/// A call that has no effect.
struct Refused;

impl Side {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock()
    }

    fn suspended_until(&self) -> Instant {
        *self.suspended_until.lock()
    }

    fn is_suspended(&self) -> bool {
        self.suspended_until() > Instant::now()
    }

    /// Begins a call. A dead process sends nothing.
    async fn begin(&self, failures: u64) -> Result<(), Refused> {
        if self.gone.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if self.is_suspended() || self.world().chance(failures) {
            self.pass().await;
            return Err(Refused);
        }
        Ok(())
    }

    /// Waits for the answer of a call whose effect is there. True when it is lost.
    async fn end(&self, failures: u64) -> bool {
        self.pass().await;
        self.world().chance(failures)
    }

    /// The time of a call, in which the process may crash or be suspended.
    async fn pass(&self) {
        let millis = {
            let mut world = self.world();
            if world.faults && world.random.one_in(500) {
                let span = Duration::from_secs(world.random.below(60));
                world.note(format_args!("{} is suspended for {span:?} in a call", self.owner));
                *self.suspended_until.lock() = Instant::now() + span;
            }
            if world.faults && world.random.one_in(500) {
                world.note(format_args!("{} crashes in a call", self.owner));
                self.gone.store(true, Ordering::Relaxed);
            }
            if world.chance(3) { world.random.below(7000) } else { world.random.below(150) }
        };
        sleep(Duration::from_millis(millis)).await;
        if self.gone.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        while self.is_suspended() {
            sleep_until(self.suspended_until()).await;
        }
    }

    fn note(&self, line: impl Display) {
        self.world().note(format_args!("{} {line}", self.owner));
    }

    fn holds_lease(&self) -> bool {
        let records = Arc::clone(&self.world().records);
        records.newest_lease(&name()).is_some_and(|lease| lease.owner == self.owner)
    }
}

/// The records, through one process.
struct SimulatedRecords {
    side: Arc<Side>,
    shared: Arc<MemoryRecords>,
}

impl SimulatedRecords {
    async fn call<T, E: From<RecordsError>>(
        &self,
        what: &'static str,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        const FAILURES: u64 = 1;
        let failed = || E::from(RecordsError { what, source: "the database is locked".into() });
        self.side.begin(FAILURES).await.map_err(|Refused| failed())?;
        let answer = done(call);
        if matches!(what, "update_workspace" | "remove_workspace" | "insert_workspace") && answer.is_ok() {
            let mut world = self.side.world();
            world.read_place();
            let place = world.place.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string);
            world.note(format_args!("{} {what}: {place}", self.side.owner));
            world.give_up_cut();
            world.check();
        }
        if self.side.end(FAILURES).await { Err(failed()) } else { answer }
    }
}

macro_rules! records_through_a_process {
    ($($Port:ident { $(fn $call:ident($($argument:ident: $Argument:ty),*) -> $Answer:ty;)* })*) => { $(
        #[async_trait]
        impl $Port for SimulatedRecords {
            $(async fn $call(&self, $($argument: $Argument),*) -> $Answer {
                self.call(stringify!($call), self.shared.$call($($argument),*)).await
            })*
        }
    )* };
}

records_through_a_process! {
    WorkspaceRecords {
        fn workspace(name: &WorkspaceName) -> Result<Option<WorkspaceRecord>, RecordsError>;
        fn workspaces_and_unreadable() -> Result<(Vec<WorkspaceRecord>, Vec<String>), RecordsError>;
        fn insert_workspace(record: &WorkspaceRecord, lease: &Lease) -> Result<(), RecordChangeError>;
        fn update_workspace(record: &WorkspaceRecord, lease: &Lease) -> Result<(), RecordChangeError>;
        fn remove_workspace(lease: &Lease) -> Result<(), RecordChangeError>;
    }
    Leases {
        fn take_lease(workspace: &WorkspaceName, owner: &str, now: Timestamp, time: Duration) -> Result<Lease, LeaseError>;
        fn renew_lease(lease: &Lease, now: Timestamp, time: Duration) -> Result<Lease, LeaseError>;
        fn break_lease(lease: &Lease) -> Result<(), RecordsError>;
        fn release_lease(lease: &Lease) -> Result<(), RecordsError>;
    }
    UsageRecords {
        fn begin_creation(creation: &Creation) -> Result<(), RecordsError>;
        fn finish_creation(id: Uuid, interval: &Interval) -> Result<(), RecordsError>;
        fn drop_creation(id: Uuid) -> Result<(), RecordsError>;
        fn open_interval(interval: &Interval) -> Result<(), RecordsError>;
        fn extend_interval(provider: &ProviderName, sandbox: &SandboxId, until: Timestamp) -> Result<(), RecordsError>;
        fn close_interval(provider: &ProviderName, sandbox: &SandboxId, at: Timestamp) -> Result<(), RecordsError>;
        fn record_stored(stored: &Stored) -> Result<(), RecordsError>;
        fn record_tokens(tokens: &Tokens) -> Result<(), RecordsError>;
        fn usage(query: &UsageQuery) -> Result<UsageRows, RecordsError>;
        fn record_warning(warning: &Warning) -> Result<bool, RecordsError>;
        fn warnings() -> Result<Vec<Warning>, RecordsError>;
    }
    HealthRecords {
        fn health(provider: &ProviderName) -> Result<Health, RecordsError>;
        fn change_health(provider: &ProviderName, seen: &Health, breaker: Breaker, reason: &str) -> Result<bool, RecordsError>;
    }
    OrphanRecords {
        fn orphans() -> Result<Vec<OrphanRecord>, RecordsError>;
        fn record_orphan(orphan: &OrphanRecord) -> Result<(), RecordsError>;
        fn forget_orphan(sandbox: &SandboxId) -> Result<(), RecordsError>;
    }
}

/// A provider, through one process.
struct SimulatedService {
    side: Arc<Side>,
    provider: ProviderName,
}

impl SimulatedService {
    /// Runs an effect as a call: it may fail before, or lose its answer.
    async fn call<T>(&self, call: &'static str, effect: impl FnOnce(&mut World) -> T) -> Result<T, CallError> {
        const FAILURES: u64 = 3;
        let is_down = || {
            let world = self.side.world();
            world.outages.get(&self.provider).is_some_and(|until| *until > Instant::now())
        };
        if is_down() {
            self.side.pass().await;
            let (host, cause) = ("simulated".to_owned(), "refused".to_owned());
            return Err(CallError::Unreachable { call: call.to_owned(), host, cause });
        }
        self.side.begin(FAILURES).await.map_err(|Refused| lost(call))?;
        let done = effect(&mut self.side.world());
        if self.side.end(FAILURES).await { Err(lost(call)) } else { Ok(done) }
    }

    /// The handle of a sandbox, by which no request is ever sent.
    fn handle(&self, id: &SandboxId) -> Sandbox {
        let listed = model::ListedSandbox {
            template_id: "base".to_owned(),
            alias: None,
            sandbox_id: id.to_string(),
            client_id: String::new(),
            started_at: String::new(),
            end_at: String::new(),
            envd_version: "0.2.0".to_owned(),
            cpu_count: 1,
            memory_mb: 512,
            disk_size_mb: 1024,
            state: SandboxState::Running,
            metadata: BTreeMap::new(),
            volume_mounts: Vec::new(),
            pause_mode: None,
        };
        let detail = model::SandboxDetail {
            listed,
            envd_access_token: None,
            allow_internet_access: None,
            domain: None,
            network: None,
            lifecycle: None,
        };
        self.side.client.attach(&detail).expect("a sandbox")
    }

    fn found<T>(id: &SandboxId, found: Option<T>) -> Result<T, SandboxError> {
        found.ok_or_else(|| SandboxError::NotFound { id: id.clone() })
    }
}

#[async_trait]
impl SandboxService for SimulatedService {
    async fn capabilities(&self) -> Result<Option<Capabilities>, CallError> {
        self.call("ask", |_| None).await
    }

    async fn create(
        &self,
        _: Create,
        metadata: &BTreeMap<String, String>,
        timeout: Option<Duration>,
    ) -> Result<Sandbox, CreateError> {
        let is_late = self.side.world().chance(5);
        if is_late && !self.side.is_suspended() && !self.side.gone.load(Ordering::Relaxed) {
            // It is made after the caller gave up.
            let (world, at, metadata) = (Arc::clone(&self.side.world), self.provider.clone(), metadata.clone());
            let requested_at = self.side.world().now();
            tokio::spawn(async move {
                let wait = Duration::from_secs(world.lock().random.below(LATE.as_secs()));
                sleep(wait).await;
                let mut world = world.lock();
                let id = world.make(&at, metadata);
                world.machines.get_mut(&id).expect("just made").requested_at = requested_at;
                world.note(format_args!("{id} is made late at {at}"));
            });
            let after = timeout.unwrap_or(LATE);
            sleep(after).await;
            self.side.pass().await;
            return Err(CallError::DeadlineExceeded { call: "create".to_owned(), after }.into());
        }
        let made = self.call("create", |world| {
            let id = world.make(&self.provider, metadata.clone());
            world.note(format_args!("{} made {id} at {}", self.side.owner, self.provider));
            id
        });
        Ok(self.handle(&made.await?))
    }

    async fn inspect(&self, id: &SandboxId) -> Result<Inspected, SandboxError> {
        let read = |world: &mut World| {
            let now = world.now();
            world.machine(&self.provider, id).map(|machine| Inspected {
                sandbox: self.handle(id),
                state: machine.state,
                size: Size::default(),
                started_at: Some(machine.started_at),
                ends_at: Some(machine.ends_at),
                answered_at: Timestamp::from_second(now.as_second()).ok(),
            })
        };
        Self::found(id, self.call("inspect", read).await?)
    }

    async fn connect(&self, id: &SandboxId, lifetime: Duration) -> Result<Sandbox, SandboxError> {
        let connect = |world: &mut World| {
            let now = world.now();
            let machine = world.machine(&self.provider, id)?;
            if machine.state == SandboxState::Paused {
                (machine.state, machine.started_at, machine.ends_at) = (SandboxState::Running, now, now);
            }
            machine.ends_at = machine.ends_at.max(now + lifetime.min(LIFETIME));
            world.note(format_args!("{} connected to {id}", self.side.owner));
            Some(())
        };
        Self::found(id, self.call("connect", connect).await?)?;
        Ok(self.handle(id))
    }

    async fn set_timeout(&self, id: &SandboxId, lifetime: Duration) -> Result<(), SandboxError> {
        let set = |world: &mut World| {
            let now = world.now();
            let machine = world.machine(&self.provider, id).filter(|machine| machine.state == SandboxState::Running)?;
            machine.ends_at = (now + lifetime.min(LIFETIME)).min(machine.started_at + LIFETIME);
            Some(())
        };
        Self::found(id, self.call("set the timeout", set).await?)
    }

    async fn pause(&self, id: &SandboxId) -> Result<PauseOutcome, SandboxError> {
        let pause = |world: &mut World| {
            let machine = world.machine(&self.provider, id)?;
            let before = std::mem::replace(&mut machine.state, SandboxState::Paused);
            world.note(format_args!("{} paused {id}", self.side.owner));
            Some(if before == SandboxState::Paused { PauseOutcome::AlreadyPaused } else { PauseOutcome::Paused })
        };
        Self::found(id, self.call("pause", pause).await?)
    }

    async fn kill(&self, id: &SandboxId) -> Result<(), CallError> {
        let kill = |world: &mut World| {
            if let Some(metadata) = world.machine(&self.provider, id).map(|machine| machine.metadata.clone()) {
                world.machines.remove(id);
                world.note(format_args!("{} killed {id}", self.side.owner));
                if SWEEPING.try_with(|()| ()).is_ok()
                    && world.place.as_ref().is_some_and(|place| place.id == id_of(&metadata))
                {
                    world.fail(format!("{id} is killed as an orphan, and belongs to the workspace"));
                }
                let is_in_use = world.place.as_ref().is_some_and(|place| place.sandbox.as_ref() == Some(id));
                if is_in_use && !world.is_small {
                    world.fail(format!("{id} is killed, and its workspace would continue in it"));
                }
                world.check();
            }
        };
        self.call("kill", kill).await
    }

    async fn list(&self, metadata: Option<(&str, &str)>) -> Result<Vec<ListedSandbox>, CallError> {
        let list = |world: &mut World| {
            let ids: Vec<SandboxId> = world.machines.keys().cloned().collect();
            let mut rows = Vec::new();
            for id in ids {
                let Some(machine) = world.machine(&self.provider, &id) else { continue };
                let Machine { state, metadata: has, started_at, .. } = machine;
                if metadata.is_none_or(|(key, value)| has.get(key).is_some_and(|has| has == value)) {
                    let (state, metadata, started_at) = (*state, has.clone(), Some(*started_at));
                    rows.push(ListedSandbox { id, state, metadata, started_at });
                }
            }
            rows
        };
        self.call("list", list).await
    }
}

/// The store of checkpoints and the inside of sandboxes, through one process.
struct SimulatedStore {
    side: Arc<Side>,
    clock: Clock,
}

impl SimulatedStore {
    async fn call<T>(&self, effect: impl FnOnce(&mut World) -> T) -> Result<T, ObjectStoreError> {
        const FAILURES: u64 = 2;
        let is_down = self.side.world().store_outage > Instant::now();
        if is_down {
            self.side.pass().await;
            return Err(not_stored("simulated"));
        }
        self.side.begin(FAILURES).await.map_err(|Refused| not_stored("simulated"))?;
        let done = effect(&mut self.side.world());
        if self.side.end(FAILURES).await { Err(not_stored("simulated")) } else { Ok(done) }
    }

    /// Runs a command in a sandbox.
    async fn run<T>(
        &self,
        sandbox: &Sandbox,
        effect: impl FnOnce(&mut World, &SandboxId) -> T,
    ) -> Result<T, CallError> {
        const FAILURES: u64 = 2;
        self.side.begin(FAILURES).await.map_err(|Refused| lost("run"))?;
        let done = {
            let mut world = self.side.world();
            let runs = world.running(sandbox.id()).is_some();
            runs.then(|| effect(&mut world, sandbox.id()))
        };
        if self.side.end(FAILURES).await { Err(lost("run")) } else { done.ok_or_else(|| lost("run")) }
    }

    /// The next stamp of the project, as `checkpoint` chooses it.
    fn next_stamp(&self, world: &World) -> Stamp {
        let second = self.clock.now().as_second();
        let last = world.newest().0.map_or(second, |stamp| stamp.time().as_second() + 1);
        let at = Timestamp::from_second(second.max(last)).expect("a moment");
        at.strftime("%Y%m%dT%H%M%SZ").to_string().parse().expect("a stamp")
    }
}

#[async_trait]
impl CheckpointStore for SimulatedStore {
    async fn save(
        &self,
        sandbox: &Sandbox,
        project: &ProjectId,
        options: &CheckpointOptions,
    ) -> Result<SavedCheckpoint, SaveError> {
        let failed = |source| SaveError::Store { project: project.clone(), source };
        let stamp = self.call(|world| self.next_stamp(world)).await.map_err(failed)?;
        let from_sandbox =
            |source: CallError| SaveError::Sandbox { id: sandbox.id().clone(), source: to_failure(source.into()) };
        let files = self.run(sandbox, |world, id| world.machines[id].files).await.map_err(from_sandbox)?;
        let saved = |stamp: Stamp, unchanged: bool| SavedCheckpoint {
            stamp,
            unchanged,
            key: stamp.to_string(),
            files,
            bytes: files,
            sha256: "0".repeat(64).parse::<Digest>().expect("a digest"),
            changed: Vec::new(),
            excluded: Vec::new(),
            pruned: Pruned::default(),
        };
        if let (Some(newest), same) = self.side.world().newest()
            && same == files
        {
            return Ok(saved(newest, true));
        }
        let owner = &self.side.owner;
        let commit = self.call(|world| {
            if world.checkpoints.contains_key(&stamp) || world.chance(1) {
                return Err(SaveError::NotKept { project: project.clone(), stamp, what: "it is another one" });
            }
            world.note(format_args!("{owner} saved {files} of {} as {stamp}", sandbox.id()));
            world.checkpoints.insert(stamp, files);
            world.all_checkpoints.insert(stamp, files);
            Ok(())
        });
        commit.await.map_err(failed)??;
        let prune = self.call(|world| {
            let surplus = world.checkpoints.len().saturating_sub(KEEP);
            let old: Vec<Stamp> = world.checkpoints.keys().take(surplus).copied().collect();
            for stamp in old.into_iter().filter(|stamp| options.spare != Some(*stamp)) {
                world.checkpoints.remove(&stamp);
            }
            world.check();
        });
        let _retried_by_the_next_save = prune.await;
        Ok(saved(stamp, false))
    }

    async fn restore(&self, sandbox: &Sandbox, project: &ProjectId, which: Which) -> Result<Restored, RestoreError> {
        let failed = |source| RestoreError::Store { project: project.clone(), source };
        let chosen = self.call(|world| match which {
            Which::Newest => world.checkpoints.last_key_value().map(|(stamp, files)| (*stamp, *files)),
            Which::Exactly(stamp) => world.checkpoints.get(&stamp).map(|files| (stamp, *files)),
        });
        let none = || RestoreError::NoCheckpoint { project: project.clone(), skipped: Vec::new() };
        let (stamp, files) = chosen.await.map_err(failed)?.ok_or_else(none)?;
        let broken =
            |source: CallError| RestoreError::Sandbox { id: sandbox.id().clone(), source: to_failure(source.into()) };
        // A connection of a process that was suspended for longer than its lease is broken.
        if !self.side.holds_lease() {
            return Err(broken(lost("restore")));
        }
        let owner = &self.side.owner;
        let restore = self.run(sandbox, |world, id| {
            world.note(format_args!("{owner} restored {stamp} ({files}) in {id}"));
            let machine = world.machines.get_mut(id).expect("it runs");
            (machine.files, machine.mark, machine.cut) = (files, None, None);
            machine.noted = None;
            machine.disk.push((files, None));
            world.check();
        });
        restore.await.map_err(broken)?;
        let (key, root) = (stamp.to_string(), "/home/user".to_owned());
        let (project, excluded, skipped_generations) = (project.clone(), Vec::new(), Vec::new());
        Ok(Restored { project, stamp, key, root, files, excluded, skipped_generations })
    }

    async fn newest(&self, _: &ProjectId) -> Result<Option<Stamp>, ObjectStoreError> {
        self.call(|world| world.newest().0).await
    }

    async fn require(&self, project: &ProjectId, stamp: Stamp) -> Result<(), RestoreError> {
        let exists = self.call(|world| world.checkpoints.contains_key(&stamp)).await;
        match exists {
            Ok(true) => Ok(()),
            Ok(false) => Err(RestoreError::NotThere { project: project.clone(), stamp, there: Vec::new() }),
            Err(source) => Err(RestoreError::Store { project: project.clone(), source }),
        }
    }

    async fn delete(&self, _: &ProjectId, stamp: Stamp) -> Result<bool, ObjectStoreError> {
        self.call(|world| world.checkpoints.remove(&stamp).is_some()).await
    }
}

#[async_trait]
impl SandboxUpkeep for SimulatedStore {
    async fn write_mark(&self, sandbox: &Sandbox, _: &str, stamp: Stamp) -> Result<Mark, String> {
        let write = |world: &mut World, id: &SandboxId| {
            let machine = world.machines.get_mut(id).expect("it runs");
            machine.mark = Some(stamp);
            machine.disk.push((machine.files, machine.mark));
            Mark::new(stamp, machine.boot.to_string())
        };
        self.run(sandbox, write).await.map_err(|error| error.to_string())
    }

    async fn read_mark(&self, sandbox: &Sandbox, _: &str) -> Result<(String, Option<Stamp>), CommandError> {
        let read = |world: &mut World, id: &SandboxId| {
            let Machine { boot, mark, .. } = &world.machines[id];
            (boot.to_string(), *mark)
        };
        Ok(self.run(sandbox, read).await?)
    }

    async fn sync_files(&self, sandbox: &Sandbox) {
        let _logged = self.run(sandbox, |_, _| ()).await;
    }

    async fn head(&self, sandbox: &Sandbox) -> Result<Option<String>, CommandError> {
        Ok(self.run(sandbox, |_, _| None).await?)
    }

    async fn detect_server(&self, sandbox: &Sandbox) -> Result<Option<DevServer>, DevServerError> {
        Ok(self.run(sandbox, |_, _| None).await.map_err(CommandError::from)?)
    }

    async fn list_processes(&self, sandbox: &Sandbox) -> Vec<String> {
        self.run(sandbox, |_, _| Vec::new()).await.unwrap_or_default()
    }

    async fn kill_processes(&self, sandbox: &Sandbox) -> Result<(), KillError> {
        Ok(self.run(sandbox, |_, _| ()).await.map_err(CommandError::from)?)
    }

    async fn stop_leftovers(&self, sandbox: &Sandbox) -> Result<(), DevServerError> {
        Ok(self.run(sandbox, |_, _| ()).await.map_err(CommandError::from)?)
    }
}

/// The server that sweeps. The simulated providers are services, whose sandboxes any server sweeps.
struct Sweeper;

impl OwnServer for Sweeper {
    fn is(&self, _: &str) -> bool {
        false
    }

    fn has(&self, _: &SandboxId) -> bool {
        true
    }
}

/// A process and the work of its users.
struct Process {
    side: Arc<Side>,
    workspaces: Workspaces,
    /// The handle that keeps the workspace supervised.
    opened: Arc<Mutex<Option<Workspace>>>,
    tasks: JoinSet<()>,
}

/// An operation that a user gives up changes for.
struct Discarding {
    world: SharedWorld,
    /// Without this, its user has no answer, and notices do not tell what it did.
    is_answered: bool,
}

impl Discarding {
    fn begin(world: &SharedWorld) -> Self {
        world.lock().discarding += 1;
        Self { world: Arc::clone(world), is_answered: false }
    }

    fn end<T>(mut self, answer: Result<T, impl std::error::Error>) -> String {
        self.is_answered = answer.is_ok();
        outcome(answer)
    }
}

impl Drop for Discarding {
    fn drop(&mut self) {
        let mut world = self.world.lock();
        world.accept_loss();
        let files = world.continues_with();
        if !self.is_answered && !world.contains(files, world.seen) {
            world.seen = files;
        }
        world.discarding -= 1;
    }
}

/// What a user asks a process for.
#[derive(Debug, Clone, Copy)]
enum Request {
    Work,
    Save,
    Pause,
    Resume,
    Rotate,
    Move,
    RestoreNewest,
    RestoreOldest,
    Close,
    Destroy,
    Maintain,
    Sweep,
}

/// How a request ended, in a line of the trace.
fn outcome<T>(answer: Result<T, impl std::error::Error>) -> String {
    answer.map_or_else(|error| text::error_chain(&error), |_| "done".to_owned())
}

struct Session {
    side: Arc<Side>,
    workspaces: Workspaces,
    opened: Arc<Mutex<Option<Workspace>>>,
}

impl Session {
    async fn handle(self, request: Request) {
        let ended = self.answer(request).await;
        self.side.note(format_args!("{request:?}: {ended}"));
    }

    async fn close(&self) {
        let opened = self.opened.lock().take();
        if let Some(workspace) = opened {
            workspace.close().await;
        }
    }

    async fn answer(&self, request: Request) -> String {
        match request {
            Request::Maintain => {
                return self
                    .workspaces
                    .maintain(&name())
                    .await
                    .map_or_else(|error| error.to_string(), |maintained| format!("{:?}", maintained.outcome));
            }
            Request::Sweep => return outcome(SWEEPING.scope((), self.workspaces.sweep(&Sweeper)).await),
            Request::Close => {
                self.close().await;
                return "done".to_owned();
            }
            _ => {}
        }
        let state = self.side.world().place.as_ref().map(|place| place.state);
        let opened = match state {
            None | Some(WorkspaceState::SettingUp) => {
                self.close().await;
                let created = self.workspaces.create(&name(), Setup::default()).await;
                created.map(|created| created.workspace).map_err(|error| text::error_chain(&error))
            }
            Some(_) => self.workspaces.open(&name()).await.map_err(|error| error.to_string()),
        };
        let workspace = match opened {
            Ok(workspace) => workspace,
            Err(error) => return error,
        };
        *self.opened.lock() = Some(workspace.clone());
        match request {
            Request::Work => return self.work(&workspace).await,
            Request::Save => outcome(workspace.save_checkpoint().await),
            Request::Pause => outcome(workspace.pause().await),
            Request::Resume => outcome(workspace.resume().await),
            Request::Rotate => outcome(workspace.rotate().await),
            Request::Move => {
                let target = PROVIDERS.map(provider).into_iter().find(|name| *name != workspace.provider());
                outcome(workspace.move_to(&target.expect("there are two"), MoveOptions::default()).await)
            }
            Request::RestoreNewest => {
                let discarding = Discarding::begin(&self.side.world);
                discarding.end(workspace.restore(Which::Newest).await)
            }
            Request::RestoreOldest => {
                let oldest = self.side.world().checkpoints.keys().next().copied();
                let discarding = Discarding::begin(&self.side.world);
                discarding.end(workspace.restore(oldest.map_or(Which::Newest, Which::Exactly)).await)
            }
            Request::Destroy => {
                let destroyed = outcome(workspace.destroy(Unsaved::Keep).await);
                self.opened.lock().take();
                destroyed
            }
            Request::Close | Request::Maintain | Request::Sweep => String::new(),
        }
    }

    /// A command that reads and writes.
    async fn work(&self, workspace: &Workspace) -> String {
        let guard = match workspace.enter().await {
            Ok(guard) => guard,
            // An interrupted destroy has saved the files.
            Err(Unavailable::Stopped(_)) => return outcome(workspace.restore(Which::Newest).await),
            Err(error) => return text::error_chain(&error),
        };
        if self.side.is_suspended() || self.side.gone.load(Ordering::Relaxed) {
            return "suspended".to_owned();
        }
        let id = guard.sandbox().id().clone();
        let notices = guard.notices_for(READER);
        let newest = self.side.world().records.newest_lease(&name()).expect("one was taken");
        let written = {
            let mut world = self.side.world();
            let world = &mut *world;
            world.received.extend(notices);
            if newest.owner != self.side.owner {
                world.fail(format!("{} works in {id} under an old lease", self.side.owner));
            }
            match world.running(&id).map(|machine| machine.files) {
                Some(files) => {
                    world.check_notices(files);
                    world.before.push(files);
                    let number = world.before.len() as u64 - 1;
                    let machine = world.machines.get_mut(&id).expect("it runs");
                    (machine.files, machine.cut) = (number, None);
                    machine.disk.push((number, machine.mark));
                    world.note(format_args!("{} wrote {number} in {id}", self.side.owner));
                    (world.acknowledged, world.before_loss, world.seen) = (number, number, number);
                    world.received.clear();
                    world.writes += 1;
                    world.check();
                    true
                }
                None => false,
            }
        };
        self.side.pass().await;
        if !written {
            guard.mark_suspect();
        }
        "worked".to_owned()
    }
}

struct Simulation {
    seed: u64,
    client: Client,
    world: SharedWorld,
    clock: Arc<ManualClock>,
    gone: Arc<Mutex<BTreeSet<String>>>,
    /// Whether processes are on one machine, and see who died.
    is_one_machine: bool,
    /// Whether an administrator sets the clock.
    is_clock_set: bool,
    started: u64,
    processes: Vec<Process>,
}

impl Simulation {
    fn new(client: &Client, seed: u64) -> Self {
        let mut world = World::new(seed);
        let (is_one_machine, is_clock_set) = (!world.random.one_in(3), world.random.one_in(2));
        world.is_small = world.random.one_in(3);
        let clock = ManualClock::ticking_from(world.began.0);
        let mut simulation = Self {
            seed,
            client: client.clone(),
            world: Arc::new(Mutex::new(world)),
            clock: Arc::new(clock),
            gone: Arc::default(),
            is_one_machine,
            is_clock_set,
            started: 0,
            processes: Vec::new(),
        };
        for _ in 0..PROCESSES {
            let process = simulation.start_process();
            simulation.processes.push(process);
        }
        simulation
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock()
    }

    fn below(&self, bound: u64) -> u64 {
        self.world().random.below(bound)
    }

    fn start_process(&mut self) -> Process {
        self.started += 1;
        let owner = format!("process {}", self.started);
        let side = Arc::new(Side {
            owner: owner.clone(),
            world: Arc::clone(&self.world),
            client: self.client.clone(),
            gone: AtomicBool::new(false),
            suspended_until: Mutex::new(Instant::now()),
        });
        let shared = Arc::clone(&self.world().records);
        let is_small = self.world().is_small;
        let records: Arc<dyn Records> = Arc::new(SimulatedRecords { side: Arc::clone(&side), shared });
        let clock = Clock::Manual(Arc::clone(&self.clock));
        let providers = PROVIDERS.map(|name| {
            let config = ProviderConfig {
                name: provider(name),
                kind: ProviderKind::E2b,
                deployment_mode: None,
                api_key_env: None,
                api_url: None,
                domain: None,
                sandbox_url: None,
                template: None,
                resources: Default::default(),
                plan: PlanConfig {
                    longest_lifetime_seconds: Some(LIFETIME.as_secs()),
                    concurrent_sandboxes: is_small.then_some(1),
                    ..PlanConfig::default()
                },
                price: Default::default(),
            };
            let service = SimulatedService { side: Arc::clone(&side), provider: provider(name) };
            Provider::simulated(config, Arc::new(service))
        });
        let mut context = WorkspaceContext::from(Parts {
            orchestrator: Orchestrator::new(Vec::from(providers), Arc::clone(&records)),
            ledger: Ledger::new(Arc::clone(&records), &WorkspaceConfig::default()),
            records,
            checkpoints: Checkpoints::new(Objects::memory()),
            observer: Arc::new(NoopObserver),
            settings: Settings { clock: clock.clone(), save_interval: Duration::from_secs(120), ..Settings::default() },
        });
        context.owner = owner;
        let (gone, is_one_machine) = (Arc::clone(&self.gone), self.is_one_machine);
        context.liveness = Box::new(move |owner| match gone.lock().contains(owner) {
            _ if !is_one_machine => Liveness::Unknown,
            true => Liveness::Gone,
            false => Liveness::Alive,
        });
        let store = Arc::new(SimulatedStore { side: Arc::clone(&side), clock });
        (context.store, context.upkeep) = (Arc::clone(&store) as Arc<dyn CheckpointStore>, store);
        let workspaces = Workspaces::from_context(context);
        Process { side, workspaces, opened: Arc::default(), tasks: JoinSet::new() }
    }

    fn ask(&mut self, at: usize, request: Request) {
        let Process { side, workspaces, opened, tasks } = &mut self.processes[at];
        let (side, workspaces, opened) = (Arc::clone(side), workspaces.clone(), Arc::clone(opened));
        tasks.spawn(Session { side, workspaces, opened }.handle(request));
    }

    fn some_request(&self) -> Request {
        match self.below(100) {
            0..50 => Request::Work,
            50..56 => Request::Save,
            56..62 => Request::Pause,
            62..66 => Request::Resume,
            66..73 => Request::Rotate,
            73..76 => Request::Move,
            76..78 => Request::RestoreNewest,
            78..80 => Request::RestoreOldest,
            80..87 => Request::Close,
            87..89 => Request::Destroy,
            89..96 => Request::Maintain,
            _ => Request::Sweep,
        }
    }

    async fn act(&mut self) {
        for at in 0..PROCESSES {
            if self.processes[at].side.gone.load(Ordering::Relaxed) {
                self.crash(at);
            }
        }
        let at = self.world().random.index(PROCESSES);
        match self.below(100) {
            0..70 => {
                let request = self.some_request();
                self.world().note(format_args!("{} is asked to {request:?}", self.processes[at].side.owner));
                self.ask(at, request);
            }
            70..76 => self.crash(at),
            76..82 => {
                let span = Duration::from_secs(self.below(60));
                let side = &self.processes[at].side;
                side.note(format_args!("is suspended for {span:?}"));
                *side.suspended_until.lock() = Instant::now() + span;
            }
            82..86 if self.is_clock_set => {
                let micros = i64::try_from(self.below(7_200_000_000)).expect("small") - 3_600_000_000;
                self.world().note(format_args!("the clock jumps by {micros} µs"));
                self.clock.jump(SignedDuration::from_micros(micros));
            }
            86..89 => self.lose_sandbox(),
            89..92 => self.cut_power(),
            92..95 => {
                let at = PROVIDERS[usize::from(self.below(2) == 0)];
                let span = Duration::from_secs(self.below(200));
                let mut world = self.world();
                world.note(format_args!("{at} is down for {span:?}"));
                world.outages.insert(provider(at), Instant::now() + span);
            }
            95..97 => {
                let span = Duration::from_secs(self.below(200));
                let mut world = self.world();
                world.note(format_args!("the store is down for {span:?}"));
                world.store_outage = Instant::now() + span;
            }
            _ => sleep(Duration::from_secs(self.below(600))).await,
        }
        let pause = Duration::from_millis(self.below(8000));
        sleep(pause).await;
    }

    fn crash(&mut self, at: usize) {
        let process = self.start_process();
        let Process { side, opened, mut tasks, .. } = std::mem::replace(&mut self.processes[at], process);
        side.note("crashes");
        side.gone.store(true, Ordering::Relaxed);
        self.gone.lock().insert(side.owner.clone());
        tasks.abort_all();
        opened.lock().take();
    }

    /// A sandbox dies by itself, with what only it has.
    fn lose_sandbox(&self) {
        let mut world = self.world();
        if world.machines.is_empty() {
            return;
        }
        let at = world.random.index(world.machines.len());
        let id = world.machines.keys().nth(at).cloned().expect("it is one of them");
        world.note(format_args!("{id} dies"));
        world.machines.remove(&id);
        world.accept_loss();
    }

    /// The host of a sandbox loses power: of the workspace's own, or of a successor before its
    /// workspace continues in it.
    fn cut_power(&self) {
        let mut world = self.world();
        let made_last = world.machines.keys().next_back().cloned();
        let own = world.place.as_ref().and_then(|place| place.sandbox.clone());
        match (own, made_last) {
            (_, Some(last)) if world.random.one_in(3) => world.cut_power(&last),
            (Some(own), _) => world.cut_power(&own),
            (None, _) => {}
        }
    }

    async fn run(&mut self) {
        self.set_up();
        for _ in 0..ACTIONS {
            self.act().await;
            self.check();
        }
        self.finish().await;
    }

    /// The workspace as `create` leaves it, with a first checkpoint.
    fn set_up(&self) {
        let mut world = self.world();
        let records = Arc::clone(&world.records);
        let now = world.now();
        let id = world.make(&provider("one"), BTreeMap::new());
        let lease = done(records.take_lease(&name(), "the user", now, Duration::from_secs(1))).expect("it is free");
        let record = WorkspaceRecord {
            name: name(),
            project: WORKSPACE.parse().expect("an id"),
            provider: provider("one"),
            sandbox: Some(id),
            state: WorkspaceState::Ready,
            paused: false,
            template: None,
            created_at: now,
            expires_at: now + SignedDuration::from_hours(24 * 30),
            services: json!({}),
            env: BTreeMap::new(),
            details: json!({ "id": Uuid::new_v4(), "ttl_seconds": 24 * 30 * 3600 }),
        };
        done(records.insert_workspace(&record, &lease)).expect("it is new");
        done(records.release_lease(&lease)).expect("memory");
        let first: Stamp = now.strftime("%Y%m%dT%H%M%SZ").to_string().parse().expect("a stamp");
        world.checkpoints.insert(first, 0);
        world.all_checkpoints.insert(first, 0);
        world.read_place();
    }

    /// Once nothing fails, the workspace can be used and nothing is left over.
    async fn finish(&mut self) {
        self.world().faults = false;
        self.world().outages.clear();
        self.world().store_outage = Instant::now();
        for at in 1..PROCESSES {
            self.crash(at);
        }
        if self.processes[0].side.gone.load(Ordering::Relaxed) {
            self.crash(0);
        }
        // Until the process continues that was suspended, and leases of the others are over.
        sleep(Duration::from_secs(600)).await;
        let writes = self.world().writes;
        let mut usable = false;
        for _ in 0..40 {
            self.ask(0, Request::Work);
            // By a clock that was set back, a plan or a breaker may refuse sandboxes for hours.
            sleep(Duration::from_secs(if self.is_clock_set { 600 } else { 60 })).await;
            self.check();
            usable |= self.world().writes > writes;
            if usable {
                break;
            }
        }
        if !usable {
            self.world().fail("the workspace cannot be used any more".to_owned());
        }
        sleep(SETTLING).await;
        self.check();
        let records = Arc::clone(&self.world().records);
        let read = || done(records.workspace(&name())).expect("memory");
        // A supervised workspace is rotated again and again.
        while read().is_some_and(|record| record.state == WorkspaceState::Moving) {
            sleep(Duration::from_secs(10)).await;
        }
        self.kill_orphans().await;
        if let Some(record) = read() {
            let details = read_details(&record).expect("our own");
            let mut named: Vec<SandboxId> =
                details.left_behind.iter().chain(&details.lost).map(|place| place.sandbox.clone()).collect();
            named.extend(record.sandbox);
            let mut world = self.world();
            // The first sandbox is of an older program. It was left by a record that is removed.
            let is_left =
                |(id, machine): &(&SandboxId, &Machine)| machine.metadata.contains_key(METADATA) && !named.contains(id);
            let left: Vec<String> = world.machines.iter().filter(is_left).map(|(id, _)| id.to_string()).collect();
            if !left.is_empty() {
                world.fail(format!("sandboxes are left over: {}", left.join(" ")));
            }
        }
        self.check();
    }

    /// Sweeps until the sandboxes of earlier workspaces are killed.
    async fn kill_orphans(&mut self) {
        self.ask(0, Request::Close);
        for _ in 0..ORPHAN_SWEEPS {
            self.ask(0, Request::Sweep);
            sleep(ORPHAN_GRACE / 4).await;
        }
    }

    fn check(&self) {
        let mut world = self.world();
        world.check();
        if let Some(violation) = world.violation.take() {
            let from = world.trace.len().saturating_sub(LAST_LINES);
            let (seed, trace) = (self.seed, world.trace[from..].join("\n"));
            drop(world);
            panic!("seed {seed}: {violation}\n{trace}");
        }
    }
}

fn client() -> Client {
    let builder = Client::builder().ignore_environment().api_key("simulated").domain("simulated.invalid");
    builder.build().expect("a client")
}

/// Runs one seed. Panics where an invariant does not hold.
fn run(client: &Client, seed: u64) -> (Vec<String>, u64, i64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let mut simulation = Simulation::new(client, seed);
        simulation.run().await;
        let world = simulation.world();
        let leases = world.records.newest_lease(&name()).map_or(0, |lease| lease.fence);
        (world.trace.clone(), world.writes, leases)
    })
}

#[test]
fn a_seed_gives_the_same_run_again() {
    let client = client();
    for seed in 0..5 {
        let (first, second) = (run(&client, seed), run(&client, seed));
        for (one, other) in first.0.iter().zip(&second.0) {
            assert_eq!(one, other, "seed {seed}");
        }
        assert_eq!(first, second, "seed {seed}");
    }
}

/// Seeds that found faults: a 404 taken for a loss, interrupted restores and their notices, a pause
/// that hid lost writes, a sandbox that died before its restored files were saved, and a lost
/// answer of the records.
const ONCE_FAILED: [u64; 9] = [
    20_776_000_416,
    20_776_000_691,
    20_776_001_008,
    20_776_001_088,
    20_776_010_190,
    20_776_010_549,
    20_776_011_453,
    20_776_020_245,
    20_776_020_424,
];

#[test]
fn seeds_that_once_failed_run_clean() {
    let client = client();
    for seed in ONCE_FAILED {
        run(&client, seed);
    }
}

#[test]
fn workspaces_lose_nothing_from_any_seed() {
    let (writes, leases) = (AtomicU64::new(0), AtomicU64::new(0));
    SEEDS.simulate(client, |client, seed| {
        let (_, written, taken) = run(client, seed);
        writes.fetch_add(written, Ordering::Relaxed);
        leases.fetch_add(u64::try_from(taken).unwrap_or_default(), Ordering::Relaxed);
    });
    let (writes, leases) = (writes.into_inner(), leases.into_inner());
    let few = std::env::var_os("SANDBAR_SEED").is_some();
    assert!(few || (writes > 600 && leases > 600), "{writes} writes under {leases} leases");
}
