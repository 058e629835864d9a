//! The contract of every implementation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use sandbar_workspace::ledger::Usd;
use sandbar_workspace::provider::Breaker;
use sandbar_workspace::records::{
    Creation, Interval, Lease, LeaseError, OrphanRecord, Payer, RecordChangeError, Records, Size, Stored, TokenUsage,
    Tokens, UsageQuery, UsageRows, Warning, WorkspaceRecord, WorkspaceState,
};
use sandbar_workspace::{ProviderName, WorkspaceName};
use sdk::{SandboxId, Secret};
use serde_json::json;
use uuid::Uuid;

use crate::stores::{self, Pair};

macro_rules! contract {
    ($($name:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test] async fn $name() { super::$name(super::stores::memory()).await })*
        }
        mod sqlite {
            $(#[tokio::test] async fn $name() { super::$name(super::stores::sqlite().await).await })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")] async fn $name() { super::$name(super::stores::postgres().await).await })*
        }
    };
}

contract! {
    a_workspace_is_read_back_unchanged,
    a_name_is_inserted_once,
    one_process_holds_the_lease,
    one_of_many_concurrent_takers_gets_the_lease,
    writes_under_an_old_lease_are_rejected,
    a_lease_is_renewed_until_another_process_takes_it,
    creations_count_once_and_only_failed_ones_are_dropped,
    an_interval_ends_once_and_not_after_its_sandbox,
    a_new_interval_ends_one_left_open,
    usage_is_filtered_by_time_project_and_provider,
    a_warning_is_recorded_once,
    health_is_changed_by_compare_and_swap,
    an_orphan_is_known_until_it_is_forgotten,
}

const MINUTE: Duration = Duration::from_secs(60);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a moment")
}

fn name(text: &str) -> WorkspaceName {
    text.parse().expect("a name")
}

fn provider(text: &str) -> ProviderName {
    text.parse().expect("a name")
}

fn sandbox(text: &str) -> SandboxId {
    text.parse().expect("an id")
}

fn workspace(text: &str) -> WorkspaceRecord {
    WorkspaceRecord {
        name: name(text),
        project: "shop".parse().expect("an id"),
        provider: provider("e2b"),
        sandbox: Some(sandbox("i1")),
        state: WorkspaceState::SettingUp,
        paused: false,
        template: None,
        created_at: at(10),
        expires_at: at(20),
        services: json!([{ "command": "npm run dev", "port": 3000 }]),
        env: BTreeMap::from([("TOKEN".to_owned(), Secret::from("hidden 'ü\"\n"))]),
        details: json!({ "step": 3 }),
    }
}

async fn lease(records: &Arc<dyn Records>, text: &str, now: i64) -> Lease {
    records.take_lease(&name(text), "me", at(now), MINUTE).await.expect("it is free")
}

async fn a_workspace_is_read_back_unchanged(Pair { one, two, .. }: Pair) {
    let held = lease(&one, "b", 0).await;
    let mut record = workspace("b");
    assert!(!format!("{record:?}").contains("hidden"));
    one.insert_workspace(&record, &held).await.expect("it is new");
    assert_eq!(two.workspace(&name("b")).await.expect("it is read"), Some(record.clone()));

    for state in [WorkspaceState::Ready, WorkspaceState::Moving, WorkspaceState::Stopped] {
        (record.state, record.paused, record.sandbox, record.template) = (state, true, None, Some("t".into()));
        one.update_workspace(&record, &held).await.expect("the lease is the newest");
        assert_eq!(two.workspace(&name("b")).await.expect("it is read").as_ref(), Some(&record));
    }
    let other = lease(&two, "a", 0).await;
    two.insert_workspace(&workspace("a"), &other).await.expect("it is new");
    let names: Vec<String> = one.workspaces().await.expect("read").iter().map(|it| it.name.to_string()).collect();
    assert_eq!(names, ["a", "b"]);

    one.remove_workspace(&held).await.expect("the lease is the newest");
    one.remove_workspace(&held).await.expect("removing what is absent succeeds");
    assert_eq!(two.workspace(&name("b")).await.expect("it is read"), None);
    let gone = one.update_workspace(&record, &held).await;
    assert!(gone.is_err(), "what was removed does not come back");
}

