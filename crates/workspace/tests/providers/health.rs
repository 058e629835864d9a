//! The breaker at work. Its rules are tested beside it; here, that they are followed and shared.

use std::time::Duration;

use jiff::Timestamp;
use sandbar_workspace::provider::Breaker;
use sdk::testing::{FakeServer, Fault};

use crate::support::{Placement, name, no_local, service, told};

async fn two() -> (FakeServer, FakeServer, Placement) {
    let (first, second) = (FakeServer::start().await, FakeServer::start().await);
    let providers = vec![service("first", &first.url()), service("second", &second.url())];
    let placement = Placement::new(providers, &no_local()).await;
    (first, second, placement)
}

/// The time is over; a test does not wait for it.
async fn rest_is_over(placement: &Placement) {
    let seen = placement.records.health(&name("first")).await.expect("read");
    let Breaker::Open { rest, .. } = seen.breaker else { panic!("it is not open: {seen:?}") };
    let over = Breaker::Open { until: Timestamp::now(), rest };
    assert!(placement.records.change_health(&name("first"), &seen, over, "").await.expect("written"));
}

#[tokio::test]
async fn after_three_failures_a_provider_is_not_asked() {
    let (first, _second, placement) = two().await;
    first.fail_next("POST /v2/sandboxes", 100, Fault::status(500));
    for _ in 0..3 {
        assert_eq!(placement.place().await.provider, name("second"));
    }
    let asked = first.requests().len();
    let (provider, skipped) = told(&placement.place().await);
    assert_eq!((provider.as_str(), first.requests().len()), ("second", asked));
    assert!(skipped[0].1.contains("left alone until") && skipped[0].1.contains("500"), "{skipped:?}");
}

#[tokio::test]
async fn a_probe_closes_it_or_opens_it_for_longer() {
    let (first, _second, placement) = two().await;
    first.fail_next("POST /v2/sandboxes", 4, Fault::status(500));
    for _ in 0..3 {
        placement.place().await;
    }
    rest_is_over(&placement).await;
    assert_eq!(placement.place().await.provider, name("second"), "the probe fails");
    let health = placement.records.health(&name("first")).await.expect("read");
    assert!(matches!(health.breaker, Breaker::Open { rest, .. } if rest == Duration::from_secs(60)), "{health:?}");

    rest_is_over(&placement).await;
    assert_eq!(told(&placement.place().await), ("first".into(), vec![]), "the probe succeeds");
    let health = placement.records.health(&name("first")).await.expect("read");
    assert_eq!(health.breaker, Breaker::Healthy);
}

#[tokio::test]
async fn while_one_probes_others_stay_away() {
    let (first, _second, placement) = two().await;
    first.fail_next("POST /v2/sandboxes", 3, Fault::status(500));
    for _ in 0..3 {
        placement.place().await;
    }
    rest_is_over(&placement).await;
    first.fail_next("POST /v2/sandboxes", 1, Fault::slow(Duration::from_millis(300)));
    let places = futures::future::join_all((0..4).map(|_| placement.place())).await;
    let at_first = places.iter().filter(|placed| placed.provider == name("first")).count();
    assert_eq!(at_first, 1, "one finds out, and the others do not wait for it");
}

#[tokio::test]
async fn a_full_provider_is_not_an_ill_one() {
    let (first, _second, placement) = two().await;
    first.fail_next("POST /v2/sandboxes", 24, Fault::status(429));
    for _ in 0..6 {
        assert_eq!(placement.place().await.provider, name("second"));
    }
    assert_eq!(placement.place().await.provider, name("first"), "there is room again");
}
