//! Hours and weeks in a moment: the supervisor against a fake server, with tokio's clock paused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use checkpoint::{Checkpoints, Objects};
use fake::FakeServer;
use sandbar_workspace::clock::{Clock, ManualClock};
use sandbar_workspace::config::{DeploymentMode, PlanConfig, ProviderConfig, ProviderKind, WorkspaceConfig};
use sandbar_workspace::events::EventKind;
use sandbar_workspace::ledger::Ledger;
use sandbar_workspace::provider::{LocalServer, Orchestrator};
use sandbar_workspace::records::{Leases, MemoryRecords, Records, WorkspaceRecord, WorkspaceRecords, WorkspaceState};
use sandbar_workspace::{Parts, Settings, Workspace, Workspaces};
use sdk::Create;
use serde_json::{Value, json};

use crate::support::{METADATA, NoLocal, Recorder, name};

pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub(crate) const DAY: Duration = Duration::from_secs(24 * 3600);

pub(crate) struct Kept {
    server: FakeServer,
    pub(crate) events: Arc<Recorder>,
    pub(crate) workspaces: Workspaces,
    pub(crate) workspace: Workspace,
}

/// A workspace with lifetime `ttl` in a sandbox of one hour that has just started.
pub(crate) async fn kept(plan: PlanConfig, ttl: Duration, ahead: jiff::SignedDuration) -> Kept {
    kept_by(Clock::tokio(), plan, ttl, ahead).await
}

async fn kept_by(clock: Clock, plan: PlanConfig, ttl: Duration, ahead: jiff::SignedDuration) -> Kept {
    let settings = Settings { clock, first_checkpoint_for: Duration::ZERO, ..Settings::default() };
    kept_with(settings, plan, ttl, ahead).await
}

async fn kept_with(settings: Settings, plan: PlanConfig, ttl: Duration, ahead: jiff::SignedDuration) -> Kept {
    let clock = settings.clock.clone();
    let server = FakeServer::start().await;
    server.set_clock_ahead(ahead);
    let provider = ProviderConfig {
        deployment_mode: Some(DeploymentMode::SelfHosted),
        api_key_env: Some("KEY".into()),
        api_url: Some(server.url()),
        plan,
        ..ProviderConfig::new("fake".parse().expect("a name"), ProviderKind::E2b)
    };
    let variables = |_: &str| Some(server.api_key().to_owned());
    let config = WorkspaceConfig { providers: vec![provider], ..WorkspaceConfig::default() };
    let config = config.resolve("/nowhere".as_ref(), &variables).expect("a good configuration");
    let records = Arc::new(MemoryRecords::default());
    let local: Arc<dyn LocalServer> = Arc::new(NoLocal);
    let shared = Arc::clone(&records) as Arc<dyn Records>;
    let orchestrator = Orchestrator::from_config(&config, &variables, &local, Arc::clone(&shared)).expect("providers");
    let sandbox = server.client().create(Create::template("base").timeout(HOUR).metadata(METADATA, "kept")).await;
    let sandbox = sandbox.expect("the fake makes sandboxes");

    let lease = records.take_lease(&name("kept"), "the test", clock.now(), MINUTE).await.expect("it is free");
    let now = clock.now();
    let record = WorkspaceRecord {
        name: name("kept"),
        project: "kept".parse().expect("an id"),
        provider: "fake".parse().expect("a name"),
        sandbox: Some(sandbox.id().clone()),
        state: WorkspaceState::Ready,
        paused: false,
        template: None,
        created_at: now,
        expires_at: now + ttl,
        services: json!({}),
        env: BTreeMap::new(),
        details: json!({ "run": { "started_at": now, "ends_at": now + HOUR,
            "size": { "cpu_count": 1, "memory_mb": 1, "disk_mb": 1 } } }),
    };
    records.insert_workspace(&record, &lease).await.expect("inserted");
    records.release_lease(&lease).await.expect("given back");

    let events = Arc::new(Recorder::default());
    let parts = Parts {
        orchestrator,
        ledger: Ledger::new(Arc::clone(&shared), &config),
        records: shared,
        checkpoints: Checkpoints::new(Objects::memory()),
        observer: Arc::clone(&events) as Arc<_>,
        settings,
    };
    let workspaces = Workspaces::new(parts);
    let workspace = workspaces.open(&name("kept")).await.expect("it opens");
    Kept { server, events, workspaces, workspace }
}

impl Kept {
    /// Counts the requests to the provider.
    pub(crate) fn count(&self, rule: &str) -> usize {
        self.server.requests_to(rule).len()
    }

