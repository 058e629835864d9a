//! HTTP transport: access control, connections, and sessions without a connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rmcp::service::{ClientLifecycleMode, ClientServiceExt};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use sandbar_mcp::{Access, ServeError, Server, Settings, Token};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::support::{Client, Memory, RecordingClient, call, field, server, text};

const CURRENT: &str = "2026-07-28";

struct OnHttp {
    memory: Arc<Memory>,
    address: SocketAddr,
    token: Token,
    stop: CancellationToken,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl OnHttp {
    async fn start(settings: Settings) -> Self {
        let memory = Memory::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let token = Token::random();
        let stop = CancellationToken::new();
        let access = Access::new(token.clone(), address);
        let serving = tokio::spawn(server(&memory, settings).serve_http(listener, access, stop.clone()));
        Self { memory, address, token, stop, serving }
    }

    fn url(&self) -> String {
        format!("http://{}{}", self.address, Server::PATH)
    }

    async fn client(&self) -> Client {
        self.client_with(ClientLifecycleMode::Initialize).await
    }

    async fn client_with(&self, lifecycle: ClientLifecycleMode) -> Client {
        let config = StreamableHttpClientTransportConfig::with_uri(self.url()).auth_header(self.token.expose());
        let transport = StreamableHttpClientTransport::from_config(config);
        RecordingClient::default().serve_with_lifecycle(transport, lifecycle).await.expect("a connection")
    }

    fn post(&self) -> reqwest::RequestBuilder {
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let accepted = "application/json, text/event-stream";
        client.post(self.url()).header("accept", accepted).header("content-type", "application/json")
    }

    /// A call in the form of the current revision.
    fn stateless_request(&self, tool: &str, input: &Value) -> reqwest::RequestBuilder {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": CURRENT,
            "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "0" },
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let params = json!({ "name": tool, "arguments": input, "_meta": meta });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        self.post()
            .bearer_auth(self.token.expose())
            .header("mcp-protocol-version", CURRENT)
            .header("mcp-method", "tools/call")
            .header("mcp-name", tool)
            .body(body.to_string())
    }

    async fn stateless_call(&self, tool: &str, input: &Value) -> Value {
        let answer = self.stateless_request(tool, input).send().await.expect("an answer");
        let status = answer.status();
        let body = answer.text().await.expect("a body");
        let mut data = body
            .lines()
            .filter_map(|line| line.strip_prefix("data:"))
            .filter_map(|data| serde_json::from_str::<Value>(data).ok());
        data.next_back().unwrap_or_else(|| panic!("no message in {status}: {body}"))["result"].clone()
    }

    async fn end(self) {
        self.stop.cancel();
        let ended = timeout(Duration::from_secs(20), self.serving).await;
        ended.expect("the server ends").expect("without a panic").expect("in order");
    }

    async fn eventually(&self, what: &str, ready: impl Fn(&Memory) -> bool) {
        testing::eventually_async(what, testing::SOON, async || ready(&self.memory)).await;
    }
}

#[tokio::test]
async fn requests_without_token_or_from_other_origins_fail() {
    let server = OnHttp::start(Settings::default()).await;
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }).to_string();
    let status = async |request: reqwest::RequestBuilder| {
        request.body(body.clone()).send().await.expect("an answer").status().as_u16()
    };
    assert_eq!(status(server.post()).await, 401);
    assert_eq!(status(server.post().bearer_auth("wrong")).await, 401);
    let good = || server.post().bearer_auth(server.token.expose());
    assert_eq!(status(good().header("origin", "http://evil.example")).await, 403);
    assert_eq!(status(good().header("host", "evil.example")).await, 403);
    assert_eq!(status(server.post().header("host", "evil.example")).await, 403, "the host is checked before the token");
    let answer = server.post().body(body.clone()).send().await.expect("an answer");
    assert_eq!(answer.headers()["www-authenticate"], "Bearer realm=\"sandbar\"");
    let garbage = good().body("no JSON").send().await.expect("an answer").status().as_u16();
    assert!((400..500).contains(&garbage), "{garbage}");
    assert_eq!(server.memory.acquisitions(), (0, 0));
    server.end().await;
}

#[tokio::test]
async fn last_connection_to_close_releases_the_sandbox() {
    let server = OnHttp::start(Settings::default()).await;
    let (one, two) = (server.client().await, server.client().await);
    assert_eq!(one.list_all_tools().await.expect("tools").len(), 7);
    let run = call(&one, "bash", json!({ "command": "echo hi" })).await;
    assert_eq!(text(&run), "[Sandbox imem was created.]\nhi\n[exit 0]");
    let run = call(&two, "bash", json!({ "command": "echo hi" })).await;
    assert_eq!(text(&run), "[Sandbox imem was created.]\nhi\n[exit 0]", "each session is notified once");
    assert_eq!(field(&run, "/session_id"), Value::Null, "the connection is the session");
    let sessions = server.memory.sessions.lock().clone();
    assert_eq!(sessions.len(), 2);
    assert_ne!(sessions[0], sessions[1]);
    one.cancel().await.expect("the first leaves");
    let run = call(&two, "bash", json!({ "command": "echo still" })).await;
    assert_eq!(text(&run), "still\n[exit 0]");
    assert_eq!(server.memory.acquisitions(), (1, 0));
    two.cancel().await.expect("the second leaves");
    server.eventually("the sandbox is released", |memory| memory.acquisitions() == (1, 1)).await;

    let three = server.client().await;
    call(&three, "bash", json!({ "command": "true" })).await;
    assert_eq!(server.memory.acquisitions(), (2, 1), "it is acquired again");
    server.end().await;
}

