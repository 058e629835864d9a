//! A deterministic simulation of processes that share workspaces: the real leases, records and rule
//! of orphans, under a scheduler that a seed drives. Processes are stopped, killed and started at
//! any step, clocks are set, sandboxes die; after every step the invariants are checked:
//!
//! - At most one process acts under a lease, and only under the newest.
//! - What was acknowledged is in the workspace's sandbox, in the one it came from, or in its
//!   snapshot.
//! - No sandbox is ended that alone has acknowledged work, and none is an orphan while its
//!   workspace has a record.
//!
//! The steps of a handover change the record by the functions of the product (`transitions.rs`);
//! the provider and the store are numbers. Not simulated are the order in which `handover.rs`,
//! `settle.rs` and `resume.rs` call them, and what these ask a provider. `SANDBAR_SEED=N` replays
//! one seed; `SANDBAR_SOAK` runs for minutes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use jiff::{SignedDuration, Timestamp};
use sdk::SandboxId;
use serde_json::json;
use testing::simulation::{Random, Seeds};
use uuid::Uuid;

use crate::clock::{Clock, ManualClock, later};
use crate::config::WorkspaceConfig;
use crate::context::{Parts, WorkspaceContext};
use crate::events::NoopObserver;
use crate::ledger::Ledger;
use crate::name::{ProviderName, WorkspaceName};
use crate::process::Liveness;
use crate::provider::Orchestrator;
use crate::records::{
    Creation, Interval, LeaseError, MemoryRecords, Payer, Records, Size, UsageRecords as _, WorkspaceRecord,
    WorkspaceRecords as _, WorkspaceState,
};
use crate::settings::Settings;
use crate::workspace::transitions::{self, OldSandbox, Successor};
use crate::workspace::{Details, HeldLease, SandboxRef, StopReason, read_details};
use crate::workspaces::{CREATION_TIMEOUT, NamedSandboxes};
use checkpoint::{Checkpoints, Objects};

const SEEDS: Seeds = Seeds { short: 400, soak: Duration::from_secs(120) };
const STEPS: usize = 400;
const PROCESSES: usize = 3;
const WORKSPACE: &str = "shop";

/// A sandbox of the simulated provider. Its files are the number of the last write.
struct Machine {
    files: u64,
}

/// One process, with its own handle on the records.
struct Process {
    owner: String,
    context: Arc<WorkspaceContext>,
    held_lease: Option<HeldLease>,
    /// As it was read or written last under the lease.
    record: Option<(WorkspaceRecord, Details)>,
    handover: Option<Step>,
    /// SIGSTOP: it does nothing until then.
    stopped_until: usize,
}

/// What a handover does next.
#[derive(Debug, Clone)]
enum Step {
    Make,
    Note(SandboxId),
    Restore(SandboxId),
    Swap(SandboxId),
    End,
}

struct World {
    seed: u64,
    random: Random,
    now: usize,
    records: Arc<MemoryRecords>,
    clock: Arc<ManualClock>,
    /// Processes that were killed.
    gone: Arc<Mutex<BTreeSet<String>>>,
    processes: Vec<Process>,
    started: u64,
    machines: BTreeMap<SandboxId, Machine>,
    checkpoint: u64,
    acknowledged: u64,
    /// Which process acted under which lease.
    acted: HashMap<i64, String>,
    trace: Vec<String>,
}

fn done<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("records in memory answer at once")
}

fn name() -> WorkspaceName {
    WORKSPACE.parse().expect("a name")
}

