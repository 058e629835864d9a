//! The contract of the records, on SQLite and a real Postgres, through two handles as two processes
//! have them.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use sandbar_studio::records::{
    AddUserError, Change, CreditChange, JobRecord, JobSpec, NewScreenshot, Precondition, Records,
};
use sandbar_studio::token::{TokenDigest, new_token};
use sandbar_studio::{EventBody, JobId, ScreenshotId, Status, StudioEvent, TimelineEventKind, User};
use sdk::Secret;
use sea_orm::ConnectionTrait;

const LEASE: Duration = Duration::from_secs(600);

async fn open(url: &str) -> Records {
    Records::open(&Secret::from(url)).await.expect("the records open")
}

fn digest() -> TokenDigest {
    TokenDigest::from_token(new_token().expose()).expect("a token")
}

fn body(number: usize) -> (Timestamp, EventBody) {
    (Timestamp::now(), StudioEvent::Notice { text: format!("ä \"{number}\"") }.into())
}

fn spec() -> JobSpec {
    JobSpec {
        goal: "Make a page.".into(),
        model: "scripted:demo".into(),
        phases: vec!["one".into()],
        budget_usd: Some(0.5),
        ..JobSpec::default()
    }
}

/// Queues a job in the project of that name; none without a credit.
async fn enqueue(records: &Records, user: &User, name: &str, spec: &JobSpec) -> Option<JobRecord> {
    let project = records.ensure_project(&user.id, name).await.expect("a project");
    records.enqueue(&user.id, &project.id, spec).await.expect("asked")
}

async fn users(one: &Records, two: &Records) {
    assert!(!one.has_users().await.expect("read"));
    let (first, second) = (digest(), digest());
    let ada = one.add_user("ada", &first, 3).await.expect("added");
    assert!(matches!(two.add_user("ada", &second, 1).await, Err(AddUserError::Taken(_))));
    assert_eq!(two.user_by_token(&first).await.expect("read"), Some(ada.clone()));
    assert_eq!(two.user_by_token(&second).await.expect("read"), None);
    one.replace_token(&ada.id, &second).await.expect("replaced");
    assert_eq!(two.user_by_token(&first).await.expect("read"), None);
    assert_eq!(two.user_by_token(&second).await.expect("read"), Some(ada.clone()));
    assert_eq!(two.credits(&ada.id).await.expect("read"), 3);
    assert_eq!(one.credit(&ada.id, -4, "too many").await.expect("asked"), CreditChange::TooFew);
    assert_eq!(one.credit(&ada.id, -3, "all").await.expect("asked"), CreditChange::Done(0));
    assert_eq!((two.credits(&ada.id).await.expect("read"), two.users().await.expect("read").len()), (0, 1));
}

/// Concurrent requests spend each credit once.
async fn credits_are_spent_once(one: &Records, two: &Records) {
    let bob = one.add_user("bob", &digest(), 3).await.expect("added");
    let mut asked = Vec::new();
    for number in 0..8 {
        let records = if number % 2 == 0 { one.clone() } else { two.clone() };
        let bob = bob.clone();
        asked.push(tokio::spawn(async move { enqueue(&records, &bob, "shop", &spec()).await }));
    }
    let mut versions = Vec::new();
    for asked in asked {
        versions.extend(asked.await.expect("no panic").map(|job| job.build_version));
    }
    versions.sort_unstable();
    assert_eq!(versions, [1, 2, 3], "each credit is one build, and each build has a version of its own");
    assert_eq!(one.credits(&bob.id).await.expect("read"), 0);
    let jobs = two.jobs(&bob.id, None).await.expect("read");
    assert_eq!(jobs.len(), 3);

    // A refund is recorded once, with the change that ends the job, and has an event.
    let cancelled = Change {
        status: Some((Status::Queued, Status::Cancelled)),
        settled: Some(true),
        refund: Some("it never began"),
        ..Change::default()
    };
    for job in &jobs[..2] {
        let ended = one.change(&job.id, Precondition::None, cancelled.clone(), vec![body(1)]).await.expect("asked");
        assert_eq!(ended.expect("ended").events, 4);
        assert!(two.change(&job.id, Precondition::None, cancelled.clone(), Vec::new()).await.expect("asked").is_none());
        let events = two.events(&job.id, 3).await.expect("read");
        let TimelineEventKind::Studio(StudioEvent::Credit { change: 1, .. }) = &events[0].body.event else {
            panic!("{events:?}")
        };
    }
    assert_eq!(two.credits(&bob.id).await.expect("read"), 2);
    let failed = Change { status: Some((Status::Queued, Status::Failed)), settled: Some(true), ..Change::default() };
    one.change(&jobs[2].id, Precondition::None, failed, Vec::new()).await.expect("asked").expect("ended");
}