async fn a_name_is_inserted_once(Pair { one, two, .. }: Pair) {
    let held = lease(&one, "a", 0).await;
    one.insert_workspace(&workspace("a"), &held).await.expect("it is new");
    one.release_lease(&held).await.expect("it is given back");
    let held = lease(&two, "a", 0).await;
    let again = two.insert_workspace(&workspace("a"), &held).await;
    assert!(matches!(again, Err(RecordChangeError::Exists(_))), "{again:?}");
    two.update_workspace(&workspace("a"), &held).await.expect("a refused insert leaves everything usable");
}

async fn one_process_holds_the_lease(Pair { one, two, .. }: Pair) {
    // Exactly the lease of a dead process can be revoked.
    let dead = one.take_lease(&name("d"), "dead", at(0), MINUTE).await.expect("it is free");
    two.break_lease(&Lease { owner: "another".to_owned(), ..dead.clone() }).await.expect("it is asked");
    assert!(two.take_lease(&name("d"), "next", at(1), MINUTE).await.is_err(), "it is not theirs");
    two.break_lease(&Lease { until: at(61), ..dead.clone() }).await.expect("it is asked");
    assert!(two.take_lease(&name("d"), "next", at(1), MINUTE).await.is_err(), "it was renewed since");
    two.break_lease(&dead).await.expect("it is asked");
    let next = two.take_lease(&name("d"), "next", at(1), MINUTE).await.expect("it was taken from the dead");
    assert!(next.fence > dead.fence && one.renew_lease(&dead, at(2), MINUTE).await.is_err());
    one.break_lease(&dead).await.expect("it is asked");
    assert!(one.take_lease(&name("d"), "third", at(2), MINUTE).await.is_err(), "the next one has it");

    let first = one.take_lease(&name("a"), "process 1", at(0), MINUTE).await.expect("it is free");
    assert_eq!((first.fence, first.until), (1, at(60)));
    match two.take_lease(&name("a"), "process 2", at(59), MINUTE).await {
        Err(LeaseError::Held { owner, until, .. }) => assert_eq!((owner.as_str(), until), ("process 1", at(60))),
        other => panic!("{other:?}"),
    }
    two.take_lease(&name("b"), "process 2", at(0), MINUTE).await.expect("another workspace is free");
    // After expiry or release, the next lease has a higher number.
    let second = two.take_lease(&name("a"), "process 2", at(60), MINUTE).await.expect("it has run out");
    assert_eq!(second.fence, 2);
    one.release_lease(&first).await.expect("giving back what was lost succeeds");
    assert!(one.take_lease(&name("a"), "process 1", at(61), MINUTE).await.is_err(), "and takes nothing from others");
    two.release_lease(&second).await.expect("it is given back");
    let third = one.take_lease(&name("a"), "process 1", at(61), MINUTE).await.expect("it was given back");
    assert_eq!(third.fence, 3);
}

async fn one_of_many_concurrent_takers_gets_the_lease(Pair { one, two, .. }: Pair) {
    for round in 0..5 {
        let tries = (0..16).map(|number| {
            let records = Arc::clone(if number % 2 == 0 { &one } else { &two });
            let owner = format!("process {number}");
            tokio::spawn(async move { records.take_lease(&name("a"), &owner, at(round * 100), MINUTE).await.is_ok() })
        });
        let got = futures::future::join_all(tries).await;
        assert_eq!(got.into_iter().filter(|got| *got.as_ref().expect("no panic")).count(), 1, "round {round}");
    }
}

