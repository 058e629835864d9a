//! `sandbar mcp` as an MCP client starts it: the real program, a real client, real sandboxes.

use crate::support::server::PROGRAM;
use crate::support::{McpProcess, Program, Server, eventually, http};
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest, ReadResourceRequestParams, ServerResult,
};
use rmcp::service::{PeerRequestOptions, RoleClient, RunningService, ServiceExt};
use rmcp::transport::TokioChildProcess;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn program(server: &Server, arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    testing::without_settings(&mut command).env("SANDBAR_DATA", server.data()).arg("mcp").args(arguments);
    command
}

struct Client {
    inner: RunningService<RoleClient, ()>,
    pid: u32,
}

impl Client {
    async fn start(server: &Server, arguments: &[&str]) -> Self {
        Self::from_command(program(server, arguments)).await
    }

    async fn from_command(command: Command) -> Self {
        let command = tokio::process::Command::from(command);
        let (process, _) =
            TokioChildProcess::builder(command).stderr(Stdio::null()).spawn().expect("the program starts");
        let pid = process.id().expect("it runs");
        Self { inner: ().serve(process).await.expect("a handshake"), pid }
    }

    fn request(tool: &str, input: Value) -> ClientRequest {
        let arguments = serde_json::from_value(input).expect("an object");
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        ClientRequest::CallToolRequest(CallToolRequest::new(params))
    }

    async fn call(&self, tool: &str, input: Value) -> CallToolResult {
        match self.inner.send_request(Self::request(tool, input)).await.expect("an answer") {
            ServerResult::CallToolResult(result) => result,
            other => panic!("not a result: {other:?}"),
        }
    }

    async fn bash(&self, command: &str) -> String {
        let result = self.call("bash", json!({ "command": command })).await;
        result.content.last().and_then(|block| block.as_text()).expect("text").text.clone()
    }

    /// Closes the client's ends of the pipes and waits until the program ends.
    async fn leave(self) {
        self.inner.cancel().await.expect("the client ends");
        wait_until_gone(self.pid);
    }
}

