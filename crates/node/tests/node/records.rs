//! Contract of `Records`, checked on every implementation.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use engine::Instance;
use jiff::Timestamp;
use sandbar_node::lifecycle::PauseMode;
use sandbar_node::memory::MemoryRecords;
use sandbar_node::ports::Records;
use sandbar_node::records::SqliteRecords;
use sandbar_node::{
    Created, Egress, EgressLists, IdempotencyKey, Ingress, Layer, OnTimeout, PersistedState, Record, Resources,
    SandboxSpec, Secret, Token, new_files_id, new_sandbox_id, template,
};

fn egress(allow: &[&str], deny: &[&str]) -> Egress {
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    let lists = EgressLists {
        allow_out: texts(allow),
        deny_out: texts(deny),
        dns_servers: vec![[1, 1, 1, 1].into()],
        ..EgressLists::default()
    };
    lists.try_into().expect("lists")
}

fn record() -> Record {
    let pair = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    Record {
        id: new_sandbox_id(),
        template: template::Template { id: template::BASE_ID.to_owned(), alias: Some("base".to_owned()) },
        standing: PersistedState::Running,
        instance: Some(Instance { pid: u32::MAX, start_time: 1 << 60 }),
        started_at: "2026-01-02T03:04:05.678901Z".parse().expect("a moment"),
        end_at: "2026-01-02T03:09:05.678901Z".parse().expect("a moment"),
        lease: Duration::from_micros(300_000_001),
        spec: SandboxSpec {
            resources: Resources { cpu_count: 2, memory_mb: 1024, disk_mb: 10240, pids: 4096 },
            allow_internet: Some(false),
            egress: egress(&["1.1.1.1", "*.example.com"], &["0.0.0.0/0"]),
            ingress: Ingress { mask_request_host: Some("${PORT}.test".to_owned()), https_ports: vec![443, 8443] },
            volumes: Vec::new(),
            on_timeout: OnTimeout::Pause(PauseMode::Filesystem),
            auto_resume: true,
            metadata: pair("a b", "c&d \u{1F980}"),
            env_vars: pair("NAME", "multi\nline"),
            mcp: Some(serde_json::json!({ "server": { "key": 1 } })),
        },
        access_token: Some(Token::random()),
        traffic_token: None,
        boot_id: "8a6e0804-2bd0-4672-b79d-d97027f9071a".to_owned(),
        defaults: template::Defaults {
            env: pair("A", "b"),
            user: Some("root".to_owned()),
            workdir: Some("/app".to_owned()),
            start_command: Some("serve".to_owned()),
            ready_command: None,
        },
    }
}

async fn keeps_every_field(records: &dyn Records) {
    let mut one = record();
    let other = Record {
        standing: PersistedState::Paused(PauseMode::Full),
        traffic_token: Some(Token::random()),
        access_token: None,
        template: template::Template { id: "t1".to_owned(), alias: None },
        defaults: template::Defaults::default(),
        spec: SandboxSpec {
            on_timeout: OnTimeout::Kill,
            allow_internet: None,
            egress: Egress::default(),
            ingress: Ingress::default(),
            volumes: Vec::new(),
            mcp: None,
            ..record().spec
        },
        ..record()
    };
    records.insert(&one, None).await.expect("it is stored");
    records.insert(&other, None).await.expect("it is stored");
    assert!(records.insert(&one, None).await.is_err(), "an ID is stored once");
    one.standing = PersistedState::Paused(PauseMode::Filesystem);
    one.instance = None;
    one.end_at = Timestamp::from_microsecond(1_767_323_346_000_001).expect("in range");
    records.put(&one).await.expect("it is changed");
    let mut all = records.all().await.expect("they are read");
    all.sort_by_key(|record| record.id != one.id);
    assert_eq!(all, [one.clone(), other.clone()]);

    records.remove(&one.id).await.expect("it is forgotten");
    records.remove(&one.id).await.expect("forgetting twice succeeds");
    assert_eq!(records.all().await.expect("they are read"), [other]);
    // As after a removal that failed at its end, which the caller takes for not done.
    records.put(&one).await.expect("it is stored");
    assert_eq!(records.all().await.expect("they are read").len(), 2, "an acknowledged change is there");
}

async fn remembers_creations(records: &dyn Records) {
    let one = record();
    let idempotency = IdempotencyKey { key: "key-1".to_owned(), fingerprint: "f1".to_owned() };
    assert_eq!(records.creation("key-1").await.expect("it is read"), None);
    records.insert(&one, Some(&idempotency)).await.expect("it is stored");
    let expected = Some(("f1".to_owned(), Created::from(&one)));
    assert_eq!(records.creation("key-1").await.expect("it is read"), expected);

    let other = record();
    assert!(records.insert(&other, Some(&idempotency)).await.is_err(), "a key is stored once");
    assert_eq!(records.all().await.expect("they are read").len(), 1, "both are stored or neither");

    records.remove(&one.id).await.expect("it is forgotten");
    assert_eq!(records.creation("key-1").await.expect("it is read"), expected, "also when the sandbox is gone");
    records.forget_creations(one.started_at).await.expect("old keys are forgotten");
    assert_eq!(records.creation("key-1").await.expect("it is read"), expected, "this one is not old");
    let later = Timestamp::from_microsecond(one.started_at.as_microsecond() + 1).expect("in range");
    records.forget_creations(later).await.expect("old keys are forgotten");
    assert_eq!(records.creation("key-1").await.expect("it is read"), None);
}

