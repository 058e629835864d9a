//! The OpenAPI document is complete. Schemathesis checks from outside that it is true.

use serde_json::Value;

use sandbar_studio::rest::RestOptions;

use super::lab::{Database, Lab};

fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str));
            fields.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_is_complete() {
    let lab = Lab::open(Database::Sqlite, RestOptions::default()).await;
    let answer = lab.raw("GET /api/openapi.json", &[], "").await;
    assert_eq!(answer.header("content-type"), "application/json");
    let document = answer.is(200);
    assert_eq!(document["openapi"], "3.1.0");
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 50, "{}", found.len());
    for reference in found {
        let pointer = reference.strip_prefix('#').expect("a place in this document");
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
    let mut ids: Vec<&str> = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            ids.push(operation["operationId"].as_str().expect("an id"));
            let named = path.matches('{').count();
            let parameters = operation["parameters"].as_array().map_or(&[][..], Vec::as_slice);
            let described = parameters.iter().filter(|parameter| parameter["in"] == "path").count();
            assert_eq!(named, described, "{method} {path}");
        }
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "two calls have one id");
}
