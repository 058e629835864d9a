//! Which sandboxes a sweep treats as orphans, and when it kills them: with real servers under
//! several names, and a clock that the test moves.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use sandbar_workspace::clock::{Clock, ManualClock};
use sandbar_workspace::records::{
    Creation, DatabaseRecords, OrphanRecords as _, Payer, UsageRecords as _, WorkspaceRecords as _,
};
use sandbar_workspace::{OwnServer, Settings, Swept, Unsaved, Workspaces};
use sdk::model::SandboxState;
use sdk::{Connect, Create, SandboxId};
use sea_orm::ConnectionTrait as _;
use testing::Server;
use uuid::Uuid;

use crate::support::{Fixture, METADATA, OnlyServer, Recorder, WORKSPACE_ID, World, name, settings, setup};

const HOUR: Duration = Duration::from_secs(3600);

/// A process on a world's records, with its own providers and a clock that the test moves.
struct Process {
    workspaces: Workspaces,
    clock: Arc<ManualClock>,
}

impl Process {
    async fn start(world: &World, providers: &[(&str, &Server)]) -> Self {
        let clock = Arc::new(ManualClock::default());
        let named = |(name, server): &(&str, &Server)| ((*name).to_owned(), server.url(), server.key().to_owned());
        let place = Fixture { providers: providers.iter().map(named).collect(), ..world.fixture() };
        let settings = Settings { clock: Clock::Manual(Arc::clone(&clock)), ..settings() };
        Self { workspaces: place.workspaces(settings, Arc::new(Recorder::default())).await, clock }
    }

    async fn make(&self, of: &str) -> SandboxId {
        let made = self.workspaces.create(&name(of), setup()).await.expect("a workspace");
        made.workspace.close().await;
        made.sandbox.expect("it has one")
    }

    async fn sweep(&self) -> Swept {
        self.workspaces.sweep(&OnlyServer).await.expect("the records can be read")
    }

    /// Sweeps for several days.
    async fn sweep_for_days(&self) -> Swept {
        let mut all = Swept::default();
        for _ in 0..3 {
            self.clock.advance(30 * HOUR);
            let Swept { found, ended } = self.sweep().await;
            all.found.extend(found);
            all.ended.extend(ended);
        }
        all
    }
}

async fn state(server: &Server, id: &SandboxId) -> Option<SandboxState> {
    server.client().info(id).await.ok().map(|detail| detail.listed.state)
}

fn url(world: &World) -> String {
    format!("sqlite://{}/records.sqlite", world.directory.path().display())
}

/// The records of a world.
async fn records(world: &World) -> DatabaseRecords {
    DatabaseRecords::open(&url(world).into()).await.expect("the records open")
}

/// Changes the records as another version of the program would.
async fn change_records(world: &World, sql: &str) {
    let database = database::connect(&url(world)).await.expect("the records open");
    database.execute_unprepared(sql).await.expect("changed");
}

/// Creates a sandbox whose creating process died.
async fn abandon(world: &World, of: &str) -> SandboxId {
    abandon_of(world, of, None).await
}

