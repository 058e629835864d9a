//! Kills the process at every fault point of creation, handover, pause, resume and destruction. The
//! next process finds every file, and no sandbox is left over.
//!
//! The test runs itself as a child process, which does one operation and stops at one point; there
//! it gets SIGKILL.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use sandbar_workspace::faults::{self, WorkspacePoint};
use sandbar_workspace::{MoveOptions, OpenError, Unsaved, WorkspaceName, Workspaces};
use testing::{eventually_async, kill_at, wait_to_be_killed};

use crate::support::{Fixture, Recorder, World, assert_same, name, settings, setup, tree};

const TIMEOUT: Duration = Duration::from_secs(90);
/// The operation of the child process, in environment variables.
const WORK: [&str; 4] = ["STEP_POINT", "STEP_WORK", "STEP_PLACE", "STEP_NAME"];

/// The operations by which the child reaches a point.
fn ways(point: WorkspacePoint) -> &'static [&'static str] {
    use WorkspacePoint::*;
    match point {
        HandoverGateClosed | HandoverSaved | HandoverRecorded | HandoverMade | HandoverNoted | HandoverRestored
        | HandoverServed | HandoverSwapped | HandoverTornDown => &["rotate", "move"],
        HandoverOldEndedFirst => &["rotate-alone"],
        HandoverSettled => &["settle"],
        PauseGateClosed | PauseSaved | PausePaused | PauseNoted => &["pause"],
        ResumeConnected | ResumeNoted => &["resume"],
        CreateRecorded | CreateMade | CreateNoted | CreateSetUp => &["create"],
        DestroySaved | DestroyEnded => &["destroy"],
        other => panic!("no test reaches {other:?}"),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime")
}

/// Runs as the parent, or as the child.
fn run_as_either(test: &str, works: &[&str]) {
    match WORK.map(|name| std::env::var(name).ok()) {
        [Some(point), Some(work), Some(place), Some(of)] => runtime().block_on(be_killed(&point, &work, &place, &of)),
        _ => runtime().block_on(kill_everywhere(test, works)),
    }
}

#[test]
fn a_kill_during_a_rotation_loses_nothing() {
    run_as_either("killed::a_kill_during_a_rotation_loses_nothing", &["rotate", "rotate-alone", "settle"]);
}

#[test]
fn a_kill_during_a_move_loses_nothing() {
    run_as_either("killed::a_kill_during_a_move_loses_nothing", &["move"]);
}

#[test]
fn a_kill_during_the_rest_of_a_life_loses_nothing() {
    run_as_either("killed::a_kill_during_the_rest_of_a_life_loses_nothing", &["pause", "resume", "create", "destroy"]);
}

#[test]
fn every_fault_point_is_reached_by_a_test() {
    let met = ["rotate", "rotate-alone", "settle", "move", "pause", "resume", "create", "destroy"];
    for point in WorkspacePoint::ALL {
        assert!(ways(*point).iter().all(|work| met.contains(work)), "{point:?}");
    }
}

/// The child: works until the point, and waits there to be killed.
async fn be_killed(point: &str, work: &str, place: &str, of: &str) {
    let place: Fixture = serde_json::from_str(place).expect("a place");
    let workspaces = workspaces(&place).await;
    let at = point.to_owned();
    let hook: faults::Hook = Arc::new(move |here| {
        let is_here = here.name() == at;
        async move {
            if is_here {
                wait_to_be_killed().await;
            }
        }
        .boxed()
    });
    let done = faults::scope(hook, async {
        if work == "create" {
            workspaces.create(&name(of), setup()).await.expect("made");
            return;
        }
        let workspace = workspaces.open(&name(of)).await.expect("it opens");
        match work {
            "rotate" | "rotate-alone" => drop(workspace.rotate().await.expect("rotated")),
            "move" => {
                let other = if workspace.provider().as_str() == "one" { "two" } else { "one" };
                drop(workspace.move_to(&other.parse().expect("a name"), MoveOptions::default()).await.expect("moved"));
            }
            "settle" | "resume" => drop(workspace.enter().await.expect("it is ready")),
            "pause" => workspace.pause().await.expect("paused"),
            "destroy" => drop(workspace.destroy(Unsaved::Keep).await.expect("destroyed")),
            other => panic!("no such work: {other}"),
        }
    });
    done.await;
}

async fn workspaces(place: &Fixture) -> Workspaces {
    place.workspaces(settings(), Arc::new(Recorder::default())).await
}

async fn kill_everywhere(test: &str, works: &[&str]) {
    for work in works {
        for point in WorkspacePoint::ALL.iter().copied().filter(|point| ways(*point).contains(work)) {
            Kill { world: World::new(), test, point, work }.run().await;
        }
    }
}

/// One kill.
struct Kill<'a> {
    world: World,
    test: &'a str,
    point: WorkspacePoint,
    work: &'a str,
}

