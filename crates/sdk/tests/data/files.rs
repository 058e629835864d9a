//! Files against the real server.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use sandbar_sdk::{CallError, Create, EntryKind, Expiry, FileError, FileEventKind, Sandbox, Watch};

use testing::Server;

/// Names that break careless quoting, encoding or path handling.
const HOSTILE: [&str; 9] = [
    "with space",
    "ünïcödé-日本-🦀",
    "quo\"te'd",
    "back\\slash",
    "per%cent%41+plus&amp=;#?",
    "new\nline",
    "--dash",
    "$(touch pwned)`id`",
    "a..b",
];

#[tokio::test]
async fn written_files_are_read_back() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let files = sandbox.files();

    let written = files.write("deep/er/note.txt", "hello").await.expect("it is written");
    assert_eq!((written.path.as_str(), written.name.as_str()), ("/home/user/deep/er/note.txt", "note.txt"));
    assert_eq!(files.read_text("deep/er/note.txt").await.expect("it is there"), "hello");
    assert_eq!(files.write("deep/er/note.txt", "").await.expect("it is emptied").name, "note.txt");
    assert!(files.read("deep/er/note.txt").await.expect("it is there").is_empty());

    let bytes: Vec<u8> = (0..=255).cycle().take(3_000_000).collect();
    files.write("/tmp/bytes", bytes.clone()).await.expect("it is written");
    assert_eq!(files.read("/tmp/bytes").await.expect("it is there"), bytes);
    let error = files.read_text("/tmp/bytes").await.expect_err("no text");
    assert!(matches!(error, FileError::NotText { at: 128, .. }), "{error:?}");

    // A file without a known length.
    let boot = files.read_text("/proc/sys/kernel/random/boot_id").await.expect("it is there");
    assert_eq!(boot.trim().len(), 36);

    let missing = [files.read("none").await.map(drop), files.read_stream("none").await.map(drop)];
    for error in missing.map(|result| result.expect_err("it is not there")) {
        assert!(matches!(&error, FileError::NotFound { path, .. } if path == "none"), "{error:?}");
    }
    for error in [files.read("/tmp").await.map(drop), files.write("/tmp", "x").await.map(drop)] {
        let error = error.expect_err("a directory");
        assert!(matches!(error, FileError::Invalid { .. }), "{error:?}");
    }
    let error = files.as_user("nobody-here").read("x").await.expect_err("no such user");
    assert!(matches!(error, FileError::Call(CallError::Unauthorized { .. })), "{error:?}");

    let root = sandbox.files().as_user("root");
    root.write("mine", "secret").await.expect("it is written");
    let entry = root.stat("/root/mine").await.expect("it is there");
    assert_eq!((entry.owner.as_str(), entry.mode), ("root", 0o644));
    sandbox.kill().await.expect("it ends");
}

#[tokio::test]
async fn hostile_file_names_are_handled_literally() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let files = sandbox.files();
    for name in HOSTILE {
        let path = format!("/tmp/hostile/{name}");
        let written = files.write(&path, name).await.unwrap_or_else(|error| panic!("{name:?}: {error}"));
        assert_eq!((written.path.as_str(), written.name.as_str()), (path.as_str(), name));
        assert_eq!(files.read_text(&path).await.expect("it is there"), name);
        assert_eq!(files.stat(&path).await.expect("it is there").name, name);
        let moved = format!("/tmp/moved/{name}");
        assert_eq!(files.rename(&path, &moved).await.expect("it moves").path, moved);
        files.rename(&moved, &path).await.expect("it moves back");
        let link = files.download_url(&path, Expiry::Never).expect("a link");
        assert_eq!(fetch(&link).await, (200, name.to_owned()));
    }
    let mut listed: Vec<String> =
        files.list("/tmp/hostile").await.expect("a list").into_iter().map(|entry| entry.name).collect();
    listed.sort();
    let mut expected = HOSTILE.map(str::to_owned);
    expected.sort();
    assert_eq!(listed, expected);

    // A batch: some names fit into one form, others are sent alone; results keep their order.
    let many: Vec<_> = HOSTILE.iter().map(|name| (format!("/tmp/many/{name}"), *name)).collect();
    let written = files.write_many(many.clone()).await.expect("all are written");
    assert!(written.iter().map(|file| &file.path).eq(many.iter().map(|(path, _)| path)), "{written:?}");
    for (path, content) in &many {
        assert_eq!(files.read_text(path).await.expect("it is there"), *content);
    }
    sandbox.kill().await.expect("it ends");
}

