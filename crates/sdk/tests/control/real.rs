//! Calls against the real server.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use jiff::Timestamp;
use sandbar_sdk::model::{PauseMode, SandboxState};
use sandbar_sdk::{
    CallError, Client, Connect, Create, CreateError, ListQuery, LogQuery, Order, Pause, PauseOutcome, PortRoute,
    Resume, SandboxError, SandboxId, TimeRange,
};

use testing::Server;

/// A create whose sandboxes are excluded from other tests' lists.
fn marked(mark: &str) -> Create {
    Create::template("base").timeout(Duration::from_secs(300)).metadata("test of", mark)
}

async fn listed(client: &Client, query: ListQuery) -> Vec<String> {
    let rows: Vec<_> = client.list(query).try_collect().await.expect("a list");
    rows.into_iter().map(|row| row.sandbox_id).collect()
}

#[tokio::test]
async fn a_sandbox_is_created_inspected_and_killed() {
    let server = Server::shared(&[]);
    let client = server.client();
    let create = marked("life & death").env("SECRET", "hidden").cpu_count(1).memory_mb(256);
    let sandbox = client.create(create).await.expect("a sandbox");
    let info = sandbox.info().await.expect("it exists");
    assert_eq!(info.listed.sandbox_id, sandbox.id().as_str());
    assert_eq!((info.listed.cpu_count, info.listed.memory_mb, info.listed.state), (1, 256, SandboxState::Running));
    assert_eq!(info.listed.metadata["test of"], "life & death");
    assert!(sandbox.is_running().await.expect("an answer"));

    let token = sandbox.access_token().expect("it is secured").expose().to_owned();
    let shown = format!("{sandbox:?} {info:?} {client:?} {:?}", sandbox.access_token());
    assert!(!shown.contains(&token) && !shown.contains(server.key()), "{shown}");

    assert!(sandbox.kill().await.expect("it ends"));
    assert!(!sandbox.kill().await.expect("an answer"), "it is gone already");
    assert!(!sandbox.is_running().await.expect("an answer"));
    let error = sandbox.info().await.expect_err("it is gone");
    assert!(matches!(&error, SandboxError::NotFound { id } if id == sandbox.id()), "{error:?}");
    assert!(error.to_string().contains(sandbox.id().as_str()));
}

#[tokio::test]
async fn a_port_is_reachable_by_headers_and_by_name() {
    let server = Server::shared(&[]);
    let sandbox = server.client().create(marked("routes")).await.expect("a sandbox");
    let _serving = sandbox.commands().start("cd /etc && exec python3 -m http.server 8000").await.expect("it starts");
    let plain = Client::builder().ignore_environment().api_key(server.key()).api_url(server.url());
    let plain = plain.build().expect("a client");
    let by_name = plain.attach(&sandbox.info().await.expect("it exists")).expect("it runs");
    let port = server.address().rsplit(':').next().expect("a port");
    assert_eq!(by_name.url(8000), format!("http://8000-{}.localhost:{port}", sandbox.id()));
    let http = reqwest::Client::builder().no_proxy().build().expect("a client");
    for sandbox in [&sandbox, &by_name] {
        let PortRoute { url, headers } = sandbox.route(8000);
        let asked = || async {
            let answer = http.get(format!("{url}/hostname")).headers(headers.clone()).send().await.ok()?;
            if answer.status() == 200 { answer.text().await.ok() } else { None }
        };
        let info = testing::eventually_async(format!("{url} answers"), Duration::from_secs(30), asked).await;
        assert_eq!(info.trim(), sandbox.id().as_str());
    }
    sandbox.kill().await.expect("it ends");
}

