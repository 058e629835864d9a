//! A deterministic simulation: the real owners, records and life cycle, on ports in memory that
//! fail, with a server that crashes at any call of a port and a wall clock that is set. Everything
//! is drawn from one seed.
//!
//! A seed that fails is printed; `SANDBAR_SEED=N cargo test -p sandbar-node --test node simulation
//! -- --nocapture` replays it and prints each step. `SANDBAR_SOAK=1` runs for minutes instead of
//! seconds.

use std::collections::{BTreeMap, HashSet};
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use egress::{Policy, Rules};
use engine::volume::VolumeDirectory;
use engine::{
    Boot, Engine, EngineCapabilities, EngineError, Fill, Instance, Machine, RootError, Trash, Trashed, Usage,
};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use sandbar_node::lifecycle::PauseMode;
use sandbar_node::memory::{MemoryEngine, MemoryRecords};
use sandbar_node::ports::{Records, RecordsError, SecretRecords, TemplateRecords, VolumeRecords};
use sandbar_node::template::TemplateRecord;
use sandbar_node::{
    Clock, Closing, Created, FilesId, IdempotencyKey, Layer, Node, OnTimeout, PersistedState, Record, Resumed,
    RuntimeClock, SandboxId, SandboxesConfig, Secret, Volume,
};
use serde_json::Value;
use testing::simulation::{Random, Seeds};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::support::new_sandbox;

const STEPS: usize = 40;
const SEEDS: Seeds = Seeds { short: 300, soak: Duration::from_secs(180) };

/// Makes the port calls of one server fail, or crash the server.
#[derive(Clone)]
struct FaultInjector {
    draws: Arc<Random>,
    /// Off: every call succeeds.
    faults: Arc<AtomicBool>,
    /// Cancelled when the server has crashed: none of its calls completes any more.
    crashed: CancellationToken,
}

enum Verdict {
    Go,
    Fail,
    /// The call takes effect, and its caller gets an error.
    FailAfter,
}

impl FaultInjector {
    /// Decides about one call. If the server crashes here, this never returns.
    async fn decide(&self, after_effect: bool) -> Verdict {
        self.stop_if_crashed().await;
        if !self.faults.load(Ordering::Relaxed) {
            return Verdict::Go;
        }
        match self.draws.below(60) {
            0 => {
                self.crashed.cancel();
                self.stop_if_crashed().await;
                Verdict::Go
            }
            1..=3 => Verdict::Fail,
            4 if after_effect => Verdict::FailAfter,
            _ => Verdict::Go,
        }
    }

    async fn stop_if_crashed(&self) {
        if self.crashed.is_cancelled() {
            std::future::pending::<()>().await;
        }
    }

    /// After the effect of a call and before its caller gets the result.
    async fn maybe_crash(&self) {
        if self.faults.load(Ordering::Relaxed) && self.draws.one_in(60) {
            self.crashed.cancel();
        }
        self.stop_if_crashed().await;
    }

    /// A call that may take effect although it fails.
    async fn call<T, E>(&self, failure: fn() -> E, act: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        self.inject(true, failure, act).await
    }

    /// A call that takes effect or fails.
    async fn call_atomic<T, E>(&self, failure: fn() -> E, act: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        self.inject(false, failure, act).await
    }

    async fn inject<T, E>(
        &self,
        after_effect: bool,
        failure: fn() -> E,
        act: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        match self.decide(after_effect).await {
            Verdict::Fail => return Err(failure()),
            Verdict::FailAfter => {
                act.await?;
                self.stop_if_crashed().await;
                return Err(failure());
            }
            Verdict::Go => {}
        }
        let done = act.await;
        self.maybe_crash().await;
        done
    }
}

fn engine_fault() -> EngineError {
    EngineError::failed("the simulation failed a call", "on purpose")
}

fn records_fault() -> RecordsError {
    RecordsError { what: "write", source: "on purpose".into() }
}

struct SimEngine {
    inner: Arc<MemoryEngine>,
    injector: FaultInjector,
}

