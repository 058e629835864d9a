//! The process is killed at every point of creation, handover, pause, resume and destruction. Whatever it was doing: the
//! next process finds every file, and no sandbox is left over.
//!
//! The test runs itself as another process, which does one thing and stops at one point; there it is killed with SIGKILL.

use std::sync::Arc;
use std::time::Duration;

use sandbar_workspace::faults::{self, Point};
use sandbar_workspace::{MoveOptions, OpenError, Unsaved, WorkspaceName, Workspaces};
use testing::eventually_async;

use crate::killing::{kill_at, wait_at};
use crate::support::{Place, Recorder, World, assert_same, name, settings, setup, tree};

const PATIENCE: Duration = Duration::from_secs(90);
/// What the other process is to do, in variables of its environment.
const WORK: [&str; 4] = ["STEP_POINT", "STEP_WORK", "STEP_PLACE", "STEP_NAME"];

/// How the other process comes to a point; those of snapshots are met elsewhere.
fn ways(point: Point) -> &'static [&'static str] {
    use Point::*;
    match point {
        SaveBegun | SaveStamped | SaveArchiving | SaveHalfStored | SaveStreamed | SaveArchiveStored | SaveCommitted
        | SaveVerified | PruneListed | PruneManifestDeleted | PruneArchiveDeleted | PruneOrphanDeleted
        | RestoreBegun | RestoreChosen | RestoreUnpacking | RestoreHalfSent | RestoreUnpacked | RestoreVerified
        | RestoreSwapped => &[],
        HandoverFenced | HandoverSaved | HandoverRecorded | HandoverMade | HandoverNoted | HandoverRestored
        | HandoverServed | HandoverSwapped | HandoverTornDown => &["rotate", "move"],
        HandoverOldEndedFirst => &["rotate-alone"],
        HandoverSettled => &["settle"],
        PauseFenced | PauseSaved | PausePaused | PauseNoted => &["pause"],
        ResumeConnected | ResumeNoted => &["resume"],
        CreateRecorded | CreateMade | CreateNoted | CreateSetUp => &["create"],
        DestroySaved | DestroyEnded => &["destroy"],
        other => panic!("no test comes to {other:?}"),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime")
}

/// This process, or the other one.
fn in_turn(test: &str, works: &[&str]) {
    match WORK.map(|name| std::env::var(name).ok()) {
        [Some(point), Some(work), Some(place), Some(of)] => runtime().block_on(be_killed(&point, &work, &place, &of)),
        _ => runtime().block_on(kill_everywhere(test, works)),
    }
}

#[test]
fn nothing_is_lost_by_a_kill_during_a_rotation() {
    in_turn("killed::nothing_is_lost_by_a_kill_during_a_rotation", &["rotate", "rotate-alone", "settle"]);
}

#[test]
fn nothing_is_lost_by_a_kill_during_a_move() {
    in_turn("killed::nothing_is_lost_by_a_kill_during_a_move", &["move"]);
}

#[test]
fn nothing_is_lost_by_a_kill_during_the_rest_of_a_life() {
    in_turn("killed::nothing_is_lost_by_a_kill_during_the_rest_of_a_life", &["pause", "resume", "create", "destroy"]);
}

#[test]
fn every_point_is_met_by_one_of_these() {
    let met = ["rotate", "rotate-alone", "settle", "move", "pause", "resume", "create", "destroy"];
    for point in Point::ALL {
        assert!(ways(*point).iter().all(|work| met.contains(work)), "{point:?}");
    }
}

/// The other process: works until the point, and waits there to be killed.
async fn be_killed(point: &str, work: &str, place: &str, of: &str) {
    let place: Place = serde_json::from_str(place).expect("a place");
    let workspaces = workspaces(&place).await;
    let done = faults::scope(wait_at(point), async {
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

async fn workspaces(place: &Place) -> Workspaces {
    place.workspaces(settings(), Arc::new(Recorder::default())).await
}

async fn kill_everywhere(test: &str, works: &[&str]) {
    for work in works {
        for point in Point::ALL.iter().copied().filter(|point| ways(*point).contains(work)) {
            Kill { world: World::new(), test, point, work }.run().await;
        }
    }
}

/// One death.
struct Kill<'a> {
    world: World,
    test: &'a str,
    point: Point,
    work: &'a str,
}

impl Kill<'_> {
    /// Of this death alone, since others die at the same time.
    fn name(&self) -> WorkspaceName {
        name(&format!("{}-{}", self.work, self.point.name()))
    }

    async fn run(&self) {
        let Self { world, point, work, .. } = self;
        let mut place = world.place();
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
                self.kill_at(Point::HandoverNoted, "rotate", &place);
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

    /// No sandbox is left over: the keeper ends what it finds.
    async fn assert_tidy(&self, wanted: usize) {
        let of = self.name();
        let what = format!("{wanted} sandboxes are left after {:?} during {}", self.point, self.work);
        eventually_async(what, PATIENCE, || async {
            (self.world.sandboxes(of.as_str()).await.len() == wanted).then_some(())
        })
        .await;
    }

    fn kill_at(&self, point: Point, work: &str, place: &Place) {
        let place = serde_json::to_string(place).expect("JSON");
        kill_at(point, self.test, WORK.into_iter().zip([point.name(), work, &place, self.name().as_str()]));
    }
}
