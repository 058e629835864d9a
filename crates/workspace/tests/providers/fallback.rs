//! Which failures lead to the next provider, and which do not.

use std::time::{Duration, Instant};

use fake::{FakeServer, Fault};
use sandbar_workspace::config::{ProviderConfig, ProviderKind};
use sandbar_workspace::provider::{CreateRequest, OrchestratorError, Resources};

use crate::support::{
    Placement, SilentServer, TricklingServer, local, local_at, name, no_local, outcome, request, service,
};

#[tokio::test]
async fn the_first_usable_provider_is_taken() {
    let (first, second) = (FakeServer::start().await, FakeServer::start().await);
    let placement =
        Placement::new(vec![service("first", &first.url()), service("second", &second.url())], &no_local()).await;
    let placed = placement.place().await;
    assert_eq!(outcome(&placed), ("first".into(), vec![]));
    assert_eq!((first.sandboxes().len(), second.sandboxes().len()), (1, 0));
    let limits = serde_json::to_value(&placed.limits).expect("JSON");
    assert_eq!(limits["ephemeral"], "filesystem lost when stopped");
    let listed = placed.sandbox.info().await.expect("it runs").listed;
    assert_eq!(listed.metadata["sandbar.workspace"], "shop");
}

#[tokio::test]
async fn a_missing_key_skips_the_provider() {
    let fake = FakeServer::start().await;
    let managed = ProviderConfig::new(name("e2b"), ProviderKind::E2b);
    let placement = Placement::with_key(vec![managed, local()], &local_at(&fake.url(), fake.api_key()), None);
    let placed = placement.place().await;
    assert_eq!(outcome(&placed), ("local".into(), vec![("e2b".into(), "E2B API key not configured".into())]));
}

#[tokio::test]
async fn a_provider_that_drops_packets_is_skipped() {
    let (hole, fake) = (SilentServer::open(), FakeServer::start().await);
    let placement =
        Placement::new(vec![service("hole", &hole.url()), local()], &local_at(&fake.url(), fake.api_key())).await;
    let started = Instant::now();
    let placed = placement.place().await;
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let (provider, skipped) = outcome(&placed);
    assert_eq!((provider.as_str(), skipped.len()), ("local", 1));
    assert!(skipped[0].1.contains("no answer within"), "{skipped:?}");
}

#[tokio::test]
async fn a_trickling_response_is_abandoned() {
    let (dripping, fake) = (TricklingServer::open(), FakeServer::start().await);
    let placement =
        Placement::new(vec![service("drips", dripping.url()), local()], &local_at(&fake.url(), fake.api_key())).await;
    let started = Instant::now();
    let (provider, skipped) = outcome(&placement.place().await);
    assert!(started.elapsed() < Duration::from_secs(12), "{:?}", started.elapsed());
    assert_eq!(provider, "local", "{skipped:?}");
}

#[tokio::test]
async fn errors_of_a_provider_are_masked() {
    for status in [400, 500] {
        let fake = FakeServer::start().await;
        let placement = Placement::new(vec![service("fake", &fake.url())], &no_local()).await;
        fake.fail_next("POST /v2/sandboxes", 100, Fault::status(status).message("TOKEN cannot be hidden"));
        let refused = placement.orchestrator.create(&request()).await.expect_err("it is refused");
        let text = format!("{refused:?} {refused} {:?}", std::error::Error::source(&refused).map(ToString::to_string));
        assert!(text.contains("cannot be ***") && !text.contains("hidden"), "{text}");
    }
}

#[tokio::test]
async fn a_closed_port_is_skipped_at_once() {
    let fake = FakeServer::start().await;
    let placement =
        Placement::new(vec![service("closed", "http://127.0.0.1:1"), service("fake", &fake.url())], &no_local()).await;
    let (provider, skipped) = outcome(&placement.place().await);
    assert_eq!(provider, "fake");
    assert!(skipped[0].1.contains("cannot reach 127.0.0.1:1"), "{skipped:?}");
}