impl SimEngine {
    fn machine(&self, inner: Arc<dyn Machine>) -> Arc<dyn Machine> {
        Arc::new(SimMachine { inner, injector: self.injector.clone() })
    }
}

#[async_trait]
impl Trash for SimEngine {
    async fn files(&self) -> Result<HashSet<FilesId>, EngineError> {
        Trash::files(&*self.inner).await
    }
    async fn write_note(&self, files: &FilesId, note: Value) -> Result<(), EngineError> {
        self.injector.call(engine_fault, self.inner.write_note(files, note)).await
    }
    async fn note(&self, files: &FilesId) -> Result<Option<Value>, EngineError> {
        self.inner.note(files).await
    }
    async fn is_volume(&self, files: &FilesId) -> Result<bool, EngineError> {
        self.inner.is_volume(files).await
    }
    async fn trash(&self) -> Result<Vec<Trashed>, EngineError> {
        self.inner.trash().await
    }
    async fn take_from_trash(&self, files: &FilesId) -> Result<(), EngineError> {
        self.injector.call_atomic(engine_fault, self.inner.take_from_trash(files)).await
    }
    async fn record_watched(&self, files: &FilesId, watched: Duration) -> Result<(), EngineError> {
        self.injector.call(engine_fault, self.inner.record_watched(files, watched)).await
    }
    async fn delete_from_trash(&self, files: &FilesId) -> Result<(), EngineError> {
        self.injector.call(engine_fault, self.inner.delete_from_trash(files)).await
    }
}

#[async_trait]
impl Engine for SimEngine {
    fn capabilities(&self) -> EngineCapabilities {
        self.inner.capabilities()
    }
    async fn environment(&self, id: &SandboxId) -> Result<BTreeMap<String, String>, EngineError> {
        self.inner.environment(id).await
    }
    async fn boot(&self, boot: Boot) -> Result<Arc<dyn Machine>, EngineError> {
        self.injector.call_atomic(engine_fault, self.inner.boot(boot)).await.map(|machine| self.machine(machine))
    }
    async fn adopt(
        &self,
        id: &SandboxId,
        instance: Instance,
        egress: Policy,
    ) -> Result<Option<Arc<dyn Machine>>, EngineError> {
        self.injector.stop_if_crashed().await;
        Ok(self.inner.adopt(id, instance, egress).await?.map(|machine| self.machine(machine)))
    }
    async fn sweep(&self, running: &HashSet<SandboxId>, files: &HashSet<FilesId>) -> Result<Vec<FilesId>, EngineError> {
        self.injector.call(engine_fault, self.inner.sweep(running, files)).await
    }
    async fn remove_files(&self, files: &FilesId) -> Result<(), EngineError> {
        self.injector.call(engine_fault, self.inner.remove_files(files)).await
    }
    async fn copy_files(&self, from: &FilesId, to: &FilesId) -> Result<(), EngineError> {
        self.injector.call_atomic(engine_fault, self.inner.copy_files(from, to)).await
    }
    async fn make_spares(&self, ids: &[SandboxId], from: Option<&FilesId>) -> Result<(), EngineError> {
        self.injector.call(engine_fault, self.inner.make_spares(ids, from)).await
    }
    async fn take_spare(&self, id: &SandboxId) -> Result<bool, EngineError> {
        self.injector.call_atomic(engine_fault, self.inner.take_spare(id)).await
    }
    async fn remove_spare(&self, id: &SandboxId) -> Result<(), EngineError> {
        self.injector.call(engine_fault, self.inner.remove_spare(id)).await
    }
    async fn settle_spares(&self, keep: &HashSet<FilesId>) -> Result<(), EngineError> {
        self.injector.call(engine_fault, self.inner.settle_spares(keep)).await
    }
    async fn make_root(&self, files: &FilesId, limit_bytes: u64, fill: Fill) -> Result<Vec<String>, RootError> {
        self.inner.make_root(files, limit_bytes, fill).await
    }
    async fn sync_files(&self) -> Result<(), EngineError> {
        self.injector.call(engine_fault, self.inner.sync_files()).await
    }
    async fn egress_certificate(&self) -> Result<String, EngineError> {
        self.inner.egress_certificate().await
    }
    async fn create_volume(&self, files: &FilesId, limit_bytes: u64) -> Result<VolumeDirectory, EngineError> {
        self.injector.call_atomic(engine_fault, self.inner.create_volume(files, limit_bytes)).await
    }
    async fn open_volume(&self, files: &FilesId, limit_bytes: u64) -> Result<VolumeDirectory, EngineError> {
        self.inner.open_volume(files, limit_bytes).await
    }
}

