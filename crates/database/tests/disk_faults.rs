//! Failing disks: a full file system, and a write or sync that fails at every point of a
//! transaction. Another process reads every acknowledged change from the file; once the disk works
//! again, changes are accepted and no lock is left.
//!
//! The test runs this program again as a child, on a small file system of its own or on a
//! [`FaultyDisk`].

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use sandbar_database::{Database, find_unwritable};
use sea_orm::{ConnectionTrait, DbBackend, DbErr, Statement};
use testing::{DISK_FAULTS, FaultyDisk};

const DEADLINE: Duration = Duration::from_secs(30);
/// Larger than the page cache below, so that a statement writes to the disk before the commit.
const BLOB_BYTES: usize = 20 << 10;
const SMALL_CACHE: &str = "PRAGMA cache_size = 2";

/// Runs `scenario` (the name of an ignored test in this file) in a child.
fn run_child(mut command: Command, scenario: &str, directory: &Path) {
    command.env("FAULT_SCENARIO", "yes").env("FAULT_DIRECTORY", directory);
    command.args(["--exact", scenario, "--ignored", "--nocapture", "--test-threads=1"]);
    let done = command.output().expect("the child starts");
    let output = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{output}");
    assert!(output.contains("1 passed"), "{output}");
}

/// [`None`] outside of the child, as with `cargo test -- --ignored`.
fn child_directory() -> Option<PathBuf> {
    env::var_os("FAULT_SCENARIO")?;
    env::var_os("FAULT_DIRECTORY").map(PathBuf::from)
}

fn this_program() -> PathBuf {
    env::current_exe().expect("the test has a path")
}

/// A database with one table, in which each number is one acknowledged change.
struct Subject {
    file: PathBuf,
    database: Database,
    acknowledged: BTreeSet<u32>,
    next: u32,
}

impl Subject {
    async fn open(directory: &Path) -> Self {
        let file = directory.join("records.sqlite");
        let database = sandbar_database::open_file(&file).await.expect("opened");
        database
            .execute_unprepared("CREATE TABLE noted (number INTEGER, part INTEGER, filler BLOB)")
            .await
            .expect("made");
        database.execute_unprepared(SMALL_CACHE).await.expect("set");
        Self { file, database, acknowledged: BTreeSet::new(), next: 0 }
    }

    /// One transaction of three statements; calls `before` before each of its five steps.
    async fn change(&mut self, mut before: impl FnMut(usize)) -> Result<(), DbErr> {
        let number = self.next;
        self.next += 1;
        before(0);
        let transaction = self.database.begin().await?;
        for part in 1..=3 {
            before(part);
            let insert = format!("INSERT INTO noted VALUES ({number}, {part}, randomblob({BLOB_BYTES}))");
            transaction.execute_unprepared(&insert).await?;
        }
        before(4);
        transaction.commit().await?;
        self.acknowledged.insert(number);
        Ok(())
    }

    /// One statement in its own implicit transaction.
    async fn change_alone(&mut self) -> Result<(), DbErr> {
        let number = self.next;
        self.next += 1;
        let insert =
            format!("INSERT INTO noted SELECT {number}, value, randomblob({BLOB_BYTES}) FROM json_each('[1,2,3]')");
        if number.is_multiple_of(2) {
            self.database.execute_unprepared(&insert).await?;
        } else {
            // SQLite commits a RETURNING statement after its last row.
            let returning = Statement::from_string(DbBackend::Sqlite, format!("{insert} RETURNING number"));
            self.database.query_one_raw(returning).await?;
        }
        self.acknowledged.insert(number);
        Ok(())
    }