#[tokio::test]
async fn limits_and_failures_lead_to_the_next_provider() {
    for (fault, expected) in [
        (Fault::status(429).message("you have reached the maximum number of concurrent sandboxes"), "maximum number"),
        (Fault::status(503).message("no room"), "no room"),
        (Fault::status(500).message("it broke"), "500: it broke"),
        (Fault::status(402).message("no money"), "402: no money"),
        (Fault::status(401).message("who are you"), "not authorized: who are you"),
        (Fault::status(403).message("the team is blocked"), "the team is blocked"),
        (Fault::cut(), "was lost"),
    ] {
        let (first, second) = (FakeServer::start().await, FakeServer::start().await);
        first.fail_next("POST /v2/sandboxes", 100, fault);
        let providers = vec![service("first", &first.url()), service("second", &second.url())];
        let (provider, skipped) = outcome(&Placement::new(providers, &no_local()).await.place().await);
        assert_eq!(provider, "second", "{expected}");
        assert!(skipped[0].1.contains(expected), "{skipped:?} does not say {expected:?}");
    }
}

#[tokio::test]
async fn an_invalid_request_is_not_sent_to_others() {
    let (first, second) = (FakeServer::start().await, FakeServer::start().await);
    let providers = vec![service("first", &first.url()), service("second", &second.url())];
    let placement = Placement::new(providers, &no_local()).await;

    let absent = CreateRequest { template: Some("absent".into()), ..request() };
    let error = placement.orchestrator.create(&absent).await.expect_err("there is no such template");
    assert!(matches!(&error, OrchestratorError::Refused { provider, .. } if provider.as_str() == "first"), "{error:?}");
    for status in [400, 413, 422] {
        first.fail_next("POST /v2/sandboxes", 1, Fault::status(status).message("this is wrong"));
        let error = placement.orchestrator.create(&request()).await.expect_err("the request is wrong");
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        assert!(cause.contains("this is wrong"), "{error:?}");
    }
    let big = Resources { cpu_count: Some(64), ..Resources::default() };
    let error = placement.orchestrator.create(&CreateRequest { resources: big, ..request() }).await;
    let message = error.expect_err("plain E2B takes no sizes").to_string();
    assert!(message.contains("provider first cannot give cpu_count = 64"), "{message}");

    assert!(second.requests().is_empty(), "no other provider was asked");
    // The provider is as healthy as before.
    assert_eq!(placement.place().await.provider, name("first"));
}

#[tokio::test]
async fn all_reasons_are_reported_when_no_provider_can() {
    let fake = FakeServer::start().await;
    fake.fail_next("POST /v2/sandboxes", 100, Fault::status(429).message("full"));
    let placement = Placement::new(vec![service("fake", &fake.url()), local()], &no_local()).await;
    let message = placement.orchestrator.create(&request()).await.expect_err("no provider can").to_string();
    assert!(message.contains("fake: ") && message.contains("full"), "{message}");
    assert!(
        message.contains("local: sandboxes cannot run on this machine") && !message.contains("hidden"),
        "{message}"
    );
}

#[tokio::test]
async fn a_pinned_provider_has_no_fallback() {
    let (first, second) = (FakeServer::start().await, FakeServer::start().await);
    let providers = vec![service("first", &first.url()), service("second", &second.url())];
    let placement = Placement::new(providers, &no_local()).await;
    let pinned = CreateRequest { provider: Some(name("second")), ..request() };
    let placed = placement.orchestrator.create(&pinned).await.expect("it can");
    assert_eq!(outcome(&placed), ("second".into(), vec![]));

    second.fail_next("POST /v2/sandboxes", 100, Fault::status(429));
    let error = placement.orchestrator.create(&pinned).await.expect_err("no other provider is asked");
    assert!(matches!(&error, OrchestratorError::NoProvider { skipped } if skipped.len() == 1), "{error:?}");
    assert!(first.requests().is_empty());

    let unknown = CreateRequest { provider: Some(name("third")), ..request() };
    let message = placement.orchestrator.create(&unknown).await.expect_err("there is none").to_string();
    assert_eq!(message, "there is no provider third; the configuration has first, second");
}