fn wait_until_gone(pid: u32) {
    let status = format!("/proc/{pid}/stat");
    eventually("the program ends", Duration::from_secs(20), || {
        let stat = std::fs::read_to_string(&status).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
}

fn sandbox_of(result: &CallToolResult) -> String {
    let structured = result.structured_content.as_ref().expect("structured content");
    structured["sandbox_id"].as_str().expect("the sandbox is named").to_owned()
}

fn state(server: &Server, id: &str) -> String {
    let reply = server.call("GET", &format!("/sandboxes/{id}"), None);
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()["state"].as_str().expect("a state").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_call_creates_a_sandbox_that_pauses_at_the_end() {
    let server = Server::with(&["--ephemeral"]);
    let client = Client::start(&server, &[]).await;
    assert_eq!(client.inner.list_all_tools().await.expect("tools").len(), 7);
    assert_eq!(server.call("GET", "/v2/sandboxes", None).json(), json!([]), "nothing was needed so far");
    let first = client.call("bash", json!({ "command": "cd /tmp; export A=b; seq 1 40000" })).await;
    let id = sandbox_of(&first);
    let notice = &first.content[0].as_text().expect("text").text;
    assert!(notice.contains(&id), "{notice}");
    assert_eq!(client.bash("pwd; echo $A").await, "/tmp\nb\n[exit 0]");

    let link = first.content.iter().find_map(|block| block.as_resource_link()).expect("a link to the whole output");
    let read = client.inner.read_resource(ReadResourceRequestParams::new(link.uri.clone())).await.expect("readable");
    assert!(serde_json::to_string(&read.contents[0]).expect("JSON").contains("\\n39999\\n40000\\n"));

    let request =
        Client::request("bash", json!({ "command": "sleep 98765 & setsid sleep 98765 & sleep 98765", "timeout": 600 }));
    let running = client.inner.send_cancellable_request(request, PeerRequestOptions::no_options()).await.expect("sent");
    let sleepers =
        async || client.call("bash", json!({ "command": "pgrep -fxc 'sleep 98765'", "run_in_background": true })).await;
    let count = async || {
        let result = sleepers().await;
        result.structured_content.expect("structured")["stdout"].as_str().unwrap_or_default().trim().to_owned()
    };
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while count().await != "3" {
        assert!(tokio::time::Instant::now() < deadline, "the command runs");
    }
    running.cancel(None).await.expect("cancelled");
    while count().await != "0" {
        assert!(tokio::time::Instant::now() < deadline, "cancelling ends everything it started");
    }
    client.leave().await;
    assert_eq!(state(&server, &id), "paused");

    let again = Client::start(&server, &["--sandbox", &id]).await;
    assert_eq!(again.bash("ls /home/user >/dev/null; echo awake").await, "awake\n[exit 0]");
    assert_eq!(state(&server, &id), "running");
    testing::signal(again.pid, "TERM");
    wait_until_gone(again.pid);
    assert_eq!(state(&server, &id), "paused", "as it was found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_sandbox_stays_running_and_a_missing_one_fails() {
    let server = Server::with(&["--ephemeral"]);
    let sandbox = server.create();
    let client = Client::start(&server, &["--sandbox", &sandbox.id]).await;
    assert_eq!(client.bash("echo hi").await, "hi\n[exit 0]");
    client.leave().await;
    assert_eq!(state(&server, &sandbox.id), "running");

    let client = Client::start(&server, &["--sandbox", "iabsent"]).await;
    let failed = client.call("bash", json!({ "command": "true" })).await;
    assert_eq!(failed.is_error, Some(true));
    let text = &failed.content[0].as_text().expect("text").text;
    assert!(text.contains("iabsent") && text.contains("does not exist"), "{text}");
    client.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_is_leased_for_the_session_and_released() {
    let server = Server::with(&["--ephemeral"]);
    let home = tempfile::tempdir().expect("a directory");
    let program = |word| {
        let program = Program::new(word).at(&server).variable("XDG_DATA_HOME", home.path().join("data"));
        program.variable("XDG_CONFIG_HOME", home.path().join("config"))
    };
    let workspace = program("workspace");
    workspace.must(&["create", "shop", "--env", "TOKEN=hushhush12345"]);
    let client = Client::from_command(program("mcp").command(&["--workspace", "shop"])).await;
    let known = client.inner.peer_info().and_then(|server| server.instructions.clone()).unwrap_or_default();
    let limits = workspace.json(&["show", "shop"])["limits"].clone();
    let (_, listed) = known.split_once("Limits of its provider: ").unwrap_or_else(|| panic!("no limits in {known}"));
    for limit in ["ephemeral", "paused"] {
        assert!(limits[limit].as_str().is_some_and(|limit| listed.contains(limit)), "{limit} of {limits} in {listed}");
    }
    let output = client.bash("pwd; echo $TOKEN; echo kept >file").await;
    assert!(output.starts_with("/home/user/project\n") && !output.contains("hushhush12345"), "{output}");
    let refused = workspace.fails(1, &["snapshot", "shop", "--wait", "0"]);
    assert!(refused.contains(&format!("in use by process {}", client.pid)), "{refused}");
    client.leave().await;
    assert_eq!(workspace.must(&["exec", "shop", "--", "cat", "file"]), "kept\n", "it was given back");

    workspace.must(&["pause", "shop"]);
    let client = Client::from_command(program("mcp").command(&["--workspace", "shop"])).await;
    assert_eq!(client.bash("cat file").await, "kept\n[exit 0]");
    client.leave().await;
    assert_eq!(workspace.json(&["show", "shop"])["paused"], true, "its work has ended");
    let client = Client::from_command(program("mcp").command(&["--workspace", "shop", "--keep-running"])).await;
    assert_eq!(client.bash("cat file").await, "kept\n[exit 0]");
    client.leave().await;
    assert_eq!(workspace.json(&["show", "shop"])["paused"], false, "as it was asked for");

    let client = Client::from_command(program("mcp").command(&["--workspace", "none"])).await;
    let failed = client.call("bash", json!({ "command": "true" })).await;
    let text = &failed.content[0].as_text().expect("text").text;
    assert!(failed.is_error == Some(true) && text.contains("there is no workspace none"), "{text}");
    client.leave().await;
    workspace.must(&["destroy", "shop", "--yes"]);
}

#[test]
fn the_end_names_workspace_preview_and_screenshots() {
    let server = Server::with(&["--ephemeral"]);
    let home = tempfile::tempdir().expect("a temporary directory");
    let program = |word| {
        let program = Program::new(word).variable("XDG_DATA_HOME", home.path().join("data")).at(&server);
        program.variable("XDG_CONFIG_HOME", home.path().join("config"))
    };
    program("workspace").must(&["create", "shop", "--dev", "python3 -m http.server 3000", "--port", "3000"]);
    let mut mcp = McpProcess::start(&program("mcp"), &["--workspace", "shop"]);
    let shot = mcp.call("take_screenshot", &json!({}));
    assert_eq!(shot["isError"], false, "{shot}");
    let ending = mcp.end();
    for line in ["workspace shop is paused", "sandbar: preview: http", "sandbar: screenshot: http"] {
        assert!(ending.contains(line), "{line:?} is not said: {ending}");
    }
}

/// As on a laptop that is suspended: the lease expires, another process works in the workspace, and
/// later the MCP server takes the lease again.
#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_mcp_server_leases_its_workspace_again() {
    let server = Server::with(&["--ephemeral"]);
    let home = tempfile::tempdir().expect("a directory");
    let program = |word| {
        let program = Program::new(word).at(&server).variable("XDG_DATA_HOME", home.path().join("data"));
        program.variable("XDG_CONFIG_HOME", home.path().join("config"))
    };
    let workspace = program("workspace");
    workspace.must(&["create", "shop"]);
    let client = Client::from_command(program("mcp").command(&["--workspace", "shop"])).await;
    assert_eq!(client.bash("echo first >file; cat file").await, "first\n[exit 0]");
    testing::signal(client.pid, "STOP");
    workspace.must(&["exec", "shop", "--wait", "60s", "--", "sh", "-c", "echo second >>file"]);
    testing::signal(client.pid, "CONT");
    let result = client.call("bash", json!({ "command": "cat file" })).await;
    let texts: Vec<_> = result.content.iter().filter_map(|block| Some(block.as_text()?.text.clone())).collect();
    assert!(result.is_error != Some(true) && texts.concat().contains("first\nsecond\n"), "{texts:?}");
    assert!(texts.concat().contains("Another process worked in this workspace"), "{texts:?}");
    assert_eq!(client.bash("echo third >>file; tail -n 1 file").await, "third\n[exit 0]");
    client.leave().await;
    workspace.must(&["destroy", "shop", "--yes"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_served_once_the_server_has_started() {
    let mut server = Server::with(&["--ephemeral"]);
    server.stop();
    let client = Client::start(&server, &[]).await;
    let failed = client.call("bash", json!({ "command": "true" })).await;
    let text = &failed.content[0].as_text().expect("text").text;
    assert!(failed.is_error == Some(true) && text.contains("`sandbar up`"), "{text}");
    server.start_again();
    assert_eq!(client.bash("echo hi").await, "hi\n[exit 0]");
    client.leave().await;
}

/// `sandbar mcp --http`, killed on drop.
pub(crate) struct HttpServer {
    child: Child,
    pub(crate) address: String,
    pub(crate) token: String,
}

impl HttpServer {
    pub(crate) fn start(server: &Server) -> Self {
        let mut child = program(server, &["--http", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let mut line = || lines.next().expect("a line").expect("text");
        let address =
            line().strip_prefix("URL: http://").and_then(|url| url.strip_suffix("/mcp")).expect("the URL").to_owned();
        let token = line().strip_prefix("Authorization: Bearer ").expect("the token").to_owned();
        Self { child, address, token }
    }

    fn post(&self, more: &[(&str, &str)], body: &Value) -> http::Reply {
        let accept = [("Accept", "application/json, text/event-stream"), ("Content-Type", "application/json")];
        let headers = [&accept[..], more].concat();
        http::request(&self.address, "POST", "/mcp", &headers, body.to_string().as_bytes()).expect("an answer")
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The last message of an event stream.
fn last_message(reply: &http::Reply) -> Value {
    let text = reply.text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
    data.filter_map(|data| serde_json::from_str(data).ok()).next_back().unwrap_or_else(|| panic!("no message: {text}"))
}

#[test]
fn http_needs_the_token_and_the_end_of_the_session_pauses() {
    let server = Server::with(&["--ephemeral"]);
    let mcp = HttpServer::start(&server);
    let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "0" } } });
    let bearer = format!("Bearer {}", mcp.token);
    let authorization = ("Authorization", bearer.as_str());
    assert_eq!(mcp.post(&[], &hello).status, 401);
    assert_eq!(mcp.post(&[("Authorization", "Bearer wrong")], &hello).status, 401);
    assert_eq!(mcp.post(&[authorization, ("Origin", "https://evil.example")], &hello).status, 403);
    assert_eq!(mcp.post(&[authorization, ("Host", "evil.example")], &hello).status, 403);

    let agreed = mcp.post(&[authorization], &hello);
    assert_eq!(agreed.status, 200, "{}", agreed.text());
    let session = agreed.header("mcp-session-id").expect("a session").to_owned();
    assert_eq!(last_message(&agreed)["result"]["protocolVersion"], "2025-06-18");
    let known = [authorization, ("Mcp-Session-Id", session.as_str())];
    let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    assert_eq!(mcp.post(&known, &ready).status, 202);
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": "bash", "arguments": { "command": "echo hi" } } });
    let answer = last_message(&mcp.post(&known, &call));
    let id = answer["result"]["structuredContent"]["sandbox_id"].as_str().expect("the sandbox is named").to_owned();
    assert_eq!(state(&server, &id), "running");
    let ended = http::request(&mcp.address, "DELETE", "/mcp", &known, b"").expect("an answer");
    assert!((200..300).contains(&ended.status), "{}", ended.status);
    eventually("the sandbox is paused", Duration::from_secs(20), || (state(&server, &id) == "paused").then_some(()));
}
