//! Secrets on the wire: no call returns a value.

use serde_json::{Value, json};

use crate::support::Server;

const VALUE: &str = "sk-never-to-be-seen";

#[tokio::test]
async fn calls_on_secrets_never_return_their_values() {
    let server = Server::start().await;
    let body = json!({ "name": "OpenAI-Key", "value": VALUE, "metadata": { "team": "a" } }).to_string();
    let made = server.call("POST /secrets", &body).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let (text, made) = (made.text(), made.json());
    assert!(!text.contains(VALUE), "{text}");
    assert_eq!((&made["name"], &made["currentVersion"]), (&json!("openai-key"), &json!(1)));
    assert_eq!(made["metadata"], json!({ "team": "a" }));
    let id = made["secretID"].as_str().expect("an ID").to_owned();
    assert!(id.starts_with("sec_"), "{id}");

    let taken = server.call("POST /secrets", &body).await;
    assert_eq!((taken.status.as_u16(), taken.json()["code"].clone()), (409, json!(409)));
    for path in [&id, "openai-key", "OPENAI-KEY"] {
        let found = server.call(&format!("GET /secrets/{path}"), "").await;
        assert_eq!((found.status.as_u16(), found.json()), (200, made.clone()), "{path}");
    }
    let update = json!({ "value": format!("{VALUE}-2") }).to_string();
    let changed = server.call("POST /secrets/openai-key", &update).await;
    assert!(!changed.text().contains(VALUE));
    assert_eq!((changed.status.as_u16(), changed.json()["currentVersion"].clone()), (200, json!(2)));
    assert_eq!(changed.json()["metadata"], json!({ "team": "a" }), "it stays unless given");
    let cleared = json!({ "value": VALUE, "metadata": {} }).to_string();
    assert_eq!(server.call(&format!("POST /secrets/{id}"), &cleared).await.json()["metadata"], json!({}));

    assert_eq!(server.call(&format!("DELETE /secrets/{id}"), "").await.status, 204);
    for line in [format!("GET /secrets/{id}"), format!("DELETE /secrets/{id}")] {
        let gone = server.call(&line, "").await;
        assert_eq!((gone.status.as_u16(), gone.json()["code"].clone()), (404, json!(404)), "{line}");
    }
    assert_eq!(server.call("POST /secrets/openai-key", &update).await.status, 404);
    assert_eq!(server.call("PUT /secrets/openai-key", &update).await.status, 405);
}

#[tokio::test]
async fn secrets_are_listed_in_pages() {
    let server = Server::start().await;
    for number in 0..3 {
        let body = json!({ "name": format!("s{number}"), "value": VALUE }).to_string();
        assert_eq!(server.call("POST /secrets", &body).await.status, 201);
    }
    let names = |rows: &Value| -> Vec<String> {
        let rows = rows.as_array().expect("a list");
        rows.iter().map(|row| row["name"].as_str().expect("a name").to_owned()).collect()
    };
    let first = server.call("GET /secrets?limit=2", "").await;
    assert!(!first.text().contains(VALUE));
    assert_eq!(names(&first.json()), ["s2", "s1"]);
    let token = first.header("x-next-token").expect("there is more").to_owned();
    let second = server.call(&format!("GET /secrets?limit=2&nextToken={token}"), "").await;
    assert_eq!(names(&second.json()), ["s0"]);
    assert_eq!(second.header("x-next-token"), None);
    assert_eq!(server.call("GET /secrets?limit=0", "").await.status, 400);
}

#[tokio::test]
async fn invalid_fields_are_named() {
    let server = Server::start().await;
    let many: Value = (0..33).map(|number| (number.to_string(), json!("x"))).collect::<serde_json::Map<_, _>>().into();
    for (body, message) in [
        (json!({ "name": "a b", "value": "x" }), "'a b' cannot be the name of a secret"),
        (json!({ "name": "", "value": "x" }), "cannot be the name of a secret"),
        (json!({ "name": "sec_x", "value": "x" }), "must not begin with sec_"),
        (json!({ "name": "x".repeat(129), "value": "x" }), "1 to 128 characters"),
        (json!({ "name": "a", "value": "" }), "the value of a secret needs"),
        (json!({ "name": "a", "value": "line\nline" }), "no control characters"),
        (json!({ "name": "a", "value": "x", "metadata": many }), "33 entries; 32 are the most"),
        (json!({ "name": "a", "value": "x", "metadata": { "k": "v".repeat(1025) } }), "longer than 1024 bytes"),
        (json!({ "name": "a" }), "value"),
    ] {
        let answer = server.call("POST /secrets", &body.to_string()).await;
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.text().contains(message), "{body}: {}", answer.text());
    }
}
