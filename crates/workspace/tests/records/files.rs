//! Properties that only a database can violate.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use jiff::Timestamp;
use sandbar_workspace::records::{DatabaseRecords, Leases, WorkspaceRecord, WorkspaceRecords, WorkspaceState};
use sdk::Secret;
use testing::postgres;

#[tokio::test]
async fn a_file_is_private_and_survives() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("new/records.sqlite");
    let url = Secret::from(format!("sqlite://{}", file.display()));
    let name = "a".parse().expect("a name");
    for fence in 1..=3 {
        let records = DatabaseRecords::open(&url).await.expect("it opens");
        let now = Timestamp::from_second(fence * 1000).expect("a moment");
        let lease = records.take_lease(&name, "me", now, Duration::from_secs(1)).await.expect("it is free");
        assert_eq!(lease.fence, fence);
        for entry in std::fs::read_dir(file.parent().expect("a directory")).expect("it is read") {
            let mode = entry.expect("an entry").metadata().expect("it is there").permissions().mode();
            assert_eq!(mode & 0o077, 0, "{mode:o}");
        }
        records.close().await.expect("it closes");
    }
}

#[tokio::test]
async fn removed_values_are_not_left_in_the_file() {
    const VALUE: &str = "a-value-that-occurs-nowhere-else";
    let directory = tempfile::tempdir().expect("a directory");
    let url = Secret::from(format!("sqlite://{}/records.sqlite", directory.path().display()));
    let records = DatabaseRecords::open(&url).await.expect("it opens");
    let (name, now) = ("a".parse().expect("a name"), Timestamp::now());
    let lease = records.take_lease(&name, "me", now, Duration::from_secs(60)).await.expect("it is free");
    let record = WorkspaceRecord {
        name,
        project: "a".parse().expect("an id"),
        provider: "one".parse().expect("a name"),
        sandbox: None,
        state: WorkspaceState::SettingUp,
        paused: false,
        template: None,
        created_at: now,
        expires_at: now,
        services: serde_json::Value::Null,
        env: [("TOKEN".to_owned(), VALUE.into())].into(),
        details: serde_json::Value::Null,
    };
    let is_somewhere = || {
        let files = std::fs::read_dir(directory.path()).expect("it is read");
        let mut contents = files.map(|file| std::fs::read(file.expect("an entry").path()).expect("a file"));
        contents.any(|content| content.windows(VALUE.len()).any(|part| part == VALUE.as_bytes()))
    };
    records.insert_workspace(&record, &lease).await.expect("inserted");
    assert!(is_somewhere(), "this test looks in the right place");
    records.remove_workspace(&lease).await.expect("removed");
    assert!(!is_somewhere());
}

/// Opens a new database from many processes at once.
async fn open_many(url: &str) {
    let opens = (0..8).map(|_| {
        let url = Secret::from(url);
        tokio::spawn(async move { DatabaseRecords::open(&url).await.map(|_| ()) })
    });
    for opened in futures::future::join_all(opens).await {
        opened.expect("no panic").expect("it opens");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_migrations_succeed() {
    let directory = tempfile::tempdir().expect("a directory");
    open_many(&format!("sqlite://{}/records.sqlite", directory.path().display())).await;
    open_many(&postgres::database()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_error_does_not_show_the_password() {
    let url = postgres::database().replace("sandbar@", "sandbar:hidden@").replace("/test_", "/absent_");
    let error = DatabaseRecords::open(&Secret::from(url)).await.expect_err("there is no such database");
    let mut message = format!("{error:?}");
    let mut cause: Option<&dyn std::error::Error> = Some(&error);
    while let Some(error) = cause {
        message.push_str(&error.to_string());
        cause = error.source();
    }
    assert!(message.contains("cannot open the records") && !message.contains("hidden"), "{message}");
}