async fn writes_under_an_old_lease_are_rejected(Pair { one, two, .. }: Pair) {
    let old = lease(&one, "a", 0).await;
    one.insert_workspace(&workspace("a"), &old).await.expect("it is new");
    let new = lease(&two, "a", 60).await;
    let seen = two.workspace(&name("a")).await.expect("read");

    let mut change = workspace("a");
    change.project = "stale".parse().expect("an id");
    let refused = one.update_workspace(&change, &old).await;
    assert!(matches!(refused, Err(RecordChangeError::LeaseLost(_))), "{refused:?}");
    assert!(matches!(one.remove_workspace(&old).await, Err(RecordChangeError::LeaseLost(_))));
    let mut other = workspace("a");
    other.state = WorkspaceState::Ready;
    assert!(matches!(one.insert_workspace(&other, &old).await, Err(RecordChangeError::LeaseLost(_))));
    assert_eq!(two.workspace(&name("a")).await.expect("read"), seen);
    two.update_workspace(&other, &new).await.expect("the new lease writes");
}

async fn a_lease_is_renewed_until_another_process_takes_it(Pair { one, two, .. }: Pair) {
    let held = lease(&one, "a", 0).await;
    let renewed = one.renew_lease(&held, at(30), MINUTE).await.expect("it is held");
    assert_eq!((renewed.fence, renewed.until), (1, at(90)));
    assert!(two.take_lease(&name("a"), "other", at(89), MINUTE).await.is_err());
    // Expired, but not taken by another process.
    let late = one.renew_lease(&renewed, at(200), MINUTE).await.expect("it was not taken");
    let other = two.take_lease(&name("a"), "other", at(260), MINUTE).await.expect("it has run out");
    assert!(matches!(one.renew_lease(&late, at(261), MINUTE).await, Err(LeaseError::Lost(_))));
    two.release_lease(&other).await.expect("it is given back");
    assert!(matches!(two.renew_lease(&other, at(262), MINUTE).await, Err(LeaseError::Lost(_))));
}

fn payer(project: &str) -> Payer {
    Payer { project: project.into(), job: Some("job".into()) }
}

fn interval(of: &str, started: i64, until: i64) -> Interval {
    Interval {
        provider: provider("e2b"),
        sandbox: sandbox(of),
        payer: payer("shop"),
        size: Size { cpu_count: 2, memory_mb: 1024, disk_mb: 4096 },
        started_at: at(started),
        until: at(until),
        ended_at: None,
    }
}

async fn all(records: &Arc<dyn Records>) -> UsageRows {
    records.usage(&UsageQuery::default()).await.expect("usage is read")
}

async fn creations_count_once_and_only_failed_ones_are_dropped(Pair { one, two, .. }: Pair) {
    let creation = |number: u128, second: i64| Creation {
        id: Uuid::from_u128(number),
        at: at(second),
        provider: provider("e2b"),
        payer: payer("shop"),
        sandbox: None,
    };
    for _ in 0..2 {
        one.begin_creation(&creation(1, 0)).await.expect("it is noted");
        one.begin_creation(&creation(2, 1)).await.expect("it is noted");
        one.finish_creation(Uuid::from_u128(1), &interval("i1", 0, 100)).await.expect("it was made");
        two.drop_creation(Uuid::from_u128(2)).await.expect("it was not made");
        two.drop_creation(Uuid::from_u128(1)).await.expect("what was made stays");
    }
    let made = Creation { sandbox: Some(sandbox("i1")), ..creation(1, 0) };
    let rows = all(&two).await;
    assert_eq!((rows.creations, rows.intervals), (vec![made], vec![interval("i1", 0, 100)]));
}

