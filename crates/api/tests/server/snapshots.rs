//! Snapshots, forks and their templates on the wire.

use serde_json::{Value, json};

use crate::support::Server;

async fn take(server: &Server, id: &str, body: Value) -> Value {
    let answer = server.call(&format!("POST /sandboxes/{id}/snapshots"), &body.to_string()).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    answer.json()
}

#[tokio::test]
async fn snapshots_are_taken_listed_used_and_deleted() {
    let server = Server::start().await;
    let source = server.create(json!({ "templateID": "base" })).await;
    let id = source["sandboxID"].as_str().expect("an ID").to_owned();
    let unnamed = take(&server, &id, json!({})).await;
    let named = take(&server, &id, json!({ "name": "work", "memory": true })).await;
    assert_eq!(named, json!({ "snapshotID": "local/work:default", "names": ["local/work"] }));
    assert_eq!(unnamed["names"], json!([]));

    let rows = server.call(&format!("GET /snapshots?sandboxID={id}&limit=1"), "").await;
    assert_eq!((rows.status.as_u16(), rows.json()), (200, json!([named])));
    let next = rows.header("x-next-token").expect("there is more").to_owned();
    let rest = server.call(&format!("GET /snapshots?nextToken={next}"), "").await;
    assert_eq!((rest.json(), rest.header("x-next-token")), (json!([unnamed]), None));
    assert_eq!(server.call("GET /snapshots?name=nothing", "").await.json(), json!([]));
    assert_eq!(server.call("GET /snapshots?name=work", "").await.json(), json!([named]));
    for bad in ["limit=0", "nextToken=%21", "sandboxID=A_", "name=a%20b"] {
        assert_eq!(server.call(&format!("GET /snapshots?{bad}"), "").await.status, 400, "{bad}");
    }
    for (body, status) in [(r#"{"name":"a b"}"#, 400), (r#"{"name":"base"}"#, 409), (r#"{"name":1}"#, 400)] {
        let answer = server.call(&format!("POST /sandboxes/{id}/snapshots"), body).await;
        assert_eq!((answer.status.as_u16(), answer.json()["code"].as_u64()), (status, Some(status.into())), "{body}");
    }

    let child = server.create(json!({ "templateID": named["snapshotID"] })).await;
    assert_eq!(child["alias"], "work");
    let path = "/templates/local%2Fwork%3Adefault";
    assert_eq!(server.call(&format!("DELETE {path}"), "").await.status, 400, "it is used");
    let child = child["sandboxID"].as_str().expect("an ID");
    assert_eq!(server.call(&format!("DELETE /sandboxes/{child}"), "").await.status, 204);
    assert_eq!(server.call(&format!("DELETE {path}"), "").await.status, 204);
    assert_eq!(server.call(&format!("DELETE {path}"), "").await.status, 404);
    let gone = server.call("POST /v2/sandboxes", r#"{"templateID":"local/work"}"#).await;
    assert_eq!(gone.status, 404);
}

#[tokio::test]
async fn forks_answer_for_each_child() {
    let server = Server::start().await;
    let source = server.create(json!({ "templateID": "base", "metadata": { "a": "b" } })).await;
    let id = source["sandboxID"].as_str().expect("an ID");
    let answer = server.call(&format!("POST /sandboxes/{id}/fork"), r#"{"count":2,"timeout":60}"#).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let children = answer.json();
    let children = children.as_array().expect("a list");
    assert_eq!(children.len(), 2);
    for child in children {
        let child = &child["sandbox"];
        assert_ne!(child["envdAccessToken"], source["envdAccessToken"]);
        let detail = server.call(&format!("GET /sandboxes/{}", child["sandboxID"].as_str().expect("an ID")), "").await;
        assert_eq!(detail.json()["metadata"], json!({ "a": "b" }));
    }
    for bad in [r#"{"count":0}"#, r#"{"count":101}"#, r#"{"timeout":0}"#, r#"{"count":-1}"#] {
        assert_eq!(server.call(&format!("POST /sandboxes/{id}/fork"), bad).await.status, 400, "{bad}");
    }
}

#[tokio::test]
async fn templates_are_named_tagged_published_and_listed() {
    let server = Server::start().await;
    let source = server.create(json!({ "templateID": "base" })).await;
    take(&server, source["sandboxID"].as_str().expect("an ID"), json!({ "name": "work" })).await;
    let alias = server.call("GET /templates/aliases/work", "").await.json();
    assert_eq!(server.call("GET /templates/aliases/local%2Fwork", "").await.json(), alias);
    assert_eq!(server.call("GET /templates/aliases/local/work", "").await.json(), alias);
    assert_eq!(server.call("GET /templates/aliases/base", "").await.json()["public"], true);
    let id = alias["templateID"].as_str().expect("an ID");

    let tagged = server.call("POST /templates/tags", r#"{"target":"work","tags":["v1","V2"]}"#).await;
    assert_eq!((tagged.status.as_u16(), &tagged.json()["tags"]), (201, &json!(["v1", "v2"])));
    let tags = server.call(&format!("GET /templates/{id}/tags"), "").await.json();
    let names: Vec<_> = tags.as_array().expect("a list").iter().map(|tag| tag["tag"].clone()).collect();
    assert_eq!(names, ["default", "v1", "v2"]);
    for (line, body, status) in [
        ("POST /templates/tags", r#"{"target":"nothing","tags":["v1"]}"#, 404),
        ("POST /templates/tags", r#"{"target":"work:v9","tags":["v1"]}"#, 404),
        ("POST /templates/tags", r#"{"target":"work","tags":["a b"]}"#, 400),
        ("POST /templates/tags", r#"{"target":"work","tags":[]}"#, 400),
        ("DELETE /templates/tags", r#"{"name":"work","tags":["default"]}"#, 400),
        ("DELETE /templates/tags", r#"{"name":"work:v1","tags":["v1"]}"#, 400),
        ("DELETE /templates/tags", r#"{"name":"work","tags":["v1"]}"#, 204),
        ("DELETE /templates/tags", r#"{"name":"work","tags":["v1"]}"#, 404),
    ] {
        assert_eq!(server.call(line, body).await.status, status, "{line} {body}");
    }

    let updated = server.call(&format!("PATCH /v2/templates/{id}"), r#"{"public":true}"#).await;
    assert_eq!((updated.status.as_u16(), updated.json()), (200, json!({ "names": ["local/work"] })));
    let rows = server.call("GET /templates", "").await.json();
    let shown: Vec<_> =
        rows.as_array().expect("a list").iter().map(|row| (&row["aliases"][0], &row["public"])).collect();
    assert_eq!(shown, [(&json!("work"), &json!(true)), (&json!("base"), &json!(true))]);
    let one = server.call("GET /templates/work", "").await.json();
    assert_eq!((&one["buildStatus"], one["builds"].as_array().map(Vec::len)), (&json!("ready"), Some(1)));
    let page = server.call("GET /v2/templates?limit=1", "").await;
    assert_eq!(page.status, 200);
}
