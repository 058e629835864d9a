//! The Messages API over real HTTP: whatever happens on the wire, the next request is one that the
//! real service accepts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbar_agent::model::anthropic::Anthropic;
use sandbar_agent::{Event, Happened, Model, Report, StopReason};
use serde_json::{Value, json};

use crate::support::{Rig, plan, quick, results};
use crate::wire::{Reply, WireServer, answer, answer_with, whole};

const KEY: &str = "sk-ant-never-shown";

fn model(server: &WireServer, name: &str) -> Arc<Anthropic> {
    Arc::new(Anthropic::new(name, server.url.clone(), KEY.into()).expect("a client"))
}

fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

fn bash(id: &str, command: &str) -> Value {
    json!({ "type": "tool_use", "id": id, "name": "bash", "input": { "command": command } })
}

async fn run(replies: Vec<Reply>) -> (Report, Vec<Happened>, WireServer, Rig) {
    let server = WireServer::start(replies).await;
    let rig = Rig::new();
    let (report, events) = rig.run(model(&server, "claude-opus-5-5"), plan(quick())).await;
    assert!(!format!("{report:?}{events:?}").contains(KEY), "the key leaked");
    (report, events, server, rig)
}

fn done() -> Reply {
    whole(answer(&[text("All done.")], "end_turn"))
}

#[tokio::test]
async fn response_does_not_depend_on_chunk_boundaries() {
    let thinking = json!({ "type": "thinking", "thinking": "hm, ü", "signature": "c2ln" });
    let redacted = json!({ "type": "redacted_thinking", "data": "xyz" });
    let strange = json!({ "type": "something_new", "x": [1, 2] });
    let first = answer(
        &[thinking.clone(), redacted.clone(), strange.clone(), text("I look. 😀"), bash("a", "echo hi")],
        "tool_use",
    );
    let mut conversations = Vec::new();
    for pieces in [1, 2, 3, 7, 64, usize::MAX] {
        let (report, _, server, _) = run(vec![Reply::Stream { body: first.clone(), pieces }, done()]).await;
        assert_eq!(report.stop_reason, StopReason::Completed, "{}", report.message);
        let bodies = server.bodies();
        // Thinking is sent back to the model unchanged.
        assert_eq!(
            bodies[1]["messages"][1]["content"],
            json!([thinking, redacted, strange, text("I look. 😀"), bash("a", "echo hi")])
        );
        assert_eq!(results(&report.conversation), ["hi\n[exit 0]"]);
        conversations.push(report.conversation);
    }
    assert!(conversations.iter().all(|one| *one == conversations[0]));
}

#[tokio::test]
async fn truncated_stream_is_retried_without_repeating_tools() {
    let body = answer(&[text("Now."), bash("a", "echo x >> log")], "tool_use");
    let end = body.find("event: message_stop").expect("an end");
    for after in
        [0, 40, body.find("input_json_delta").expect("a call") + 20, body.find("message_delta").expect("a reason"), end]
    {
        let (report, events, server, rig) =
            run(vec![Reply::Cut { body: body.clone(), after }, whole(body.clone()), done()]).await;
        assert_eq!(report.stop_reason, StopReason::Completed, "cut after {after}: {}", report.message);
        assert_eq!(server.asked().len(), 3);
        assert_eq!(server.asked()[0].body, server.asked()[1].body);
        assert_eq!(rig.memory.get("/home/user/log").expect("the file"), "x\n");
        assert!(events.iter().any(|one| matches!(one.event, Event::Retry { attempt: 1, .. })));
    }
}