/// A deleted job is hidden, is claimed for removal, and keeps its cost.
async fn deleted(one: &Records, two: &Records) {
    let fay = one.add_user("fay", &digest(), 3).await.expect("added");
    let gone = enqueue(one, &fay, "shop", &spec()).await.expect("taken in");
    let end = Change {
        status: Some((Status::Queued, Status::Cancelled)),
        settled: Some(true),
        cost_nanos: Some(5),
        ..Change::default()
    };
    one.change(&gone.id, Precondition::None, end.clone(), Vec::new()).await.expect("asked").expect("ended");
    let from = gone.workspace.as_str().parse().expect("an id");
    let from_gone = JobSpec { begins_from: Some(from), ..spec() };
    let waiting = enqueue(one, &fay, "shop", &from_gone).await.expect("taken in");
    assert!(two.is_base_of_queued_job(&gone.workspace).await.expect("read"));
    one.change(&waiting.id, Precondition::None, end, Vec::new()).await.expect("asked").expect("ended");
    assert!(!two.is_base_of_queued_job(&gone.workspace).await.expect("read"));

    let delete = Change { deleted: Some(true), settled: Some(false), ..Change::default() };
    one.change(&gone.id, Precondition::None, delete.clone(), Vec::new()).await.expect("asked").expect("noted");
    assert!(
        two.change(&gone.id, Precondition::None, delete, Vec::new()).await.expect("asked").is_none(),
        "by one alone"
    );
    let seen = |jobs: Vec<JobRecord>| jobs.iter().map(|job| job.id.clone()).collect::<Vec<_>>();
    assert_eq!(seen(two.jobs(&fay.id, None).await.expect("read")), std::slice::from_ref(&waiting.id));
    assert_eq!(two.jobs_with_deleted(&fay.id, Some(&gone.project)).await.expect("read").len(), 2);

    // The worker with the job erases it; a stalled worker does not.
    assert!(one.claim(LEASE, Some(&waiting.id)).await.expect("asked").is_none(), "nothing is to be done there");
    let first = one.claim(Duration::ZERO, Some(&gone.id)).await.expect("asked").expect("free");
    let second = loop {
        if let Some(job) = two.claim(LEASE, Some(&gone.id)).await.expect("asked") {
            break job;
        }
    };
    assert!(first.deleted && second.deleted && second.attempt == first.attempt + 1);
    assert!(!one.erase_job(&gone.id, first.attempt).await.expect("asked"));
    assert!(two.erase_job(&gone.id, second.attempt).await.expect("asked"));
    assert!(one.events(&gone.id, 0).await.expect("read").is_empty());
    let left = one.job(&gone.id).await.expect("read").expect("what it cost");
    assert_eq!((left.spec.goal.as_str(), left.cost_nanos, left.settled, left.deleted), ("", 5, true, true));
    let names = two.project_names().await.expect("read");
    assert_eq!(names.get(gone.workspace.as_str()).map(String::as_str), Some("shop"));
}

