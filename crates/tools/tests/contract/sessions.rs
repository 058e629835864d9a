//! Sessions live in the sandbox: dispatchers of separate programs share one, and different sessions
//! are isolated.

use sandbar_tools::{ErrorCode, SandboxToolDispatcher, ToolDispatcher};
use sdk::Command;
use serde_json::json;
use testing::{SOON, eventually_async};

use crate::fixture::Fixture;

crate::contract!(in [server, plain]: [
    another_program_continues_a_session,
    sessions_are_isolated,
    concurrent_programs_lose_no_edit,
    paused_sandbox_is_resumed,
    losses_of_a_pause_are_reported_once,
]);

async fn text(tools: &SandboxToolDispatcher, tool: &str, input: serde_json::Value) -> String {
    let result = tools.dispatch(tool, input).await;
    assert!(!result.is_error, "{result:?}");
    result.text()
}

async fn another_program_continues_a_session(fixture: &Fixture) {
    let one = SandboxToolDispatcher::new(fixture.sandbox().clone()).session("job 7");
    let two = SandboxToolDispatcher::new(fixture.sandbox().clone()).session("job 7");
    fixture.put("/home/user/a.txt", "one\n").await;
    text(&one, "bash", json!({ "command": "cd /tmp; export A=1" })).await;
    text(&one, "read_file", json!({ "path": "/home/user/a.txt" })).await;
    assert_eq!(text(&two, "bash", json!({ "command": "pwd; echo $A" })).await, "/tmp\n1\n[exit 0]");
    text(&two, "write_file", json!({ "path": "/home/user/a.txt", "content": "two\n" })).await;
    let started = text(&one, "bash", json!({ "command": "sleep 2; exit 3", "run_in_background": true })).await;
    assert!(started.starts_with("Started background task b1"), "{started}");
    eventually_async("the other program is told of the end", SOON, async || {
        text(&two, "bash", json!({ "command": "true" })).await.contains("Background task b1 has ended with exit code 3")
    })
    .await;
}

async fn sessions_are_isolated(fixture: &Fixture) {
    let one = SandboxToolDispatcher::new(fixture.sandbox().clone()).session("one");
    let two = SandboxToolDispatcher::new(fixture.sandbox().clone()).session("two");
    fixture.put("/home/user/a.txt", "one\n").await;
    text(&one, "bash", json!({ "command": "cd /tmp; export A=1" })).await;
    text(&one, "read_file", json!({ "path": "/home/user/a.txt" })).await;
    assert_eq!(text(&two, "bash", json!({ "command": "pwd; echo \"<$A>\"" })).await, "/home/user\n<>\n[exit 0]");
    let refused = two.dispatch("write_file", json!({ "path": "/home/user/a.txt", "content": "x" })).await;
    assert_eq!(refused.code, Some(ErrorCode::NotRead));
}

async fn concurrent_programs_lose_no_edit(fixture: &Fixture) {
    let lines: String = (0..6).map(|number| format!("<{number}>\n")).collect();
    fixture.put("/home/user/a.txt", lines).await;
    let work = async |number: usize| {
        let tools = SandboxToolDispatcher::new(fixture.sandbox().clone());
        text(&tools, "bash", json!({ "command": format!("export V{number}={number}; sleep 0.05") })).await;
        let (old, new) = (format!("<{number}>"), format!("[{number}]"));
        // A conflict is reported after two lost races, and the test retries.
        for _ in 0..20 {
            let input = json!({ "path": "/home/user/a.txt", "old_string": old, "new_string": new });
            let edited = tools.dispatch("edit_file", input).await;
            match edited.code {
                None => return,
                Some(ErrorCode::Conflict) => {}
                Some(_) => panic!("{edited:?}"),
            }
        }
        panic!("edit {number} never won");
    };
    futures::future::join_all((0..6).map(work)).await;
    let expected: String = (0..6).map(|number| format!("[{number}]\n")).collect();
    assert_eq!(fixture.get("/home/user/a.txt").await, expected);
    assert_eq!(fixture.ok("bash", json!({ "command": "echo $V0$V1$V2$V3$V4$V5" })).await, "012345\n[exit 0]");
    // No temporary file is left.
    let left =
        fixture.sandbox().commands().run(Command::new("ls -A /home/user | grep -c agtmp")).await.expect("ls runs");
    assert_eq!(left.stdout_text().trim(), "0");
}

async fn paused_sandbox_is_resumed(fixture: &Fixture) {
    fixture.ok("bash", json!({ "command": "cd /tmp; export A=1" })).await;
    fixture.sandbox().client().pause(fixture.sandbox().id(), sdk::Pause::default()).await.expect("it pauses");
    let run = fixture.call("bash", json!({ "command": "pwd; echo $A" })).await;
    assert_eq!(run.text(), "/tmp\n1\n[exit 0]");
    assert_eq!(run.structured.to_value()["sandbox_resumed"], true);
    let run = fixture.call("bash", json!({ "command": "true" })).await;
    assert!(run.structured.to_value().get("sandbox_resumed").is_none());
}

async fn losses_of_a_pause_are_reported_once(fixture: &Fixture) {
    let background = json!({ "command": "echo up; sleep 1000", "run_in_background": true });
    let pause = async || {
        let sandbox = fixture.sandbox();
        sandbox.client().pause(sandbox.id(), sdk::Pause::files_only()).await.expect("it pauses");
    };
    fixture.put("/home/user/a.txt", "one\n").await;
    fixture.ok("bash", background.clone()).await;
    pause().await;
    // Any tool resumes the sandbox.
    let read = fixture.call("read_file", json!({ "path": "/home/user/a.txt" })).await;
    assert_eq!(read.structured.to_value()["sandbox_resumed"], true, "{read:?}");
    let text = read.text();
    assert!(text.starts_with("[Background task b1 did not survive: the sandbox was paused"), "{text}");
    assert!(text.ends_with("\n1\tone"), "{text}");
    let lost = &read.structured.to_value()["finished_tasks"][0];
    assert_eq!((&lost["task_id"], &lost["survived"]), (&json!("b1"), &json!(false)));
    assert_eq!(fixture.ok("bash", json!({ "command": "true" })).await, "(no output)\n[exit 0]");

    // The sandbox was resumed by another client: a command reports the losses.
    fixture.ok("bash", background).await;
    pause().await;
    let sandbox = fixture.sandbox();
    sandbox.client().connect(sandbox.id(), sdk::Connect::default()).await.expect("it wakes");
    let run = fixture.call("bash", json!({ "command": "echo on" })).await;
    let text = run.text();
    assert!(text.starts_with("on\n[Background task b2 did not survive"), "{text}");
    assert!(text.ends_with("\n[exit 0]"), "{text}");
    assert_eq!(run.structured.to_value()["finished_tasks"][0]["survived"], false, "{run:?}");
    assert_eq!(fixture.ok("bash", json!({ "command": "true" })).await, "(no output)\n[exit 0]");
}