    /// Retries until changes are accepted again.
    async fn recover(&mut self) {
        let begun = Instant::now();
        while let Err(error) = self.change(|_| {}).await {
            let cause = sandbar_database::unwrap_cause(error.into());
            assert!(begun.elapsed() < DEADLINE, "changes are not accepted again: {cause}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(self.database.fault(), None);
        self.change_alone().await.expect("every later change is accepted");
    }

    /// Compares the file, as another process reads it, with the acknowledged changes. That process
    /// also writes, which proves that no lock is left.
    fn check(&self, situation: &str) {
        let program = "import sqlite3, sys\n\
                       file = sqlite3.connect(sys.argv[1], timeout=1)\n\
                       assert file.execute('PRAGMA integrity_check').fetchall() == [('ok',)]\n\
                       for row in file.execute('SELECT number, count(*) FROM noted GROUP BY number'): print(*row)\n\
                       file.execute('CREATE TABLE IF NOT EXISTS other (number)')\n\
                       file.execute('INSERT INTO other VALUES (1)')\n\
                       file.commit()\n";
        let done = Command::new("python3").args(["-c", program]).arg(&self.file).env_remove("LD_PRELOAD").output();
        let done = done.expect("python3 starts");
        assert!(done.status.success(), "{situation}: {done:?}");
        let text = String::from_utf8(done.stdout).expect("text");
        let mut found = BTreeSet::new();
        for line in text.lines() {
            let (number, parts) = line.split_once(' ').expect("two numbers");
            assert_eq!(parts, "3", "{situation}: half of a transaction is in the file: {line}");
            found.insert(number.parse::<u32>().expect("a number"));
        }
        let lost: Vec<_> = self.acknowledged.difference(&found).collect();
        assert!(lost.is_empty(), "{situation}: acknowledged and lost: {lost:?}");
    }
}

/// Uses up all space of the file system, to the last byte.
fn fill(filler: &Path) {
    let mut file = File::create(filler).expect("a file for the rest of the space");
    let mut size = 1 << 20;
    while size > 0 {
        if file.write_all(&vec![1; size]).is_err() {
            size /= 2;
        }
    }
}

/// Fills a real file system of 48 MiB before every step of a transaction.
#[test]
fn a_full_file_system_loses_no_commit_and_recovers() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let mount = r#"mount -t tmpfs -o size=48m none "$FAULT_DIRECTORY" && exec "$0" "$@""#;
    command.args(["--mount", "sh", "-c", mount]).arg(this_program());
    run_child(command, "child_on_a_small_file_system", directory.path());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by a_full_file_system_loses_no_commit_and_recovers"]
async fn child_on_a_small_file_system() {
    let Some(directory) = child_directory() else { return };
    let filler = directory.join("filler");
    for full_before in 0..=4 {
        let inner = directory.join(full_before.to_string());
        fs::create_dir(&inner).expect("a directory");
        let mut subject = Subject::open(&inner).await;
        subject.change(|_| {}).await.expect("there is space");
        let failed = subject
            .change(|step| {
                if step == full_before {
                    fill(&filler);
                }
            })
            .await;
        let cause = sandbar_database::unwrap_cause(failed.expect_err("there is no space").into());
        let refused = find_unwritable(cause.as_ref()).expect("it says that the file refuses changes");
        let sentence = refused.to_string();
        let mount = directory.display().to_string();
        assert!(
            sentence.contains(&mount) && sentence.contains("full") && sentence.contains("free space"),
            "{sentence}"
        );
        assert_eq!(subject.database.fault().as_ref(), Some(refused));
        for _ in 0..6 {
            let refused = (subject.change(|_| {}).await.is_err(), subject.change_alone().await.is_err());
            assert_eq!(refused, (true, true), "a change was accepted on a full file system");
        }
        let row =
            subject.database.query_one_raw(Statement::from_string(DbBackend::Sqlite, "SELECT 1 FROM noted")).await;
        assert!(row.expect("a full file system can be read").is_some());
        fs::remove_file(&filler).expect("space again");
        subject.recover().await;
        subject.check(&format!("filled before step {full_before}"));
        drop(subject);
        fs::remove_dir_all(&inner).expect("space for the next");
    }
}

/// Injects each error, once or permanently, into every call that changes the database's files.
#[test]
fn failed_writes_and_syncs_lose_no_commit() {
    FaultyDisk::run("child_with_a_faulty_disk");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by failed_writes_and_syncs_lose_no_commit"]
async fn child_with_a_faulty_disk() {
    let Some(disk) = FaultyDisk::of_child() else { return };
    for fault in DISK_FAULTS {
        let name = fault.name;
        let mut reached = 0;
        // Every third call in the short run.
        for skip in FaultyDisk::skips(3) {
            let situation = format!("{name}, after {skip} calls");
            let inner = disk.path().join(format!("{}-{skip}", name.replace([' ', '/'], "-")));
            fs::create_dir(&inner).expect("a directory");
            let mut subject = Subject::open(&inner).await;
            subject.change(|_| {}).await.expect("the disk works");
            disk.arm(fault, skip);
            let refused = (subject.change(|_| {}).await.is_err(), subject.change_alone().await.is_err());
            let was_hit = disk.disarm();
            subject.recover().await;
            subject.check(&situation);
            if !was_hit {
                assert_eq!(refused, (false, false), "{situation}: refused without a fault");
                break;
            }
            drop(subject);
            fs::remove_dir_all(&inner).expect("removed");
            reached = skip;
        }
        assert!(reached > 10, "{name}: only {reached} calls were reached");
        println!("{name}: {reached} points");
    }
}
