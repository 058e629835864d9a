//! The wire stays as it is: the OpenAPI document and the responses of one build's life, compared
//! with the files in `tests/studio/golden`. `GOLDEN=write` writes the files instead; a change of
//! them is a change of the wire.

use std::path::Path;

use sandbar_studio::records::NewScreenshot;
use sandbar_studio::rest::RestOptions;
use sandbar_studio::{JobId, ScreenshotId};
use serde_json::{Map, Value, json};

use super::lab::{Database, Lab};

/// Compares with a golden file, or writes it.
#[track_caller]
pub(super) fn check(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/studio/golden").join(name);
    if std::env::var_os("GOLDEN").is_some_and(|value| value == "write") {
        std::fs::write(&path, found).expect("the file is written");
    }
    let expected = std::fs::read_to_string(&path).expect("a golden file");
    let differs = expected.lines().zip(found.lines()).find(|(expected, found)| expected != found);
    assert!(expected == found, "{name} differs, first at {differs:?}; GOLDEN=write writes the file");
}

/// Replaces ids and times by names in the order of their first appearance.
fn stable(texts: &str) -> String {
    let random = regex::Regex::new(r"(?x) (?<kind>job|prj|pic)(?<mark>[_-])[0-9a-f]{20} | \d{4}-\d\d-\d\dT[0-9:.]+Z")
        .expect("a pattern");
    let mut names: Vec<String> = Vec::new();
    let replaced = random.replace_all(texts, |found: &regex::Captures<'_>| {
        let Some(kind) = found.name("kind") else { return "TIME".to_owned() };
        let id = found[0].replacen('-', "_", 1);
        let number = names.iter().position(|name| *name == id).unwrap_or_else(|| {
            names.push(id);
            names.len() - 1
        });
        format!("{}{}{number}", kind.as_str(), &found["mark"])
    });
    replaced.into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_is_the_recorded_one() {
    let lab = Lab::open(Database::Sqlite, RestOptions::default()).await;
    let mut document = lab.raw("GET /api/openapi.json", &[], "").await.is(200);
    document["info"]["version"] = "VERSION".into();
    check("openapi.json", &format!("{document:#}\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_are_the_recorded_ones() {
    let lab = Lab::open(Database::Sqlite, RestOptions::default()).await;
    let ada = lab.person("ada", 9).await;
    let mut recorded: Vec<Value> = Vec::new();
    let mut record = async |line: String, body: Option<Value>| -> Value {
        let answer = lab.call(&ada, &line, body.clone()).await;
        let content: Value = serde_json::from_str(&answer.text).unwrap_or_else(|_| answer.text.clone().into());
        let mut entry = json!({ "request": line, "status": answer.status.as_u16(), "response": content });
        if let Some(body) = body {
            entry["body"] = body;
        }
        recorded.push(entry);
        content
    };
    let full = json!({
        "name": " Shop ", "new_project": true, "goal": " Make a shop. ", "phases": ["One.", "Two."],
        "repo": "https://example.com/shop.git", "branch": "main", "model": "scripted:here", "template": "base",
        "approvals": [
            {"tool": "bash", "pattern": "rm", "decision": "deny"},
            {"tool": "*", "pattern": null, "decision": "ask"},
            {"tool": "grep", "decision": "allow"},
        ],
    });
    let first = record("POST /api/generation".into(), Some(full.clone())).await;
    let id: JobId = first["job_id"].as_str().expect("an id").parse().expect("an id of a job");
    let project = lab.get(&ada, &format!("/api/jobs/{id}")).await.is(200)["project_id"].clone();
    for body in [
        full,
        json!({"name": "n"}),
        json!({"goal": "g"}),
        json!({"name": "n", "goal": "g", "project_id": project}),
        json!({"project_id": project, "goal": "g", "new_project": true}),
        json!({"name": " ", "goal": "g"}),
        json!({"name": "n".repeat(101), "goal": "g"}),
        json!({"name": "n", "goal": "a\u{0}"}),
        json!({"name": "n", "goal": "g", "colour": 1}),
        json!({"name": "n", "goal": "g", "budget_usd": 0}),
        json!({"name": "n", "goal": "g", "budget_usd": 1}),
        json!({"name": "n", "goal": "g", "phases": vec!["p"; 51]}),
        json!({"name": "n", "goal": "g", "phases": [""]}),
        json!({"name": "n", "goal": "g", "approvals": vec![json!({"tool": "*", "decision": "ask"}); 101]}),
        json!({"name": "n", "goal": "g", "approvals": [{"tool": "hammer", "decision": "ask"}]}),
        json!({"name": "n", "goal": "g", "approvals": [{"tool": "*", "pattern": "(", "decision": "ask"}]}),
        json!({"name": "n", "goal": "g", "approvals": [{"tool": "*", "decision": "ask", "more": 1}]}),
        json!({"name": "n", "goal": "g", "model": "other"}),
        json!({"name": "n", "goal": "g", "repo": "/etc"}),
        json!({"name": "n", "goal": "g", "repo": "https://a:b@example.com/x"}),
        json!([]),
    ] {
        record("POST /api/generation".into(), Some(body)).await;
    }
    let shot = NewScreenshot {
        id: "pic_0123456789abcdef0123".parse::<ScreenshotId>().expect("an id"),
        device: "desktop".to_owned(),
        width: 1280,
        height: 800,
        reason: "ready".to_owned(),
        media_type: "image/webp".to_owned(),
        content: vec![1, 2, 3].into(),
    };
    lab.studio.records().save_screenshot(&id, shot).await.expect("a screenshot");
    let of = |call: &str| format!("/api/jobs/{id}/{call}");
    for path in [
        "/api/me".to_owned(),
        "/api/dashboard".to_owned(),
        "/api/jobs".to_owned(),
        format!("/api/jobs/{id}"),
        format!("/api/generation/{id}/status"),
        of("preview"),
        of("screenshots"),
        of("snapshots"),
        of("usage"),
        of("files"),
        of("file?path=a"),
        format!("/api/projects/{}/usage", project.as_str().expect("an id")),
    ] {
        record(format!("GET {path}"), None).await;
    }
    record(format!("POST {}", of("cancel")), None).await;
    let ready = lab.start(&ada, "page").await;
    lab.make_ready(&ready, Some("igone")).await;
    for path in [format!("/api/jobs/{ready}"), format!("/api/generation/{ready}/status")] {
        record(format!("GET {path}"), None).await;
    }
    record(format!("POST /api/generation/{ready}/rebuild"), None).await;
    record(format!("POST /api/generation/{ready}/rebuild"), Some(json!({"confirm": true}))).await;
    record(format!("POST {}", of("approvals/q")), Some(json!({"allow": true}))).await;
    record(format!("POST {}", of("restore")), Some(json!({"key": "projects/x"}))).await;
    record(format!("POST {}", of("snapshot")), None).await;
    record(format!("DELETE /api/jobs/{id}"), None).await;
    // The timeline too, without the requests.
    let events = lab.studio.records().events(&ready, 0).await.expect("events");
    let events: Vec<Map<String, Value>> = events
        .iter()
        .map(|event| serde_json::from_value(serde_json::to_value(event).expect("JSON")).expect("an object"))
        .collect();
    recorded.push(json!({ "events": events }));
    let text = stable(&Value::from(recorded).to_string());
    let recorded: Value = serde_json::from_str(&text).expect("JSON");
    check("responses.json", &format!("{recorded:#}\n"));
}
