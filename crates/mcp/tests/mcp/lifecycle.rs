//! When the server acquires and releases the sandbox.

use std::time::Duration;

use sandbar_mcp::Settings;
use serde_json::json;

use crate::support::{Memory, OnStreams, Wire, call, client, request, server};

#[tokio::test(start_paused = true)]
async fn handshake_alone_acquires_no_sandbox() {
    let memory = Memory::new();
    let (running, stream) = OnStreams::start(server(&memory, Settings::default()));
    drop(stream);
    running.wait().await;
    let (running, stream) = OnStreams::start(server(&memory, Settings::default()));
    let mut wire = Wire::new(stream);
    wire.handshake("2025-11-25").await;
    drop(wire);
    running.wait().await;
    assert_eq!(memory.acquisitions(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn disconnect_ends_processes_then_releases_the_sandbox() {
    let memory = Memory::new();
    let (running, stream) = OnStreams::start(server(&memory, Settings::default()));
    let client = client(stream).await;
    call(&client, "bash", json!({ "command": "sleep 5000", "run_in_background": true })).await;
    let handle = client.send_cancellable_request(
        request("bash", json!({ "command": "sleep 1000", "timeout": 3600 })),
        rmcp::service::PeerRequestOptions::no_options(),
    );
    let _never = handle.await.expect("sent");
    while memory.tools.processes() < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    client.cancel().await.expect("the client leaves");
    running.wait().await;
    assert_eq!(memory.tools.processes(), 0);
    assert_eq!(memory.acquisitions(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn stopped_server_responds_to_running_calls() {
    let memory = Memory::new();
    let (running, stream) = OnStreams::start(server(&memory, Settings::default()));
    let mut wire = Wire::new(stream);
    wire.handshake("2025-11-25").await;
    let call = json!({ "name": "bash", "arguments": { "command": "echo so far; sleep 1000", "timeout": 3600 } });
    wire.send(&json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": call }).to_string()).await;
    while memory.tools.processes() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    running.stop.cancel();
    let answer = wire.next().await;
    assert_eq!(answer["id"], 7);
    assert_eq!(answer["result"]["structuredContent"]["error"]["code"], "cancelled", "{answer}");
    running.wait().await;
    assert_eq!((memory.tools.processes(), memory.acquisitions()), (0, (1, 1)));
}

#[tokio::test(start_paused = true)]
async fn configured_session_outlives_the_server() {
    let memory = Memory::new();
    let settings = Settings { session: Some("work".into()), ..Settings::default() };
    let (running, stream) = OnStreams::start(server(&memory, settings));
    let client = client(stream).await;
    call(&client, "bash", json!({ "command": "sleep 5000", "run_in_background": true })).await;
    client.cancel().await.expect("the client leaves");
    running.wait().await;
    assert_eq!(*memory.sessions.lock(), ["work"]);
    assert_eq!(memory.tools.processes(), 1, "its background task is paused with the sandbox, not ended");
    assert_eq!(memory.acquisitions(), (1, 1));
}
