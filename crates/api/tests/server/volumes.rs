//! Volumes on the wire: control calls with the key, content calls with the volume's own token.

use serde_json::{Value, json};

use crate::support::{Answer, Server};

struct Volume {
    id: String,
    token: String,
}

impl Volume {
    async fn make(server: &Server, name: &str) -> Self {
        let made = server.call("POST /volumes", &json!({ "name": name }).to_string()).await;
        assert_eq!(made.status, 201, "{}", made.text());
        let body = made.json();
        let text = |name: &str| body[name].as_str().expect("a text").to_owned();
        assert_eq!((text("name"), body["domain"].is_string()), (name.to_owned(), true));
        Self { id: text("volumeID"), token: text("token") }
    }

    async fn call(&self, server: &Server, line: &str, body: &str) -> Answer {
        let (method, rest) = line.split_once(' ').expect("a method");
        let bearer = format!("Bearer {}", self.token);
        let line = format!("{method} /volumecontent/{}/{rest}", self.id);
        server.send(&line, &[("authorization", &bearer)], body.to_owned()).await
    }
}

#[tokio::test]
async fn volumes_are_made_listed_and_deleted() {
    let server = Server::start().await;
    let one = Volume::make(&server, "one").await;
    let two = Volume::make(&server, "Two_-2").await;
    let listed = server.call("GET /volumes", "").await.json();
    let expected = json!([{ "volumeID": two.id, "name": "Two_-2" }, { "volumeID": one.id, "name": "one" }]);
    assert_eq!(listed, expected, "without tokens");
    assert_eq!(server.call(&format!("GET /volumes/{}", one.id), "").await.json()["token"], one.token);
    for body in [r#"{"name":"one"}"#, r#"{"name":"a b"}"#, r#"{"name":""}"#, "{}"] {
        let refused = server.call("POST /volumes", body).await;
        assert_eq!((refused.status.as_u16(), refused.json()["code"].clone()), (400, json!(400)), "{body}");
    }
    let body = json!({ "templateID": "base", "volumeMounts": [{ "name": "one", "path": "/mnt/one" }] });
    let made = server.create(body).await;
    let sandbox = made["sandboxID"].as_str().expect("an ID");
    let detail = server.call(&format!("GET /sandboxes/{sandbox}"), "").await.json();
    assert_eq!(detail["volumeMounts"], json!([{ "name": "one", "path": "/mnt/one" }]));
    assert_eq!(server.call(&format!("DELETE /volumes/{}", one.id), "").await.status, 409, "it is used");
    assert_eq!(server.call(&format!("DELETE /sandboxes/{sandbox}"), "").await.status, 204);
    assert_eq!(server.call(&format!("DELETE /volumes/{}", one.id), "").await.status, 204);
    assert_eq!(server.call(&format!("DELETE /volumes/{}", one.id), "").await.status, 404);
    for (mounts, message) in [
        (json!([{ "name": "none", "path": "/a" }]), "volume 'none' not found"),
        (json!([{ "name": "Two_-2", "path": "/a" }, { "name": "Two_-2", "path": "/a" }]), "'/a' is used twice"),
        (json!([{ "name": "Two_-2", "path": "/" }]), "'/' is not a clean absolute path"),
        (json!([{ "name": "Two_-2", "path": "/a/../b" }]), "'/a/../b' is not a clean absolute path"),
        (json!([{ "name": "Two_-2", "path": "/proc/x" }]), "nothing can be mounted below '/proc'"),
    ] {
        let body = json!({ "templateID": "base", "volumeMounts": mounts });
        let refused = server.call("POST /v2/sandboxes", &body.to_string()).await;
        assert_eq!(refused.status, 400);
        assert_eq!(refused.json()["message"], format!("volumeMounts: {message}"));
    }
}