struct SimMachine {
    inner: Arc<dyn Machine>,
    injector: FaultInjector,
}

#[async_trait]
impl Machine for SimMachine {
    fn instance(&self) -> Instance {
        self.inner.instance()
    }
    fn guest_socket(&self) -> &Path {
        self.inner.guest_socket()
    }
    async fn dial(&self, port: u16) -> io::Result<TcpStream> {
        self.inner.dial(port).await
    }
    fn set_egress_rules(&self, rules: Rules) {
        self.inner.set_egress_rules(rules);
    }
    async fn freeze(&self) -> Result<(), EngineError> {
        self.injector.call(engine_fault, self.inner.freeze()).await
    }
    async fn thaw(&self) -> Result<(), EngineError> {
        self.injector.call(engine_fault, self.inner.thaw()).await
    }
    async fn kill(&self) -> Result<(), EngineError> {
        self.injector.call(engine_fault, self.inner.kill()).await
    }
    async fn usage(&self) -> Result<Usage, EngineError> {
        self.injector.stop_if_crashed().await;
        self.inner.usage().await
    }
    async fn exited(&self) {
        self.inner.exited().await;
        self.injector.stop_if_crashed().await;
    }
}

/// Records that outlive the server, as one server sees them.
struct SimRecords {
    inner: Arc<MemoryRecords>,
    /// Sandboxes in the order of their creation, so that a seed repeats the same run.
    order: Arc<Mutex<Vec<SandboxId>>>,
    injector: FaultInjector,
}

#[async_trait]
impl Records for SimRecords {
    async fn all(&self) -> Result<Vec<Record>, RecordsError> {
        let mut all = self.injector.call(records_fault, self.inner.all()).await?;
        let order = self.order.lock();
        all.sort_by_key(|record| order.iter().position(|id| *id == record.id));
        Ok(all)
    }
    async fn insert(&self, record: &Record, idempotency: Option<&IdempotencyKey>) -> Result<(), RecordsError> {
        self.order.lock().push(record.id.clone());
        self.injector.call_atomic(records_fault, self.inner.insert(record, idempotency)).await
    }
    async fn put(&self, record: &Record) -> Result<(), RecordsError> {
        self.injector.call(records_fault, self.inner.put(record)).await
    }
    async fn remove(&self, id: &SandboxId) -> Result<(), RecordsError> {
        self.injector.call(records_fault, self.inner.remove(id)).await
    }
    async fn creation(&self, key: &str) -> Result<Option<(String, Created)>, RecordsError> {
        self.injector.call(records_fault, self.inner.creation(key)).await
    }
    async fn forget_creations(&self, before: Timestamp) -> Result<(), RecordsError> {
        self.inner.forget_creations(before).await
    }
}

#[async_trait]
impl TemplateRecords for SimRecords {
    async fn templates(&self) -> Result<Vec<TemplateRecord>, RecordsError> {
        self.inner.templates().await
    }
    async fn put_template(&self, template: &TemplateRecord) -> Result<(), RecordsError> {
        self.injector.call_atomic(records_fault, self.inner.put_template(template)).await
    }
    async fn remove_template(&self, id: &str) -> Result<(), RecordsError> {
        self.injector.call(records_fault, self.inner.remove_template(id)).await
    }
    async fn layers(&self) -> Result<Vec<Layer>, RecordsError> {
        self.inner.layers().await
    }
    async fn put_layer(&self, layer: &Layer) -> Result<(), RecordsError> {
        self.inner.put_layer(layer).await
    }
    async fn remove_layer(&self, key: &str) -> Result<(), RecordsError> {
        self.inner.remove_layer(key).await
    }
}