fn provider() -> ProviderName {
    "simulated".parse().expect("a name")
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            seed,
            random: Random::new(seed),
            now: 0,
            records: Arc::default(),
            clock: Arc::default(),
            gone: Arc::default(),
            processes: Vec::new(),
            started: 0,
            machines: BTreeMap::new(),
            checkpoint: 0,
            acknowledged: 0,
            acted: HashMap::new(),
            trace: Vec::new(),
        };
        for _ in 0..PROCESSES {
            let process = world.start_process();
            world.processes.push(process);
        }
        world.set_up();
        world
    }

    fn start_process(&mut self) -> Process {
        self.started += 1;
        let owner = format!("process {}", self.started);
        let records = Arc::clone(&self.records) as Arc<dyn Records>;
        let mut context = WorkspaceContext::from(Parts {
            orchestrator: Orchestrator::new(Vec::new(), Arc::clone(&records)),
            ledger: Ledger::new(Arc::clone(&records), &WorkspaceConfig::default()),
            records,
            checkpoints: Checkpoints::new(Objects::memory()),
            observer: Arc::new(NoopObserver),
            settings: Settings { clock: Clock::Manual(Arc::clone(&self.clock)), ..Settings::default() },
        });
        let gone = Arc::clone(&self.gone);
        context.owner = owner.clone();
        context.liveness =
            Box::new(
                move |owner| {
                    if gone.lock().expect("no panic").contains(owner) { Liveness::Gone } else { Liveness::Alive }
                },
            );
        Process { owner, context: Arc::new(context), held_lease: None, record: None, handover: None, stopped_until: 0 }
    }

    /// The workspace as `create` leaves it.
    fn set_up(&mut self) {
        let context = Arc::clone(&self.processes[0].context);
        let held_lease = done(HeldLease::take(context, &name(), Duration::ZERO)).expect("the lease is free");
        let id = self.make_machine();
        let now = self.now();
        let record = WorkspaceRecord {
            name: name(),
            project: WORKSPACE.parse().expect("an id"),
            provider: provider(),
            sandbox: Some(id),
            state: WorkspaceState::Ready,
            paused: false,
            template: None,
            created_at: now,
            expires_at: now,
            services: json!({}),
            env: BTreeMap::new(),
            details: json!({}),
        };
        done(self.records.insert_workspace(&record, &held_lease.lease())).expect("it is new");
        done(held_lease.release());
    }

    fn make_machine(&mut self) -> SandboxId {
        let id: SandboxId = format!("i{}", self.random.next()).parse().expect("an id");
        let now = self.now();
        let payer = Payer { project: WORKSPACE.to_owned(), job: None };
        let creation = Creation {
            id: Uuid::from_u64_pair(0, self.random.next()),
            at: now,
            provider: provider(),
            payer: payer.clone(),
            sandbox: None,
        };
        done(self.records.begin_creation(&creation)).expect("memory");
        self.machines.insert(id.clone(), Machine { files: 0 });
        let interval = Interval {
            provider: provider(),
            sandbox: id.clone(),
            payer,
            size: Size::default(),
            started_at: now,
            until: now,
            ended_at: None,
        };
        // A process may be killed before it has the answer.
        if !self.random.one_in(8) {
            done(self.records.finish_creation(creation.id, &interval)).expect("memory");
        }
        id
    }

    fn step(&mut self) {
        self.now += 1;
        match self.random.below(100) {
            0..40 => self.clock.advance(Duration::from_millis(self.random.below(6000))),
            40..43 => {
                let micros = i64::try_from(self.random.below(7_200_000_000)).expect("small") - 3_600_000_000;
                self.note(&format!("the clock jumps by {micros} µs"));
                self.clock.jump(SignedDuration::from_micros(micros));
            }
            43..45 => self.sweep(),
            45 => self.lose_machine(),
            _ => {
                let at = usize::try_from(self.random.below(PROCESSES as u64)).expect("small");
                let mut process = self.processes.swap_remove(at);
                match self.random.below(60) {
                    0 => {
                        self.note(&format!("{} is killed", process.owner));
                        self.gone.lock().expect("no panic").insert(process.owner.clone());
                        process = self.start_process();
                    }
                    1 => {
                        let steps = 10 + usize::try_from(self.random.below(80)).expect("small");
                        self.note(&format!("{} is stopped for {steps} steps", process.owner));
                        process.stopped_until = self.now + steps;
                    }
                    _ if process.stopped_until > self.now => {}
                    _ => self.act(&mut process),
                }
                self.processes.push(process);
            }
        }
        self.check();
    }

    fn note(&mut self, line: &str) {
        self.trace.push(format!("{}: {line}", self.now));
    }

    /// One step of a process.
    fn act(&mut self, process: &mut Process) {
        let Some(held_lease) = &process.held_lease else {
            if self.random.one_in(3) {
                self.open(process);
            }
            return;
        };
        if !done(held_lease.ensure_valid()) {
            // Whatever was under way under the old lease is not gone on with.
            process.handover = None;
            process.record = None;
            let again = done(held_lease.retake(Duration::ZERO));
            match again {
                Ok(()) => self.read(process),
                Err(LeaseError::Held { .. }) => {}
                Err(error) => panic!("seed {}: {error}", self.seed),
            }
            return;
        }
        self.assert_newest(process);
        if let Some(step) = process.handover.take() {
            return self.hand_over(process, step);
        }
        let state = process.record.as_ref().expect("read under the lease").0.state;
        match (state, self.random.below(12)) {
            (WorkspaceState::Moving, _) => self.settle(process),
            (WorkspaceState::Stopped, _) => self.begin_handover(process),
            (_, 0..7) => self.work(process),
            (_, 7) => self.save(process),
            (_, 8) => self.begin_handover(process),
            (_, 9) => {
                self.retire_strays(process);
                self.kill_retired(process);
            }
            _ => {
                done(held_lease.release());
                (process.held_lease, process.record) = (None, None);
            }
        }
    }

    fn open(&mut self, process: &mut Process) {
        match done(HeldLease::take(Arc::clone(&process.context), &name(), Duration::ZERO)) {
            Ok(held_lease) => {
                process.held_lease = Some(held_lease);
                self.read(process);
            }
            Err(LeaseError::Held { .. }) => {}
            Err(error) => panic!("seed {}: {error}", self.seed),
        }
    }

    fn read(&mut self, process: &mut Process) {
        let record = done(self.records.workspace(&name())).expect("memory").expect("it is never destroyed");
        let details = read_details(&record).expect("our own");
        let fence = process.held_lease.as_ref().expect("just taken").lease().fence;
        self.note(&format!("{} has lease {fence}", process.owner));
        process.record = Some((record, details));
        self.assert_newest(process);
    }

    /// A process that acts has the newest lease, and no other has acted under it.
    fn assert_newest(&mut self, process: &Process) {
        let fence = process.held_lease.as_ref().expect("it acts").lease().fence;
        let newest = self.records.newest_lease(&name()).expect("there was one").fence;
        assert_eq!(
            fence,
            newest,
            "seed {}: {} acts under an old lease\n{}",
            self.seed,
            process.owner,
            self.recent_trace()
        );
        let first = self.acted.entry(fence).or_insert_with(|| process.owner.clone()).clone();
        assert_eq!(first, process.owner, "seed {}: two act under lease {fence}\n{}", self.seed, self.recent_trace());
    }

    /// Writes the record. False when the lease was lost.
    fn update(&mut self, process: &mut Process, change: impl FnOnce(&mut WorkspaceRecord, &mut Details)) -> bool {
        let (record, details) = process.record.as_ref().expect("read under the lease");
        let (mut record, mut details) = (record.clone(), details.clone());
        change(&mut record, &mut details);
        record.details = serde_json::to_value(&details).expect("plain data");
        let held_lease = process.held_lease.as_ref().expect("it acts");
        let written = done(self.records.update_workspace(&record, &held_lease.lease())).is_ok();
        if written {
            process.record = Some((record, details));
        } else {
            held_lease.lose();
        }
        written
    }

    fn place(id: &SandboxId) -> SandboxRef {
        SandboxRef { provider: provider(), sandbox: id.clone() }
    }

    /// A write that is acknowledged; a sandbox that is gone is found out thereby.
    fn work(&mut self, process: &mut Process) {
        let (record, _) = process.record.as_ref().expect("read under the lease");
        let Some(id) = record.sandbox.clone() else { return };
        match self.machines.get_mut(&id) {
            Some(machine) => {
                machine.files = self.acknowledged + 1;
                self.acknowledged += 1;
            }
            None => {
                let place = Self::place(&id);
                self.update(process, |record, details| transitions::stop(record, details, &place, StopReason::Lost));
            }
        }
    }

    fn save(&mut self, process: &Process) {
        let (record, _) = process.record.as_ref().expect("read under the lease");
        if let Some(machine) = record.sandbox.as_ref().and_then(|id| self.machines.get(id)) {
            self.checkpoint = machine.files;
        }
    }

    fn begin_handover(&mut self, process: &mut Process) {
        self.save(process);
        let (record, _) = process.record.as_ref().expect("read under the lease");
        let old = record.sandbox.clone();
        if old.as_ref().is_some_and(|id| !self.machines.contains_key(id)) {
            return self.work(process);
        }
        let old = old.as_ref().map(Self::place);
        let begun = self.update(process, |record, details| transitions::begin(record, details, old, None));
        process.handover = begun.then_some(Step::Make);
    }

    fn hand_over(&mut self, process: &mut Process, step: Step) {
        process.handover = match step {
            Step::Make => Some(Step::Note(self.make_machine())),
            Step::Note(id) => {
                let place = Self::place(&id);
                let noted = self.update(process, |_, details| transitions::note_successor(details, place));
                if !noted {
                    self.machines.remove(&id);
                }
                noted.then_some(Step::Restore(id))
            }
            Step::Restore(id) => match self.machines.get_mut(&id) {
                Some(machine) => {
                    machine.files = self.checkpoint;
                    Some(Step::Swap(id))
                }
                None => None,
            },
            Step::Swap(id) => {
                let successor = Successor { place: Self::place(&id), run: None, head: None, mark: None };
                let strays_due = self.strays_due();
                let swapped = self.update(process, |record, details| {
                    let old = details.handover.as_ref().and_then(|handover| handover.old.clone());
                    transitions::swap(record, details, successor, (old, OldSandbox::Retired), strays_due);
                });
                swapped.then_some(Step::End)
            }
            Step::End => {
                self.kill_retired(process);
                None
            }
        };
    }

    fn now(&self) -> Timestamp {
        Clock::Manual(Arc::clone(&self.clock)).now()
    }

    fn strays_due(&self) -> Timestamp {
        later(self.now(), CREATION_TIMEOUT)
    }

    /// The machines that no part of the record spares. Each of them may have no more than a copy of
    /// the work.
    fn find_strays(&self, details: &Details, own: Option<&SandboxRef>) -> Vec<SandboxRef> {
        let spared = transitions::spare(details, own);
        let strays: Vec<SandboxRef> = self.machines.keys().filter(|id| !spared.contains(id)).map(Self::place).collect();
        let safe = self.safe();
        for place in &strays {
            let files = self.machines[&place.sandbox].files;
            assert!(files <= safe, "seed {}: {} alone has work\n{}", self.seed, place.sandbox, self.recent_trace());
        }
        strays
    }

    /// As `settle.rs`: an interrupted handover goes back to the old sandbox if it lives.
    fn settle(&mut self, process: &mut Process) {
        let (_, details) = process.record.as_ref().expect("read under the lease");
        let Some(old) = details.handover.as_ref().map(|handover| handover.old.clone()) else { return };
        let old_lives = old.as_ref().is_some_and(|place| self.machines.contains_key(&place.sandbox));
        let strays = self.find_strays(details, old.as_ref());
        let strays_due = self.strays_due();
        self.update(process, |record, details| transitions::settle(record, details, old_lives, strays, strays_due));
        self.kill_retired(process);
    }

    /// As `settle.rs`: what is no sandbox of the workspace was left by a handover.
    fn retire_strays(&mut self, process: &mut Process) {
        let (record, details) = process.record.as_ref().expect("read under the lease");
        if !transitions::may_retire_strays(record, details, self.now()) {
            return;
        }
        let strays = self.find_strays(details, record.sandbox.as_ref().map(Self::place).as_ref());
        self.update(process, |_, details| {
            details.retired.extend(strays);
            details.strays_due = None;
        });
    }

    fn kill_retired(&mut self, process: &mut Process) {
        let retired: Vec<SandboxRef> = process.record.as_ref().expect("read under the lease").1.retired.clone();
        for place in &retired {
            self.machines.remove(&place.sandbox);
        }
        if !retired.is_empty() {
            self.update(process, |_, details| details.retired.clear());
        }
    }

    /// A sandbox dies by itself; only one whose work is elsewhere, since any other loss is the
    /// provider's.
    fn lose_machine(&mut self) {
        let count = self.machines.len() as u64;
        if count == 0 || self.checkpoint < self.acknowledged {
            return;
        }
        let at = usize::try_from(self.random.below(count)).expect("small");
        let id = self.machines.keys().nth(at).cloned().expect("it is one of them");
        self.note(&format!("{id} dies"));
        self.machines.remove(&id);
    }

    /// The workspace has a record, so none of its sandboxes is an orphan.
    fn sweep(&self) {
        let named =
            NamedSandboxes::new(done(self.records.workspaces_and_unreadable()).expect("memory")).expect("our own");
        for id in self.machines.keys() {
            let is_orphan = named.is_orphan(id.as_str(), WORKSPACE);
            assert!(!is_orphan, "seed {}: {id} is an orphan\n{}", self.seed, self.recent_trace());
        }
    }

    /// The newest write that the workspace still leads to.
    fn safe(&self) -> u64 {
        let record = done(self.records.workspace(&name())).expect("memory").expect("it is never destroyed");
        let details = read_details(&record).expect("our own");
        let old = details.handover.and_then(|handover| handover.old).map(|place| place.sandbox);
        let files =
            record.sandbox.iter().chain(&old).filter_map(|id| self.machines.get(id)).map(|machine| machine.files);
        files.max().unwrap_or(0).max(self.checkpoint)
    }

    fn check(&self) {
        let (safe, acknowledged) = (self.safe(), self.acknowledged);
        assert!(
            safe >= acknowledged,
            "seed {}: write {acknowledged} is lost, {safe} is there\n{}",
            self.seed,
            self.recent_trace()
        );
    }

    fn recent_trace(&self) -> String {
        let from = self.trace.len().saturating_sub(30);
        self.trace[from..].join("\n")
    }
}