/// One of several concurrent claims gets each job, and only the last attempt can write.
async fn claims(one: &Records, two: &Records) {
    let eve = one.add_user("eve", &digest(), 10).await.expect("added");
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(enqueue(one, &eve, "shop", &spec()).await.expect("taken in").id);
    }
    let claiming = (0..10).map(|number| {
        let records = if number % 2 == 0 { one.clone() } else { two.clone() };
        tokio::spawn(async move { records.claim(LEASE, None).await.expect("asked") })
    });
    let mut claimed = Vec::new();
    for claiming in claiming.collect::<Vec<_>>() {
        claimed.extend(claiming.await.expect("no panic"));
    }
    // A claim that lost a race on Postgres may have returned none although a job was free.
    while let Some(job) = one.claim(LEASE, None).await.expect("asked") {
        claimed.push(job);
    }
    assert!(claimed.iter().all(|job| (job.status, job.attempt) == (Status::Provisioning, 1)), "{claimed:?}");
    let mut got: Vec<JobId> = claimed.into_iter().map(|job| job.id).collect();
    got.sort();
    ids.sort();
    assert_eq!(got, ids);

    // The lease expires: another worker claims the job, and the first attempt can no longer write.
    let id = &ids[0];
    assert_eq!(one.renew(id, 1, Duration::ZERO).await.expect("asked"), Some(false));
    let again = loop {
        if let Some(job) = two.claim(LEASE, None).await.expect("asked") {
            break job;
        }
    };
    assert_eq!((&again.id, again.attempt, again.broken_off), (id, 2, 1), "the first one broke off");
    assert_eq!(one.renew(id, 1, LEASE).await.expect("asked"), None);
    let late = Change { stage_label: Some("late".into()), ..Change::default() };
    assert!(one.change(id, Precondition::Attempt(1), late.clone(), vec![body(1)]).await.expect("asked").is_none());
    let run = agent::RunId::new();
    let good = Change {
        status: Some((Status::Provisioning, Status::Building)),
        run: Some(run.clone()),
        run_entries: Some((0, 3)),
        preview: Some(Some(("http://x".into(), 3000))),
        sandbox_paused: Some(true),
        cost_nanos: Some(7),
        ..Change::default()
    };
    let changed = two
        .change(id, Precondition::Attempt(2), good.clone(), vec![body(1), body(2)])
        .await
        .expect("asked")
        .expect("changed");
    assert_eq!((changed.status, changed.run, changed.run_entries), (Status::Building, Some(run), 3));
    assert_eq!((changed.preview_port, changed.sandbox_paused, changed.cost_nanos), (Some(3000), true, 7));
    assert_eq!(changed.spec.phases, ["one"]);
    assert!(
        two.change(id, Precondition::Attempt(2), good, Vec::new()).await.expect("asked").is_none(),
        "it is no longer there"
    );
    let read = one.job(id).await.expect("read").expect("a job");
    assert_eq!((read.events, &*read.stage_label), (4, Status::Provisioning.label()));

    // A released job can be claimed at once; a settled job never again.
    two.release(id, 2, Duration::ZERO).await.expect("released");
    let third = one.claim(LEASE, None).await.expect("asked").expect("free");
    assert_eq!((&third.id, third.attempt, third.status), (id, 3, Status::Building));
    assert_eq!(third.broken_off, 1, "the second one gave it back");
    let further = Change { progress: true, ..Change::default() };
    let further = one.change(id, Precondition::Attempt(3), further, Vec::new()).await.expect("asked").expect("changed");
    assert_eq!(further.broken_off, 0, "it got further");
    for (id, attempt) in ids.iter().zip([3, 1, 1, 1]) {
        let done = Change { settled: Some(true), ..Change::default() };
        assert!(one.change(id, Precondition::Attempt(attempt), done, Vec::new()).await.expect("asked").is_some());
    }
    assert!(two.claim(LEASE, None).await.expect("asked").is_none());

    // A settled job with a new operation can be claimed at once, although its lease had not ended.
    let more = Change { settled: Some(false), deleted: Some(true), ..Change::default() };
    assert!(one.change(id, Precondition::None, more, Vec::new()).await.expect("asked").is_some());
    assert_eq!(two.claim(LEASE, None).await.expect("asked").map(|job| job.attempt), Some(4));
    assert!(two.erase_job(id, 4).await.expect("asked"));
}

