//! What a placement records, and how plans and budgets use it.

use std::sync::Arc;
use std::time::Duration;

use fake::{FakeServer, Fault};
use jiff::Timestamp;
use sandbar_workspace::config::{BudgetConfig, BudgetPeriod, WorkspaceConfig};
use sandbar_workspace::ledger::{Ledger, Limit, Period, Usd, Verdict};
use sandbar_workspace::records::{Interval, MemoryRecords, Payer, Tokens, UsageQuery, UsageRecords as _, UsageRows};

use crate::support::{Placement, name, no_local, outcome, request, service};

async fn used(placement: &Placement) -> UsageRows {
    placement.records.usage(&UsageQuery::default()).await.expect("usage is read")
}

#[tokio::test]
async fn a_creation_records_its_size_and_end() {
    let fake = FakeServer::start().await;
    let mut config = service("fake", &fake.url());
    config.plan.longest_lifetime_seconds = Some(600);
    let placement = Placement::new(vec![config], &no_local()).await;
    let placed = placement.place().await;
    let rows = used(&placement).await;
    assert_eq!(rows.creations[0].sandbox.as_ref(), Some(placed.sandbox.id()));
    let Interval { size, started_at, until, ended_at, payer, .. } = &rows.intervals[0];
    assert_eq!((size.cpu_count, size.memory_mb, *ended_at), (2, 512, None));
    assert_eq!((payer.project.as_str(), *size), ("shop", placed.size));
    // An hour was requested; the plan allows ten minutes.
    assert_eq!(until.duration_since(*started_at).as_secs(), 600);
}

#[tokio::test]
async fn only_possible_creations_are_counted() {
    for (fault, counted) in [(Fault::status(429), 0), (Fault::status(500), 1), (Fault::lose_answer(), 1)] {
        let (fake, second) = (FakeServer::start().await, FakeServer::start().await);
        fake.fail_next("POST /v2/sandboxes", 100, fault);
        let providers = vec![service("fake", &fake.url()), service("second", &second.url())];
        let placement = Placement::new(providers, &no_local()).await;
        placement.place().await;
        let query = UsageQuery { provider: Some(name("fake")), ..UsageQuery::default() };
        let rows = placement.records.usage(&query).await.expect("usage is read");
        assert_eq!((rows.creations.len(), rows.intervals.len()), (counted, 0));
    }
}

#[tokio::test]
async fn a_full_plan_gets_no_request() {
    let (fake, second) = (FakeServer::start().await, FakeServer::start().await);
    let mut config = service("fake", &fake.url());
    config.plan.concurrent_sandboxes = Some(2);
    let placement = Placement::new(vec![config, service("second", &second.url())], &no_local()).await;
    let first = placement.place().await;
    placement.place().await;
    let sent = fake.requests().len();
    let (provider, skipped) = outcome(&placement.place().await);
    assert_eq!((provider.as_str(), fake.requests().len()), ("second", sent));
    assert_eq!(skipped[0].1, "the plan's 2 concurrent sandboxes are running");
    // One stops, and its slot is free.
    placement.records.close_interval(&name("fake"), first.sandbox.id(), Timestamp::now()).await.expect("noted");
    assert_eq!(placement.place().await.provider, name("fake"));
}

#[tokio::test]
async fn creations_per_minute_are_limited() {
    let (fake, second) = (FakeServer::start().await, FakeServer::start().await);
    let mut config = service("fake", &fake.url());
    config.plan.creations_per_minute = Some(1);
    let placement = Placement::new(vec![config, service("second", &second.url())], &no_local()).await;
    placement.place().await;
    assert_eq!(outcome(&placement.place().await).1[0].1, "the plan's 1 creations a minute are made");
}

#[tokio::test]
async fn warnings_are_issued_once_and_the_limit_pauses() {
    let placement = Placement::new(vec![], &no_local()).await;
    let mut priced = service("fake", "http://127.0.0.1:1");
    priced.price.usd_per_hour = Some(1.0);
    let budget = BudgetConfig { project: Some("shop".into()), usd: 10.0, period: BudgetPeriod::Total };
    let config = WorkspaceConfig { providers: vec![priced], budgets: vec![budget], ..WorkspaceConfig::default() };
    let config = config.resolve("/nowhere".as_ref(), &|_| None).expect("good");
    let ledger = Ledger::new(Arc::clone(&placement.records), &config);

    let hour = |hours: i64| Timestamp::from_second(1_700_000_000 + hours * 3600).expect("a moment");
    let interval = Interval {
        provider: name("fake"),
        sandbox: "i1".parse().expect("an id"),
        payer: request().payer,
        size: sandbar_workspace::records::Size::default(),
        started_at: hour(0),
        until: hour(1000),
        ended_at: None,
    };
    placement.records.open_interval(&interval).await.expect("noted");
    let mut issued = Vec::new();
    for hours in 0..12 {
        // Twice an hour, as two processes might.
        for _ in 0..2 {
            let findings = ledger.check(hour(hours)).await.expect("the usage is read");
            issued.extend(findings.warnings.iter().map(|warning| (hours, warning.percent)));
            let over = matches!(
                findings.verdict("shop", &name("fake")),
                Verdict::CheckpointAndPause { limit: Limit::Budget { usd, .. } } if usd == Usd::from_cents(1000)
            );
            assert_eq!(over, hours >= 10, "after {hours} hours");
            assert_eq!(findings.verdict("blog", &name("fake")), Verdict::Continue);
        }
    }
    assert_eq!(issued, [(5, 50), (8, 80), (10, 95)]);
    let total = ledger.statement(Period::ALWAYS, Some("shop"), hour(11)).await.expect("read").total();
    assert_eq!((total.cost, total.running), (Usd::from_cents(1100), Duration::from_secs(11 * 3600)));
}

#[tokio::test]
async fn two_sets_of_records_are_summed() {
    let (now, stores) = (Timestamp::now(), [MemoryRecords::default(), MemoryRecords::default()].map(Arc::new));
    for (records, project) in stores.iter().zip(["shop", "job-1f"]) {
        let tokens = Tokens {
            id: uuid::Uuid::new_v4(),
            at: now,
            payer: Payer { project: project.into(), job: None },
            model: "m".into(),
            input: 1,
            output: 2,
            cost: Usd::from_dollars(3.0).expect("an amount"),
        };
        records.record_tokens(&tokens).await.expect("recorded");
    }
    let budgets = vec![BudgetConfig { usd: 10.0, project: None, period: BudgetPeriod::Month }];
    let config = WorkspaceConfig { budgets, ..WorkspaceConfig::default() };
    let [first, second] = stores;
    let ledger = Ledger::new(first, &config).and(second);
    let statement = ledger.statement(Period::ALWAYS, None, now).await.expect("read");
    assert_eq!(statement.by_project().into_keys().collect::<Vec<_>>(), ["job-1f", "shop"]);
    assert_eq!(ledger.meters(now).await.expect("read")[0].percent(), 60);
}