#[async_trait]
impl VolumeRecords for SimRecords {
    async fn volumes(&self) -> Result<Vec<Volume>, RecordsError> {
        self.inner.volumes().await
    }
    async fn put_volume(&self, volume: &Volume) -> Result<(), RecordsError> {
        self.injector.call_atomic(records_fault, self.inner.put_volume(volume)).await
    }
    async fn remove_volume(&self, id: &str) -> Result<(), RecordsError> {
        self.injector.call(records_fault, self.inner.remove_volume(id)).await
    }
}

#[async_trait]
impl SecretRecords for SimRecords {
    async fn secrets(&self) -> Result<Vec<Secret>, RecordsError> {
        self.inner.secrets().await
    }
    async fn put_secret(&self, secret: &Secret) -> Result<(), RecordsError> {
        self.inner.put_secret(secret).await
    }
    async fn remove_secret(&self, id: &str) -> Result<(), RecordsError> {
        self.inner.remove_secret(id).await
    }
}

/// Whether a create call is sent for the first time.
enum Sending {
    First,
    Repeat,
}

/// What the caller of the API knows of a sandbox.
struct Expected {
    key: String,
    on_timeout: OnTimeout,
    /// It may not end by itself before this, by the uptime.
    lease_end: Duration,
    /// A kill was requested and not acknowledged, so that either outcome is correct.
    kill_in_doubt: bool,
}

struct Simulation {
    verbose: bool,
    /// What happened, in words that a second run of the same seed repeats.
    trace: Mutex<Vec<String>>,
    /// The keys of all acknowledged create calls.
    keys: BTreeMap<SandboxId, String>,
    draws: Arc<Random>,
    faults: Arc<AtomicBool>,
    engine: Arc<MemoryEngine>,
    records: Arc<MemoryRecords>,
    order: Arc<Mutex<Vec<SandboxId>>>,
    clock: Arc<RuntimeClock>,
    uploads: PathBuf,
    node: Arc<Node>,
    crashed: CancellationToken,
    known: BTreeMap<SandboxId, Expected>,
    killed: HashSet<SandboxId>,
    /// Create calls that were not acknowledged; each is repeated with its key until it is.
    unanswered: Vec<(String, OnTimeout, Duration)>,
    creates: u32,
    /// How far the wall clock was set ahead since the last start. A server that starts computes the
    /// remaining lease from the wall clock, so leases may end that much early.
    set_ahead: Duration,
}

