//! `sandbar tool` and `sandbar tools` as users and scripts call them.

use crate::support::Server;
use crate::support::http;
use crate::support::server::PROGRAM;
use serde_json::{Value, json};
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

fn program(server: &Server, arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    testing::without_settings(&mut command).env("SANDBAR_DATA", server.data()).args(arguments).stdin(Stdio::null());
    command
}

fn tool(server: &Server, arguments: &[&str]) -> Output {
    program(server, &[&["tool"], arguments].concat()).output().expect("the program runs")
}

#[track_caller]
fn json_of(done: &Output) -> Value {
    serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"))
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

#[test]
fn calls_of_a_session_share_directory_and_variables() {
    let server = Server::with(&["--ephemeral"]);
    let sandbox = server.create();
    let here = |arguments: &[&str]| tool(&server, &[arguments, &["--sandbox", &sandbox.id]].concat());
    let done = here(&["bash", r#"{"command": "cd /tmp; export A=b; echo hi >&2"}"#]);
    assert_eq!((done.status.code(), text(&done.stdout)), (Some(0), "hi\n[exit 0]\n"), "{done:?}");
    assert_eq!(text(&done.stderr), "", "stdout has all there is to say");
    let done = here(&["bash", r#"{"command": "pwd; echo $A"}"#, "--json"]);
    let result = json_of(&done);
    assert_eq!(result["content"], json!([{ "type": "text", "text": "/tmp\nb\n[exit 0]" }]));
    assert_eq!((&result["is_error"], &result["code"]), (&json!(false), &Value::Null));
    assert_eq!(result["structured"]["exit_code"], 0);
    let other = here(&["bash", r#"{"command": "pwd"}"#, "--session", "other"]);
    assert_eq!(text(&other.stdout), "/home/user\n[exit 0]\n");

    let failed = here(&["read_file", r#"{"path": "/absent"}"#, "--json"]);
    assert_eq!(failed.status.code(), Some(1));
    assert_eq!(json_of(&failed)["code"], "not_found");
    let unknown = here(&["sudo", "{}"]);
    assert_eq!((unknown.status.code(), text(&unknown.stdout)), (Some(1), "[sudo: unknown tool]\n"));
    let wrong = here(&["bash", "not JSON", "--json"]);
    assert_eq!((wrong.status.code(), &json_of(&wrong)["code"]), (Some(1), &json!("invalid_input")));
}

#[test]
fn input_comes_from_a_file_or_a_pipe() {
    let server = Server::with(&["--ephemeral"]);
    let sandbox = server.create();
    let file = server.file("input.json");
    std::fs::write(&file, r#"{"path": "a.txt", "content": "one\n"}"#).expect("written");
    let done = tool(&server, &["write_file", &format!("@{}", file.display()), "--sandbox", &sandbox.id]);
    assert!(done.status.success(), "{done:?}");
    let mut child = program(&server, &["tool", "bash", "-", "--sandbox", &sandbox.id])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut pipe = child.stdin.take().expect("it is piped");
    pipe.write_all(br#"{"command": "cat a.txt"}"#).expect("taken");
    drop(pipe);
    let done = child.wait_with_output().expect("it ends");
    assert_eq!(text(&done.stdout), "one\n[exit 0]\n");
    let absent = tool(&server, &["bash", "@/absent.json", "--sandbox", &sandbox.id]);
    assert_eq!(absent.status.code(), Some(1));
    assert!(text(&absent.stderr).contains("/absent.json"), "{absent:?}");
}

#[test]
fn concurrent_calls_of_a_session_share_its_own_sandbox() {
    let server = Server::with(&["--ephemeral"]);
    let first = tool(&server, &["bash", r#"{"command": "echo x > mark"}"#]);
    let message = text(&first.stderr).to_owned();
    let id =
        message.strip_prefix("sandbar: sandbox ").and_then(|rest| rest.split_whitespace().next()).expect("it is named");
    let paused = server.call("POST", &format!("/sandboxes/{id}/pause"), None);
    assert_eq!(paused.status, 204);
    let many: Vec<_> = (0..4)
        .map(|number| {
            let input = format!(r#"{{"command": "cat mark; echo {number}"}}"#);
            program(&server, &["tool", "bash", &input])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("it starts")
        })
        .collect();
    for (number, child) in many.into_iter().enumerate() {
        let done = child.wait_with_output().expect("it ends");
        assert_eq!(text(&done.stdout), format!("x\n{number}\n[exit 0]\n"), "{done:?}");
        assert!(text(&done.stderr).contains(id), "{done:?}");
    }
    let other = tool(&server, &["bash", r#"{"command": "ls"}"#, "--session", "other"]);
    assert_eq!(text(&other.stdout), "(no output)\n[exit 0]\n");
    assert!(!text(&other.stderr).contains(id), "another session, another sandbox");
}

#[test]
fn an_unknown_tool_creates_no_sandbox() {
    let mut server = Server::with(&["--ephemeral"]);
    let unknown = tool(&server, &["bsah", r#"{"command": "ls"}"#]);
    assert_eq!((unknown.status.code(), text(&unknown.stdout)), (Some(1), "[bsah: unknown tool]\n"), "{unknown:?}");
    let listed = server.call("GET", "/v2/sandboxes", None);
    assert_eq!(listed.json(), json!([]), "no sandbox was made");
    server.stop();
    let unknown = tool(&server, &["bsah", "{}", "--json"]);
    assert_eq!(json_of(&unknown)["code"], "unknown_tool", "no server is needed: {unknown:?}");
}

#[test]
fn screenshots_are_returned_served_and_saved() {
    let server = Server::with(&["--ephemeral"]);
    let sandbox = server.create();
    let here = |arguments: &[&str]| tool(&server, &[arguments, &["--sandbox", &sandbox.id]].concat());
    let unserved = here(&["take_screenshot", "--json"]);
    assert_eq!(
        (unserved.status.code(), &json_of(&unserved)["code"]),
        (Some(1), &json!("capture_failed")),
        "{unserved:?}"
    );
    let page =
        "echo '<title>T</title><body style=background:teal><h1>Hello</h1>' > index.html; python3 -m http.server 3000";
    let started = here(&["bash", &json!({ "command": page, "run_in_background": true }).to_string()]);
    assert!(started.status.success(), "{started:?}");
    let images = server.file("images");
    let done = here(&["take_screenshot", "{}", "--json", "--save-images", images.to_str().expect("text")]);
    let result = json_of(&done);
    assert!(done.status.success(), "{result:#}");
    let kinds: Vec<_> =
        result["content"].as_array().expect("blocks").iter().map(|block| block["type"].clone()).collect();
    assert_eq!(kinds, ["image", "image", "text"]);
    let shots = result["structured"]["screenshots"].as_array().expect("two");
    for (shot, (viewport, width, height)) in shots.iter().zip([("desktop", 1280, 800), ("mobile", 390, 844)]) {
        let key = shot["key"].as_str().expect("a key");
        assert!(
            key.ends_with(&format!("_{viewport}.webp"))
                && key.starts_with(&format!("screenshots/{}/agent/", sandbox.id)),
            "{key}"
        );
        let url = shot["url"].as_str().expect("an address");
        let path = url.strip_prefix(&format!("http://{}", server.address)).expect("it is the server's");
        assert!(path.starts_with(&format!("/{key}?expires=")), "{path}");
        let get = |path: &str| http::request(&server.address, "GET", path, &[], b"").expect("an answer");
        let shown = get(path);
        assert_eq!((shown.status, shown.header("content-type")), (200, Some("image/webp")), "{path}");
        assert!(shown.body.starts_with(b"RIFF"));
        let unsigned = path.split('?').next().expect("a path");
        let forged = path.replace("expires=", "expires=9");
        for refused in [unsigned, forged.as_str()] {
            assert_eq!(get(refused).status, 403, "{refused}");
        }
        assert_eq!(get("/screenshots/../agent/x.webp?expires=1&signature=00").status, 404);
        assert_eq!((&shot["width"], &shot["height"], &shot["blank"]), (&json!(width), &json!(height), &json!(false)));
        let kept = std::fs::read(server.data().join("media").join(key)).expect("it is kept");
        let written = std::fs::read(images.join(key.rsplit('/').next().expect("a name"))).expect("it is written");
        assert!(kept == written && kept.starts_with(b"RIFF"));
    }
    assert_eq!(result["structured"]["title"], "T");
    let caption = result["content"][2].to_string();
    assert!(!caption.contains("file:") && !caption.contains(server.data().to_str().expect("text")), "{caption}");

    let paused = server.call("POST", &format!("/sandboxes/{}/pause", sandbox.id), None);
    assert_eq!(paused.status, 204);
    let again = here(&["take_screenshot", "{}", "--json"]);
    assert_eq!(json_of(&again)["structured"]["title"], "T", "a sandbox that sleeps is woken for its picture");
}

#[test]
fn definitions_are_printed_for_models_and_for_users() {
    let done = Command::new(PROGRAM).args(["tools", "--json"]).output().expect("the program runs");
    let tools = json_of(&done);
    let names: Vec<_> =
        tools.as_array().expect("a list").iter().map(|tool| tool["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["read_file", "write_file", "edit_file", "bash", "grep", "glob", "take_screenshot"]);
    assert!(tools.as_array().expect("a list").iter().all(|tool| tool["input_schema"]["type"] == "object"));
    let done = Command::new(PROGRAM).args(["tools", "--json", "--form", "mcp"]).output().expect("the program runs");
    assert_eq!(json_of(&done)[0]["annotations"]["readOnlyHint"], true);
    let done = Command::new(PROGRAM).arg("tools").output().expect("the program runs");
    assert_eq!(text(&done.stdout).lines().count(), 7);
}
