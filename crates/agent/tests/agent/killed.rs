//! kill -9 of a real process that drives a run of twelve turns, with records in SQLite and tools in
//! a real sandbox. The next process ends with the same files; nothing is lost or done twice.
//!
//! The test runs itself as a child process, which kills itself before or after one of its writes.
//! Points between two writes need no test: events of one write are stored together or not at all.
//! `crash.rs` tries each boundary in memory; this test tries a few, and all with `SANDBAR_SOAK`.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use futures::FutureExt as _;
use sandbar_agent::records::DatabaseRunRecords;
use sandbar_agent::{Run, RunError, RunId, RunRecords, StopReason};
use sdk::{Connect, SandboxId};
use serde_json::json;
use testing::Server;
use tools::{SandboxToolDispatcher, ToolDispatcher};

use crate::crash::{TURNS, check_record, counting};
use crate::gated_records::{Gated, Side};
use crate::support::{Rig, plan, quick};

const TEST: &str = "killed::another_process_finishes_a_killed_run";
/// Parameters of the child process, as environment variables.
const WORK: [&str; 5] = ["KILL_ADDRESS", "KILL_KEY", "KILL_SANDBOX", "KILL_DIRECTORY", "KILL_AT"];
/// Writes of the whole run: its start, two per turn (one before the model, one before a command;
/// reads before it form their own group), the last response, and its end.
const WRITES: u64 = 3 * TURNS as u64 + 3;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime")
}

async fn records(directory: &Path) -> Arc<dyn RunRecords> {
    let url = format!("sqlite://{}/runs.sqlite", directory.display());
    Arc::new(DatabaseRunRecords::open(&url.into()).await.expect("the records open"))
}

#[test]
fn another_process_finishes_a_killed_run() {
    match WORK.map(|name| std::env::var(name).ok()) {
        [Some(address), Some(key), Some(sandbox), Some(directory), Some(at)] => {
            runtime().block_on(be_killed(&address, &key, &sandbox, Path::new(&directory), &at));
        }
        _ => runtime().block_on(kill_everywhere()),
    }
}

/// The child process.
async fn be_killed(address: &str, key: &str, sandbox: &str, directory: &Path, at: &str) {
    let client = testing::client(address, key).build().expect("valid options");
    let id: SandboxId = sandbox.parse().expect("an id");
    let sandbox =
        client.connect(&id, Connect::timeout(std::time::Duration::from_secs(600))).await.expect("it is there");
    let (side, at) = at.split_once(' ').expect("a side and a number");
    let side = if side == "Before" { Side::Before } else { Side::After };
    let at: u64 = at.parse().expect("a number");
    let gate = move |reached: Side, write: u64| {
        if reached == side && write == at {
            testing::signal(std::process::id(), "KILL");
        }
        std::future::ready(()).boxed()
    };
    let records = Gated::new(records(directory).await, gate);
    let rig = Rig { records, tools: Arc::new(SandboxToolDispatcher::new(sandbox)), ..Rig::new() };
    let run = Run::begin(rig.parts(counting()), name(), plan(quick())).await.expect("begun");
    run.drive().await.expect("an end");
}

/// The id of the run, known to every process.
fn name() -> RunId {
    "run_killed".parse().expect("a name")
}

async fn kill_everywhere() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let all: Vec<(Side, u64)> = (0..WRITES).flat_map(|at| [(Side::Before, at), (Side::After, at)]).collect();
    // The start, both sides of all writes of one turn, and the end.
    let middle = 3 * (TURNS as u64 / 2);
    let few = all.iter().copied().filter(|(_, at)| (middle..middle + 3).contains(at));
    let few: Vec<(Side, u64)> = [(Side::After, 0)].into_iter().chain(few).chain([(Side::Before, WRITES - 1)]).collect();
    let soak = testing::repeats(0, 1) == 1;
    for (side, at) in if soak { all } else { few } {
        let directory = tempfile::tempdir().expect("a directory");
        let tools: Arc<dyn ToolDispatcher> = Arc::new(SandboxToolDispatcher::new(sandbox.clone()));
        tools.dispatch("bash", json!({ "command": "rm -f count" })).await;
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", TEST, "--nocapture"]);
        let place = directory.path().to_str().expect("text");
        let at_text = format!("{side:?} {at}");
        command.envs(WORK.into_iter().zip([server.address(), server.key(), sandbox.id().as_str(), place, &at_text]));
        let ended = tokio::task::spawn_blocking(move || command.output().expect("it runs")).await.expect("no panic");
        let signal = std::os::unix::process::ExitStatusExt::signal(&ended.status);
        assert_eq!(signal, Some(9), "{at_text}: {}", String::from_utf8_lossy(&ended.stdout));

        let rig = Rig { records: records(directory.path()).await, tools: Arc::clone(&tools), ..Rig::new() };
        match Run::resume(rig.parts(counting()), name()).await {
            Ok(run) => {
                let report = run.drive().await.expect("an end");
                assert_eq!(report.stop_reason, StopReason::Completed, "{at_text}: {}", report.message);
                check_record(&rig, &name()).await;
            }
            Err(error) => assert!(matches!(error, RunError::Completed(_)), "{at_text}: {error}"),
        }
        let expected: String = (1..=TURNS).map(|number| format!("{number}\n")).collect();
        let count = tools.dispatch("bash", json!({ "command": "cat count" })).await;
        assert_eq!(count.text(), format!("{expected}[exit 0]"), "{at_text}");
    }
    sandbox.kill().await.expect("it ends");
}
