//! Large workspaces: memory that does not grow with them, and how long a rotation closes the gate.

use std::time::Instant;

use checkpoint::Which;
use sandbar_workspace::provider::Resources;
use sandbar_workspace::setup::Setup;
use testing::repeats;

use crate::support::{World, name, run, setup};

/// The most that this process may grow, in KiB.
const GROWTH: u64 = 64 * 1024;

/// The peak resident size of this process, in KiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a peak");
    line.split_whitespace().nth(1).and_then(|size| size.parse().ok()).expect("a number")
}

/// Resets the peak, so that other tests do not count.
fn forget_peak() {
    std::fs::write("/proc/self/clear_refs", "5").expect("our own process");
}

const WORK: &str = "LARGE_PLACE";

#[test]
fn memory_does_not_grow_with_the_workspace() {
    // In a process of its own: tests in parallel have memory of their own.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    match std::env::var(WORK) {
        Ok(place) => runtime.block_on(save_and_restore(&place)),
        Err(_) => runtime.block_on(async {
            let (world, megabytes) = (World::new(), repeats(300, 5 * 1024));
            // A restore unpacks next to the current files.
            let resources = Resources { disk_mb: Some(24_000), ..Resources::default() };
            let setup = Setup { resources, ..setup() };
            let workspaces = world.workspaces().await;
            let workspace = workspaces.create(&name("large"), setup).await.expect("made").workspace;
            let pass = workspace.enter().await.expect("it runs");
            // Half of it is compressible.
            let fill = format!(
                "for i in $(seq {}); do head -c 10000000 /dev/urandom; head -c 10000000 /dev/zero; done | split -b 20000000 - project/part.",
                megabytes / 20
            );
            let command = sdk::Command::exec("/bin/bash", ["-c", &fill]).cwd("/home/user").no_timeout();
            let output = pass.sandbox().commands().run(command).await.expect("it runs");
            assert!(output.success(), "{}", output.stderr_text());
            drop(pass);
            workspace.close().await;
            let place = serde_json::to_string(&world.fixture()).expect("JSON");
            let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
            command.args(["--exact", "large::memory_does_not_grow_with_the_workspace", "--nocapture"]).env(WORK, place);
            let output = tokio::task::spawn_blocking(move || command.output()).await.expect("it ends").expect("it runs");
            let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
            println!("{stdout}");
        }),
    }
}

async fn save_and_restore(place: &str) {
    let place: crate::support::Fixture = serde_json::from_str(place).expect("a place");
    let workspaces =
        place.workspaces(crate::support::settings(), std::sync::Arc::new(crate::support::Recorder::default()));
    let workspace = workspaces.await.open(&name("large")).await.expect("it opens");
    workspace.exec("true").await.expect("it runs");
    forget_peak();
    let before = peak();
    let started = Instant::now();
    let saved = workspace.save_checkpoint().await.expect("saved");
    let (after_save, save_time) = (peak(), started.elapsed());
    let started = Instant::now();
    workspace.restore(Which::Newest).await.expect("restored");
    let (after_restore, restore_time) = (peak(), started.elapsed());
    println!(
        "{} bytes: {before} KiB before, {after_save} KiB after the save ({save_time:?}), {after_restore} KiB after the restore ({restore_time:?})",
        saved.bytes
    );
    assert!(after_restore - before < GROWTH, "it grew by {} KiB", after_restore - before);
    workspace.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_takes_little_more_than_save_and_restore() {
    let world = World::new();
    let (_, workspace) = world.workspace("rotated-large").await;
    let pass = workspace.enter().await.expect("it runs");
    run(
        pass.sandbox(),
        "mkdir project/data && for i in $(seq 500); do head -c 100000 /dev/urandom >project/data/$i; done",
    )
    .await;
    drop(pass);
    let started = Instant::now();
    workspace.save_checkpoint().await.expect("saved");
    let save = started.elapsed();
    let started = Instant::now();
    workspace.restore(Which::Newest).await.expect("restored");
    let restore = started.elapsed();
    let handed = workspace.rotate().await.expect("rotated");
    println!("gate closed for {:?}; a checkpoint takes {save:?}, a restore {restore:?}", handed.gate_closed);
    // The benchmark has the exact figure; this only bounds the order of magnitude.
    assert!(handed.gate_closed < (save + restore) * 4 + std::time::Duration::from_secs(20), "{:?}", handed.gate_closed);
}
