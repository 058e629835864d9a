//! Runs in a real sandbox of a real server.

use std::sync::Arc;

use sandbar_agent::StopReason;
use serde_json::json;
use testing::Server;
use tools::SandboxToolDispatcher;

use crate::support::{Rig, plan, quick, script};

#[tokio::test]
async fn script_repairs_a_program_in_a_real_sandbox() {
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
