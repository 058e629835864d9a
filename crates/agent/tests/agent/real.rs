//! Runs in a real sandbox of a real server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbar_agent::{Event, Run, RunId, StopReason};
use serde_json::json;
use testing::Server;
use tools::SandboxToolDispatcher;

use crate::support::{Puppet, Rig, bash, call, done, plan, quick, results, says, script};

#[tokio::test]
async fn a_script_writes_tests_and_repairs_a_program() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let rig = Rig { tools: Arc::new(SandboxToolDispatcher::new(sandbox.clone())), ..Rig::new() };
    let call = |name: &str, input: serde_json::Value| json!({ "name": name, "input": input });
    let model = script(&json!([
        { "tool_calls": [call("write_file", json!({ "path": "add.sh", "content": "echo $(( $1 - $2 ))\n" }))] },
        { "tool_calls": [call("bash", json!({ "command": "test \"$(bash add.sh 2 3)\" = 5" })), call("read_file", json!({ "path": "add.sh" }))] },
        { "expect": ["[exit 1]", "$1 - $2"], "tool_calls": [call("edit_file", json!({ "path": "add.sh", "old_string": "-", "new_string": "+" }))] },
        { "tool_calls": [call("bash", json!({ "command": "bash add.sh 2 3" }))] },
        { "expect": "5\n[exit 0]", "text": "It adds." },
    ]));
    let (report, _) = rig.run(model, plan(quick())).await;
    assert_eq!((report.stop_reason, report.text.as_str()), (StopReason::Completed, "It adds."), "{}", report.message);
    sandbox.kill().await.expect("it ends");
}

#[tokio::test]
async fn cancelling_leaves_no_process_behind() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let rig = Rig { tools: Arc::new(SandboxToolDispatcher::new(sandbox.clone())), ..Rig::new() };
    let model = Puppet::new(|turn, _| match turn {
        0 => says(vec![
            bash("a", "echo begun; (sleep 4711 & sleep 4712); echo never"),
            call("b", "glob", json!({ "pattern": "*" })),
        ]),
        _ => done(),
    });
    let mut watcher = rig.feed.watch();
    let run = Run::begin(rig.parts(Arc::new(model)), RunId::new(), plan(quick())).await.expect("begun");
    let driven = tokio::spawn(run.drive());
    // Once a second it is told how the command is going: then it surely runs.
    let running = async {
        while let Some(next) = watcher.next().await {
            if matches!(next.event, Event::ToolOutputDelta { .. }) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), running).await.expect("the command runs");
    let begun = Instant::now();
    rig.cancel.cancel();
    let report = driven.await.expect("no panic").expect("an end");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(report.stop_reason, StopReason::Cancelled);
    assert_eq!(results(&report.conversation)[1], "Not executed: cancelled.");
    let left = rig.tools.dispatch("bash", json!({ "command": "pgrep -fc '[s]leep 471'" })).await;
    assert!(left.text().starts_with("0\n"), "{}", left.text());
    sandbox.kill().await.expect("it ends");
}
