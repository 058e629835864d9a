//! The tools on a workspace, call by call.

use super::User;
use crate::support::Server;
use crate::support::program::text;
use serde_json::{Value, json};

#[test]
fn tool_calls_go_on_through_rotation_and_hide_what_was_given() {
    let server = Server::with(&["--ephemeral"]);
    let user = User::of(&server);
    user.workspace.must(&["create", "shop", "--env", "TOKEN=hushhush12345"]);
    let call = |tool: &str, input: Value| {
        let done = user.tool.run(&[tool, &input.to_string(), "--workspace", "shop", "--json"]);
        let result: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"));
        (result, text(&done.stderr))
    };
    let says = |line: &str| call("bash", json!({ "command": line }));

    let (result, _) = says("mkdir sub; cd sub; export A=b; echo $TOKEN; echo $TOKEN >token");
    assert!(result["is_error"] == false && !result.to_string().contains("hushhush12345"), "{result}");
    let (read, _) = call("read_file", json!({ "path": "/home/user/project/sub/token" }));
    assert!(!read.to_string().contains("hushhush12345"), "{read}");

    user.workspace.must(&["rotate", "shop"]);
    let (result, _) = says("pwd; echo $A; cat token | wc -c");
    let said = result["content"].to_string();
    assert!(said.contains("/home/user/project/sub\\nb\\n14\\n"), "directory and variables carry over: {said}");
    assert!(said.contains("new sandbox"), "and what did not is told: {said}");
    user.workspace.must(&["pause", "shop"]);
    let (result, _) = says("echo awake");
    assert!(result["content"].to_string().contains("awake"), "{result}");

    let unknown = user.tool.run(&["bsah", "{}", "--workspace", "none"]);
    assert_eq!(text(&unknown.stdout), "[bsah: unknown tool]\n");
    let none = user.tool.fails(1, &["bash", "{}", "--workspace", "none"]);
    assert!(none.contains("there is no workspace none"), "{none}");
    user.workspace.must(&["destroy", "shop", "--yes"]);
}
