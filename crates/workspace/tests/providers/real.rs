//! The real server as the local provider.

use std::time::{Duration, Instant};

use sandbar_workspace::provider::{CreateRequest, Resources};
use testing::Server;

use crate::support::{Placement, SilentServer, local, local_at, outcome, request, service};

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_service_falls_back_to_this_machine() {
    let server = Server::start(&[]);
    let hole = SilentServer::open();
    let placement =
        Placement::new(vec![service("managed", &hole.url()), local()], &local_at(&server.url(), server.key())).await;
    let sizes = Resources { cpu_count: Some(1), memory_mb: Some(512), disk_mb: Some(1024) };
    let started = Instant::now();
    let wanted = CreateRequest { resources: sizes, ..request() };
    let placed = placement.orchestrator.create(&wanted).await.expect("this machine takes it");
    let took = started.elapsed();

    let (provider, skipped) = outcome(&placed);
    assert_eq!((provider.as_str(), skipped.len()), ("local", 1));
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert_eq!((placed.size.cpu_count, placed.size.memory_mb, placed.size.disk_mb), (1, 512, 1024));
    let output = placed.sandbox.commands().run("echo $TOKEN").await.expect("it runs");
    assert_eq!(output.stdout_text(), "hidden\n");

    let huge = Resources { cpu_count: Some(10_000), ..Resources::default() };
    let wanted = CreateRequest { resources: huge, provider: Some(placed.provider.clone()), ..request() };
    let message = placement.orchestrator.create(&wanted).await.expect_err("no machine has them").to_string();
    assert!(message.contains("provider local cannot give cpu_count = 10000: it takes 1 to"), "{message}");
    placed.sandbox.kill().await.expect("it ends");
}
