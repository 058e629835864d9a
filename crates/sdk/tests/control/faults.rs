//! The client against a slow, busy, broken or unreachable service.

use std::net::{SocketAddr, TcpListener as StdListener};
use std::time::{Duration, Instant};

use fake::{FakeServer, Fault};
use sandbar_sdk::{
    CallError, Client, ConfigError, Connect, Create, CreateError, NewSnapshot, Pause, PauseOutcome, Resume,
    SandboxError,
};

fn client_of(address: SocketAddr) -> Client {
    let url = format!("http://{address}");
    let builder = Client::builder().ignore_environment().api_key("e2b_00").api_url(&url).sandbox_url(&url);
    builder.build().expect("valid options")
}

#[tokio::test]
async fn retry_after_delays_the_retry() {
    let server = FakeServer::start().await;
    let client = server.client();
    server.fail_next("POST /v2/sandboxes", 1, Fault::status(429).header("retry-after", "1"));
    let began = Instant::now();
    let sandbox = client.create("base").await.expect("the second try succeeds");
    assert!(began.elapsed() >= Duration::from_secs(1), "it honours retry-after");
    assert_eq!(server.requests_to("POST /v2/sandboxes").len(), 2);

    server.fail_next("GET /sandboxes/*", 2, Fault::status(502));
    client.info(sandbox.id()).await.expect("the third try succeeds");
    assert_eq!(server.requests_to("GET /sandboxes/*").len(), 3);

    server.fail_next("GET /sandboxes/*", 1, Fault::status(503).header("should-retry", "false").message("full"));
    let error = client.info(sandbox.id()).await.expect_err("should-retry forbids a retry");
    assert!(matches!(&error, SandboxError::Call(CallError::Limited { message, .. }) if message == "full"), "{error:?}");
    assert_eq!(server.requests_to("GET /sandboxes/*").len(), 4);

    // A full disk of the server: another provider may have space, a retry changes nothing.
    server.fail_next("POST /v2/sandboxes", 1, Fault::status(507).message("no space left"));
    let error = client.create("base").await.expect_err("its disk is full");
    assert!(matches!(&error, CreateError::Call(CallError::Limited { .. })), "{error:?}");
    assert_eq!(server.requests_to("POST /v2/sandboxes").len(), 3);

    // Not idempotent, but the server permits the retry.
    server.fail_next("POST /sandboxes/*/snapshots", 1, Fault::status(503).header("should-retry", "true"));
    sandbox.snapshot(NewSnapshot::unnamed()).await.expect("the second try succeeds");
    assert_eq!(server.requests_to("POST /sandboxes/*/snapshots").len(), 2);
}