impl Simulation {
    async fn new(seed: u64, directory: &Path, verbose: bool) -> Self {
        let draws = Arc::new(Random::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d)));
        // Nothing answers in the guests: a node must work without.
        let engine = Arc::new(MemoryEngine::new(directory, |listener, _, _| drop(listener)));
        let start = "2026-01-02T03:04:05Z".parse::<Timestamp>().expect("a moment");
        let clock = Arc::new(RuntimeClock::starting_at(start));
        let (records, order, faults) = (Arc::default(), Arc::default(), Arc::default());
        let uploads = directory.join("uploads");
        let parts = Parts { draws: &draws, faults: &faults, engine: &engine, records: &records, order: &order };
        let (node, crashed) = parts.open(&clock, &uploads).await.expect("nothing fails yet");
        Self {
            verbose,
            trace: Mutex::default(),
            keys: BTreeMap::new(),
            draws,
            faults,
            engine,
            records,
            order,
            clock,
            uploads,
            node,
            crashed,
            known: BTreeMap::new(),
            killed: HashSet::new(),
            unanswered: Vec::new(),
            creates: 0,
            set_ahead: Duration::ZERO,
        }
    }

    fn log(&self, what: impl AsRef<str>) {
        let line = format!("{:>8.1?} {}", self.clock.uptime(), what.as_ref());
        if self.verbose {
            println!("{line}");
        }
        self.trace.lock().push(line);
    }

    fn key(&self, id: &SandboxId) -> &str {
        self.keys.get(id).map_or("unknown", String::as_str)
    }

    /// The answer of a call; `None` if the server crashed meanwhile.
    async fn ask<T>(&self, call: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.crashed.cancelled() => None,
            answer = call => Some(answer),
        }
    }

    async fn step(&mut self) {
        match self.draws.below(16) {
            0..=2 => self.create().await,
            3 => self.repeat_create().await,
            4..=5 => self.pause().await,
            6..=7 => self.connect().await,
            8 => self.kill().await,
            9 => self.set_timeout().await,
            10 => self.crash_machine(),
            11 => self.jump(),
            12 => {
                self.log("the server is killed");
                self.crashed.cancel();
            }
            13 => {
                self.log("the server stops");
                let node = Arc::clone(&self.node);
                let _ = self.ask(node.close(Closing::Keep)).await;
                self.crashed.cancel();
            }
            _ => {
                let time = Duration::from_secs(1 + self.draws.below(90));
                self.log(format!("{time:?} pass"));
                let _ = self.ask(tokio::time::sleep(time)).await;
            }
        }
        if self.crashed.is_cancelled() {
            self.restart().await;
        }
    }

    async fn create(&mut self) {
        self.creates += 1;
        let on_timeout = match self.draws.below(3) {
            0 => OnTimeout::Kill,
            1 => OnTimeout::Pause(PauseMode::Full),
            _ => OnTimeout::Pause(PauseMode::Filesystem),
        };
        let create = (format!("key{}", self.creates), on_timeout, Duration::from_secs(5 + self.draws.below(200)));
        self.send_create(create, Sending::First).await;
    }

    async fn repeat_create(&mut self) {
        if let Some(create) = self.unanswered.pop() {
            self.send_create(create, Sending::Repeat).await;
        }
    }

    async fn send_create(&mut self, (key, on_timeout, timeout): (String, OnTimeout, Duration), sending: Sending) {
        let mut new = new_sandbox();
        (new.spec.on_timeout, new.timeout) = (on_timeout, timeout);
        new.spec.metadata.insert("key".to_owned(), key.clone());
        let idempotency = IdempotencyKey { key: key.clone(), fingerprint: key.clone() };
        let node = Arc::clone(&self.node);
        let before = self.clock.uptime();
        match self.ask(node.create(new, Some(idempotency))).await {
            Some(Ok(created)) => {
                self.log(format!("{key} is made"));
                self.keys.insert(created.id.clone(), key.clone());
                let lease_end = match sending {
                    Sending::First => before + timeout,
                    // The answer may be that of the earlier call, whose lease began then.
                    Sending::Repeat => Duration::ZERO,
                };
                let expected = Expected { key, on_timeout, lease_end, kill_in_doubt: false };
                if matches!(sending, Sending::First) || on_timeout != OnTimeout::Kill {
                    self.known.insert(created.id, expected);
                }
            }
            other => {
                self.log(format!("{key} is not acknowledged: {:?}", other.map(|answer| answer.is_ok())));
                self.unanswered.push((key, on_timeout, timeout));
            }
        }
    }

    fn choose(&self) -> Option<SandboxId> {
        // By the order of creation: ids are random, and a seed must choose the same again.
        let order = self.order.lock();
        let known: Vec<&SandboxId> = order.iter().filter(|id| self.known.contains_key(*id)).collect();
        let count = u64::try_from(known.len()).expect("few");
        (count > 0).then(|| known[usize::try_from(self.draws.below(count)).expect("few")].clone())
    }

    async fn pause(&mut self) {
        let Some(id) = self.choose() else { return };
        let kept = if self.draws.one_in(2) { PauseMode::Full } else { PauseMode::Filesystem };
        let node = Arc::clone(&self.node);
        let answer = self.ask(node.pause(&id, kept, false)).await;
        self.log(format!("pause {} {kept:?}: {:?}", self.key(&id), succeeded(&answer)));
    }

    async fn connect(&mut self) {
        let Some(id) = self.choose() else { return };
        let timeout = Duration::from_secs(5 + self.draws.below(200));
        let (node, before) = (Arc::clone(&self.node), self.clock.uptime());
        let answer = self.ask(node.connect(&id, timeout, PauseMode::Full)).await;
        self.log(format!("connect {}: {:?}", self.key(&id), succeeded(&answer)));
        let Some(expected) = self.known.get_mut(&id) else { return };
        let end = before + timeout;
        expected.lease_end = match answer {
            Some(Ok(Resumed::WasRunning)) => expected.lease_end.max(end),
            Some(Ok(Resumed::FromPause)) => end,
            // It may have been resumed all the same.
            _ => expected.lease_end.min(end),
        };
    }

    async fn set_timeout(&mut self) {
        let Some(id) = self.choose() else { return };
        let timeout = Duration::from_secs(1 + self.draws.below(60));
        let (node, before) = (Arc::clone(&self.node), self.clock.uptime());
        let answer = self.ask(node.set_timeout(&id, timeout)).await;
        self.log(format!("timeout {} {timeout:?}: {:?}", self.key(&id), succeeded(&answer)));
        if let Some(expected) = self.known.get_mut(&id) {
            // If not acknowledged, it may apply or not.
            let end = before + timeout;
            let acknowledged = matches!(answer, Some(Ok(())));
            expected.lease_end = if acknowledged { end } else { expected.lease_end.min(end) };
        }
    }

    async fn kill(&mut self) {
        let Some(id) = self.choose() else { return };
        let node = Arc::clone(&self.node);
        let answer = self.ask(node.kill(&id)).await;
        self.log(format!("kill {}: {:?}", self.key(&id), succeeded(&answer)));
        match answer {
            Some(Ok(())) => {
                self.known.remove(&id);
                self.killed.insert(id);
            }
            _ => self.known.get_mut(&id).expect("it was chosen").kill_in_doubt = true,
        }
    }

    fn crash_machine(&mut self) {
        let Some(id) = self.choose() else { return };
        self.log(format!("the processes of {} die", self.key(&id)));
        self.engine.crash(&id);
    }

    fn jump(&mut self) {
        let seconds = i64::try_from(self.draws.below(20_000)).expect("few") - 10_000;
        self.log(format!("the clock is set by {seconds} s"));
        self.clock.jump(SignedDuration::from_secs(seconds));
        self.set_ahead += Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    }

    /// Starts servers until one completes its start.
    async fn restart(&mut self) {
        loop {
            let parts = Parts {
                draws: &self.draws,
                faults: &self.faults,
                engine: &self.engine,
                records: &self.records,
                order: &self.order,
            };
            if let Some((node, crashed)) = parts.open(&self.clock, &self.uploads).await {
                (self.node, self.crashed) = (node, crashed);
                self.log("a server is up");
                break;
            }
            self.log("a server did not get through its start");
        }
        let set_ahead = std::mem::take(&mut self.set_ahead);
        for expected in self.known.values_mut() {
            expected.lease_end = expected.lease_end.saturating_sub(set_ahead);
        }
        self.drop_ended();
    }

    /// Drops the sandboxes that are gone and may be: a lease that kills has ended, or a kill was
    /// not acknowledged.
    fn drop_ended(&mut self) {
        let (now, node) = (self.clock.uptime(), Arc::clone(&self.node));
        self.known.retain(|id, expected| {
            let over = expected.on_timeout == OnTimeout::Kill && expected.lease_end <= now;
            node.get(id).is_some() || !(over || expected.kill_in_doubt)
        });
    }

    async fn check(&mut self) {
        self.drop_ended();
        let files = self.engine.files();
        for (id, expected) in &self.known {
            assert!(self.node.get(id).is_some(), "{} of {} is lost", expected.key, id);
            assert!(files.contains(&FilesId::from(id)), "the files of {} ({id}) are lost", expected.key);
        }
        for id in &self.killed {
            assert!(self.node.get(id).is_none(), "{id} was killed and is back");
        }
        for record in self.records.all().await.expect("memory does not fail") {
            let there = files.contains(&FilesId::from(&record.id));
            assert!(there, "a record names files that are missing: {}", record.id);
        }
        let mut keys = HashSet::new();
        for seen in self.node.all() {
            let key = seen.record.spec.metadata["key"].clone();
            assert!(keys.insert(key.clone()), "{key} is there twice");
        }
    }

    /// Checks that everything settles without faults.
    async fn finish(&mut self) {
        self.faults.store(false, Ordering::Relaxed);
        self.crashed.cancel();
        self.restart().await;
        self.check().await;
        let records = self.records.all().await.expect("memory does not fail");
        let named: HashSet<FilesId> = records.iter().map(|record| FilesId::from(&record.id)).collect();
        let files = self.engine.files();
        assert!(files.is_subset(&named), "files without a record are in the trash: {files:?}, named {named:?}");
        tokio::time::sleep(Duration::from_secs(1000)).await;
        for seen in self.node.all() {
            let id = &seen.record.id;
            assert_ne!(seen.standing, PersistedState::Running, "the lease of {id} has ended");
        }
        for id in self.engine.running() {
            let standing = self.node.get(&id).map(|seen| seen.standing);
            assert_eq!(standing, Some(PersistedState::Paused(PauseMode::Full)), "{id} runs on");
        }
    }
}

