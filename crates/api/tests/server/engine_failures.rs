//! The answers to calls that the engine fails: status and body, byte for byte.

use node::{EngineError, SandboxId, Unwritable};
use serde_json::json;

use crate::support::{Server, text};

type Refusal = fn() -> EngineError;

const NO_SPACE: Refusal = || EngineError::NoSpace("the file system at /data is full; df -h /data".to_owned());
const FILES_MISSING: Refusal =
    || EngineError::FilesMissing { files: "f0123".parse().expect("an id"), path: "/pool/f0123".into() };
const READ_ONLY: Refusal = || {
    EngineError::ReadOnly(Unwritable {
        path: "/pool".into(),
        cause: "the kernel aborted its file system".to_owned(),
        since: "2026-01-02T03:04:05Z".parse().expect("a moment"),
    })
};
const BROKEN: Refusal = || EngineError::failed("cannot do it", "a detail for the operator");

const REFUSALS: [Refusal; 4] = [NO_SPACE, FILES_MISSING, READ_ONLY, BROKEN];
/// The answers; `ID` stands for the id of the sandbox.
const ANSWERS: &str = include_str!("engine_failures.txt");

/// The answers to one call, one line for each refusal of the engine.
async fn record(server: &Server, line: &str, body: &str, refuse: impl Fn(Option<Refusal>)) -> String {
    let mut answers = format!("{line} {body}\n");
    for refusal in REFUSALS {
        refuse(Some(refusal));
        let answer = server.call(line, body).await;
        answers.push_str(&format!("{} {}\n", answer.status.as_u16(), answer.text()));
    }
    refuse(None);
    answers
}

#[tokio::test]
async fn failures_of_the_engine_are_answered() {
    let server = Server::start().await;
    let boots = |refusal| server.engine.refuse_boots(refusal);
    let freezes = |refusal| server.engine.refuse_freezes(refusal);
    let mut answers = record(&server, "POST /v2/sandboxes", r#"{"templateID":"base"}"#, boots).await;
    let id = text(&server.create(json!({"templateID": "base"})).await, "sandboxID").to_owned();
    let [pause, copy, connect] = ["pause", "snapshots", "connect"].map(|call| format!("POST /sandboxes/{id}/{call}"));
    answers += &record(&server, &pause, "{}", freezes).await;
    answers += &record(&server, &copy, "{}", freezes).await;
    assert_eq!(server.call(&pause, r#"{"memory":false}"#).await.status, 204);
    answers += &record(&server, &connect, r#"{"timeout":60}"#, boots).await;
    assert_eq!(answers.replace(&id, "ID"), ANSWERS);
}

#[tokio::test]
async fn missing_files_are_answered() {
    let server = Server::start().await;
    let id = text(&server.create(json!({"templateID": "base"})).await, "sandboxID").to_owned();
    assert_eq!(server.call(&format!("POST /sandboxes/{id}/pause"), r#"{"memory":false}"#).await.status, 204);
    server.engine.lose_files(&(&id.parse::<SandboxId>().expect("an id")).into());
    let missing = server.call(&format!("POST /sandboxes/{id}/connect"), r#"{"timeout":60}"#).await;
    assert_eq!(missing.status, 410);
    let start = format!(r#"{{"code":410,"message":"the files of sandbox {id} are missing from the pool at /"#);
    let end = format!(
        "/{id}, and nothing was started in their place; `sandbar recover` lists what can be brought back\",\
         \"error_code\":\"sandbox_files_missing\"}}"
    );
    let missing = missing.text();
    assert!(missing.starts_with(&start) && missing.ends_with(&end), "{missing}");
}