#[tokio::test]
async fn busy_provider_is_retried_after_its_delay() {
    let overloaded =
        json!({ "type": "error", "error": { "type": "overloaded_error", "message": "Overloaded" } }).to_string();
    let inside = format!("event: error\ndata: {overloaded}\n\n");
    let begun = Instant::now();
    let (report, events, server, _) = run(vec![
        Reply::Status { status: 529, headers: "", body: overloaded.clone() },
        Reply::Status { status: 429, headers: "retry-after: 1\r\n", body: "{}".into() },
        whole(inside),
        Reply::Status { status: 500, headers: "", body: "<html>".into() },
        whole("data: {garbage\n\n".into()),
        done(),
    ])
    .await;
    assert_eq!(report.stop_reason, StopReason::Completed, "{}", report.message);
    assert_eq!(server.asked().len(), 6);
    let waits: Vec<u64> = events
        .iter()
        .filter_map(|one| match &one.event {
            Event::Retry { wait_ms, .. } => Some(*wait_ms),
            _ => None,
        })
        .collect();
    assert_eq!((waits.len(), waits[1]), (5, 1000));
    assert!(begun.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn retries_are_limited_and_refusals_are_final() {
    let busy = || Reply::Status { status: 503, headers: "", body: "{}".into() };
    let (report, _, server, _) = run((0..9).map(|_| busy()).collect()).await;
    assert_eq!((report.stop_reason, server.asked().len()), (StopReason::ProviderError, 6));
    let error = json!({ "error": { "type": "authentication_error", "message": "invalid x-api-key" } }).to_string();
    let (report, _, server, _) = run(vec![Reply::Status { status: 401, headers: "", body: error }, done()]).await;
    assert_eq!((report.stop_reason, server.asked().len()), (StopReason::ProviderError, 1));
    assert!(report.message.contains("invalid x-api-key (status 401)"), "{}", report.message);
    let hours = Reply::Status { status: 429, headers: "retry-after: 7200\r\n", body: "{}".into() };
    let (report, _, _, _) = run(vec![hours, done()]).await;
    assert_eq!(report.stop_reason, StopReason::ProviderError);
    let (report, _, _, _) = run(vec![whole(answer(&[text("No.")], "refusal"))]).await;
    assert_eq!(report.stop_reason, StopReason::Refusal);
}

#[tokio::test]
async fn invalid_calls_get_error_results() {
    let broken = json!({ "type": "tool_use", "id": "a", "name": "bash", "json": "{\"command\": \"ls" });
    let unknown = json!({ "type": "tool_use", "id": "b", "name": "fly", "input": { "to": "moon" } });
    let list = json!({ "type": "tool_use", "id": "c", "name": "grep", "json": "[1]" });
    let (report, _, _, _) =
        run(vec![whole(answer(&[broken, unknown, list, bash("d", "echo ok")], "tool_use")), done()]).await;
    let results = results(&report.conversation);
    assert!(
        results[0].contains("not a JSON object") && results[0].contains("required: [\"command\"]"),
        "{}",
        results[0]
    );
    assert!(results[1].starts_with("[fly: unknown tool]\nThe tools are: read_file, "), "{}", results[1]);
    assert!(results[2].contains("it is not an object"), "{}", results[2]);
    assert_eq!(results[3], "ok\n[exit 0]");
    assert_eq!(report.stop_reason, StopReason::Completed);
}

#[tokio::test]
async fn call_cut_by_the_token_limit_is_not_executed() {
    let cut = |id: &str| {
        let call = json!({ "type": "tool_use", "id": id, "name": "bash", "json": "{\"command\": \"rm -rf" });
        whole(answer(&[bash(&format!("{id}0"), "echo whole"), call], "max_tokens"))
    };
    let (report, _, _, _) = run(vec![cut("a"), cut("b"), cut("c"), done()]).await;
    let results = results(&report.conversation);
    assert_eq!(report.stop_reason, StopReason::Completed, "{}", report.message);
    assert!(
        results[0] == "whole\n[exit 0]" && results[1].starts_with("Not executed: the answer was cut off"),
        "{results:?}"
    );
    let (report, _, _, _) = run(vec![cut("a"), cut("b"), cut("c"), cut("d"), done()]).await;
    assert_eq!(report.stop_reason, StopReason::FormatErrors);
}

#[tokio::test]
async fn usage_cost_and_headers_match_the_service() {
    let (report, events, server, _) = run(vec![whole(answer(&[bash("a", "true")], "tool_use")), done()]).await;
    let asked = &server.asked()[0];
    assert_eq!(asked.path, "/v1/messages");
    let head = asked.headers.to_lowercase();
    assert!(head.contains(&format!("x-api-key: {KEY}")) && head.contains("anthropic-version: 2023-06-01"), "{head}");
    assert_eq!((report.usage.input_tokens, report.usage.output_tokens), (200, 50));
    assert_eq!((report.usage.cache_read_tokens, report.usage.cache_write_tokens), (14, 6));
    // 200 at $4, 50 at $20, 14 at $0.20, 6 at $5 per million.
    assert_eq!(report.cost.expect("a price").nanos(), 800_000 + 1_000_000 + 2_800 + 30_000);
    assert!(
        events
            .iter()
            .any(|one| matches!(one.event, Event::Usage { context_tokens: 135, context_window: 1_000_000, .. }))
    );
}

fn count(tokens: u64) -> Reply {
    Reply::Status { status: 200, headers: "", body: json!({ "input_tokens": tokens }).to_string() }
}

#[tokio::test]
async fn provider_counts_request_tokens() {
    let server = WireServer::start(vec![count(4711)]).await;
    let messages = [sandbar_agent::Message::user("hi")];
    let request = sandbar_agent::model::Request {
        tools: &[],
        system: "s",
        messages: &messages,
        max_tokens: 5,
        purpose: sandbar_agent::model::Purpose::Work,
    };
    assert_eq!(model(&server, "x").count(request).await.expect("a count"), Some(4711));
    assert_eq!(server.asked()[0].path, "/v1/messages/count_tokens");
    assert!(server.bodies()[0]["max_tokens"].is_null());
}

/// The text of a request without cache marks, which move, and without its end.
fn prefix(body: &str) -> String {
    let plain = body
        .replace(",\"cache_control\":{\"type\":\"ephemeral\"}", "")
        .replace("\"cache_control\":{\"type\":\"ephemeral\"},", "");
    plain.strip_suffix("]}").expect("messages come last").to_owned()
}

#[tokio::test]
async fn long_run_keeps_its_prefix_byte_for_byte() {
    const TURNS: usize = 110;
    let mut replies: Vec<Reply> = (0..TURNS)
        .map(|turn| whole(answer(&[text("Next."), bash(&format!("t{turn}"), &format!("echo {turn}"))], "tool_use")))
        .collect();
    replies.push(done());
    let server = WireServer::start(replies).await;
    let rig = Rig::new();
    let settings = sandbar_agent::Settings { max_turns: 200, ..quick() };
    let (report, _) = rig.run(model(&server, "claude-sonnet-5-5"), plan(settings)).await;
    assert_eq!((report.stop_reason, report.turns), (StopReason::Completed, TURNS as u64 + 1), "{}", report.message);
    let asked = server.asked();
    for (before, after) in asked.iter().zip(&asked[1..]) {
        assert!(prefix(&after.body).starts_with(&prefix(&before.body)), "the prefix changed");
    }
    let last: Value = serde_json::from_str(&asked[TURNS].body).expect("JSON");
    let marked = |message: &Value| message.to_string().contains("cache_control");
    let messages = last["messages"].as_array().expect("messages");
    let marks: Vec<usize> = (0..messages.len()).filter(|index| marked(&messages[*index])).collect();
    assert_eq!(marks, [messages.len() - 3, messages.len() - 1]);
    assert_eq!(last["system"][0]["cache_control"], json!({ "type": "ephemeral" }));
    let tools: Vec<&str> =
        last["tools"].as_array().expect("tools").iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(tools, tools::NAMES);
}

#[tokio::test]
async fn too_long_conversation_is_compacted_and_resent() {
    let long = json!({ "error": { "type": "invalid_request_error", "message": "prompt is too long: 1000001 tokens > 1000000 maximum" } });
    let too_long = || Reply::Status { status: 400, headers: "", body: long.to_string() };
    let (report, events, server, _) = run(vec![
        whole(answer_with(&[bash("a", "echo one")], "tool_use", 999_000)),
        // Near the limit, so a summary is requested before the next turn.
        count(999_100),
        whole(answer(&[text("A summary of it.")], "end_turn")),
        count(500),
        too_long(),
        done(),
    ])
    .await;
    assert!(
        events.iter().any(|one| matches!(one.event, Event::Compacted { before: 999_100, after: 500 })),
        "{events:?}"
    );
    let bodies = server.bodies();
    assert!(bodies[4]["messages"][0]["content"][0]["text"].as_str().expect("text").contains("A summary of it."));
    // No progress since, so a further compaction would not help.
    assert_eq!(report.stop_reason, StopReason::ContextExhausted, "{}", report.message);
}

#[tokio::test]
async fn parallel_results_are_sent_together_in_order() {
    let glob = json!({ "type": "tool_use", "id": "b", "name": "glob", "input": { "pattern": "**/*" } });
    let read = json!({ "type": "tool_use", "id": "c", "name": "read_file", "input": { "path": "x" } });
    let (report, _, server, _) =
        run(vec![whole(answer(&[bash("a", "echo hi > x"), glob, read], "tool_use")), done()]).await;
    assert_eq!(report.stop_reason, StopReason::Completed);
    let content = &server.bodies()[1]["messages"][2]["content"];
    let ids: Vec<&str> =
        content.as_array().expect("blocks").iter().filter_map(|block| block["tool_use_id"].as_str()).collect();
    assert_eq!(ids, ["a", "b", "c"]);
    assert!(results(&report.conversation)[2].contains("hi"));
}