async fn an_interval_ends_once_and_not_after_its_sandbox(Pair { one, two, .. }: Pair) {
    let e2b = provider("e2b");
    for (id, until) in [("i1", 100), ("i2", 100), ("i3", 100), ("i4", 100)] {
        one.open_interval(&interval(id, 10, until)).await.expect("it is noted");
    }
    one.extend_interval(&e2b, &sandbox("i2"), at(300)).await.expect("it is noted");
    for (id, end) in [("i1", 50), ("i2", 250), ("i3", 9999), ("i4", 5)] {
        two.close_interval(&e2b, &sandbox(id), at(end)).await.expect("it is noted");
        // Again, later: the first write wins.
        one.close_interval(&e2b, &sandbox(id), at(end + 20)).await.expect("it is noted");
        one.extend_interval(&e2b, &sandbox(id), at(9999)).await.expect("it is noted");
        one.open_interval(&interval(id, 10, 100)).await.expect("it is noted");
    }
    one.close_interval(&provider("other"), &sandbox("i9"), at(1)).await.expect("nothing is open there");
    let ends: Vec<_> =
        all(&one).await.intervals.into_iter().map(|it| it.ended_at.expect("ended").as_second()).collect();
    assert_eq!(ends, [50, 250, 100, 10]);
}

async fn a_new_interval_ends_one_left_open(Pair { one, two, .. }: Pair) {
    one.open_interval(&interval("i1", 0, 100)).await.expect("it is noted");
    // Its process died; another one resumes the sandbox before and after its known end.
    two.open_interval(&interval("i1", 60, 160)).await.expect("it is noted");
    two.open_interval(&interval("i1", 500, 600)).await.expect("it is noted");
    // A repeated write does not end later intervals.
    two.open_interval(&interval("i1", 60, 160)).await.expect("it is noted");
    let found = all(&one).await.intervals;
    let ends: Vec<_> = found.iter().map(|it| (it.started_at, it.ended_at)).collect();
    assert_eq!(ends, [(at(0), Some(at(60))), (at(60), Some(at(160))), (at(500), None)]);
}

async fn usage_is_filtered_by_time_project_and_provider(Pair { one, two, .. }: Pair) {
    one.open_interval(&interval("i1", 0, 100)).await.expect("noted");
    one.close_interval(&provider("e2b"), &sandbox("i1"), at(50)).await.expect("noted");
    let mut local = interval("i2", 10, 1000);
    (local.provider, local.payer) = (provider("local"), payer("blog"));
    one.open_interval(&local).await.expect("noted");
    for (project, second, bytes) in [("shop", 0, 5), ("shop", 20, 6), ("shop", 60, 7), ("shop", 60, 8), ("blog", 90, 1)]
    {
        one.record_stored(&Stored { project: project.into(), at: at(second), bytes }).await.expect("noted");
    }
    let tokens = Tokens {
        id: Uuid::from_u128(1),
        at: at(70),
        payer: payer("shop"),
        model: "m".into(),
        input: 1000,
        output: 20,
        cost: Usd::from_cents(3),
    };
    for _ in 0..2 {
        one.record_tokens(&tokens).await.expect("noted");
    }
    let token_usage = TokenUsage {
        at: at(70),
        payer: payer("shop"),
        model: "m".into(),
        input: 1000,
        output: 20,
        cost: Usd::from_cents(3),
    };
    let everything = all(&two).await;
    assert_eq!((everything.intervals.len(), everything.stored.len(), everything.token_usage.len()), (2, 4, 1));

    let later = UsageQuery { since: Some(at(55)), ..UsageQuery::default() };
    let rows = two.usage(&later).await.expect("read");
    let levels: Vec<_> = rows.stored.iter().map(|level| (level.at.as_second(), level.bytes)).collect();
    assert_eq!(levels, [(20, 6), (60, 8), (90, 1)], "the last level from before counts on");
    assert_eq!((rows.intervals, rows.token_usage), (vec![local.clone()], vec![token_usage.clone()]));

    let shop = UsageQuery { project: Some("shop".into()), ..UsageQuery::default() };
    let rows = two.usage(&shop).await.expect("read");
    assert_eq!((rows.intervals.len(), rows.stored.len(), rows.token_usage.len()), (1, 3, 1));
    let of_local = UsageQuery { provider: Some(provider("local")), ..UsageQuery::default() };
    let rows = two.usage(&of_local).await.expect("read");
    assert_eq!((rows.intervals, rows.stored.len(), rows.token_usage.len()), (vec![local], 0, 0));

    // Summed within an hour, per payer and model.
    let more = |id: u128, second: i64, project: &str, model: &str| Tokens {
        id: Uuid::from_u128(id),
        at: at(second),
        payer: payer(project),
        model: model.into(),
        ..tokens.clone()
    };
    for tokens in
        [more(2, 3599, "shop", "m"), more(3, 3600, "shop", "m"), more(4, 80, "blog", "m"), more(5, 90, "shop", "n")]
    {
        one.record_tokens(&tokens).await.expect("noted");
    }
    let rows = all(&two).await.token_usage;
    let seen: Vec<_> =
        rows.iter().map(|row| (row.at.as_second(), &*row.payer.project, &*row.model, row.input)).collect();
    assert_eq!(
        seen,
        [(70, "shop", "m", 2000), (80, "blog", "m", 1000), (90, "shop", "n", 1000), (3600, "shop", "m", 1000)]
    );
    assert_eq!((rows[0].output, rows[0].cost), (40, Usd::from_cents(6)));
}