/// One run from one seed; panics where an invariant does not hold.
fn run(seed: u64) -> World {
    let mut world = World::new(seed);
    for _ in 0..STEPS {
        world.step();
    }
    world
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for seed in 0..20 {
        let summary = |World { trace, acknowledged, checkpoint, acted, machines, .. }: World| {
            let machines: Vec<_> = machines.into_iter().map(|(id, machine)| (id, machine.files)).collect();
            (trace, acknowledged, checkpoint, acted, machines)
        };
        assert_eq!(summary(run(seed)), summary(run(seed)), "seed {seed}");
    }
}

#[test]
fn leases_and_handovers_lose_nothing_from_any_seed() {
    let (acknowledged, leases) = (AtomicU64::new(0), AtomicU64::new(0));
    SEEDS.simulate(
        || (),
        |(), seed| {
            let world = run(seed);
            acknowledged.fetch_add(world.acknowledged, Ordering::Relaxed);
            leases.fetch_add(world.acted.len() as u64, Ordering::Relaxed);
        },
    );
    let (acknowledged, leases) = (acknowledged.into_inner(), leases.into_inner());
    let few = std::env::var_os("SANDBAR_SEED").is_some();
    assert!(few || (acknowledged > 1000 && leases > 1000), "{acknowledged} writes under {leases} leases");
}