/// The lease of a dead process, or one written while the clock was ahead, blocks no build.
async fn void_leases(url: &str, one: &Records, two: &Records) {
    const SHORT: Duration = Duration::from_secs(15);
    let kim = one.add_user("kim", &digest(), 1).await.expect("added");
    let job = enqueue(one, &kim, "shop", &spec()).await.expect("taken in");
    let claimed = one.claim(SHORT, Some(&job.id)).await.expect("asked").expect("free");
    assert!(two.claim(SHORT, Some(&job.id)).await.expect("asked").is_none(), "its process runs");
    let mut child = std::process::Command::new("true").spawn().expect("it starts");
    child.wait().expect("it ends");
    let me = workspace::process::identify();
    let (_, facts) = me.split_once(" [").expect("what programs read");
    let gone = format!("process {} on here [1 {}", child.id(), facts.split_once(' ').expect("more").1);
    let (soon, far) =
        (Timestamp::now() + SignedDuration::from_secs(10), Timestamp::now() + SignedDuration::from_hours(1));
    let database = database::connect(url).await.expect("the database");
    let mut attempt = claimed.attempt;
    for (owner, until, free) in [
        (gone.as_str(), soon, true),
        (me.as_str(), far, false),
        ("process 1 on elsewhere", soon, false),
        ("process 1 on elsewhere", far, true),
    ] {
        let write = format!(
            "UPDATE studio_job SET lease_owner = '{owner}', lease_until_us = {} WHERE id = '{}'",
            until.as_microsecond(),
            job.id
        );
        database.execute_unprepared(&write).await.expect("written");
        let taken = two.claim(SHORT, Some(&job.id)).await.expect("asked");
        assert_eq!(taken.is_some(), free, "{owner} until {until}");
        attempt = taken.map_or(attempt, |job| job.attempt);
    }
    let done = Change { settled: Some(true), ..Change::default() };
    assert!(one.change(&job.id, Precondition::Attempt(attempt), done, Vec::new()).await.expect("asked").is_some());
}