async fn a_warning_is_recorded_once(Pair { one, two, .. }: Pair) {
    let warning = |percent: u8, period: &str| Warning {
        limit: "budget 1".into(),
        period: period.into(),
        percent,
        at: at(i64::from(percent)),
    };
    let tries = (0..16).map(|number| {
        let records = Arc::clone(if number % 2 == 0 { &one } else { &two });
        let warning = warning(50, "2026-11");
        tokio::spawn(async move { records.record_warning(&warning).await.expect("noted") })
    });
    let first = futures::future::join_all(tries).await;
    assert_eq!(first.into_iter().filter(|first| *first.as_ref().expect("no panic")).count(), 1);
    assert!(one.record_warning(&warning(80, "2026-11")).await.expect("noted"));
    assert!(one.record_warning(&warning(50, "2026-12")).await.expect("noted"));
    let recorded = two.warnings().await.expect("read");
    assert_eq!(recorded.iter().map(|warning| warning.percent).collect::<Vec<_>>(), [50, 50, 80]);
}

async fn health_is_changed_by_compare_and_swap(Pair { one, two, .. }: Pair) {
    let e2b = provider("e2b");
    let seen = one.health(&e2b).await.expect("read");
    assert_eq!(seen.breaker, Breaker::Healthy);
    let backoff = Duration::from_secs(30);
    for breaker in [
        Breaker::Failing { failures: 2 },
        Breaker::Open { until: at(100), backoff },
        Breaker::Probing { until: at(190), backoff },
        Breaker::Healthy,
    ] {
        let seen = one.health(&e2b).await.expect("read");
        assert!(one.change_health(&e2b, &seen, breaker, "no answer").await.expect("written"));
        assert!(!two.change_health(&e2b, &seen, Breaker::Healthy, "").await.expect("refused"), "{breaker:?}");
        let now = two.health(&e2b).await.expect("read");
        assert_eq!((now.breaker, now.reason.as_str()), (breaker, "no answer"));
    }
    assert_eq!(two.health(&provider("other")).await.expect("read").breaker, Breaker::Healthy);
}

async fn an_orphan_is_known_until_it_is_forgotten(Pair { one, two, .. }: Pair) {
    let orphan = |seen: i64, watched: u64| OrphanRecord {
        sandbox: "i1".parse().expect("an id"),
        provider: provider("e2b"),
        workspace: "shop".to_owned(),
        seen_at: at(seen),
        watched: Duration::from_secs(watched),
    };
    one.record_orphan(&orphan(100, 0)).await.expect("written");
    two.record_orphan(&orphan(90, 60)).await.expect("written");
    assert_eq!(one.orphans().await.expect("read"), [orphan(90, 60)]);
    one.forget_orphan(&orphan(0, 0).sandbox).await.expect("forgotten");
    one.forget_orphan(&orphan(0, 0).sandbox).await.expect("forgetting what is absent succeeds");
    assert_eq!(two.orphans().await.expect("read"), []);
}
