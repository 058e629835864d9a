//! The circuit breaker in use. Its module tests the rules; these tests check that they are applied
//! and shared.

use std::time::Duration;

use fake::{FakeServer, Fault};
use jiff::Timestamp;
use sandbar_workspace::provider::Breaker;

use crate::support::{Placement, name, no_local, outcome, service};

async fn two() -> (FakeServer, FakeServer, Placement) {
    let (first, second) = (FakeServer::start().await, FakeServer::start().await);
    let providers = vec![service("first", &first.url()), service("second", &second.url())];
    let placement = Placement::new(providers, &no_local()).await;
    (first, second, placement)
}

/// Ends the backoff, so that the test does not wait for it.
async fn end_backoff(placement: &Placement) {
    let seen = placement.records.health(&name("first")).await.expect("read");
    let Breaker::Open { backoff, .. } = seen.breaker else { panic!("it is not open: {seen:?}") };
    let over = Breaker::Open { until: Timestamp::now(), backoff };
    assert!(placement.records.change_health(&name("first"), &seen, over, "").await.expect("written"));
}

#[tokio::test]
async fn three_failures_stop_requests_to_a_provider() {
    let (first, _second, placement) = two().await;
    first.fail_next("POST /v2/sandboxes", 100, Fault::status(500));
    for _ in 0..3 {
        assert_eq!(placement.place().await.provider, name("second"));
    }
    let sent = first.requests().len();
    let (provider, skipped) = outcome(&placement.place().await);
    assert_eq!((provider.as_str(), first.requests().len()), ("second", sent));
    assert!(skipped[0].1.contains("left alone until") && skipped[0].1.contains("500"), "{skipped:?}");
}

#[tokio::test]
async fn a_probe_closes_or_reopens_the_breaker() {
    let (first, _second, placement) = two().await;
    first.fail_next("POST /v2/sandboxes", 4, Fault::status(500));
    for _ in 0..3 {
        placement.place().await;
    }
    end_backoff(&placement).await;
    assert_eq!(placement.place().await.provider, name("second"), "the probe fails");
    let health = placement.records.health(&name("first")).await.expect("read");
    assert!(
        matches!(health.breaker, Breaker::Open { backoff, .. } if backoff == Duration::from_secs(60)),
        "{health:?}"
    );

    end_backoff(&placement).await;
    assert_eq!(outcome(&placement.place().await), ("first".into(), vec![]), "the probe succeeds");
    let health = placement.records.health(&name("first")).await.expect("read");
    assert_eq!(health.breaker, Breaker::Healthy);
}

#[tokio::test]
async fn only_one_request_probes() {
    let (first, _second, placement) = two().await;
    first.fail_next("POST /v2/sandboxes", 3, Fault::status(500));
    for _ in 0..3 {
        placement.place().await;
    }
    end_backoff(&placement).await;
    first.fail_next("POST /v2/sandboxes", 1, Fault::slow(Duration::from_millis(300)));
    let places = futures::future::join_all((0..4).map(|_| placement.place())).await;
    let at_first = places.iter().filter(|placed| placed.provider == name("first")).count();
    assert_eq!(at_first, 1, "one probes, and the others do not wait for it");
}

#[tokio::test]
async fn a_provider_at_its_limit_is_healthy() {
    let (first, _second, placement) = two().await;
    first.fail_next("POST /v2/sandboxes", 24, Fault::status(429));
    for _ in 0..6 {
        assert_eq!(placement.place().await.provider, name("second"));
    }
    assert_eq!(placement.place().await.provider, name("first"), "there is room again");
}