#[tokio::test]
async fn many_files_are_written_in_one_request() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let files = sandbox.files();
    assert!(files.write_many([("", ""); 0]).await.expect("nothing to do").is_empty());

    // Small files, empty files, one larger than the merge buffer, and one that resembles a form.
    let mut many: Vec<(String, Bytes)> = (0..300)
        .map(|number| (format!("many/{number}.txt"), Bytes::from(format!("{number}").repeat(number))))
        .collect();
    many.push(("many/big".into(), vec![7; 1_000_000].into()));
    many.push(("many/form".into(), Bytes::from_static(b"\r\n--sandbar-\r\nContent-Disposition: x\r\n\r\n")));
    let written = files.clone().with_metadata("batch", "1").write_many(many.clone()).await.expect("all are written");
    assert_eq!(written.len(), many.len());
    assert!(written.iter().all(|file| file.metadata.get("batch").is_some_and(|value| value == "1")));
    for (path, content) in many.iter().step_by(50).chain(many.iter().rev().take(2)) {
        assert_eq!(files.read(path).await.expect("it is there"), content, "{path}");
    }
    assert_eq!(files.list("many").await.expect("a list").len(), many.len());
    let error = files.write_many([("twice", "1"), ("twice", "2")]).await.expect_err("one path twice");
    assert!(matches!(error, FileError::Invalid { .. }), "{error:?}");
    sandbox.kill().await.expect("it ends");
}

#[tokio::test]
async fn the_file_tree_is_listed_created_moved_and_removed() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let files = sandbox.files();

    assert!(files.make_dir("tree/a/b").await.expect("it is made"));
    assert!(!files.make_dir("tree/a/b").await.expect("it is there"));
    files.write("tree/a/file", "12345").await.expect("it is written");
    let error = files.make_dir("tree/a/file").await.expect_err("a file is there");
    assert!(matches!(error, FileError::Invalid { .. }), "{error:?}");
    let made = sandbox.commands().run("ln -s a/file tree/link; ln -s nowhere tree/lost; mkfifo tree/pipe").await;
    assert!(made.expect("it runs").success());

    let names = async |depth| {
        let entries = files.list_depth("tree", depth).await.expect("a list");
        entries.into_iter().map(|entry| entry.path.replace("/home/user/tree/", "")).collect::<Vec<_>>()
    };
    assert_eq!(names(1).await, ["a", "link", "lost", "pipe"]);
    assert_eq!(names(2).await, ["a", "a/b", "a/file", "link", "lost", "pipe"]);

    let file = files.stat("tree/a/file").await.expect("it is there");
    assert_eq!((file.kind, file.size, file.mode, file.permissions.as_str()), (EntryKind::File, 5, 0o644, "-rw-r--r--"));
    assert_eq!((file.owner.as_str(), file.group.as_str(), file.is_symlink()), ("user", "user", false));
    let age = jiff::Timestamp::now().as_second() - file.modified.expect("a time").as_second();
    assert!((0..60).contains(&age), "{age}");
    let link = files.stat("tree/link").await.expect("it is there");
    assert_eq!((link.kind, link.symlink_target.as_deref()), (EntryKind::File, Some("/home/user/tree/a/file")));
    let lost = files.stat("tree/lost").await.expect("it is there");
    assert!(lost.kind == EntryKind::Other && lost.is_symlink(), "{lost:?}");
    assert!(files.stat("tree").await.expect("it is there").is_directory());

    assert_eq!(files.rename("tree/a", "else/where").await.expect("it moves").path, "/home/user/else/where");
    assert!(files.exists("else/where/file").await.expect("known") && !files.exists("tree/a").await.expect("known"));
    let error = files.rename("tree/a", "x").await.expect_err("it is not there");
    assert!(matches!(error, FileError::NotFound { .. }), "{error:?}");
    files.remove("else").await.expect("it is removed");
    files.remove("else").await.expect("it is removed already");
    assert!(!files.exists("else").await.expect("known"));

    for (path, kind) in [("none", "absent"), ("tree/pipe", "no directory")] {
        let error = files.list(path).await.expect_err(kind);
        assert!(matches!(error, FileError::NotFound { .. } | FileError::Invalid { .. }), "{error:?}");
    }
    sandbox.kill().await.expect("it ends");
}