impl Kill<'_> {
    /// Unique per kill, since kills run in parallel.
    fn name(&self) -> WorkspaceName {
        name(&format!("{}-{}", self.work, self.point.name()))
    }

    async fn run(&self) {
        let Self { world, point, work, .. } = self;
        let mut place = world.fixture();
        if *work == "rotate-alone" {
            place.plan.concurrent_sandboxes = Some(1);
            place.providers.truncate(1);
        }
        let ours = workspaces(&place).await;
        if *work == "create" {
            self.kill_at(*point, work, &place);
            let created = ours.create(&self.name(), setup()).await.expect("it goes on");
            let first = created.workspace.read_file("project/notes/first.txt").await.expect("it was set up");
            assert_eq!(first, "hello\n", "{point:?}");
            self.assert_tidy(1).await;
            created.workspace.destroy(Unsaved::Discard).await.expect("destroyed");
            return;
        }
        let workspace = ours.create(&self.name(), setup()).await.expect("made").workspace;
        workspace.write_file("project/point", point.name()).await.expect("written");
        let wanted = tree(&workspace).await;
        match *work {
            "resume" => workspace.pause().await.expect("paused"),
            "settle" => {
                workspace.close().await;
                self.kill_at(WorkspacePoint::HandoverNoted, "rotate", &place);
            }
            _ => {}
        }
        workspace.close().await;
        self.kill_at(*point, work, &place);

        // The next process.
        let ours = workspaces(&place).await;
        if *work == "destroy" {
            match ours.open(&self.name()).await {
                Ok(workspace) => drop(workspace.destroy(Unsaved::Keep).await.expect("destroyed at last")),
                Err(OpenError::NotFound(_)) => {}
                Err(error) => panic!("{point:?}: {error}"),
            }
            self.assert_tidy(0).await;
            let back = ours.create(&self.name(), setup()).await.expect("its snapshots stay").workspace;
            assert_same(&tree(&back).await, &wanted);
            back.destroy(Unsaved::Discard).await.expect("destroyed");
            return;
        }
        let workspace = ours.open(&self.name()).await.expect("the lease runs out");
        assert_same(&tree(&workspace).await, &wanted);
        self.assert_tidy(1).await;
        workspace.write_file("project/after", "the kill").await.expect("work goes on");
        workspace.rotate().await.expect("and so do rotations");
        assert_eq!(workspace.read_file("project/after").await.expect("it is there"), "the kill");
        workspace.destroy(Unsaved::Discard).await.expect("destroyed");
    }

    /// No sandbox is left over: the supervisor kills what it finds.
    async fn assert_tidy(&self, wanted: usize) {
        let of = self.name();
        let what = format!("{wanted} sandboxes are left after {:?} during {}", self.point, self.work);
        eventually_async(what, TIMEOUT, || async {
            (self.world.sandboxes(of.as_str()).await.len() == wanted).then_some(())
        })
        .await;
    }

    fn kill_at(&self, point: WorkspacePoint, work: &str, place: &Fixture) {
        let place = serde_json::to_string(place).expect("JSON");
        kill_at(point.name(), self.test, WORK.into_iter().zip([point.name(), work, &place, self.name().as_str()]));
    }
}
