//! Sessions live in the sandbox: separate dispatchers, as separate programs have them, share one; others do not.

use sandbar_tools::{ErrorCode, SandboxToolDispatcher, ToolDispatcher};
use sdk::Command;
use serde_json::json;

use crate::world::World;

crate::contract!(in [server, plain]: [
    a_session_carries_over_to_another_program,
    sessions_do_not_see_each_other,
    programs_at_the_same_time_lose_nothing,
    a_sandbox_that_sleeps_is_woken,
    what_a_pause_did_not_keep_is_told_once,
]);

async fn text(tools: &SandboxToolDispatcher, tool: &str, input: serde_json::Value) -> String {
    let result = tools.dispatch(tool, input).await;
    assert!(!result.is_error, "{result:?}");
    result.text()
}

async fn a_session_carries_over_to_another_program(world: &World) {
    let one = SandboxToolDispatcher::new(world.sandbox().clone()).session("job 7");
    let two = SandboxToolDispatcher::new(world.sandbox().clone()).session("job 7");
    world.put("/home/user/a.txt", "one\n").await;
    text(&one, "bash", json!({ "command": "cd /tmp; export A=1" })).await;
    text(&one, "read_file", json!({ "path": "/home/user/a.txt" })).await;
    assert_eq!(text(&two, "bash", json!({ "command": "pwd; echo $A" })).await, "/tmp\n1\n[exit 0]");
    text(&two, "write_file", json!({ "path": "/home/user/a.txt", "content": "two\n" })).await;
    let started = text(&one, "bash", json!({ "command": "sleep 2; exit 3", "run_in_background": true })).await;
    assert!(started.starts_with("Started background task b1"), "{started}");
    crate::world::eventually("the other program is told of the end", async || {
        text(&two, "bash", json!({ "command": "true" })).await.contains("Background task b1 has ended with exit code 3")
    })
    .await;
}

async fn sessions_do_not_see_each_other(world: &World) {
    let one = SandboxToolDispatcher::new(world.sandbox().clone()).session("one");
    let two = SandboxToolDispatcher::new(world.sandbox().clone()).session("two");
    world.put("/home/user/a.txt", "one\n").await;
    text(&one, "bash", json!({ "command": "cd /tmp; export A=1" })).await;
    text(&one, "read_file", json!({ "path": "/home/user/a.txt" })).await;
    assert_eq!(text(&two, "bash", json!({ "command": "pwd; echo \"<$A>\"" })).await, "/home/user\n<>\n[exit 0]");
    let refused = two.dispatch("write_file", json!({ "path": "/home/user/a.txt", "content": "x" })).await;
    assert_eq!(refused.code, Some(ErrorCode::NotRead));
}

async fn programs_at_the_same_time_lose_nothing(world: &World) {
    let lines: String = (0..6).map(|number| format!("<{number}>\n")).collect();
    world.put("/home/user/a.txt", lines).await;
    let work = async |number: usize| {
        let tools = SandboxToolDispatcher::new(world.sandbox().clone());
        text(&tools, "bash", json!({ "command": format!("export V{number}={number}; sleep 0.05") })).await;
        let (old, new) = (format!("<{number}>"), format!("[{number}]"));
        // Two races lost in a row are told; whoever is told tries again.
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
    assert_eq!(world.get("/home/user/a.txt").await, expected);
    assert_eq!(world.ok("bash", json!({ "command": "echo $V0$V1$V2$V3$V4$V5" })).await, "012345\n[exit 0]");
    // No temporary file is left.
    let left = world.sandbox().commands().run(Command::new("ls -A /home/user | grep -c agtmp")).await.expect("ls runs");
    assert_eq!(left.stdout_text().trim(), "0");
}

async fn a_sandbox_that_sleeps_is_woken(world: &World) {
    world.ok("bash", json!({ "command": "cd /tmp; export A=1" })).await;
    world.sandbox().client().pause(world.sandbox().id(), sdk::Pause::default()).await.expect("it pauses");
    let run = world.call("bash", json!({ "command": "pwd; echo $A" })).await;
    assert_eq!(run.text(), "/tmp\n1\n[exit 0]");
    assert_eq!(run.structured["sandbox_resumed"], true);
    let run = world.call("bash", json!({ "command": "true" })).await;
    assert!(run.structured.get("sandbox_resumed").is_none());
}

async fn what_a_pause_did_not_keep_is_told_once(world: &World) {
    let background = json!({ "command": "echo up; sleep 1000", "run_in_background": true });
    let pause = async || {
        let sandbox = world.sandbox();
        sandbox.client().pause(sandbox.id(), sdk::Pause::files_only()).await.expect("it pauses");
    };
    world.put("/home/user/a.txt", "one\n").await;
    world.ok("bash", background.clone()).await;
    pause().await;
    // Whichever tool finds it asleep.
    let read = world.call("read_file", json!({ "path": "/home/user/a.txt" })).await;
    assert_eq!(read.structured["sandbox_resumed"], true, "{read:?}");
    let text = read.text();
    assert!(text.starts_with("[Background task b1 did not survive: the sandbox was paused"), "{text}");
    assert!(text.ends_with("\n1\tone"), "{text}");
    let lost = &read.structured["finished_tasks"][0];
    assert_eq!((&lost["task_id"], &lost["survived"]), (&json!("b1"), &json!(false)));
    assert_eq!(world.ok("bash", json!({ "command": "true" })).await, "(no output)\n[exit 0]");

    // Somebody else woke it: a command finds out.
    world.ok("bash", background).await;
    pause().await;
    let sandbox = world.sandbox();
    sandbox.client().connect(sandbox.id(), sdk::Connect::default()).await.expect("it wakes");
    let run = world.call("bash", json!({ "command": "echo on" })).await;
    let text = run.text();
    assert!(text.starts_with("on\n[Background task b2 did not survive"), "{text}");
    assert!(text.ends_with("\n[exit 0]"), "{text}");
    assert_eq!(run.structured["finished_tasks"][0]["survived"], false, "{run:?}");
    assert_eq!(world.ok("bash", json!({ "command": "true" })).await, "(no output)\n[exit 0]");
}
