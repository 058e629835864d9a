//! Tool calls and their responses.

use std::time::Duration;

use rmcp::model::{ContentBlock, ReadResourceRequestParams, ResourceContents};
use rmcp::service::PeerRequestOptions;
use sandbar_mcp::{Server, Settings};
use serde_json::json;
use tokio::time::timeout;

use crate::support::{FailingProvider, Memory, OnStreams, PIXEL, Wire, call, client, field, request, server, text};

#[tokio::test(start_paused = true)]
async fn every_tool_returns_text_and_structured_content() {
    let memory = Memory::new();
    let (running, stream) = OnStreams::start(server(&memory, Settings::default()));
    let client = client(stream).await;
    let listed = client.list_all_tools().await.expect("tools");
    assert_eq!(listed.iter().map(|tool| tool.name.as_ref()).collect::<Vec<_>>(), tools::NAMES);
    let bash = &listed[3];
    let hints = bash.annotations.as_ref().expect("annotations");
    assert_eq!(
        (hints.read_only_hint, hints.destructive_hint, hints.open_world_hint),
        (Some(false), Some(true), Some(true))
    );
    assert_eq!(memory.acquisitions(), (0, 0), "looking at the list makes no sandbox");

    let written = call(&client, "write_file", json!({ "path": "/home/user/a.txt", "content": "one\ntwo\n" })).await;
    assert!(text(&written).starts_with("[Sandbox imem was created.]\nCreated /home/user/a.txt"), "{}", text(&written));
    assert_eq!(field(&written, "/sandbox_id"), "imem");
    let read = call(&client, "read_file", json!({ "path": "a.txt" })).await;
    assert_eq!(text(&read), "1\tone\n2\ttwo");
    let edited =
        call(&client, "edit_file", json!({ "path": "a.txt", "old_string": "two", "new_string": "three" })).await;
    assert_eq!(field(&edited, "/replacements"), 1);
    let run = call(&client, "bash", json!({ "command": "cat a.txt" })).await;
    assert_eq!(text(&run), "one\nthree\n[exit 0]");
    assert_eq!(field(&run, "/exit_code"), 0);
    let found = call(&client, "grep", json!({ "pattern": "thr" })).await;
    assert!(text(&found).contains("/home/user/a.txt:2:three"), "{}", text(&found));
    let globbed = call(&client, "glob", json!({ "pattern": "*.txt" })).await;
    assert!(text(&globbed).contains("/home/user/a.txt"));
    let shown = call(&client, "take_screenshot", json!({})).await;
    let images: Vec<_> = shown.content.iter().filter_map(ContentBlock::as_image).collect();
    assert_eq!(images.len(), 2);
    assert_eq!(images[0].mime_type, "image/webp");
    assert_eq!(images[0].data.len(), PIXEL.len().div_ceil(3) * 4);
    assert!(!field(&shown, "").to_string().contains(&images[0].data), "images are no part of the structure");

    let failed = call(&client, "read_file", json!({ "path": "/absent" })).await;
    assert_eq!(failed.is_error, Some(true));
    assert_eq!(field(&failed, "/error/code"), "not_found");
    assert_eq!(memory.acquisitions(), (1, 0));
    client.cancel().await.expect("the client ends");
    running.wait().await;
    assert_eq!(memory.acquisitions(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn long_output_is_linked_and_readable_as_a_resource() {
    let memory = Memory::new();
    let (_running, stream) = OnStreams::start(server(&memory, Settings::default()));
    let client = client(stream).await;
    let run = call(&client, "bash", json!({ "command": "seq 1 40000" })).await;
    assert!(text(&run).ends_with("[exit 0]"));
    let link = run.content.iter().find_map(ContentBlock::as_resource_link).expect("a link");
    assert!(link.uri.starts_with("sandbox://imem/"), "{}", link.uri);
    let read = client.read_resource(ReadResourceRequestParams::new(link.uri.clone())).await.expect("the resource");
    let ResourceContents::TextResourceContents { text, .. } = &read.contents[0] else { panic!("not a text") };
    assert!(text.starts_with("1\n2\n3\n") && text.ends_with("39999\n40000\n"), "all of it");
    let listed = client.list_all_resources().await.expect("resources");
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].uri, link.uri);
    assert_eq!(client.list_all_resource_templates().await.expect("templates").len(), 1);

    for uri in ["sandbox://iother/etc/passwd", "file:///etc/passwd", "sandbox://imem/absent"] {
        assert!(client.read_resource(ReadResourceRequestParams::new(uri)).await.is_err(), "{uri}");
    }
}

#[tokio::test(start_paused = true)]
async fn client_with_a_progress_token_gets_heartbeats() {
    let memory = Memory::new();
    let (_running, stream) = OnStreams::start(server(&memory, Settings::default()));
    let client = client(stream).await;
    let run = call(&client, "bash", json!({ "command": "echo begun; sleep 100; echo done", "timeout": 300 })).await;
    assert_eq!(text(&run).lines().skip(1).collect::<Vec<_>>(), ["begun", "done", "[exit 0]"]);
    let received = client.service().received.lock().clone();
    assert!(received.len() >= 7, "a word every 15 s at least: {}", received.len());
    assert!(received.len() <= 100, "and not without end: {}", received.len());
    assert!(received.windows(2).all(|pair| pair[0].progress < pair[1].progress), "it grows: {received:?}");
    assert!(received.iter().any(|word| word.message.as_deref() == Some("begun")), "{received:?}");
}

#[tokio::test(start_paused = true)]
async fn command_is_detached_before_the_client_times_out() {
    let memory = Memory::new();
    let (_running, stream) = OnStreams::start(server(&memory, Settings::default()));
    let mut wire = Wire::new(stream);
    wire.handshake("2025-11-25").await;
    let begun = tokio::time::Instant::now();
    let input = json!({ "command": "echo begun; sleep 1000", "timeout": 3600 });
    let answer = wire.ask(1, "tools/call", json!({ "name": "bash", "arguments": input })).await;
    let waited = begun.elapsed();
    assert!((Duration::from_secs(49)..Duration::from_secs(55)).contains(&waited), "{waited:?}");
    let result = &answer["result"];
    assert_eq!(result["structuredContent"]["background"]["running"], true, "{answer}");
    assert_eq!(result["structuredContent"]["exit_code"], json!(null));
    assert_ne!(result["isError"], true);
    let blocks = result["content"].as_array().expect("content");
    assert!(blocks.iter().any(|block| block["type"] == "resource_link"), "its log is linked: {answer}");
    assert!(memory.tools.processes() > 0, "it goes on");
}

#[tokio::test(start_paused = true)]
async fn cancelling_kills_the_command_without_a_response() {
    let memory = Memory::new();
    let (_running, stream) = OnStreams::start(server(&memory, Settings::default()));
    let client = client(stream).await;
    call(&client, "bash", json!({ "command": "true" })).await;
    let wanted = request("bash", json!({ "command": "sleep 1000 & sleep 1000", "timeout": 3600 }));
    let handle = client.send_cancellable_request(wanted, PeerRequestOptions::no_options()).await.expect("sent");
    let started = async {
        while memory.tools.processes() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(10), started).await.expect("it runs");
    handle.cancel(Some("enough".into())).await.expect("cancelled");
    let ended = async {
        while memory.tools.processes() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(5), ended).await.expect("nothing runs any more");
    let next = call(&client, "bash", json!({ "command": "echo next" })).await;
    assert_eq!(text(&next), "next\n[exit 0]");
}

#[tokio::test(start_paused = true)]
async fn failed_acquisition_returns_the_reason() {
    let (_running, stream) = OnStreams::start(Server::new(std::sync::Arc::new(FailingProvider), Settings::default()));
    let client = client(stream).await;
    let answer = call(&client, "bash", json!({ "command": "true" })).await;
    assert_eq!(answer.is_error, Some(true));
    assert_eq!(text(&answer), "No sandbox: E2B API key not configured.");
    assert_eq!(field(&answer, "/error/code"), "sandbox_unavailable");
}