/// The same, of a workspace with this id.
async fn abandon_of(world: &World, of: &str, workspace_id: Option<&str>) -> SandboxId {
    let creation = Creation {
        id: Uuid::new_v4(),
        at: jiff::Timestamp::now() - SignedDuration::from_hours(1),
        provider: "one".parse().expect("a name"),
        payer: Payer { project: of.to_owned(), job: None },
        sandbox: None,
    };
    records(world).await.begin_creation(&creation).await.expect("noted");
    let key = creation.id.simple().to_string();
    let create = Create::template("base").metadata(METADATA, of).metadata("sandbar.creation", &key);
    let create = workspace_id.into_iter().fold(create, |create, id| create.metadata(WORKSPACE_ID, id));
    let made = world.one.client().create(create.timeout(HOUR)).await.expect("a sandbox");
    made.id().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn renamed_servers_do_not_make_orphans() {
    let world = World::new();
    let plain = Process::start(&world, &[("one", &world.one)]).await;
    let mut all = vec![(Arc::clone(&world.one), plain.make("plain").await)];
    // The variables that a server prints configure it as a second provider.
    let twice = Process::start(&world, &[("e2b", &world.one), ("one", &world.one)]).await;
    all.push((Arc::clone(&world.one), twice.make("twice").await));
    let renamed = Process::start(&world, &[("renamed", &world.one)]).await;
    all.push((Arc::clone(&world.one), renamed.make("renamed").await));
    // Another data directory, the same records and the same name.
    let other = Process::start(&world, &[("one", &world.two)]).await;
    all.push((Arc::clone(&world.two), other.make("other").await));

    for process in [&plain, &twice, &renamed, &other] {
        let swept = process.sweep_for_days().await;
        assert_eq!(swept, Swept::default());
    }
    for (server, id) in &all {
        assert_eq!(state(server, id).await, Some(SandboxState::Running), "{id}");
    }
    // A handover does not kill sandboxes of the same server under its other name.
    let workspace = twice.workspaces.open(&name("twice")).await.expect("it opens");
    workspace.rotate().await.expect("rotated");
    let own = workspace.sandbox_id().expect("it has one");
    assert_eq!(state(&world.one, &own).await, Some(SandboxState::Running));
    workspace.destroy(Unsaved::Discard).await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphan_is_paused_and_killed_a_day_later() {
    let world = World::new();
    let process = Process::start(&world, &[("one", &world.one)]).await;
    let orphan = abandon(&world, "abandoned").await;
    let swept = process.sweep().await;
    assert_eq!(swept.found.iter().map(|found| found.sandbox.as_str()).collect::<Vec<_>>(), [orphan.as_str()]);
    assert_eq!(state(&world.one, &orphan).await, Some(SandboxState::Paused));
    let reported = process.workspaces.recorded_orphans().await.expect("read");
    assert_eq!((reported.len(), reported[0].workspace.as_str()), (1, "abandoned"));

    // A set clock does not shorten the day, and prolongs it at most by the jump back.
    process.clock.jump(SignedDuration::from_hours(48));
    assert_eq!(process.sweep().await, Swept::default());
    process.clock.jump(SignedDuration::from_hours(-48));
    process.clock.advance(23 * HOUR);
    assert_eq!(process.sweep().await, Swept::default());
    // A restart does not either.
    let next = Process::start(&world, &[("one", &world.one)]).await;
    next.clock.jump(SignedDuration::from_hours(23));
    assert_eq!(next.sweep().await, Swept::default());
    next.clock.advance(2 * HOUR);
    let swept = next.sweep().await;
    assert_eq!((swept.found.len(), swept.ended.len()), (0, 1));
    assert_eq!(state(&world.one, &orphan).await, None);
    assert!(records(&world).await.orphans().await.expect("read").is_empty());
}

/// A server with this id, which has all sandboxes or none.
struct NamedServer {
    id: String,
    owns: bool,
}

impl OwnServer for NamedServer {
    fn is(&self, server_id: &str) -> bool {
        server_id == self.id
    }

    fn has(&self, _sandbox: &SandboxId) -> bool {
        self.owns
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_skips_other_servers() {
    let world = World::new();
    let process = Process::start(&world, &[("one", &world.one)]).await;
    let orphan = abandon(&world, "abandoned").await;
    let found = world.one.client().capabilities().await.expect("an answer").expect("a Sandbar server");
    let id = found.server_id.expect("it has an id");
    let sweep = async |of: &str, owns: bool| {
        let server = NamedServer { id: of.to_owned(), owns };
        process.workspaces.sweep(&server).await.expect("the records can be read")
    };
    assert_eq!(sweep("another server", true).await, Swept::default());
    assert_eq!(sweep(&id, false).await, Swept::default(), "by whatever name it knows itself");
    assert_eq!(state(&world.one, &orphan).await, Some(SandboxState::Running));
    assert_eq!(sweep(&id, true).await.found.len(), 1);
    assert_eq!(state(&world.one, &orphan).await, Some(SandboxState::Paused));
    // Another server keeps the record for the one that has the sandbox.
    let other = Process::start(&world, &[("one", &world.one)]).await;
    let server = NamedServer { id: "none".to_owned(), owns: false };
    assert_eq!(other.workspaces.sweep(&server).await.expect("read"), Swept::default());
    assert_eq!(records(&world).await.orphans().await.expect("read").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leftover_of_a_workspace_is_not_an_orphan() {
    let world = World::new();
    let process = Process::start(&world, &[("one", &world.one)]).await;
    // Left by an earlier workspace of the name, so it may alone have that one's files.
    let earlier = abandon(&world, "needed").await;
    let own = process.make("needed").await;
    // Created for the workspace, and not yet recorded: it may be the successor of its sandbox.
    let creation = Creation {
        id: Uuid::new_v4(),
        at: jiff::Timestamp::now(),
        provider: "one".parse().expect("a name"),
        payer: Payer { project: "needed".to_owned(), job: None },
        sandbox: None,
    };
    records(&world).await.begin_creation(&creation).await.expect("noted");
    let create = Create::template("base").metadata(METADATA, "needed").timeout(HOUR);
    let create = create.metadata("sandbar.creation", creation.id.to_string());
    let leftover = world.one.client().create(create).await.expect("a sandbox").id().clone();
    assert_eq!(process.sweep_for_days().await, Swept::default());
    for id in [&own, &leftover, &earlier] {
        assert_eq!(state(&world.one, id).await, Some(SandboxState::Running), "{id}");
    }
    // Nor is it one when the workspace is in a newer sandbox. The process with the lease kills it
    // once no create of the handover can be under way.
    let workspace = process.workspaces.open(&name("needed")).await.expect("it opens");
    workspace.rotate().await.expect("rotated");
    workspace.close().await;
    assert_eq!(process.sweep().await, Swept::default());
    assert_eq!(state(&world.one, &leftover).await, Some(SandboxState::Running));
    process.clock.advance(HOUR / 6);
    process.workspaces.maintain(&name("needed")).await.expect("it is maintained");
    assert_eq!(state(&world.one, &leftover).await, None);
    assert_eq!(process.sweep_for_days().await, Swept::default());
    assert_eq!(state(&world.one, &earlier).await, Some(SandboxState::Running));
    let own = process.workspaces.show(&name("needed")).await.expect("it is there").sandbox.expect("it has one");
    assert!(state(&world.one, &own.parse().expect("an id")).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_sandbox_of_an_earlier_workspace_is_an_orphan() {
    let world = World::new();
    let process = Process::start(&world, &[("one", &world.one)]).await;
    let id_of = async |sandbox: &SandboxId| {
        let made = world.one.client().info(sandbox).await.expect("it is there");
        made.listed.metadata.get(WORKSPACE_ID).cloned().expect("it carries an id")
    };
    let earlier_id = id_of(&process.make("again").await).await;
    let earlier = process.workspaces.open(&name("again")).await.expect("it opens");
    earlier.destroy(Unsaved::Discard).await.expect("destroyed");
    let own = process.make("again").await;
    let own_id = id_of(&own).await;
    assert_ne!(own_id, earlier_id);
    // Its create was requested for the earlier workspace, and answered after that was destroyed.
    let late = abandon_of(&world, "again", Some(&earlier_id)).await;
    let leftover = abandon_of(&world, "again", Some(&own_id)).await;
    let unknown = abandon(&world, "again").await;

    let swept = process.sweep().await;
    assert_eq!(swept.found.iter().map(|found| found.sandbox.as_str()).collect::<Vec<_>>(), [late.as_str()]);
    assert_eq!(state(&world.one, &late).await, Some(SandboxState::Paused));
    process.clock.advance(23 * HOUR);
    assert_eq!(process.sweep().await, Swept::default());
    process.clock.advance(2 * HOUR);
    let swept = process.sweep().await;
    assert_eq!(swept.ended.iter().map(|ended| ended.sandbox.as_str()).collect::<Vec<_>>(), [late.as_str()]);
    assert_eq!(process.sweep_for_days().await, Swept::default());
    for id in [&own, &leftover, &unknown] {
        assert_eq!(state(&world.one, id).await, Some(SandboxState::Running), "{id}");
    }

    // A record of an older program has no id: any sandbox of the name may be its own.
    let late = abandon_of(&world, "again", Some(&earlier_id)).await;
    change_records(&world, "UPDATE workspace SET details = json_remove(details, '$.id') WHERE name = 'again'").await;
    assert_eq!(process.sweep_for_days().await, Swept::default());
    assert_eq!(state(&world.one, &late).await, Some(SandboxState::Running));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_swept_while_a_row_cannot_be_read() {
    let world = World::new();
    let process = Process::start(&world, &[("one", &world.one)]).await;
    let own = process.make("newer").await;
    let orphan = abandon(&world, "abandoned").await;
    change_records(&world, "UPDATE workspace SET state = 'hibernating' WHERE name = 'newer'").await;
    process.clock.advance(HOUR);
    assert_eq!(process.sweep_for_days().await, Swept::default());
    assert_eq!(state(&world.one, &own).await, Some(SandboxState::Running));
    assert_eq!(state(&world.one, &orphan).await, Some(SandboxState::Running));

    change_records(&world, "UPDATE workspace SET state = 'ready' WHERE name = 'newer'").await;
    let swept = process.sweep().await;
    assert_eq!(swept.found.iter().map(|found| found.sandbox.as_str()).collect::<Vec<_>>(), [orphan.as_str()]);
    // A known orphan is not killed either.
    change_records(&world, "UPDATE workspace SET state = 'hibernating' WHERE name = 'newer'").await;
    assert_eq!(process.sweep_for_days().await, Swept::default());
    assert_eq!(state(&world.one, &orphan).await, Some(SandboxState::Paused));
    assert_eq!(records(&world).await.orphans().await.expect("read").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_orphan_is_paused_again_for_another_day() {
    let world = World::new();
    let process = Process::start(&world, &[("one", &world.one)]).await;
    let orphan = abandon(&world, "resumed").await;
    assert_eq!(process.sweep().await.found.len(), 1);
    process.clock.advance(30 * HOUR);
    world.one.client().connect(&orphan, Connect::timeout(HOUR)).await.expect("it resumes");
    // Another process, which did not pause it.
    let next = Process::start(&world, &[("one", &world.one)]).await;
    next.clock.advance(30 * HOUR);
    for process in [&next, &process] {
        assert_eq!(process.sweep().await, Swept::default());
        assert_eq!(state(&world.one, &orphan).await, Some(SandboxState::Paused));
        world.one.client().connect(&orphan, Connect::timeout(HOUR)).await.expect("it resumes");
    }
    assert_eq!(next.sweep().await, Swept::default());
    next.clock.advance(23 * HOUR);
    assert_eq!(next.sweep().await, Swept::default());
    next.clock.advance(2 * HOUR);
    assert_eq!(next.sweep().await.ended.len(), 1);
    assert_eq!(state(&world.one, &orphan).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attached_sandbox_counts_as_unsaved() {
    let world = World::new();
    let process = Process::start(&world, &[("one", &world.one)]).await;
    let own = process.make("empty").await;
    let attached = abandon(&world, "empty").await;
    let sql = "UPDATE workspace SET state = 'stopped', sandbox = NULL, \
               details = json_set(details, '$.unsaved', json('false')) WHERE name = 'empty'";
    change_records(&world, sql).await;
    let workspace = process.workspaces.open(&name("empty")).await.expect("it opens");
    workspace.attach(&attached).await.expect("attached");
    // Also stores the in-memory state.
    workspace.close().await;
    let record = records(&world).await.workspace(&name("empty")).await.expect("read").expect("it is there");
    assert_eq!(record.sandbox.as_ref(), Some(&attached));
    assert_eq!((&record.details["unsaved"], &record.details["mark"]), (&true.into(), &serde_json::Value::Null));
    world.one.client().kill(&own).await.expect("ended");
}
