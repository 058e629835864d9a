//! Attacks of one tenant on another: a user of the studio on another user's job, the token of a
//! sandbox on its copies, the token of a volume on another volume.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::server::PROGRAM;
use crate::support::{Program, Sandbox, Server, http};

#[test]
fn another_user_s_job_does_not_exist() {
    let scripts = tempfile::tempdir().expect("a directory");
    std::fs::write(scripts.path().join("idle.json"), r#"{"turns": [{"text": "Done."}]}"#).expect("a script");
    // Without a worker the job does not change.
    let flags = ["--ephemeral", "--builds", "0", "--scripts", scripts.path().to_str().expect("a plain path")];
    let server = Server::with(&flags);
    let owner = testing::exported(Path::new(PROGRAM), server.data(), None, "SANDBAR_TOKEN").expect("a token");
    let none = server.file("none");
    let user = Program::new("user").variable("XDG_CONFIG_HOME", &none).variable("XDG_DATA_HOME", &none);
    let data = server.data().to_str().expect("a plain path");
    let eve = user.json(&["add", "eve", "--data", data])["token"].as_str().expect("a token").to_owned();
    let send = |token: &str, method: &str, path: &str, body: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
        http::request(&server.address, method, path, &headers, body.as_bytes()).expect("an answer")
    };
    let begin = json!({ "name": "mine", "goal": "Secret goal.", "model": "scripted:idle.json" }).to_string();
    let begun = send(&owner, "POST", "/api/generation", &begin);
    assert_eq!(begun.status, 202, "{}", begun.text());
    let job = begun.json()["job_id"].as_str().expect("an id").to_owned();
    let before = send(&owner, "GET", &format!("/api/jobs/{job}"), "").json();
    let project = before["project_id"].as_str().unwrap_or("mine").to_owned();

    let document = send(&owner, "GET", "/api/openapi.json", "").json();
    let (mut calls, mut through) = (0, Vec::new());
    for (path, operations) in document["paths"].as_object().expect("paths") {
        if !path.contains('{') {
            continue;
        }
        let path = path.replace("{job_id}", &job).replace("{project_id}", &project);
        let path = path.replace("{question_id}", "1").replace("{screenshot_id}", "1");
        for method in operations.as_object().expect("operations").keys() {
            calls += 1;
            let method = method.to_uppercase();
            // Bodies that are valid for the job's owner, so that a refusal is not about their form.
            for body in ["{}", r#"{"key": "a/b"}"#, r#"{"allow": true}"#] {
                let body = if method == "GET" { "" } else { body };
                let reply = send(&eve, &method, &path, body);
                let about_form = matches!(reply.status, 400 | 422) && !reply.text().contains("Secret");
                if reply.status != 404 && !about_form {
                    through.push(format!("{method} {path}: {} {}", reply.status, reply.text()));
                }
            }
        }
    }
    assert!(calls >= 20, "{calls} calls");
    assert!(through.is_empty(), "{}", through.join("\n"));
    for path in ["/api/jobs", "/api/dashboard"] {
        let (hers, his) = (send(&eve, "GET", path, "").text(), send(&owner, "GET", path, "").text());
        assert!(!hers.contains(&job) && his.contains(&job), "{path}: {hers}; the control: {his}");
    }
    assert_eq!(send(&owner, "GET", &format!("/api/jobs/{job}"), "").json(), before, "the control: it is as it was");
}

#[test]
fn copies_of_a_sandbox_have_tokens_of_their_own() {
    let server = Server::with(&["--ephemeral", "--no-studio"]);
    let sandbox = server.create();
    let taken = server.call("POST", &format!("/sandboxes/{}/snapshots", sandbox.id), Some(json!({})));
    assert_eq!(taken.status, 201, "{}", taken.text());
    let copy = server.create_with(json!({ "templateID": taken.json()["snapshotID"] }));
    let forked = server.call("POST", &format!("/sandboxes/{}/fork", sandbox.id), Some(json!({})));
    assert!((200..300).contains(&forked.status), "{}", forked.text());
    let forked = forked.json();
    let fork = find(&forked, "sandboxID").expect("a fork");
    let token = find(&forked, "envdAccessToken").expect("its token");
    let fork = Sandbox::new(&server.address, fork, token);
    let all = [&sandbox, &copy, &fork];
    for one in all {
        for other in all {
            let crossed = Sandbox::new(&server.address, one.id.clone(), other.token.clone());
            let status = crossed.read("/etc/hostname").status;
            assert_eq!(status, if one.id == other.id { 200 } else { 401 }, "{} with a token of {}", one.id, other.id);
        }
    }
}

/// The first string field of this name, at any depth.
fn find(value: &Value, name: &str) -> Option<String> {
    match value {
        Value::Object(fields) => {
            let own = fields.get(name).and_then(Value::as_str).map(str::to_owned);
            own.or_else(|| fields.values().find_map(|field| find(field, name)))
        }
        Value::Array(items) => items.iter().find_map(|item| find(item, name)),
        _ => None,
    }
}

#[test]
fn a_volume_opens_to_its_own_token_alone() {
    let server = Server::with(&["--ephemeral", "--no-studio"]);
    let create = |name: &str| server.call("POST", "/volumes", Some(json!({ "name": name }))).json();
    let (mine, others, sandbox) = (create("mine"), create("others"), server.create());
    let text = |volume: &Value, key: &str| volume[key].as_str().expect("a text").to_owned();
    let (token, id) = (text(&mine, "token"), text(&mine, "volumeID"));
    let bearer = |token: &str| format!("Bearer {token}");
    let wrong = [
        String::new(),
        bearer(""),
        bearer(&text(&others, "token")),
        bearer(&server.key),
        bearer(&sandbox.token),
        bearer(&token[..token.len() - 1]),
        bearer(&format!("{token}0")),
        format!("Basic {token}"),
        token.clone(),
    ];
    let calls = [
        ("GET", "path"),
        ("PATCH", "path"),
        ("DELETE", "path"),
        ("GET", "dir"),
        ("POST", "dir"),
        ("GET", "file"),
        ("PUT", "file"),
    ];
    let send = |method: &str, kind: &str, authorization: &str| {
        let headers =
            [("Authorization", authorization), ("X-API-Key", &server.key), ("Content-Type", "application/json")];
        let target = format!("/volumecontent/{id}/{kind}?path=/a&force=true&token={token}");
        http::request(&server.address, method, &target, &headers, b"{}").expect("an answer").status
    };
    let own = bearer(&token);
    assert_eq!(send("PUT", "file", &own), 201, "the control");
    for (method, kind) in calls {
        for authorization in &wrong {
            assert_eq!(send(method, kind, authorization), 401, "{method} {kind} with {authorization:?}");
        }
    }
    assert_eq!(send("GET", "file", &own), 200, "the control: it is there still");
}