/// Whether there was an answer, and whether it was a success. Errors contain ids, which are random,
/// so a trace must not contain them.
fn succeeded<T, E>(answer: &Option<Result<T, E>>) -> Option<bool> {
    answer.as_ref().map(Result::is_ok)
}

/// State that outlives a server.
struct Parts<'a> {
    draws: &'a Arc<Random>,
    faults: &'a Arc<AtomicBool>,
    engine: &'a Arc<MemoryEngine>,
    records: &'a Arc<MemoryRecords>,
    order: &'a Arc<Mutex<Vec<SandboxId>>>,
}

impl Parts<'_> {
    async fn open(&self, clock: &Arc<RuntimeClock>, uploads: &Path) -> Option<(Arc<Node>, CancellationToken)> {
        let crashed = CancellationToken::new();
        let injector =
            FaultInjector { draws: Arc::clone(self.draws), faults: Arc::clone(self.faults), crashed: crashed.clone() };
        let engine = Arc::new(SimEngine { inner: Arc::clone(self.engine), injector: injector.clone() });
        let records = Arc::new(SimRecords { inner: Arc::clone(self.records), order: Arc::clone(self.order), injector });
        let clock: Arc<dyn Clock> = Arc::clone(clock) as Arc<dyn Clock>;
        let opening = Node::open_with(engine, records, clock, SandboxesConfig::default(), uploads);
        tokio::select! {
            biased;
            () = crashed.cancelled() => None,
            opened = opening => opened.ok().map(|node| (node, crashed.clone())),
        }
    }
}

/// One run from one seed; returns its trace and panics if an invariant is violated.
fn run(seed: u64, verbose: bool) -> Vec<String> {
    let directory = tempfile::tempdir().expect("a directory");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let mut simulation = Simulation::new(seed, directory.path(), verbose).await;
        simulation.faults.store(true, Ordering::Relaxed);
        for _ in 0..STEPS {
            simulation.step().await;
            simulation.check().await;
        }
        simulation.finish().await;
        simulation.trace.into_inner()
    })
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for seed in 0..3 {
        assert_eq!(run(seed, false), run(seed, false), "seed {seed}");
    }
}

#[test]
fn nothing_is_lost_whatever_fails() {
    let verbose = std::env::var_os("SANDBAR_SEED").is_some();
    SEEDS.simulate(|| (), |(), seed| drop(run(seed, verbose)));
}