#[tokio::test]
async fn retries_end_with_the_last_response() {
    let server = FakeServer::start().await;
    let client = server.client();
    let sandbox = client.create("base").await.expect("a sandbox");
    server.fail_next("GET /sandboxes/*", 9, Fault::status(429).header("retry-after", "0").message("slow down"));
    let error = client.info(sandbox.id()).await.expect_err("it stays busy");
    let SandboxError::Call(CallError::Limited { retry_after, message, .. }) = &error else { panic!("{error:?}") };
    assert_eq!((retry_after, message.as_str()), (&Some(Duration::ZERO), "slow down"));
    assert_eq!(server.requests_to("GET /sandboxes/*").len(), 4, "one try and three more");
    assert!(error.to_string().contains(sandbox.id().as_str()), "{error}");

    // A backoff beyond the deadline is not started.
    server.fail_next("POST /sandboxes/*/timeout", 9, Fault::status(429).header("retry-after", "5"));
    let began = Instant::now();
    let hasty = sandbox.within(Duration::from_secs(2));
    hasty.set_timeout(Duration::from_secs(60)).await.expect_err("it stays busy");
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn a_lost_response_creates_no_second_sandbox() {
    let server = FakeServer::start().await;
    let client = server.client();
    server.fail_next("POST /v2/sandboxes", 1, Fault::lose_answer());
    let sandbox = client.create("base").await.expect("the same sandbox");
    assert_eq!(server.sandboxes(), [sandbox.id().clone()]);
    let tries = server.requests_to("POST /v2/sandboxes");
    assert_eq!(tries.len(), 2);
    let keys: Vec<_> = tries.iter().map(|request| request.headers["idempotency-key"].clone()).collect();
    assert_eq!(keys[0], keys[1]);

    // A request that is not idempotent is not retried.
    server.fail_next("POST /sandboxes/*/snapshots", 1, Fault::lose_answer());
    let error = sandbox.snapshot("once").await.expect_err("the response was lost");
    assert!(matches!(&error, SandboxError::Call(CallError::ConnectionLost { .. })), "{error:?}");
    assert_eq!(server.requests_to("POST /sandboxes/*/snapshots").len(), 1);

    server.fail_next("POST /sandboxes/*/pause", 1, Fault::lose_answer());
    assert_eq!(sandbox.pause(Pause::default()).await.expect("it is paused"), PauseOutcome::AlreadyPaused);
    server.fail_next("DELETE /sandboxes/*", 1, Fault::cut());
    assert!(sandbox.kill().await.expect("the second try succeeds"));
}

#[tokio::test]
async fn without_keys_a_lost_create_is_not_retried() {
    let server = FakeServer::start().await;
    server.only_api_v1();
    server.fail_next("POST /sandboxes", 1, Fault::lose_answer());
    let error = server.client().create("base").await.expect_err("the response was lost");
    assert!(matches!(&error, CreateError::Call(CallError::ConnectionLost { .. })), "{error:?}");
    assert_eq!(server.sandboxes().len(), 1);
    assert_eq!(server.requests_to("POST /sandboxes").len(), 1);
}

#[tokio::test]
async fn a_missing_response_exceeds_the_deadline() {
    let server = FakeServer::start().await;
    let sandbox = server.client().create("base").await.expect("a sandbox");
    server.fail_next("GET /sandboxes/*", 1, Fault::slow(Duration::from_secs(30)));
    let began = Instant::now();
    let error = sandbox.within(Duration::from_millis(300)).info().await.expect_err("too slow");
    assert!(matches!(&error, SandboxError::Call(CallError::DeadlineExceeded { .. })), "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(2));
    sandbox.info().await.expect("the next one is served");
}

#[tokio::test]
async fn a_closed_port_is_unreachable() {
    let listener = StdListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let began = Instant::now();
    let error = client_of(address).create("base").await.expect_err("no listener");
    assert!(began.elapsed() < Duration::from_secs(10));
    let CreateError::Call(CallError::Unreachable { host, cause, .. }) = &error else { panic!("{error:?}") };
    assert_eq!(*host, address.to_string());
    assert!(cause.contains("refused"), "{cause}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

/// A port that accepts no connections: its backlog is full.
#[tokio::test]
async fn a_silent_host_is_unreachable_within_ten_seconds() {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let listener = socket.listen(1).expect("a queue of one");
    let address = listener.local_addr().expect("an address");
    let mut queued = Vec::new();
    let full = loop {
        let connecting = tokio::net::TcpStream::connect(address);
        match tokio::time::timeout(Duration::from_millis(300), connecting).await {
            Ok(stream) => queued.push(stream.expect("a connection")),
            Err(_) => break queued.len(),
        }
        assert!(queued.len() < 64, "the queue never fills");
    };
    assert!(full > 0);
    let began = Instant::now();
    let error = client_of(address).create("base").await.expect_err("no response");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(
        matches!(&error, CreateError::Call(CallError::Unreachable { host, .. }) if *host == address.to_string()),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_unreachable() {
    let client = Client::builder().ignore_environment().api_key("e2b_00").api_url("http://no-such-host.invalid");
    let began = Instant::now();
    let error = client.build().expect("valid options").create("base").await.expect_err("there is no such host");
    assert!(began.elapsed() < Duration::from_secs(10));
    assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
}

#[test]
fn a_missing_key_is_a_config_error() {
    let error = Client::builder().ignore_environment().build().expect_err("there is no key");
    assert!(matches!(error, ConfigError::NoApiKey));
    assert_eq!(error.to_string(), "E2B API key not configured");
    let error = Client::builder().ignore_environment().api_key("").build().expect_err("there is no key");
    assert_eq!(error.to_string(), "E2B API key not configured");
}

#[tokio::test]
async fn debug_output_and_errors_redact_secrets() {
    let server = FakeServer::start().await;
    let builder = server.builder();
    let client = builder.clone().build().expect("valid options");
    let create = Create::template("base").env("PASSWORD", "hidden-value");
    let shown = format!("{builder:?} {client:?} {create:?}");
    let sandbox = client.create(create).await.expect("a sandbox");
    let again = client.connect(sandbox.id(), Connect::default()).await.expect("it runs");
    server.fail_next("GET /sandboxes/*", 1, Fault::status(400).message("no"));
    let error = sandbox.info().await.expect_err("it fails");
    let volume = client.volumes().create("v").await.expect("a volume");
    let shown = format!("{shown} {sandbox:?} {again:?} {error:?} {error} {volume:?} {:?}", sandbox.info().await);
    for secret in
        [server.api_key(), sandbox.access_token().expect("a token").expose(), "hidden-value", volume.token().expose()]
    {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[tokio::test]
async fn lost_files_differ_from_a_missing_sandbox() {
    let server = FakeServer::start().await;
    let client = server.client();
    let sandbox = client.create("base").await.expect("a sandbox");
    sandbox.pause(Pause::files_only()).await.expect("it is paused");
    server.lose_files(sandbox.id());
    for error in [
        client.connect(sandbox.id(), Connect::default()).await.expect_err("there is nothing to resume"),
        client.resume(sandbox.id(), Resume::default()).await.expect_err("there is nothing to resume"),
    ] {
        assert!(matches!(&error, SandboxError::FilesMissing { id, .. } if id == sandbox.id()), "{error:?}");
        assert!(error.to_string().contains("are missing"), "{error}");
    }
    client.info(sandbox.id()).await.expect("the record is still there");

    let body = r#"{"code":410,"message":"gone","error_code":"template_files_missing"}"#;
    server.fail_next("POST /v2/sandboxes", 1, Fault::answer(410, body));
    let error = client.create("base").await.expect_err("the template has no files");
    assert!(matches!(&error, CreateError::FilesMissing { template, .. } if template == "base"), "{error:?}");
}
