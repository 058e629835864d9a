//! `sandbar tool --workspace`: tool calls in a workspace.

use super::User;
use crate::support::Server;
use crate::support::program::text;
use serde_json::{Value, json};

#[test]
fn tool_calls_continue_after_rotation_and_hide_values() {
    let server = Server::with(&["--ephemeral"]);
    let user = User::for_server(&server);
    user.workspace.must(&["create", "shop", "--env", "TOKEN=hushhush12345"]);
    let call = |tool: &str, input: Value| {
        let done = user.tool.run(&[tool, &input.to_string(), "--workspace", "shop", "--json"]);
        let result: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"));
        (result, text(&done.stderr))
    };
    let bash = |line: &str| call("bash", json!({ "command": line }));

    let (result, _) = bash("mkdir sub; cd sub; export A=b; echo $TOKEN; echo $TOKEN >token");
    assert!(result["is_error"] == false && !result.to_string().contains("hushhush12345"), "{result}");
    let (read, _) = call("read_file", json!({ "path": "/home/user/project/sub/token" }));
    assert!(!read.to_string().contains("hushhush12345"), "{read}");

    // The file has a value that a checkpoint refuses without --allow-env-values.
    let refused = user.workspace.fails(1, &["rotate", "shop"]);
    assert!(refused.contains("project/sub/token (TOKEN)") && !refused.contains("hushhush12345"), "{refused}");
    user.workspace.must(&["snapshot", "shop", "--allow-env-values"]);
    user.workspace.must(&["rotate", "shop"]);
    let (result, _) = bash("pwd; echo $A; cat token | wc -c");
    let content = result["content"].to_string();
    assert!(content.contains("/home/user/project/sub\\nb\\n14\\n"), "directory and variables carry over: {content}");
    assert!(content.contains("new sandbox"), "and what did not is reported: {content}");
    user.workspace.must(&["pause", "shop"]);
    let (result, _) = bash("echo awake");
    assert!(result["content"].to_string().contains("awake"), "{result}");

    let unknown = user.tool.run(&["bsah", "{}", "--workspace", "none"]);
    assert_eq!(text(&unknown.stdout), "[bsah: unknown tool]\n");
    let none = user.tool.fails(1, &["bash", "{}", "--workspace", "none"]);
    assert!(none.contains("there is no workspace none"), "{none}");
    user.workspace.must(&["destroy", "shop", "--yes"]);
}

#[test]
fn session_files_do_not_have_the_values_of_the_workspace() {
    const SECRET: &str = "s3cr3t-of-the-workspace";
    let server = Server::with(&["--ephemeral"]);
    let user = User::for_server(&server);
    user.workspace.must(&[
        "create",
        "shop",
        "--env",
        &format!("SECRET={SECRET}"),
        "--env",
        "GONE=gone-of-the-workspace",
    ]);
    let bash = |line: &str| {
        let input = json!({ "command": line }).to_string();
        let done = user.tool.run(&["bash", &input, "--workspace", "shop", "--json"]);
        let result: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"));
        result["structured"]["stdout"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned()
    };
    let length = SECRET.len();
    assert_eq!(bash("export OWN=mine; unset GONE; echo ${#SECRET}"), format!("{length}\n"));
    assert_eq!(bash("export OWN=\"$OWN too\"; echo ${#SECRET} ${GONE-unset}"), format!("{length} unset\n"));
    // The value is split, so that the search does not find its own command line.
    let holders = || {
        let (first, second) = SECRET.split_at(5);
        user.exec("shop", &format!("grep -rl \"{first}\"\"{second}\" /home/user || true"))
    };
    assert_eq!(holders(), "");
    user.workspace.must(&["rotate", "shop"]);
    assert_eq!(bash("echo ${#SECRET} $OWN ${GONE-unset}"), format!("{length} mine too unset\n"));
    assert_eq!(holders(), "");
    user.workspace.must(&["destroy", "shop", "--yes"]);
}