#[tokio::test]
async fn content_is_written_read_changed_and_removed() {
    let server = Server::start().await;
    let volume = Volume::make(&server, "content").await;
    let code = |answer: &Answer| (answer.status.as_u16(), answer.json()["code"].clone());
    let put = volume.call(&server, "PUT file?path=%2Fa%2Fb.txt&uid=7&mode=384", "text").await;
    assert_eq!(put.status, 201, "{}", put.text());
    let entry = put.json();
    let seen = |name: &str| entry[name].clone();
    let fields = ["name", "type", "path", "size", "mode", "uid", "gid"].map(seen);
    assert_eq!(
        fields,
        [json!("b.txt"), json!("file"), json!("/a/b.txt"), json!(4), json!(0o600), json!(7), json!(1000)]
    );
    assert!(entry["mtime"].as_str().is_some_and(|time| time.ends_with('Z')));
    let again = volume.call(&server, "PUT file?path=a/b.txt", "other").await;
    assert_eq!(code(&again), (409, json!("already_exists")));
    assert_eq!(volume.call(&server, "PUT file?path=a/b.txt&force=true", "other").await.status, 201);
    let read = volume.call(&server, "GET file?path=/a/b.txt", "").await;
    assert_eq!((read.status.as_u16(), read.text()), (200, "other".to_owned()));

    assert_eq!(code(&volume.call(&server, "POST dir?path=/x/y", "").await), (404, json!("not_found")));
    assert_eq!(volume.call(&server, "POST dir?path=/x/y&force=true", "").await.status, 201);
    assert_eq!(code(&volume.call(&server, "POST dir?path=/x/y", "").await), (409, json!("already_exists")));
    let paths = |answer: &Answer| -> Vec<Value> {
        answer.json().as_array().expect("a list").iter().map(|entry| entry["path"].clone()).collect()
    };
    assert_eq!(paths(&volume.call(&server, "GET dir?path=/", "").await), [json!("/a"), json!("/x")]);
    let deep = volume.call(&server, "GET dir?path=/&depth=2", "").await;
    assert_eq!(paths(&deep), [json!("/a"), json!("/a/b.txt"), json!("/x"), json!("/x/y")]);

    let changed = volume.call(&server, "PATCH path?path=/x/y", r#"{"mode":448,"gid":9}"#).await.json();
    assert_eq!(
        (changed["mode"].clone(), changed["uid"].clone(), changed["gid"].clone()),
        (json!(0o700), json!(1000), json!(9))
    );
    assert_eq!(volume.call(&server, "DELETE path?path=/x", "").await.status, 204);
    assert_eq!(code(&volume.call(&server, "DELETE path?path=/x", "").await), (404, json!("not_found")));
    assert_eq!(code(&volume.call(&server, "GET path?path=/x/y", "").await), (404, json!("not_found")));

    for (line, status) in [
        ("GET path", 400),
        ("GET path?path=/../etc", 400),
        ("GET path?path=%00", 400),
        ("GET file?path=/a", 400),
        ("GET dir?path=/a/b.txt", 400),
        ("GET dir?path=/&depth=0", 400),
        ("DELETE path?path=/", 400),
        ("PUT file?path=/", 400),
        ("PUT file?path=/c&uid=70000", 400),
        ("PUT file?path=/c&mode=x", 400),
        ("PUT file?path=/a&force=true", 400),
        ("PUT file?path=/a/b.txt/c", 400),
        ("POST file?path=/c", 405),
        ("GET nothing?path=/", 404),
    ] {
        let answer = volume.call(&server, line, "x").await;
        assert_eq!(answer.status, status, "{line}: {}", answer.text());
        assert!(answer.json()["code"].is_string(), "{line}");
    }
    // Neither the server's key nor another volume's token grants access to the content.
    let line = format!("GET /volumecontent/{}/path?path=/", volume.id);
    assert_eq!(server.call(&line, "").await.status, 401);
    let other = Volume::make(&server, "other").await;
    let thief = Volume { id: volume.id, token: other.token };
    assert_eq!(code(&thief.call(&server, "GET path?path=/", "").await), (401, json!("unauthorized")));
}
