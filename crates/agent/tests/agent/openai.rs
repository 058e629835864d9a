//! Chat completions over real HTTP.

use std::sync::Arc;

use sandbar_agent::model::openai::OpenAi;
use sandbar_agent::{Run, RunError, RunId, Settings, StopReason};
use serde_json::{Value, json};

use crate::support::{Rig, plan, quick, results};
use crate::wire::{Reply, WireServer, whole};

fn stream(chunks: &[Value], done: bool) -> String {
    let mut text: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    if done {
        text.push_str("data: [DONE]\n\n");
    }
    text
}

fn delta(delta: &Value, finish: &Value) -> Value {
    json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] })
}

fn calls() -> String {
    let piece = |index: u32, id: Value, name: Value, arguments: &str| json!({ "tool_calls": [{ "index": index, "id": id, "function": { "name": name, "arguments": arguments } }] });
    stream(
        &[
            delta(&json!({ "role": "assistant", "content": "Let me" }), &Value::Null),
            delta(&json!({ "content": " see." }), &Value::Null),
            delta(&piece(0, json!("call_1"), json!("bash"), ""), &Value::Null),
            delta(&piece(0, Value::Null, Value::Null, "{\"command\":"), &Value::Null),
            delta(&piece(0, Value::Null, Value::Null, " \"echo hi\"}"), &Value::Null),
            delta(&piece(1, json!("call_2"), json!("glob"), "{\"pattern\": \"*\"}"), &Value::Null),
            delta(&json!({}), &json!("tool_calls")),
            json!({ "choices": [], "usage": { "prompt_tokens": 120, "completion_tokens": 30, "prompt_tokens_details": { "cached_tokens": 100 } } }),
        ],
        true,
    )
}

#[tokio::test]
async fn chat_endpoint_drives_a_run() {
    let last = stream(&[delta(&json!({ "content": "Done." }), &Value::Null), delta(&json!({}), &json!("stop"))], false);
    for pieces in [1, usize::MAX] {
        let replies = vec![
            Reply::Stream { body: calls(), pieces },
            Reply::Status { status: 429, headers: "retry-after-ms: 5\r\n", body: "{}".into() },
            whole(last.clone()),
        ];
        let server = WireServer::start(replies).await;
        let model =
            OpenAi::new("qwen", server.url.join("/v1").expect("a URL"), Some("sk-secret".into())).expect("a client");
        let (report, _) = Rig::new().run(Arc::new(model), plan(quick())).await;
        assert_eq!((report.stop_reason, report.text.as_str()), (StopReason::Completed, "Done."), "{}", report.message);
        assert_eq!(results(&report.conversation)[0], "hi\n[exit 0]");
        assert_eq!((report.usage.input_tokens, report.usage.cache_read_tokens, report.cost), (20, 100, None));
        let asked = server.asked();
        assert_eq!(asked[0].path, "/v1/chat/completions");
        assert!(asked[0].headers.to_lowercase().contains("authorization: bearer sk-secret"));
        let messages = &server.bodies()[2]["messages"];
        assert_eq!(messages[2]["tool_calls"][0]["function"]["arguments"], "{\"command\":\"echo hi\"}");
        assert_eq!(messages[3], json!({ "role": "tool", "tool_call_id": "call_1", "content": "hi\n[exit 0]" }));
        assert_eq!(messages[4]["tool_call_id"], "call_2");
    }
}

#[tokio::test]
async fn dollar_budget_needs_a_price() {
    let url = url::Url::parse("http://127.0.0.1:9/v1").expect("a URL");
    let model = Arc::new(OpenAi::new("qwen", url, None).expect("a client"));
    let settings = Settings { max_cost_usd: Some(1.0), ..quick() };
    let refused = Run::begin(Rig::new().parts(model), RunId::new(), plan(settings)).await.err().expect("refused");
    assert!(matches!(&refused, RunError::NoPrice(_)) && refused.to_string().contains("openai:qwen"), "{refused}");
}
