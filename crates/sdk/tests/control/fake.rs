//! Snapshots, forks and networks on the fake, API version 1, and the fake's own contract.

use std::time::Duration;

use fake::{FakeServer, Fault, Script};
use futures::TryStreamExt as _;
use sandbar_sdk::model::{NetworkUpdate, SandboxState};
use sandbar_sdk::{
    CallError, Connect, Create, CreateError, Fork, ForkError, ListQuery, LogQuery, NewSnapshot, Pause, PauseOutcome,
    SandboxError, SnapshotQuery, TimeRange,
};

#[tokio::test]
async fn snapshots_are_taken_listed_used_and_deleted() {
    let server = FakeServer::start().await;
    let client = server.client();
    let sandbox = client.create("base").await.expect("a sandbox");
    sandbox.files().write("/home/user/a.txt", "kept").await.expect("a file");

    let unnamed = sandbox.snapshot(NewSnapshot::unnamed()).await.expect("a snapshot");
    assert!(unnamed.snapshot_id.ends_with(":default") && unnamed.names.is_empty(), "{unnamed:?}");
    let named = sandbox.snapshot("state").await.expect("a snapshot");
    assert_eq!((named.snapshot_id.as_str(), named.names), ("team/state:default", vec!["team/state".to_owned()]));
    let sent = server.requests_to("POST /sandboxes/*/snapshots");
    assert_eq!(sent[0].body, "{}");
    assert_eq!(sent[1].body, r#"{"name":"state"}"#);

    let all = |query: SnapshotQuery| client.snapshots(query).try_collect::<Vec<_>>();
    assert_eq!(all(SnapshotQuery::new().page_size(1)).await.expect("a list").len(), 2, "in two pages");
    assert_eq!(all(SnapshotQuery::new().sandbox(sandbox.id()).name("state")).await.expect("a list").len(), 1);
    assert_eq!(all(SnapshotQuery::new().name("unknown")).await.expect("a list").len(), 0);

    for id in [&unnamed.snapshot_id, &named.snapshot_id] {
        let copy = client.create(id.as_str()).await.expect("a sandbox of the snapshot");
        assert_eq!(copy.files().read_text("a.txt").await.expect("the file"), "kept");
        let error = client.delete_snapshot(id).await.expect_err("it is in use");
        assert!(matches!(error, CallError::Invalid { .. }), "{error:?}");
        copy.kill().await.expect("it ends");
        assert!(client.delete_snapshot(id).await.expect("it is deleted"));
        assert!(!client.delete_snapshot(id).await.expect("an answer"), "it is gone already");
    }
    let path = "DELETE /templates/team%2Fstate%3Adefault";
    assert_eq!(server.requests_to(path).len(), 3, "a reference is one segment");
}

#[tokio::test]
async fn forks_are_copies_and_failed_children_are_reported() {
    let server = FakeServer::start().await;
    let client = server.client();
    let sandbox = client.create("base").await.expect("a sandbox");
    sandbox.files().write("/tmp/a", "one").await.expect("a file");
    let fork = Fork::new().count(3).timeout(Duration::from_secs(60));
    let children: Vec<_> =
        sandbox.fork(fork).await.expect("a fork").into_iter().map(|child| child.expect("a child")).collect();
    assert_eq!(children.len(), 3);
    children[0].files().write("/tmp/a", "two").await.expect("a file");
    assert_eq!(sandbox.files().read_text("/tmp/a").await.expect("the file"), "one");
    assert_ne!(children[0].access_token(), children[1].access_token());

    let mixed = r#"[{"error":{"code":429,"message":"no room"}},{}]"#;
    server.fail_next("POST /sandboxes/*/fork", 1, Fault::answer(201, mixed));
    let mixed = sandbox.fork(Fork::new().count(2)).await.expect("a fork");
    let [Err(ForkError::NotStarted { source_id, status: 429, message }), Err(ForkError::Call(_))] = &mixed[..] else {
        panic!("{mixed:?}")
    };
    assert_eq!((source_id, message.as_str()), (sandbox.id(), "no room"));

    let error = sandbox.fork(Fork::new().count(101)).await.expect_err("too many");
    assert!(matches!(error, SandboxError::Call(CallError::Invalid { .. })), "{error:?}");
    sandbox.pause(Pause::default()).await.expect("it pauses");
    let error = sandbox.fork(Fork::new()).await.expect_err("it does not run");
    assert!(matches!(error, SandboxError::Conflict { .. }), "{error:?}");
    assert_eq!(server.sandboxes().len(), 4);
}

#[tokio::test]
async fn a_network_update_replaces_everything() {
    let server = FakeServer::start().await;
    let sandbox = server.client().create("base").await.expect("a sandbox");
    let update = NetworkUpdate {
        allow_out: Some(vec!["example.com".into()]),
        deny_out: Some(vec!["0.0.0.0/0".into()]),
        allow_internet_access: Some(true),
        ..NetworkUpdate::default()
    };
    sandbox.update_network(&update).await.expect("it is changed");
    let network = sandbox.info().await.expect("it exists").network.expect("a network");
    assert_eq!(network.allow_out, Some(vec!["example.com".to_owned()]));
    sandbox.update_network(&NetworkUpdate::default()).await.expect("it is cleared");
    let network = sandbox.info().await.expect("it exists").network.expect("a network");
    assert_eq!((network.allow_out, network.deny_out), (None, None));
    let sent = server.requests_to("PUT /sandboxes/*/network");
    assert_eq!(sent[0].body, r#"{"allowOut":["example.com"],"denyOut":["0.0.0.0/0"],"allow_internet_access":true}"#);
    assert_eq!(sent[1].body, "{}");
}

#[tokio::test]
async fn api_v1_is_detected_once() {
    let server = FakeServer::start().await;
    server.only_api_v1();
    let client = server.client();
    let sandbox = client.create("base").await.expect("a sandbox");
    client.create("base").await.expect("a sandbox");
    client.connect(sandbox.id(), Connect::default()).await.expect("it runs");
    assert_eq!(server.requests_to("POST /v2/sandboxes").len(), 1, "asked once");
    assert_eq!(server.requests_to("POST /v2/sandboxes/*/connect").len(), 0);
    let old = server.requests_to("POST /sandboxes");
    assert_eq!(old.len(), 2);
    assert!(old.iter().all(|request| !request.headers.contains_key("idempotency-key")), "it knows no keys");
    let error = client.create("no-such").await.expect_err("it does not exist");
    assert!(matches!(error, CreateError::TemplateNotFound { .. }), "{error:?}");

    // Version 1 servers use the newer list calls.
    sandbox.pause(Pause::default()).await.expect("it pauses");
    let paused: Vec<_> = client.list(ListQuery::new().state(SandboxState::Paused)).try_collect().await.expect("a list");
    assert_eq!(paused.len(), 1);
}

#[tokio::test]
async fn lists_and_logs_of_old_servers_are_filtered_locally() {
    let server = FakeServer::start().await;
    server.lacks("GET /v2/sandboxes").lacks("GET /v2/sandboxes/*/logs");
    let client = server.client();
    for owner in ["me", "you", "me"] {
        client.create(Create::template("base").metadata("owner", owner)).await.expect("a sandbox");
    }
    let mine: Vec<_> = client.list(ListQuery::new().metadata("owner", "me")).try_collect().await.expect("a list");
    assert_eq!(mine.len(), 2);
    assert!(mine[0].started_at >= mine[1].started_at, "newest first");
    let paused = client.list_page(&ListQuery::new().state(SandboxState::Paused), None).await;
    assert!(matches!(paused.expect_err("it cannot tell"), CallError::Unsupported { .. }));

    let sandbox = client.create("base").await.expect("a sandbox");
    sandbox.pause(Pause::default()).await.expect("it pauses");
    client.connect(sandbox.id(), Connect::default()).await.expect("it resumes");
    let messages = async |query: LogQuery| -> Vec<String> {
        sandbox.logs(&query).await.expect("a log").into_iter().map(|entry| entry.message).collect()
    };
    assert_eq!(messages(LogQuery::oldest()).await, ["sandbox started", "sandbox paused", "sandbox resumed"]);
    assert_eq!(messages(LogQuery::newest().limit(1)).await, ["sandbox resumed"]);
    assert_eq!(messages(LogQuery::oldest().search("pause")).await, ["sandbox paused"]);
    assert_eq!(client.capabilities().await.expect("an answer"), None, "the fake is plain E2B");
}

#[tokio::test]
async fn the_fake_follows_the_protocol() {
    let server = FakeServer::start().await;
    server.on_command("greet", Script::stdout("hello\n").stderr("careful\n").exit(2));
    server.on_command("wait", Script::stdout("up\n").runs_until_killed());
    let client = server.client();
    let sandbox = client.create(Create::template("base").timeout(Duration::from_secs(100))).await.expect("a sandbox");

    let output = sandbox.commands().run("greet").await.expect("it runs");
    assert_eq!(
        (output.stdout_text().as_ref(), output.stderr_text().as_ref(), output.exit.code),
        ("hello\n", "careful\n", 2)
    );
    assert_eq!(sandbox.commands().run("other").await.expect("it runs").exit.code, 127);
    let running = sandbox.commands().start("wait").await.expect("it starts");
    assert_eq!(sandbox.commands().list().await.expect("a list").len(), 1);
    assert!(sandbox.commands().kill(running.pid()).await.expect("an answer"));
    assert_eq!(running.wait().await.expect("it ended").exit.code, -1);

    let files = sandbox.files();
    files.write("notes/a.txt", "text").await.expect("a file");
    assert_eq!(server.file(sandbox.id(), "/home/user/notes/a.txt").expect("it is there"), "text");
    assert_eq!(files.list("notes").await.expect("a list")[0].name, "a.txt");
    assert!(files.make_dir("made").await.expect("a directory"));
    assert!(!files.make_dir("made").await.expect("an answer"));
    files.rename("notes/a.txt", "made/b.txt").await.expect("it moves");
    files.remove("notes").await.expect("it goes");
    assert!(!files.exists("notes").await.expect("an answer"));

    assert_eq!(sandbox.metrics(TimeRange::ALL).await.expect("metrics").len(), 1);
    assert!(sandbox.is_running().await.expect("an answer"));
    assert_eq!(sandbox.pause(Pause::default()).await.expect("it pauses"), PauseOutcome::Paused);
    assert_eq!(sandbox.pause(Pause::default()).await.expect("an answer"), PauseOutcome::AlreadyPaused);
    assert!(!sandbox.is_running().await.expect("an answer"));

    // Every request to a sandbox carries its token, and none to the control plane does.
    let token = sandbox.access_token().expect("it is secured").expose();
    for request in server.requests() {
        let to_sandbox = request.headers.contains_key("e2b-sandbox-id");
        let sent = request.headers.get("x-access-token").is_some_and(|value| value == token);
        assert_eq!(sent, to_sandbox, "{} {}", request.method, request.target);
        assert_eq!(request.headers.contains_key("x-api-key"), !to_sandbox, "{} {}", request.method, request.target);
    }
    drop(server);
    let error = client.info(sandbox.id()).await.expect_err("the server is gone");
    assert!(
        matches!(error, SandboxError::Call(CallError::Unreachable { .. } | CallError::ConnectionLost { .. })),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_list_ends_with_its_first_error() {
    let server = FakeServer::start().await;
    let client = server.client();
    for _ in 0..3 {
        client.create("base").await.expect("a sandbox");
    }
    let mut list = std::pin::pin!(client.list(ListQuery::new().page_size(2)));
    assert!(list.try_next().await.expect("a row").is_some());
    assert!(list.try_next().await.expect("a row").is_some());
    server.fail_next("GET /v2/sandboxes", 1, Fault::status(500));
    let error = list.try_next().await.expect_err("the second page fails");
    assert!(matches!(error, CallError::Service { status: 500, .. }), "{error:?}");
    assert!(list.try_next().await.expect("no more").is_none());
    assert_eq!(server.requests_to("GET /v2/sandboxes").len(), 2, "pages are fetched when they are read");
}

#[tokio::test]
async fn invalid_responses_are_protocol_errors() {
    let server = FakeServer::start().await;
    let client = server.client();
    let sandbox = client.create("base").await.expect("a sandbox");
    for body in ["", "{", "[]", "{\"sandboxID\":1}", "<html>"] {
        server.fail_next("GET /sandboxes/*", 1, Fault::answer(200, body));
        let error = sandbox.info().await.expect_err("it cannot be read");
        assert!(matches!(error, SandboxError::Call(CallError::Protocol { .. })), "{body:?}: {error:?}");
    }
    server.fail_next("PUT /sandboxes/*/network", 1, Fault::status(501).message("not built"));
    let error = sandbox.update_network(&NetworkUpdate::default()).await.expect_err("the server lacks it");
    assert!(matches!(error, SandboxError::Call(CallError::Unsupported { .. })), "{error:?}");
}