#[tokio::test]
async fn unknown_templates_and_sandboxes_are_distinct_errors() {
    let server = Server::shared(&[]);
    let client = server.client();
    let error = client.create("no-such-template").await.expect_err("it does not exist");
    assert!(
        matches!(&error, CreateError::TemplateNotFound { template, .. } if template == "no-such-template"),
        "{error:?}"
    );
    let missing: SandboxId = "inobody00000000000000".parse().expect("an id");
    assert!(!client.kill(&missing).await.expect("an answer"));
    let errors = [
        client.connect(&missing, Connect::default()).await.expect_err("gone"),
        client.pause(&missing, Pause::default()).await.expect_err("gone"),
        client.resume(&missing, Resume::default()).await.expect_err("gone"),
        client.set_timeout(&missing, Duration::from_secs(5)).await.expect_err("gone"),
        client.refresh(&missing, Duration::from_secs(5)).await.expect_err("gone"),
        client.metrics(&missing, TimeRange::ALL).await.expect_err("gone"),
        client.logs(&missing, &LogQuery::newest()).await.expect_err("gone"),
    ];
    for error in errors {
        assert!(matches!(error, SandboxError::NotFound { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn lists_are_filtered_ordered_and_paged() {
    let server = Server::shared(&[]);
    let client = server.client();
    let mark = "a list: 100% & more=\"äöü\"";
    let before = Timestamp::now();
    let mut made = Vec::new();
    for _ in 0..3 {
        made.push(client.create(marked(mark)).await.expect("a sandbox"));
    }
    let other = client.create(marked("another")).await.expect("a sandbox");
    made[1].pause(Pause::files_only()).await.expect("it pauses");
    let ids: Vec<String> = made.iter().map(|sandbox| sandbox.id().to_string()).collect();
    let mine = || ListQuery::new().metadata("test of", mark);

    let oldest: Vec<String> = listed(&client, mine().order(Order::OldestFirst)).await;
    assert_eq!(oldest, ids);
    assert_eq!(listed(&client, mine()).await, ids.iter().rev().cloned().collect::<Vec<_>>());
    assert_eq!(listed(&client, mine().order(Order::OldestFirst).page_size(1)).await, ids, "in three pages");
    assert_eq!(listed(&client, mine().state(SandboxState::Paused)).await, [ids[1].clone()]);
    let both = mine().state(SandboxState::Paused).state(SandboxState::Running);
    assert_eq!(listed(&client, both).await.len(), 3);
    assert_eq!(listed(&client, mine().started_after(before)).await.len(), 3);
    let info = made[2].info().await.expect("it exists");
    let since: Timestamp = info.listed.started_at.parse().expect("a moment");
    assert_eq!(listed(&client, mine().started_after(since)).await, [ids[2].clone()], "the bound is part of it");
    assert_eq!(listed(&client, mine().template("base")).await.len(), 3);
    assert_eq!(listed(&client, mine().template("no-such-template")).await.len(), 0);
    assert_eq!(listed(&client, mine().metadata("x", "y")).await.len(), 0);

    let page = client.list_page(&mine().page_size(2), None).await.expect("a page");
    assert_eq!((page.sandboxes.len(), page.total_running), (2, Some(2)));
    let next = page.next.expect("there is more");
    let rest = client.list_page(&mine().page_size(2), Some(&next)).await.expect("a page");
    assert_eq!((rest.sandboxes.len(), rest.next), (1, None));
    let error = client.list_page(&mine(), Some("no token")).await.expect_err("a bad token");
    assert!(matches!(error, CallError::Invalid { .. }), "{error:?}");
    for sandbox in made.iter().chain([&other]) {
        sandbox.kill().await.expect("it ends");
    }
}

#[tokio::test]
async fn pause_is_idempotent_and_connect_resumes() {
    let server = Server::shared(&[]);
    let client = server.client();
    let sandbox = client.create(marked("pause")).await.expect("a sandbox");
    let error = client.resume(sandbox.id(), Resume::default()).await.expect_err("it runs");
    assert!(matches!(error, SandboxError::Conflict { .. }), "{error:?}");

    assert_eq!(sandbox.pause(Pause::with_memory().require_healthy()).await.expect("it pauses"), PauseOutcome::Paused);
    assert_eq!(sandbox.pause(Pause::with_memory()).await.expect("an answer"), PauseOutcome::AlreadyPaused);
    assert!(!sandbox.is_running().await.expect("an answer"));
    let info = sandbox.info().await.expect("it exists");
    assert_eq!((info.listed.state, info.listed.pause_mode), (SandboxState::Paused, Some(PauseMode::Full)));

    let resumed = client.connect(sandbox.id(), Connect::timeout(Duration::from_secs(60))).await.expect("it resumes");
    assert_eq!((resumed.id(), resumed.access_token()), (sandbox.id(), sandbox.access_token()));
    assert!(sandbox.is_running().await.expect("an answer"), "the old handle works again");

    sandbox.pause(Pause::files_only()).await.expect("it pauses");
    let info = sandbox.info().await.expect("it exists");
    assert_eq!(info.listed.pause_mode, Some(PauseMode::Filesystem));
    client.resume(sandbox.id(), Resume::timeout(Duration::from_secs(60))).await.expect("it resumes");
    assert!(sandbox.is_running().await.expect("an answer"));
    sandbox.kill().await.expect("it ends");
}

#[tokio::test]
async fn lifetimes_are_set_extended_and_expire() {
    let server = Server::shared(&[]);
    let client = server.client();
    let sandbox = client.create(marked("time")).await.expect("a sandbox");
    let end =
        async || -> Timestamp { sandbox.info().await.expect("it exists").listed.end_at.parse().expect("a moment") };
    let left = |end: Timestamp| end.duration_since(Timestamp::now()).as_secs();
    sandbox.set_timeout(Duration::from_secs(1000)).await.expect("it is set");
    assert!((900..=1000).contains(&left(end().await)));
    sandbox.set_timeout(Duration::from_millis(99_500)).await.expect("it is set");
    let short = end().await;
    assert!((90..=100).contains(&left(short)), "parts of a second count whole");

    client.connect(sandbox.id(), Connect::timeout(Duration::from_secs(5))).await.expect("it runs");
    assert_eq!(end().await, short, "connect never shortens");
    client.refresh(sandbox.id(), Duration::from_secs(20)).await.expect("an answer");
    assert_eq!(end().await, short, "refresh never shortens");
    client.refresh(sandbox.id(), Duration::from_secs(600)).await.expect("it is extended");
    assert!((500..=600).contains(&left(end().await)));
    let error = client.refresh(sandbox.id(), Duration::from_secs(9999)).await.expect_err("too long");
    assert!(matches!(error, SandboxError::Call(CallError::Invalid { .. })), "{error:?}");

    sandbox.set_timeout(Duration::ZERO).await.expect("it is set");
    let deadline = Instant::now() + Duration::from_secs(10);
    while sandbox.is_running().await.expect("an answer") {
        assert!(Instant::now() < deadline, "a sandbox without time left still runs");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn metrics_and_logs_are_read() {
    let server = Server::shared(&[]);
    let client = server.client();
    let sandbox = client.create(marked("metrics")).await.expect("a sandbox");
    let deadline = Instant::now() + Duration::from_secs(30);
    let metrics = loop {
        let metrics = sandbox.metrics(TimeRange::ALL).await.expect("metrics");
        if !metrics.is_empty() {
            break metrics;
        }
        assert!(Instant::now() < deadline, "no reading within 30 s");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert!(metrics[0].mem_total > 0 && metrics[0].cpu_count > 0, "{metrics:?}");
    let past = TimeRange { start: None, end: Some(Timestamp::UNIX_EPOCH) };
    assert!(sandbox.metrics(past).await.expect("metrics").is_empty());
    let missing: SandboxId = "inobody00000000000000".parse().expect("an id");
    let newest = client.latest_metrics(&[sandbox.id().clone(), missing]).await.expect("metrics");
    assert_eq!(newest.keys().collect::<Vec<_>>(), [sandbox.id()]);

    sandbox.commands().run("true").await.expect("it runs");
    let all = sandbox.logs(&LogQuery::oldest()).await.expect("a log");
    assert!(!all.is_empty());
    let mut backward = sandbox.logs(&LogQuery::newest().limit(all.len())).await.expect("a log");
    backward.reverse();
    assert_eq!(backward.first(), all.first());
    assert_eq!(sandbox.logs(&LogQuery::newest().limit(1)).await.expect("a log").len(), 1);
    let searched = sandbox.logs(&LogQuery::oldest().search("no entry says this")).await.expect("a log");
    assert!(searched.is_empty());
    let future = LogQuery::since(Timestamp::now() + Duration::from_secs(3600));
    assert!(sandbox.logs(&future).await.expect("a log").is_empty());
    sandbox.kill().await.expect("it ends");
}

#[tokio::test]
async fn capabilities_list_the_extensions() {
    let server = Server::shared(&[]);
    let client = server.client();
    let capabilities = client.capabilities().await.expect("an answer").expect("a Sandbar server");
    assert_eq!(capabilities.server, "sandbar");
    let again = client.capabilities().await.expect("an answer").expect("a Sandbar server");
    assert!(capabilities.server_id.is_some() && capabilities.server_id == again.server_id, "{capabilities:?}");
    assert!(capabilities.capabilities.contains_key("limits"), "{capabilities:?}");
}

#[tokio::test]
async fn an_attached_handle_changes_no_state() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let info = sandbox.info().await.expect("it exists");
    let attached = sandbox.client().attach(&info).expect("a handle");
    assert_eq!(attached.commands().run("echo hi").await.expect("it runs").stdout_text(), "hi\n");
    assert_eq!(sandbox.info().await.expect("it exists").listed.end_at, info.listed.end_at);
    sandbox.kill().await.expect("it ends");
}

#[tokio::test]
async fn an_idempotency_key_creates_one_sandbox() {
    let server = Server::shared(&[]);
    let client = server.client();
    let key = "one-key-one-sandbox";
    let create = || marked("key").idempotency_key(key);
    let (first, second) = (client.create(create()).await, client.create(create()).await);
    let (first, second) = (first.expect("a sandbox"), second.expect("the same"));
    assert_eq!(first.id(), second.id());
    let error = client.create(marked("another").idempotency_key(key)).await.expect_err("the key is taken");
    assert!(matches!(error, CreateError::KeyTaken { .. }), "{error:?}");
    assert_eq!(listed(&client, ListQuery::new().metadata("test of", "key")).await.len(), 1);
    first.kill().await.expect("it ends");

    let ids: BTreeSet<SandboxId> = futures::future::join_all((0..3).map(|_| client.create(marked("no key"))))
        .await
        .into_iter()
        .map(|made| made.expect("a sandbox").id().clone())
        .collect();
    assert_eq!(ids.len(), 3, "each call has a key of its own");
    for id in ids {
        client.kill(&id).await.expect("it ends");
    }
}

#[tokio::test]
async fn domains_below_localhost_need_no_dns() {
    let server = Server::shared(&[]);
    let (_, port) = server.address().rsplit_once(':').expect("a port");
    let builder = Client::builder().ignore_environment().api_key(server.key()).api_url(server.url());
    let client = builder.domain(format!("localhost:{port}")).build().expect("valid options");
    let sandbox = client.create("base").await.expect("a sandbox");
    let output = sandbox.commands().run("echo hi").await.expect("it is reached by its name");
    assert_eq!(output.stdout_text(), "hi\n");
    sandbox.kill().await.expect("it ends");
}

#[tokio::test]
async fn a_wrong_key_is_not_authorized() {
    let server = Server::shared(&[]);
    let client = server.builder(server.address()).api_key("e2b_00ff").build().expect("valid options");
    let error = client.create("base").await.expect_err("the key is wrong");
    assert!(matches!(&error, CreateError::Call(CallError::Unauthorized { .. })), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("e2b_00ff"));
}
