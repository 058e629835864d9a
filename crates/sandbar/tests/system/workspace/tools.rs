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

    // The file has a value that no snapshot may have without --allow-env-values.
    let refused = user.workspace.fails(1, &["rotate", "shop"]);
    assert!(refused.contains("project/sub/token (TOKEN)") && !refused.contains("hushhush12345"), "{refused}");
    user.workspace.must(&["snapshot", "shop", "--allow-env-values"]);
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

#[test]
fn session_files_have_no_values_of_the_workspace_and_commands_still_see_them() {
    const SECRET: &str = "s3cr3t-of-the-workspace";
    let server = Server::with(&["--ephemeral"]);
    let user = User::of(&server);
    user.workspace.must(&[
        "create",
        "shop",
        "--env",
        &format!("SECRET={SECRET}"),
        "--env",
        "GONE=gone-of-the-workspace",
    ]);
    let says = |line: &str| {
        let input = json!({ "command": line }).to_string();
        let done = user.tool.run(&["bash", &input, "--workspace", "shop", "--json"]);
        let result: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"));
        result["structured"]["stdout"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned()
    };
    let length = SECRET.len();
    assert_eq!(says("export OWN=mine; unset GONE; echo ${#SECRET}"), format!("{length}\n"));
    assert_eq!(says("export OWN=\"$OWN too\"; echo ${#SECRET} ${GONE-unset}"), format!("{length} unset\n"));
    // Looked for by halves, so that the search does not find itself.
    let holders = || {
        let (first, second) = SECRET.split_at(5);
        user.says("shop", &format!("grep -rl \"{first}\"\"{second}\" /home/user || true"))
    };
    assert_eq!(holders(), "");
    user.workspace.must(&["rotate", "shop"]);
    assert_eq!(says("echo ${#SECRET} $OWN ${GONE-unset}"), format!("{length} mine too unset\n"));
    assert_eq!(holders(), "");
    user.workspace.must(&["destroy", "shop", "--yes"]);
}
