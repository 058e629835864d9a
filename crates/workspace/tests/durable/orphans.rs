//! What a sweep takes for an orphan, and when it ends one: by real servers, under several names,
//! with a clock of the test's.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use sandbar_workspace::clock::{Clock, ManualClock};
use sandbar_workspace::records::{Creation, DatabaseRecords, OrphanRecords as _, Payer, UsageRecords as _};
use sandbar_workspace::{Settings, Swept, Unsaved, Workspaces};
use sdk::model::SandboxState;
use sdk::{Create, SandboxId};
use testing::Server;
use uuid::Uuid;

use crate::support::{METADATA, Place, Recorder, World, name, settings, setup};

const HOUR: Duration = Duration::from_secs(3600);

/// A process on a world's records, with providers of its own choice and a clock that the test
/// moves.
struct Process {
    workspaces: Workspaces,
    clock: Arc<ManualClock>,
}

impl Process {
    async fn start(world: &World, providers: &[(&str, &Server)]) -> Self {
        let clock = Arc::new(ManualClock::default());
        let named = |(name, server): &(&str, &Server)| ((*name).to_owned(), server.url(), server.key().to_owned());
        let place = Place { providers: providers.iter().map(named).collect(), ..world.place() };
        let settings = Settings { clock: Clock::Manual(Arc::clone(&clock)), ..settings() };
        Self { workspaces: place.workspaces(settings, Arc::new(Recorder::default())).await, clock }
    }

    async fn make(&self, of: &str) -> SandboxId {
        let made = self.workspaces.create(&name(of), setup()).await.expect("a workspace");
        made.workspace.close().await;
        made.sandbox.expect("it has one")
    }

    async fn sweep(&self) -> Swept {
        self.workspaces.sweep(&|_| true).await.expect("the records can be read")
    }

    /// Sweeps for days.
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

/// The records of a world.
async fn records(world: &World) -> DatabaseRecords {
    let url = format!("sqlite://{}/records.sqlite", world.directory.path().display());
    DatabaseRecords::open(&url.into()).await.expect("the records open")
}

/// A sandbox of a creation that its process did not wait for.
async fn abandon(world: &World, of: &str) -> SandboxId {
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
    let made = world.one.client().create(create.timeout(HOUR)).await.expect("a sandbox");
    made.id().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_workspace_is_ended_by_names_of_its_server() {
    let world = World::new();
    let plain = Process::start(&world, &[("one", &world.one)]).await;
    let mut all = vec![(Arc::clone(&world.one), plain.make("plain").await)];
    // The variables that a server prints make it a second provider.
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
    // A handover does not end what the same server has under its other name.
    let workspace = twice.workspaces.open(&name("twice")).await.expect("it opens");
    workspace.rotate().await.expect("rotated");
    let own = workspace.sandbox_id().expect("it has one");
    assert_eq!(state(&world.one, &own).await, Some(SandboxState::Running));
    workspace.destroy(Unsaved::Discard).await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphan_is_paused_and_reported_and_ended_a_day_later() {
    let world = World::new();
    let process = Process::start(&world, &[("one", &world.one)]).await;
    let orphan = abandon(&world, "abandoned").await;
    let swept = process.sweep().await;
    assert_eq!(swept.found.iter().map(|found| found.sandbox.as_str()).collect::<Vec<_>>(), [orphan.as_str()]);
    assert_eq!(state(&world.one, &orphan).await, Some(SandboxState::Paused));
    let reported = process.workspaces.recorded_orphans().await.expect("read");
    assert_eq!((reported.len(), reported[0].workspace.as_str()), (1, "abandoned"));

    // A clock that is set makes the day no shorter, nor longer than the jump back takes.
    process.clock.jump(SignedDuration::from_hours(48));
    assert_eq!(process.sweep().await, Swept::default());
    process.clock.jump(SignedDuration::from_hours(-48));
    process.clock.advance(23 * HOUR);
    assert_eq!(process.sweep().await, Swept::default());
    // Neither does a restart.
    let next = Process::start(&world, &[("one", &world.one)]).await;
    next.clock.jump(SignedDuration::from_hours(23));
    assert_eq!(next.sweep().await, Swept::default());
    next.clock.advance(2 * HOUR);
    let swept = next.sweep().await;
    assert_eq!((swept.found.len(), swept.ended.len()), (0, 1));
    assert_eq!(state(&world.one, &orphan).await, None);
    assert!(records(&world).await.orphans().await.expect("read").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphan_that_is_another_servers_or_may_be_needed_is_kept() {
    let world = World::new();
    let process = Process::start(&world, &[("one", &world.one)]).await;
    // The workspace's own sandbox is older: this one may be its successor, which was made and not
    // noted.
    let own = process.make("needed").await;
    let creations = |at| Creation {
        id: Uuid::new_v4(),
        at,
        provider: "one".parse().expect("a name"),
        payer: Payer { project: "needed".to_owned(), job: None },
        sandbox: None,
    };
    let creation = creations(jiff::Timestamp::now());
    records(&world).await.begin_creation(&creation).await.expect("noted");
    let create = Create::template("base").metadata(METADATA, "needed").timeout(HOUR);
    let create = create.metadata("sandbar.creation", creation.id.to_string());
    let successor = world.one.client().create(create).await.expect("a sandbox").id().clone();
    assert_eq!(process.sweep_for_days().await, Swept::default());
    assert_eq!(state(&world.one, &successor).await, Some(SandboxState::Running));
    assert_eq!(state(&world.one, &own).await, Some(SandboxState::Running));
    // Once the workspace is in a newer one, it is none.
    let workspace = process.workspaces.open(&name("needed")).await.expect("it opens");
    workspace.rotate().await.expect("rotated");
    workspace.close().await;
    let swept = process.sweep_for_days().await;
    assert_eq!((swept.found.len(), swept.ended.len()), (1, 1), "{swept:?}");
    assert_eq!(state(&world.one, &successor).await, None);
    let own = process.workspaces.show(&name("needed")).await.expect("it is there").sandbox.expect("it has one");
    assert!(state(&world.one, &own.parse().expect("an id")).await.is_some());
}