#[tokio::test]
async fn metadata_is_kept_until_the_next_write() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let noted = sandbox.files().with_metadata("author", "me").with_metadata("kind", "draft 1");
    let pairs = BTreeMap::from([("author".to_owned(), "me".to_owned()), ("kind".to_owned(), "draft 1".to_owned())]);
    assert_eq!(noted.write("note", "text").await.expect("it is written").metadata, pairs);
    assert_eq!(noted.stat("note").await.expect("it is there").metadata, pairs);
    assert_eq!(noted.rename("note", "moved").await.expect("it moves").metadata, pairs);
    let one = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"streamed"))]);
    assert_eq!(noted.write_stream("streamed", one).await.expect("it is written").metadata, pairs);
    sandbox.files().write("moved", "text").await.expect("it is written");
    assert!(noted.stat("moved").await.expect("it is there").metadata.is_empty());

    for (key, value) in [("bad key", "x"), ("key", "nicht ü"), ("key", &"x".repeat(5_000))] {
        let error = sandbox.files().with_metadata(key, value).write("note", "x").await.expect_err("not metadata");
        assert!(matches!(error, FileError::Invalid { .. }), "{error:?}");
    }
    sandbox.kill().await.expect("it ends");
}

/// Peak memory of this process, in KiB.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("it is there");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a line");
    line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("a number")
}

fn reset_memory() {
    std::fs::write("/proc/self/clear_refs", "5").expect("the mark is ours to reset");
}

/// Runs alone in a child process, because peak memory is counted per process.
#[test]
fn transfers_of_any_size_need_constant_memory() {
    const ALONE: &str = "SANDBAR_SDK_MEMORY_TEST";
    if std::env::var_os(ALONE).is_none() {
        let this = std::env::current_exe().expect("the test has a path");
        let name = "files::transfers_of_any_size_need_constant_memory";
        let run = std::process::Command::new(this).args(["--exact", name, "--nocapture"]).env(ALONE, "1").output();
        let run = run.expect("it runs");
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(stream_both_ways());
}

async fn stream_both_ways() {
    const CHUNK: usize = 256 * 1024;
    const CHUNKS: usize = 256; // 64 MiB
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let files = sandbox.files();
    let warm = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(&[1; 1000]))]);
    files.write_stream("warm", warm).await.expect("it is written");
    reset_memory();
    let before = memory();
    let chunks =
        stream::iter((0..CHUNKS).map(|number| Ok::<_, std::io::Error>(Bytes::from(vec![number as u8; CHUNK]))));
    files.write_stream("big", chunks).await.expect("it is written");
    assert_eq!(files.stat("big").await.expect("it is there").size, (CHUNKS * CHUNK) as u64);

    let mut download = files.read_stream("big").await.expect("it is there");
    assert_eq!(download.size(), Some((CHUNKS * CHUNK) as u64));
    let mut at = 0;
    while let Some(chunk) = download.try_next().await.expect("it streams") {
        for (offset, byte) in chunk.iter().enumerate() {
            assert_eq!(*byte, ((at + offset) / CHUNK) as u8);
        }
        at += chunk.len();
    }
    assert_eq!(at, CHUNKS * CHUNK);
    let grown = memory() - before;
    assert!(grown < 8 * 1024, "{grown} KiB for 64 MiB each way");
    sandbox.kill().await.expect("it ends");
}

#[tokio::test]
async fn a_full_disk_is_reported_as_no_space() {
    testing::needs_root!("without a pool there is no limit of the disk");
    let server = Server::shared(&[]);
    let create = Create::template("base").disk_size_mb(128).timeout(Duration::from_secs(600));
    let sandbox = server.client().create(create).await.expect("a sandbox");
    let files = sandbox.files();
    let chunk = Bytes::from(vec![1; 1024 * 1024]);
    let endless = stream::repeat_with(move || Ok::<_, std::io::Error>(chunk.clone())).take(400);
    let error = files.write_stream("stream", endless).await.expect_err("it is full");
    assert!(matches!(error, FileError::NoSpace { .. }), "{error:?}");
    let error = files.write("whole", vec![1; 200 * 1024 * 1024]).await.expect_err("it is full");
    assert!(matches!(error, FileError::NoSpace { .. }), "{error:?}");
    sandbox.kill().await.expect("it ends");
}

