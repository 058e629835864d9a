//! Which trouble leads to the next provider, and which does not.

use std::time::{Duration, Instant};

use sandbar_workspace::config::{ProviderConfig, ProviderKind};
use sandbar_workspace::provider::{CreateRequest, OrchestratorError, Resources};
use sdk::testing::{FakeServer, Fault};

use crate::support::{BlackHole, Dripping, Placement, local, local_at, name, no_local, request, service, told};

#[tokio::test]
async fn the_first_that_can_takes_it() {
    let (first, second) = (FakeServer::start().await, FakeServer::start().await);
    let placement =
        Placement::new(vec![service("first", &first.url()), service("second", &second.url())], &no_local()).await;
    let placed = placement.place().await;
    assert_eq!(told(&placed), ("first".into(), vec![]));
    assert_eq!((first.sandboxes().len(), second.sandboxes().len()), (1, 0));
    let limits = serde_json::to_value(&placed.limits).expect("JSON");
    assert_eq!(limits["ephemeral"], "filesystem lost when stopped");
    let listed = placed.sandbox.info().await.expect("it runs").listed;
    assert_eq!(listed.metadata["sandbar.workspace"], "shop");
}

#[tokio::test]
async fn without_a_key_it_is_the_next_ones_turn_and_the_text_is_exact() {
    let fake = FakeServer::start().await;
    let managed = ProviderConfig::new(name("e2b"), ProviderKind::E2b);
    let placement = Placement::with_key(vec![managed, local()], &local_at(&fake.url(), fake.api_key()), None);
    let placed = placement.place().await;
    assert_eq!(told(&placed), ("local".into(), vec![("e2b".into(), "E2B API key not configured".into())]));
}

#[tokio::test]
async fn a_black_hole_is_left_within_ten_seconds() {
    let (hole, fake) = (BlackHole::open(), FakeServer::start().await);
    let placement =
        Placement::new(vec![service("hole", &hole.url()), local()], &local_at(&fake.url(), fake.api_key())).await;
    let started = Instant::now();
    let placed = placement.place().await;
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let (provider, skipped) = told(&placed);
    assert_eq!((provider.as_str(), skipped.len()), ("local", 1));
    assert!(skipped[0].1.contains("no answer within"), "{skipped:?}");
}

#[tokio::test]
async fn who_answers_drop_by_drop_is_left_as_soon() {
    let (dripping, fake) = (Dripping::open(), FakeServer::start().await);
    let placement =
        Placement::new(vec![service("drips", dripping.url()), local()], &local_at(&fake.url(), fake.api_key())).await;
    let started = Instant::now();
    let (provider, skipped) = told(&placement.place().await);
    assert!(started.elapsed() < Duration::from_secs(12), "{:?}", started.elapsed());
    assert_eq!(provider, "local", "{skipped:?}");
}

#[tokio::test]
async fn what_a_provider_says_of_a_request_shows_no_value() {
    for status in [400, 500] {
        let fake = FakeServer::start().await;
        let placement = Placement::new(vec![service("fake", &fake.url())], &no_local()).await;
        fake.fail_next("POST /v2/sandboxes", 100, Fault::status(status).message("TOKEN cannot be hidden"));
        let refused = placement.orchestrator.create(&request()).await.expect_err("it is refused");
        let said = format!("{refused:?} {refused} {:?}", std::error::Error::source(&refused).map(ToString::to_string));
        assert!(said.contains("cannot be ***") && !said.contains("hidden"), "{said}");
    }
}

#[tokio::test]
async fn a_closed_port_is_left_at_once() {
    let fake = FakeServer::start().await;
    let placement =
        Placement::new(vec![service("closed", "http://127.0.0.1:1"), service("fake", &fake.url())], &no_local()).await;
    let (provider, skipped) = told(&placement.place().await);
    assert_eq!(provider, "fake");
    assert!(skipped[0].1.contains("cannot reach 127.0.0.1:1"), "{skipped:?}");
}

#[tokio::test]
async fn limits_and_trouble_of_a_provider_lead_to_the_next() {
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
        let (provider, skipped) = told(&Placement::new(providers, &no_local()).await.place().await);
        assert_eq!(provider, "second", "{expected}");
        assert!(skipped[0].1.contains(expected), "{skipped:?} does not say {expected:?}");
    }
}

#[tokio::test]
async fn a_request_that_is_wrong_is_wrong_everywhere() {
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
    let said = error.expect_err("plain E2B takes no sizes").to_string();
    assert!(said.contains("provider first cannot give cpu_count = 64"), "{said}");

    assert!(second.requests().is_empty(), "nobody else was asked");
    // And the provider is as healthy as before.
    assert_eq!(placement.place().await.provider, name("first"));
}

#[tokio::test]
async fn when_nobody_can_everybodys_reason_is_told() {
    let fake = FakeServer::start().await;
    fake.fail_next("POST /v2/sandboxes", 100, Fault::status(429).message("full"));
    let placement = Placement::new(vec![service("fake", &fake.url()), local()], &no_local()).await;
    let said = placement.orchestrator.create(&request()).await.expect_err("nobody can").to_string();
    assert!(said.contains("fake: ") && said.contains("full"), "{said}");
    assert!(said.contains("local: sandboxes cannot run on this machine") && !said.contains("hidden"), "{said}");
}

#[tokio::test]
async fn a_run_that_is_pinned_stays() {
    let (first, second) = (FakeServer::start().await, FakeServer::start().await);
    let providers = vec![service("first", &first.url()), service("second", &second.url())];
    let placement = Placement::new(providers, &no_local()).await;
    let pinned = CreateRequest { provider: Some(name("second")), ..request() };
    let placed = placement.orchestrator.create(&pinned).await.expect("it can");
    assert_eq!(told(&placed), ("second".into(), vec![]));

    second.fail_next("POST /v2/sandboxes", 100, Fault::status(429));
    let error = placement.orchestrator.create(&pinned).await.expect_err("nobody else is asked");
    assert!(matches!(&error, OrchestratorError::NobodyCould { skipped } if skipped.len() == 1), "{error:?}");
    assert!(first.requests().is_empty());

    let unknown = CreateRequest { provider: Some(name("third")), ..request() };
    let said = placement.orchestrator.create(&unknown).await.expect_err("there is none").to_string();
    assert_eq!(said, "there is no provider third; the configuration has first, second");
}