    /// The timeouts of all extensions, in seconds.
    pub(crate) fn extensions(&self) -> Vec<u64> {
        let requests = self.server.requests_to("POST /sandboxes/*/timeout");
        let seconds = |body: &[u8]| serde_json::from_slice::<Value>(body).expect("JSON")["timeout"].as_u64();
        requests.iter().map(|request| seconds(&request.body).expect("a number")).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_is_extended_once_and_late() {
    let plan = PlanConfig { longest_lifetime_seconds: Some(90 * 24 * 3600), ..PlanConfig::default() };
    // Without saves, which query the disk size.
    let settings = Settings {
        clock: Clock::tokio(),
        first_checkpoint_for: Duration::ZERO,
        save_interval: 365 * DAY,
        ..Settings::default()
    };
    let kept = kept_with(settings, plan, 30 * DAY, jiff::SignedDuration::ZERO).await;
    for _ in 0..54 {
        for _ in 0..100 {
            kept.workspace.enter().await.expect("it runs");
        }
        tokio::time::sleep(MINUTE).await;
    }
    assert_eq!(kept.extensions(), [0; 0], "there is time");
    let inspections = kept.count("GET /sandboxes/*");
    assert!((50..=60).contains(&inspections), "one inspection per minute, none per call: {inspections}");
    tokio::time::sleep(3 * MINUTE).await;
    let extensions = kept.extensions();
    assert_eq!(extensions.len(), 1, "{extensions:?}");
    let days = extensions[0] / (24 * 3600);
    assert_eq!(days, 29, "as long as the workspace lives: {extensions:?}");
    tokio::time::sleep(2 * DAY).await;
    assert_eq!(kept.extensions().len(), 1);
    kept.workspace.enter().await.expect("it runs");
    kept.workspace.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_wrong_clock_of_the_provider_changes_nothing() {
    for hours in [-3, 2] {
        let ahead = jiff::SignedDuration::from_hours(hours);
        let kept = kept(PlanConfig::default(), 30 * DAY, ahead).await;
        kept.workspace.enter().await.expect("it runs");
        tokio::time::sleep(53 * MINUTE).await;
        assert_eq!(kept.extensions(), [0; 0], "{hours} hours ahead");
        tokio::time::sleep(4 * MINUTE).await;
        assert_eq!(kept.extensions().len(), 1, "{hours} hours ahead");
    }
}

/// The clock of this machine or of the provider is set while the workspace is open.
#[tokio::test(start_paused = true)]
async fn a_set_clock_neither_ends_nor_forgets_a_sandbox() {
    let plan = PlanConfig { longest_lifetime_seconds: Some(90 * 24 * 3600), ..PlanConfig::default() };
    for (ours, hours) in [(true, -3), (true, 3), (true, 24 * 40), (false, -3)] {
        let clock = Arc::new(ManualClock::ticking());
        let kept = kept_by(Clock::Manual(Arc::clone(&clock)), plan, 30 * DAY, jiff::SignedDuration::ZERO).await;
        kept.workspace.enter().await.expect("it runs");
        tokio::time::sleep(10 * MINUTE).await;
        let jump = jiff::SignedDuration::from_hours(hours);
        if ours {
            clock.jump(jump);
        } else {
            kept.server.set_clock_ahead(jump);
        }
        tokio::time::sleep(43 * MINUTE).await;
        kept.workspace.enter().await.expect("it runs");
        assert_eq!(kept.extensions(), [0; 0], "{hours} hours, ours: {ours}");
        tokio::time::sleep(4 * MINUTE).await;
        assert_eq!(kept.extensions().len(), 1, "{hours} hours, ours: {ours}");
        assert_eq!(kept.count("DELETE /sandboxes/*") + kept.count("POST /sandboxes/*/pause"), 0, "{hours} hours");
        assert_eq!(kept.events.count(|event| matches!(event, EventKind::Stopped { .. })), 0, "{hours} hours");
        // The fake's commands do nothing, so a save fails and is retried after the interval.
        let saves = kept.events.count(|event| matches!(event, EventKind::CheckpointFailed { .. }));
        assert!((4..=6).contains(&saves), "{saves} saves, {hours} hours, ours: {ours}");
        kept.workspace.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_checkpoint_a_fixed_end_leads_to_a_pause() {
    let plan = PlanConfig { longest_lifetime_seconds: Some(3600), ..PlanConfig::default() };
    let kept = kept(plan, 30 * DAY, jiff::SignedDuration::ZERO).await;
    kept.workspace.enter().await.expect("it runs");
    tokio::time::sleep(54 * MINUTE).await;
    let failed = |event: &EventKind| matches!(event, EventKind::HandoverFailed { .. });
    assert_eq!(kept.events.count(failed), 0, "there is time");
    // The fake's commands do nothing, so there is no checkpoint.
    tokio::time::sleep(3 * MINUTE).await;
    assert!(kept.events.count(failed) > 2, "it is tried again and again: {:?}", kept.events.events());
    kept.workspace.enter().await.expect("the old one is in use as long as it lives");
    assert_eq!(kept.count("POST /sandboxes/*/pause"), 0);
    tokio::time::sleep(3 * MINUTE).await;
    assert_eq!(kept.count("POST /sandboxes/*/pause"), 1, "it is paused rather than lost");
    assert!(kept.workspaces.show(&name("kept")).await.expect("it is there").paused);
    assert_eq!((kept.extensions(), kept.count("POST /v2/sandboxes")), (vec![], 1), "no other was made");

    // The next use gets another hour, and a notice.
    let pass = kept.workspace.enter().await.expect("it wakes");
    assert!(pass.was_resumed() && pass.notices().iter().any(|line| line.contains("its end was near")));
    assert_eq!(kept.extensions(), [3600], "set again after it was resumed");
}

#[tokio::test(start_paused = true)]
async fn without_a_checkpoint_the_end_pauses_instead() {
    let kept = kept(PlanConfig::default(), 2 * HOUR, jiff::SignedDuration::ZERO).await;
    kept.workspace.enter().await.expect("it runs");
    tokio::time::sleep(114 * MINUTE).await;
    assert_eq!(kept.extensions().len(), 1, "until the workspace's own end");
    assert_eq!(kept.count("POST /sandboxes/*/pause"), 0);
    tokio::time::sleep(4 * MINUTE).await;
    assert_eq!(kept.count("POST /sandboxes/*/pause"), 1);
    assert_eq!(kept.count("DELETE /sandboxes/*"), 0);
}
