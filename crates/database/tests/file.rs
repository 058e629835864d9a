//! One SQLite file opened twice by one process and by another process.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use sandbar_database::Database;
use sea_orm::{ConnectionTrait, Statement};

/// Another program that uses SQLite: opens the file, inserts a row, closes it.
fn insert_in_another_process(file: &Path, number: u32) {
    let program = "import sqlite3, sys\nfile = sqlite3.connect(sys.argv[1], timeout=10)\n\
                   file.execute('INSERT INTO noted VALUES (?)', sys.argv[2:])\nfile.commit()\nfile.close()\n";
    let done = Command::new("python3").args(["-c", program]).arg(file).arg(number.to_string()).output();
    let done = done.expect("python3 is there");
    assert!(done.status.success(), "{done:?}");
}

async fn note(database: &Database, number: u32) {
    database.execute_unprepared(&format!("INSERT INTO noted VALUES ({number})")).await.expect("written");
}

/// The inserted numbers, as a new process reads them.
fn noted(file: &Path) -> Vec<String> {
    let program = "import sqlite3, sys\nfile = sqlite3.connect(sys.argv[1], timeout=10)\n\
                   assert file.execute('PRAGMA integrity_check').fetchall() == [('ok',)]\n\
                   print(*sorted(row[0] for row in file.execute('SELECT number FROM noted')), sep='\\n')\n";
    let done = Command::new("python3").args(["-c", program]).arg(file).output().expect("python3 is there");
    assert!(done.status.success(), "{done:?}");
    String::from_utf8_lossy(&done.stdout).lines().map(str::to_owned).collect()
}

/// A process that closes a SQLite file checks whether other processes hold locks on it, and deletes
/// the write-ahead log if none does. Opening and closing the file outside of SQLite would drop
/// those locks for the whole process.
#[tokio::test(flavor = "multi_thread")]
async fn connections_and_processes_share_a_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("records.sqlite");
    let url = format!("sqlite://{}", file.display());
    let one = sandbar_database::connect(&url).await.expect("opened");
    one.execute_unprepared("CREATE TABLE noted (number INTEGER)").await.expect("made");
    let two = sandbar_database::connect(&url).await.expect("opened");
    note(&one, 1).await;
    let log = directory.path().join("records.sqlite-wal");
    let same = std::fs::metadata(&log).expect("a log").ino();
    insert_in_another_process(&file, 2);
    assert_eq!(std::fs::metadata(&log).expect("the log stays").ino(), same, "another log than the one that is open");
    note(&one, 3).await;
    note(&two, 4).await;
    assert_eq!(noted(&file), ["1", "2", "3", "4"]);
    let count = Statement::from_string(two.get_database_backend(), "SELECT count(*) FROM noted");
    let row = two.query_one_raw(count).await.expect("read").expect("a row");
    assert_eq!(row.try_get_by_index::<i64>(0).expect("a number"), 4, "a query sees what was committed before");
}

#[tokio::test]
async fn database_files_are_private_to_their_owner() {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, before) in [("new", None), ("old", Some(0o644))] {
        let file = directory.path().join("below").join(name);
        if let Some(mode) = before {
            std::fs::write(&file, "").expect("written");
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("changed");
        }
        let database = sandbar_database::open_file(&file).await.expect("opened");
        database.execute_unprepared("CREATE TABLE noted (number INTEGER)").await.expect("made");
        for ending in ["", "-wal", "-shm"] {
            let path = directory.path().join("below").join(format!("{name}{ending}"));
            assert_eq!(std::fs::metadata(&path).expect("it is there").mode() & 0o777, 0o600, "{}", path.display());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_a_database_in_use_is_consistent() {
    let directory = tempfile::tempdir().expect("a directory");
    let (file, copy) = (directory.path().join("records.sqlite"), directory.path().join("copy.sqlite"));
    let database = sandbar_database::open_file(&file).await.expect("opened");
    database.execute_unprepared("CREATE TABLE noted (number INTEGER)").await.expect("made");
    note(&database, 0).await;
    let writing = tokio::spawn({
        let database = database.clone();
        async move {
            for number in 1..200 {
                note(&database, number).await;
            }
        }
    });
    sandbar_database::backup(&file, &copy).await.expect("copied");
    writing.await.expect("written");
    let copied = noted(&copy);
    assert!(!copied.is_empty(), "what was committed before is in the copy");
    let mut numbers: Vec<u32> = copied.iter().map(|number| number.parse().expect("a number")).collect();
    numbers.sort_unstable();
    assert!(numbers.iter().copied().eq(0..copied.len() as u32), "no gaps: {numbers:?}");
    assert_eq!(noted(&file).len(), 200);

    let mut bytes = std::fs::read(&copy).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle..].fill(0xa5);
    std::fs::write(&copy, bytes).expect("damaged");
    assert!(sandbar_database::verify(&copy).await.is_err(), "a damaged file is found");
    let refused = sandbar_database::backup(&copy, &directory.path().join("second")).await;
    assert!(refused.is_err() && !directory.path().join("second").exists(), "{refused:?}");
}