async fn remembers_templates(records: &dyn Records) {
    let now: Timestamp = "2026-01-02T03:04:05.678901Z".parse().expect("a moment");
    let mut one = template::TemplateRecord {
        id: "t1".to_owned(),
        name: Some("name".to_owned()),
        public: false,
        created_at: now,
        updated_at: now,
        builds: vec![template::Build {
            id: template::BASE_BUILD,
            status: template::BuildStatus::Failed,
            files: template::BuildFiles::Kept(new_files_id()),
            defaults: record().defaults,
            size: template::Size { cpu_count: 1, memory_mb: 128, disk_mb: 64 },
            of: Some("i1".to_owned()),
            wanted_tags: vec!["v1".to_owned()],
            created_at: now,
            finished_at: Some(now),
            failure: Some(template::BuildFailure { message: "no".to_owned(), step: Some("2".to_owned()) }),
        }],
        tags: BTreeMap::from([("v1".to_owned(), template::Tag { build: template::BASE_BUILD, created_at: now })]),
    };
    records.put_template(&one).await.expect("it is stored");
    one.public = true;
    records.put_template(&one).await.expect("it is replaced");
    assert_eq!(records.templates().await.expect("they are read"), [one]);
    let mut layer = Layer { key: "k".to_owned(), files: new_files_id(), used_at: now };
    records.put_layer(&layer).await.expect("it is stored");
    layer.files = new_files_id();
    records.put_layer(&layer).await.expect("it is replaced");
    assert_eq!(records.layers().await.expect("they are read"), [layer]);
    records.remove_layer("k").await.expect("it is forgotten");
    assert_eq!(records.layers().await.expect("they are read"), []);
    records.remove_template("t1").await.expect("it is forgotten");
    records.remove_template("t1").await.expect("forgetting twice succeeds");
    assert_eq!(records.templates().await.expect("they are read"), []);
}

async fn remembers_secrets(records: &dyn Records) {
    let now: Timestamp = "2026-01-02T03:04:05.678901Z".parse().expect("a moment");
    let mut one = Secret {
        id: "sec_1".to_owned(),
        name: "key".to_owned(),
        value: "first value \u{1F980}".to_owned().into(),
        version: 1,
        metadata: record().spec.metadata,
        created_at: now,
        updated_at: now,
    };
    records.put_secret(&one).await.expect("it is stored");
    (one.value, one.version) = ("second".to_owned().into(), 2);
    records.put_secret(&one).await.expect("it is replaced");
    assert_eq!(records.secrets().await.expect("they are read"), [one.clone()]);
    assert!(!format!("{one:?}").contains("second"), "values are not shown");
    records.remove_secret("sec_1").await.expect("it is forgotten");
    records.remove_secret("sec_1").await.expect("forgetting twice succeeds");
    assert_eq!(records.secrets().await.expect("they are read"), []);
}

#[tokio::test]
async fn memory_keeps_the_promises() {
    remembers_secrets(&MemoryRecords::default()).await;
    remembers_templates(&MemoryRecords::default()).await;
    keeps_every_field(&MemoryRecords::default()).await;
    remembers_creations(&MemoryRecords::default()).await;
}

#[tokio::test]
async fn sqlite_keeps_the_promises() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    remembers_secrets(&SqliteRecords::open(&directory.path().join("secrets.sqlite")).await.expect("it opens")).await;
    remembers_templates(&SqliteRecords::open(&directory.path().join("0.sqlite")).await.expect("it opens")).await;
    keeps_every_field(&SqliteRecords::open(&directory.path().join("one?.sqlite")).await.expect("it opens")).await;
    remembers_creations(&SqliteRecords::open(&directory.path().join("two.sqlite")).await.expect("it opens")).await;
}

#[tokio::test]
async fn only_the_servers_user_reads_the_records() {
    let directory = tempfile::TempDir::new().expect("a temporary directory");
    let modes = || {
        let mut modes = HashMap::new();
        for entry in fs::read_dir(directory.path()).expect("a directory") {
            let entry = entry.expect("an entry");
            let mode = entry.metadata().expect("metadata").permissions().mode() & 0o777;
            modes.insert(entry.file_name().into_string().expect("text"), mode);
        }
        modes
    };
    let file = directory.path().join("node.sqlite");
    let records = SqliteRecords::open(&file).await.expect("it opens");
    assert!(modes().len() > 1, "the journal is beside it");
    assert!(modes().values().all(|mode| *mode == 0o600), "{:?}", modes());
    drop(records);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("permissions");
    let _records = SqliteRecords::open(&file).await.expect("it opens");
    assert!(modes().values().all(|mode| *mode == 0o600), "an older file becomes private: {:?}", modes());
}

#[tokio::test]
async fn sqlite_outlives_the_server() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("node.sqlite");
    let one = record();
    let first = SqliteRecords::open(&file).await.expect("it opens");
    first.insert(&one, None).await.expect("it is stored");
    // Not closed, as after kill -9: what was acknowledged is in the write-ahead log.
    let second = SqliteRecords::open(&file).await.expect("it opens again");
    assert_eq!(second.all().await.expect("they are read"), [one]);
    drop(first);
}