#[tokio::test]
async fn a_failing_source_is_a_source_error() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let failing = stream::iter([Ok(Bytes::from_static(b"begin")), Err(std::io::Error::other("the disk broke"))]);
    let error = sandbox.files().write_stream("half", failing).await.expect_err("the source fails");
    let FileError::Source { source, .. } = &error else { panic!("{error:?}") };
    assert_eq!(source.to_string(), "the disk broke");
    sandbox.kill().await.expect("it ends");
}

#[tokio::test]
async fn a_watch_reports_events() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let files = sandbox.files();
    files.make_dir("watched/old").await.expect("it is made");

    let mut flat = files.watch("watched", Watch::default()).await.expect("it is watched");
    let mut deep = files.watch("watched", Watch::default().recursive().include_entry()).await.expect("it is watched");
    files.write("watched/new", "text").await.expect("it is written");
    let mut seen = Vec::new();
    for _ in 0..3 {
        let event = next(&mut flat).await;
        assert!(event.name == "new" && event.entry.is_none(), "{event:?}");
        seen.push(event.kind);
    }
    assert_eq!(seen, [FileEventKind::Create, FileEventKind::Chmod, FileEventKind::Write]);
    let event = next(&mut deep).await;
    assert_eq!(
        (event.kind, event.entry.expect("it exists").path.as_str()),
        (FileEventKind::Create, "/home/user/watched/new")
    );

    files.write("watched/old/inner", "text").await.expect("it is written");
    files.remove("watched/new").await.expect("it is removed");
    let mut names = Vec::new();
    loop {
        let event = next(&mut deep).await;
        names.push(event.name.clone());
        if event.kind == FileEventKind::Remove {
            assert_eq!(event.name, "new");
            break;
        }
    }
    assert!(names.iter().any(|name| name == "old/inner"), "{names:?}");
    let event = next(&mut flat).await;
    assert_eq!((event.name.as_str(), event.kind), ("new", FileEventKind::Remove));

    for path in ["none", "watched/old/inner"] {
        let error = files.watch(path, Watch::default()).await.expect_err("no directory");
        assert!(matches!(error, FileError::NotFound { .. } | FileError::Invalid { .. }), "{error:?}");
    }
    sandbox.kill().await.expect("it ends");
}

async fn next(events: &mut sandbar_sdk::FileEvents) -> sandbar_sdk::FileEvent {
    let next = tokio::time::timeout(Duration::from_secs(10), events.next()).await;
    next.expect("an event in time").expect("the watch goes on").expect("the watch goes on")
}

/// Fetches a URL with a plain HTTP client.
async fn fetch(url: &str) -> (u16, String) {
    let answer = reqwest::get(url).await.expect("an answer");
    (answer.status().as_u16(), answer.text().await.expect("a body"))
}

#[tokio::test]
async fn signed_links_grant_one_operation_on_one_file() {
    let server = Server::shared(&[]);
    let sandbox: Sandbox = server.sandbox().await;
    let files = sandbox.files();
    let hour = Expiry::After(Duration::from_secs(3600));
    let post = async |url: &str, body: &'static str| {
        let request = reqwest::Client::new().post(url).header("content-type", "application/octet-stream").body(body);
        request.send().await.expect("an answer").status().as_u16()
    };

    for expiry in [Expiry::Never, hour] {
        let up = files.upload_url("shared.txt", expiry).expect("a link");
        assert_eq!(post(&up, "by link").await, 200);
        let down = files.download_url("shared.txt", expiry).expect("a link");
        assert_eq!(fetch(&down).await, (200, "by link".to_owned()));
        // A link for reading grants neither writing nor access to another file.
        assert_eq!(post(&down, "x").await, 401);
        assert_eq!(fetch(&down.replace("shared", "other")).await.0, 401);
        assert!(!down.contains(sandbox.access_token().expect("it is secured").expose()));
    }
    let root = sandbox.files().as_user("root");
    assert_eq!(post(&root.upload_url("r", hour).expect("a link"), "root's").await, 200);
    assert_eq!(fetch(&root.download_url("/root/r", hour).expect("a link")).await, (200, "root's".to_owned()));
    let over = files.download_url("shared.txt", Expiry::After(Duration::ZERO)).expect("a link");
    let (status, body) = testing::eventually_async("the link expires", Duration::from_secs(5), async || {
        let answer = fetch(&over).await;
        (answer.0 != 200).then_some(answer)
    })
    .await;
    assert!(status == 401 && body.contains("signature is already expired"), "{status} {body}");
    sandbox.kill().await.expect("it ends");
}
