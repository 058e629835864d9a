//! Edge cases of the protocol: revisions, invalid requests, lines that are not messages.

use rmcp::model::ProtocolVersion;
use rmcp::service::{ClientLifecycleMode, ClientServiceExt};
use sandbar_mcp::Settings;
use serde_json::json;

use crate::support::{Memory, OnStreams, RecordingClient, Wire, call, server, text};

async fn wire() -> (OnStreams, Wire) {
    let (running, stream) = OnStreams::start(server(&Memory::new(), Settings::default()));
    (running, Wire::new(stream))
}

#[tokio::test(start_paused = true)]
async fn server_accepts_the_requested_handshake_revision() {
    for revision in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let (_running, mut wire) = wire().await;
        let agreed = wire.handshake(revision).await;
        assert_eq!(agreed["protocolVersion"], revision);
        assert_eq!(agreed["serverInfo"]["name"], "sandbar");
        assert!(agreed["capabilities"]["tools"].is_object() && agreed["capabilities"]["resources"].is_object());
        let listed = wire.ask(1, "tools/list", json!({})).await;
        assert_eq!(listed["result"]["tools"].as_array().map(Vec::len), Some(7));
        assert!(listed["result"].get("resultType").is_none(), "older clients do not know it");
        assert!(listed["result"]["tools"][0]["inputSchema"]["properties"].get("session_id").is_none());
    }
    let (_running, mut wire) = wire().await;
    let agreed = wire.handshake("1999-01-01").await;
    assert_eq!(agreed["protocolVersion"], "2025-11-25", "what the server can do with a handshake");
}

#[tokio::test(start_paused = true)]
async fn current_revision_works_without_handshake() {
    let memory = Memory::new();
    let (running, stream) = OnStreams::start(server(&memory, Settings::default()));
    let lifecycle = ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] };
    let client = RecordingClient::default().serve_with_lifecycle(stream, lifecycle).await.expect("discovered");
    assert_eq!(client.list_all_tools().await.expect("tools").len(), 7);
    let run = call(&client, "bash", json!({ "command": "cd /tmp; echo hi" })).await;
    assert!(text(&run).ends_with("hi\n[exit 0]"));
    let run = call(&client, "bash", json!({ "command": "pwd" })).await;
    assert_eq!(text(&run), "/tmp\n[exit 0]", "a process is a session");
    client.cancel().await.expect("ended");
    running.wait().await;
    assert_eq!(memory.acquisitions(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn invalid_messages_get_errors_and_the_server_continues() {
    let (_running, mut wire) = wire().await;
    wire.handshake("2025-06-18").await;
    wire.send("this is no JSON").await;
    wire.send("").await;
    wire.send(r#"{"jsonrpc":"2.0","id":null}"#).await;
    let unknown = wire.ask(2, "tools/call", json!({ "name": "sudo", "arguments": {} })).await;
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
    assert_eq!(unknown["error"]["message"], "[sudo: unknown tool]");
    let malformed = wire.ask(3, "tools/call", json!({ "name": "bash", "arguments": "ls" })).await;
    assert_eq!(malformed["error"]["code"], -32602, "{malformed}");
    let nameless = wire.ask(4, "tools/call", json!({})).await;
    assert_eq!(nameless["error"]["code"], -32602, "{nameless}");
    let unheard_of = wire.ask(5, "tools/frobnicate", json!({})).await;
    assert_eq!(unheard_of["error"]["code"], -32601, "{unheard_of}");
    let missing = wire.ask(6, "tools/call", json!({ "name": "read_file", "arguments": {} })).await;
    assert_eq!(missing["result"]["isError"], true, "what a model can mend is a result: {missing}");
    wire.send(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}"#).await;
    let alive = wire.ask(7, "ping", json!({})).await;
    assert!(alive["result"].is_object(), "{alive}");
}
