//! `sandbar run --mcp`: an MCP client works in the workspace of a run while the run does.

use crate::agent::{User, bash, next};
use crate::support::{Server, http};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// Calls a tool by one request, since the current revision of MCP needs no handshake.
fn call(address: &str, token: &str, tool: &str, arguments: &Value) -> http::Reply {
    let authorization = format!("Bearer {token}");
    let headers = [
        ("Authorization", authorization.as_str()),
        ("Accept", "application/json, text/event-stream"),
        ("Content-Type", "application/json"),
        ("MCP-Protocol-Version", "2026-07-28"),
        ("Mcp-Method", "tools/call"),
        ("Mcp-Name", tool),
    ];
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "0" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({ "name": tool, "arguments": arguments, "_meta": meta });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string();
    http::request(address, "POST", "/mcp", &headers, body.as_bytes()).expect("an answer")
}

#[test]
fn a_client_joins_a_run_and_both_see_the_same_files() {
    let server = Server::with(&["--ephemeral"]);
    let user = User::for_server(&server);
    let wait = "echo from the run > mine; until test -f yours; do sleep 0.2; done; cat yours";
    let model = user.script(&json!([bash(wait), { "expect": "from the client", "text": "Done." }]));
    let arguments = ["--goal", "Meet", "--workspace", "shop", "--model", &model, "--mcp", "127.0.0.1:0"];
    let mut command = user.run.command(&arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut messages = BufReader::new(child.stderr.take().expect("it is piped")).lines().map_while(Result::ok);
    let mut rest_of_line = |begins: &str| {
        let found = messages.find_map(|line| line.strip_prefix(begins).map(str::to_owned));
        found.unwrap_or_else(|| panic!("{begins:?} is printed"))
    };
    let address = rest_of_line("URL: http://").trim_end_matches("/mcp").to_owned();
    let token = rest_of_line("Authorization: Bearer ");
    let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
    next(&mut output, "tool_call_started").expect("the command begins");

    let command = json!({ "command": "until test -f mine; do sleep 0.2; done; cat mine" });
    let seen = call(&address, &token, "bash", &command);
    assert!(seen.status == 200 && seen.text().contains("from the run"), "{} {}", seen.status, seen.text());
    let written = call(&address, &token, "write_file", &json!({ "path": "yours", "content": "from the client\n" }));
    assert!(written.text().contains("Created /home/user/project/yours"), "{}", written.text());
    assert_eq!(call(&address, "wrong", "bash", &json!({ "command": "true" })).status, 401);

    let last = next(&mut output, "run_finished").expect("it ends");
    assert_eq!(last["stop_reason"], "completed", "{last}");
    assert!(child.wait().expect("it ends").success());
    assert_eq!(user.workspace.must(&["exec", "shop", "-c", "cat mine yours"]), "from the run\nfrom the client\n");
}