#[tokio::test]
async fn progress_is_sent_over_http() {
    let server = OnHttp::start(Settings::default()).await;
    let client = server.client().await;
    let run = call(&client, "bash", json!({ "command": "echo begun; sleep 2.5; echo done" })).await;
    assert!(text(&run).ends_with("begun\ndone\n[exit 0]"));
    let received = client.service().received.lock().len();
    assert!(received >= 1);
    server.end().await;
}

#[tokio::test]
async fn stateless_calls_name_their_session() {
    let server = OnHttp::start(Settings { idle_timeout: Duration::from_millis(500), ..Settings::default() }).await;
    let first = server.stateless_call("bash", &json!({ "command": "echo hi", "session_id": "new" })).await;
    assert_eq!(first["resultType"], "complete");
    let id = first["structuredContent"]["session_id"].as_str().expect("its name").to_owned();
    let again = server.stateless_call("bash", &json!({ "command": "echo hi", "session_id": id })).await;
    assert_eq!(again["structuredContent"]["session_id"], id.as_str());
    assert!(again["structuredContent"].get("ignored_inputs").is_none(), "{again}");
    let shared = server.stateless_call("bash", &json!({ "command": "echo hi" })).await;
    assert_ne!(shared["structuredContent"]["session_id"], id.as_str());
    let unknown = server.stateless_call("bash", &json!({ "command": "echo hi", "session_id": "made-up" })).await;
    assert_eq!(unknown["isError"], true);
    assert_eq!(unknown["structuredContent"]["error"]["code"], "invalid_input");
    server.eventually("the idle sandbox is released", |memory| memory.acquisitions() == (1, 1)).await;
    server.stateless_call("bash", &json!({ "command": "echo hi" })).await;
    assert_eq!(server.memory.acquisitions().0, 2);
    server.end().await;
}

#[tokio::test]
async fn closing_a_stateless_stream_cancels_the_call() {
    let server = OnHttp::start(Settings::default()).await;
    let lifecycle =
        ClientLifecycleMode::Discover { preferred_versions: vec![rmcp::model::ProtocolVersion::V_2026_07_28] };
    let client = server.client_with(lifecycle).await;
    let tools = client.list_all_tools().await.expect("tools");
    assert!(tools.iter().all(|tool| tool.input_schema["properties"]["session_id"].is_object()));
    call(&client, "bash", json!({ "command": "true" })).await;

    let input = json!({ "command": "sleep 1000", "timeout": 3600 });
    let request = tokio::spawn(server.stateless_request("bash", &input).send());
    server.eventually("the command runs", |memory| memory.tools.processes() > 0).await;
    request.abort();
    server.eventually("the command is ended", |memory| memory.tools.processes() == 0).await;
    server.end().await;
}

#[tokio::test]
async fn shutdown_cancels_calls_and_releases_the_sandbox() {
    let server = OnHttp::start(Settings::default()).await;
    let client = server.client().await;
    let memory = Arc::clone(&server.memory);
    let running = tokio::spawn(async move {
        call(&client, "bash", json!({ "command": "sleep 1000", "timeout": 3600 })).await;
    });
    server.eventually("the command runs", |memory| memory.tools.processes() > 0).await;
    server.end().await;
    assert_eq!((memory.tools.processes(), memory.acquisitions()), (0, (1, 1)));
    running.abort();
}

/// The official clients warn about any other status.
#[tokio::test]
async fn deleting_a_session_returns_204() {
    let server = OnHttp::start(Settings::default()).await;
    let hello = json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": { "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "0" } },
    });
    let greeted =
        server.post().bearer_auth(server.token.expose()).body(hello.to_string()).send().await.expect("an answer");
    let session = greeted.headers()["mcp-session-id"].to_str().expect("a text").to_owned();
    drop(greeted);
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let end = || client.delete(server.url()).header("mcp-session-id", &session);
    let good = || end().bearer_auth(server.token.expose());
    assert_eq!(end().send().await.expect("an answer").status(), 401);
    // Twice: a client whose session has already timed out gets the same status.
    for _ in 0..2 {
        let ended = good().send().await.expect("an answer");
        assert_eq!(ended.status(), 204);
        assert!(ended.bytes().await.expect("a body").is_empty());
    }
    let ping = json!({ "jsonrpc": "2.0", "id": 2, "method": "ping" }).to_string();
    let after = server.post().bearer_auth(server.token.expose()).header("mcp-session-id", &session).body(ping);
    assert_eq!(after.send().await.expect("an answer").status(), 404);
    // The current revision has no sessions to end.
    let passing = good().header("mcp-protocol-version", CURRENT).send().await.expect("an answer");
    assert_eq!(passing.status(), 405);
    server.end().await;
}