/// Event numbers have no gaps across writers, and reading page by page returns every event.
async fn events(one: &Records, two: &Records) {
    let dan = one.add_user("dan", &digest(), 1).await.expect("added");
    let job = enqueue(one, &dan, "shop", &spec()).await.expect("taken in");
    let writing = (0..40).map(|number| {
        let (records, id) = (if number % 2 == 0 { one.clone() } else { two.clone() }, job.id.clone());
        tokio::spawn(async move {
            let events = (0..20).map(|more| body(number * 100 + more)).collect();
            records.change(&id, Precondition::None, Change::default(), events).await.expect("written").expect("a job");
        })
    });
    for writing in writing.collect::<Vec<_>>() {
        writing.await.expect("no panic");
    }
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let page = two.events(&job.id, after).await.expect("read");
        let Some(last) = page.last() else { break };
        after = last.seq.expect("recorded events have numbers");
        all.extend(page);
    }
    let numbers: Vec<u64> = all.iter().filter_map(|event| event.seq).collect();
    assert_eq!(numbers, (1..=802).collect::<Vec<_>>());
    assert!(matches!(all[0].body.event, TimelineEventKind::Studio(StudioEvent::Status { .. })), "{:?}", all[0]);
    assert_eq!(one.event_counts(&[job.id.clone(), JobId::new()]).await.expect("read"), [(job.id.clone(), Some(802))]);

    let screenshot = |device: &str| NewScreenshot {
        id: ScreenshotId::new(),
        device: device.into(),
        width: 390,
        height: 844,
        reason: "ready".into(),
        media_type: "image/webp".into(),
        content: vec![0, 255, 7].into(),
    };
    let desktop = one.save_screenshot(&job.id, screenshot("desktop")).await.expect("kept");
    let twice = screenshot("mobile");
    one.save_screenshot(&job.id, twice.clone()).await.expect("kept");
    let mobile = two.save_screenshot(&job.id, twice).await.expect("kept already");
    let kept = two.screenshots(&job.id).await.expect("read");
    assert_eq!(kept.iter().map(|one| &one.id).collect::<Vec<_>>(), [&mobile.id, &desktop.id]);
    assert_eq!(
        one.newest_screenshots(std::slice::from_ref(&job.id)).await.expect("read"),
        [(job.id.clone(), desktop.id.clone())]
    );
    let file = one.screenshot(&job.id, &desktop.id).await.expect("read").expect("a screenshot");
    assert_eq!((&*file.media_type, &file.content[..]), ("image/webp", &[0, 255, 7][..]));
    assert!(
        one.screenshot(&JobId::new(), &desktop.id).await.expect("read").is_none(),
        "a screenshot belongs to its job"
    );

    let soon = Timestamp::now() + SignedDuration::from_mins(1);
    for (from, to) in [(Status::Queued, Status::Provisioning), (Status::Provisioning, Status::Building)] {
        let step = Change { status: Some((from, to)), ..Change::default() };
        one.change(&job.id, Precondition::None, step, Vec::new()).await.expect("asked").expect("changed");
    }
    let ready = Change {
        status: Some((Status::Building, Status::Ready)),
        sandbox_id: Some(Some("i123".into())),
        sandbox_expires_at: Some(Some(soon)),
        settled: Some(true),
        ..Change::default()
    };
    one.change(&job.id, Precondition::None, ready, Vec::new()).await.expect("asked").expect("changed");
    assert_eq!(two.ended_jobs(&job.project).await.expect("read").len(), 1);
    assert!(two.jobs_expiring_before(Timestamp::now()).await.expect("read").is_empty());
    let ending = two.jobs_expiring_before(soon + SignedDuration::from_secs(1)).await.expect("read");
    assert_eq!(ending.iter().map(|job| &job.id).collect::<Vec<_>>(), [&job.id]);
    let found = two.job_in_workspace(&job.workspace).await.expect("read").expect("the job of its workspace");
    assert_eq!((found.id, found.sandbox_paused, found.settled), (job.id, false, true));
}

async fn contract(url: &str) {
    let (one, two) = (open(url).await, open(url).await);
    users(&one, &two).await;
    credits_are_spent_once(&one, &two).await;
    deleted(&one, &two).await;
    claims(&one, &two).await;
    void_leases(url, &one, &two).await;
    events(&one, &two).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite() {
    let directory = tempfile::tempdir().expect("a directory");
    contract(&format!("sqlite://{}", directory.path().join("records.sqlite").display())).await;
}

/// Commits wait for the disk and for other processes' commits. Reads do not.
#[tokio::test(flavor = "multi_thread")]
async fn reads_do_not_wait_for_writes() {
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite://{}", directory.path().join("records.sqlite").display());
    let records = open(&url).await;
    let gus = records.add_user("gus", &digest(), 2).await.expect("added");
    let job = enqueue(&records, &gus, "shop", &spec()).await.expect("taken in");

    let other = database::connect(&url).await.expect("another process");
    let other = other.begin().await.expect("it begins");
    other.execute_unprepared("UPDATE studio_user SET turn = turn").await.expect("it writes");
    let writing = tokio::spawn({
        let (records, gus) = (records.clone(), gus.clone());
        async move { records.credit(&gus.id, 1, "a gift").await }
    });
    let reads = async {
        for _ in 0..50 {
            records.job(&job.id).await.expect("read").expect("the job");
            assert_eq!(records.credits(&gus.id).await.expect("read"), 1);
            assert_eq!(records.events(&job.id, 0).await.expect("read").len(), 2);
        }
    };
    tokio::time::timeout(Duration::from_secs(5), reads).await.expect("reads waited for writes");
    assert!(!writing.is_finished(), "it was written while another process had the database");
    drop(other);
    assert_eq!(writing.await.expect("no panic").expect("written"), CreditChange::Done(2));
    assert_eq!(records.credits(&gus.id).await.expect("read"), 2, "what is written is seen");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres() {
    contract(&testing::postgres::database()).await;
}
