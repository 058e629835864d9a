//! A backup made while the server works, restored as on another machine: volumes, templates, paused
//! and running sandboxes, workspaces and the studio's jobs are there again.

use crate::support::http::request;
use crate::support::{Program, Sandbox, Server, eventually};
use serde_json::{Value, json};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use testing::S3Server;

const BACKUP_TIMEOUT: Duration = Duration::from_secs(60);

/// A server with something of every kind, and a user with a workspace on it.
struct Subject {
    /// None once it has ended: two servers on one machine would share the names of sandboxes.
    server: Option<Server>,
    home: TempDir,
    paused: Sandbox,
    running: Sandbox,
    template: String,
    volume: Value,
    job: String,
    token: String,
    run: String,
    /// Files whose content is compared: of screenshots, of secrets.
    files: Vec<(&'static str, Vec<u8>)>,
}

const PICTURE: &str = "media/screenshots/shop/agent/20261118T080000000Z_mobile.webp";

fn studio(server: &Server, token: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
    let authorization = format!("Bearer {token}");
    let headers = [("Authorization", authorization.as_str()), ("Content-Type", "application/json")];
    let reply = request(&server.address, method, path, &headers, body.as_bytes()).expect("an answer");
    (reply.status, reply.json())
}

fn volume_file(server: &Server, volume: &Value, method: &str, content: &[u8]) -> (u16, Vec<u8>) {
    let authorization = format!("Bearer {}", volume["token"].as_str().expect("a token"));
    let path = format!("/volumecontent/{}/file?path=/kept", volume["volumeID"].as_str().expect("an id"));
    let reply = request(&server.address, method, &path, &[("Authorization", &authorization)], content);
    let reply = reply.expect("an answer");
    (reply.status, reply.body)
}

impl Subject {
    fn start() -> Self {
        let server = Server::with(&["--builds", "0"]);
        let (paused, running) = (server.create(), server.create());
        for sandbox in [&paused, &running] {
            assert_eq!(sandbox.write("/home/user/mine", sandbox.id.as_bytes()).status, 200);
            // What an overlay keeps as a device and as attributes.
            sandbox.must("root", "rm /usr/bin/yes; rm -r /usr/share/doc 2>/dev/null; mkdir -p /usr/share/doc; true");
        }
        let taken = server.call("POST", &format!("/sandboxes/{}/snapshots", running.id), Some(json!({})));
        assert_eq!(taken.status, 201, "{}", taken.text());
        let template = taken.json()["snapshotID"].as_str().expect("an id").to_owned();
        let done = server.call("POST", &format!("/sandboxes/{}/pause", paused.id), Some(json!({ "memory": false })));
        assert_eq!(done.status, 204, "{}", done.text());
        let made = server.call("POST", "/volumes", Some(json!({ "name": "kept" })));
        assert_eq!(made.status, 201, "{}", made.text());
        let volume = made.json();
        let (status, body) = volume_file(&server, &volume, "PUT", b"of the volume");
        assert!((200..300).contains(&status), "{}", String::from_utf8_lossy(&body));
        let token = fs::read_to_string(server.file("studio/token")).expect("a token").trim().to_owned();
        let body = json!({ "name": "page", "goal": "Make a page.", "model": "scripted:demo" }).to_string();
        let (status, started) = studio(&server, &token, "POST", "/api/generation", &body);
        assert_eq!(status, 202, "{started}");
        let job = started["job_id"].as_str().expect("an id").to_owned();
        let secret = server.call("POST", "/secrets", Some(json!({ "name": "key", "value": "hidden" })));
        assert_eq!(secret.status, 201, "{}", secret.text());
        let picture = server.file(PICTURE);
        fs::create_dir_all(picture.parent().expect("a parent")).expect("a directory");
        fs::write(&picture, "a picture").expect("written");
        let files = [PICTURE, "secrets.key"].map(|name| (name, fs::read(server.file(name)).expect("a file"))).into();
        let (home, run) = (tempfile::tempdir().expect("a directory"), String::new());
        let mut subject =
            Self { server: Some(server), home, paused, running, template, volume, job, token, run, files };
        let script = subject.home.path().join("script.json");
        let turns = json!([crate::agent::bash("echo run"), { "text": "Done." }]);
        fs::write(&script, json!({ "turns": turns }).to_string()).expect("written");
        let model = format!("scripted:{}", script.display());
        let told = subject.program("run").must(&["--goal", "Say it", "--workspace", "w", "--model", &model]);
        let started = crate::agent::next(&mut told.as_bytes(), "run_started").expect("it starts");
        subject.run = started["run_id"].as_str().expect("an id").to_owned();
        subject.program("workspace").must(&["exec", "w", "--", "sh", "-c", "echo work >/home/user/work"]);
        subject.program("workspace").must(&["snapshot", "w"]);
        subject
    }

    fn program(&self, word: &'static str) -> Program {
        of_home(self.home.path(), word).at(self.server.as_ref().expect("it runs"))
    }

    /// Everything is there, on a server that was started on what was restored.
    fn check(&self, restored: &Server, home: &Path) {
        let (status, content) = volume_file(restored, &self.volume, "GET", b"");
        assert_eq!((status, content.as_slice()), (200, b"of the volume".as_slice()));
        for old in [&self.paused, &self.running] {
            let connected = restored.call("POST", &format!("/v2/sandboxes/{}/connect", old.id), Some(json!({})));
            assert!(matches!(connected.status, 200 | 201), "{}", connected.text());
            let sandbox = old.at(&restored.address);
            assert_eq!(sandbox.read("/home/user/mine").body, old.id.as_bytes());
            assert_eq!(
                sandbox.must("root", "ls /usr/share/doc | wc -l; test -e /usr/bin/yes || echo gone").trim(),
                "0\ngone"
            );
        }
        let of_template = restored.create_with(json!({ "templateID": self.template }));
        assert_eq!(of_template.read("/home/user/mine").body, self.running.id.as_bytes());
        let path = format!("/api/generation/{}/status", self.job);
        assert_eq!(studio(restored, &self.token, "GET", &path, "").0, 200, "the job is there");
        let secret = restored.call("GET", "/secrets/key", None);
        assert_eq!(secret.status, 200, "{}", secret.text());
        for (name, content) in &self.files {
            assert_eq!(&fs::read(restored.file(name)).expect("a file"), content, "{name}");
        }
        let run = of_home(home, "runs").at(restored).json(&["show", &self.run]);
        assert_eq!((&run["state"], &run["stop_reason"]), (&json!("finished"), &json!("completed")), "{run}");
        let events = run["events"].as_array().expect("events");
        assert!(events.iter().any(|event| event["type"] == "tool_call_finished"), "{run}");
        let said = of_home(home, "workspace").at(restored).must(&["exec", "w", "--", "cat", "/home/user/work"]);
        assert_eq!(said.trim(), "work");
    }
}

fn of_home(home: &Path, word: &'static str) -> Program {
    let program = Program::new(word).variable("XDG_DATA_HOME", home.join("data"));
    program.variable("XDG_CONFIG_HOME", home.join("config"))
}

fn restore(home: &Path, target: &[&str], data: &Path) -> Value {
    let program = of_home(home, "restore");
    let said = program.must(&[target, &["--json", "--data", data.to_str().expect("a plain path")]].concat());
    serde_json::from_str(&said).expect("JSON")
}

#[test]
fn a_backup_in_a_directory_brings_everything_back() {
    let mut subject = Subject::start();
    // The names of users' projects may end as SQLite's files and drafts do.
    let projects = Path::new("data/sandbar/workspaces/projects");
    let kept = ["travel-journal/snapshots/a", "site.new/snapshots/b", "x.part/c-wal"].map(|name| projects.join(name));
    for file in kept.iter().map(|file| subject.home.path().join(file)) {
        fs::create_dir_all(file.parent().expect("a parent")).expect("a directory");
        fs::write(&file, "kept").expect("written");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let target = directory.path().join("backup");
    let target = target.to_str().expect("a plain path");
    let first: Value = serde_json::from_str(&subject.program("backup").must(&[target, "--json"])).expect("JSON");
    assert!(first["volumes"].as_u64().is_some_and(|count| count >= 4), "{first}");
    assert!(first["databases"].as_u64().is_some_and(|count| count >= 3), "{first}");
    let second: Value = serde_json::from_str(&subject.program("backup").must(&[target, "--json"])).expect("JSON");
    let number = |report: &Value, key: &str| report[key].as_u64().expect("a number");
    assert!(number(&second, "copiedBytes") * 2 < number(&first, "copiedBytes"), "{first} {second}");
    let scrubbed: Value = serde_json::from_str(&subject.program("scrub").must(&["--json"])).expect("JSON");
    assert_eq!(scrubbed["flaws"], json!([]), "{scrubbed}");
    assert!(number(&scrubbed, "snapshots") >= 1 && number(&scrubbed, "poolBytes") > 0, "{scrubbed}");

    // As on a machine that has nothing but the backup.
    let home = tempfile::tempdir().expect("a directory");
    let said = of_home(home.path(), "restore").fails(1, &[target, "--data", directory.path().to_str().expect("text")]);
    assert!(said.contains("not empty"), "{said}");
    drop(subject.server.take());
    let restored = Server::on_new_directory(&["--builds", "0"], |data| drop(restore(home.path(), &[target], data)));
    for file in kept.iter().map(|file| home.path().join(file)) {
        assert_eq!(fs::read_to_string(&file).ok().as_deref(), Some("kept"), "{}", file.display());
    }
    for manifest in fs::read_dir(Path::new(target).join("manifests")).expect("a directory") {
        let manifest = fs::read_to_string(manifest.expect("an entry").path()).expect("a manifest");
        for volatile in ["pool.reserve", "expected-server.json", "server.json", "backup.drafts"] {
            assert!(!manifest.contains(&format!("\"path\": \"{volatile}")), "{volatile}");
        }
    }
    subject.check(&restored, home.path());

    // One byte of one object.
    let object = largest_below(&Path::new(target).join("objects"));
    let mut bytes = fs::read(&object).expect("an object");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&object, bytes).expect("damaged");
    let place = directory.path().join("damaged");
    let said = of_home(home.path(), "restore").fails(1, &[target, "--data", place.to_str().expect("text")]);
    assert!(said.contains("damaged") && !place.exists(), "{said}");
}

#[test]
fn a_backup_in_a_bucket_brings_everything_back() {
    let mut subject = Subject::start();
    let s3 = S3Server::shared();
    let (target, endpoint) = (format!("s3://{}/backups-{}", S3Server::BUCKET, std::process::id()), s3.endpoint());
    let flags = [target.as_str(), "--endpoint", &endpoint];
    let with_keys = |program: Program| {
        let program = program.variable("AWS_ACCESS_KEY_ID", S3Server::KEY_ID);
        program.variable("AWS_SECRET_ACCESS_KEY", S3Server::SECRET).variable("AWS_REGION", S3Server::REGION)
    };
    with_keys(subject.program("backup")).must(&flags);
    let home = tempfile::tempdir().expect("a directory");
    let program = || with_keys(of_home(home.path(), "restore"));
    program().must(&[&flags[..], &["--verify"]].concat());
    assert_eq!(program().must(&[&flags[..], &["--list"]].concat()).lines().count(), 1);
    drop(subject.server.take());
    let restored = Server::on_new_directory(&["--builds", "0"], |data| {
        program().must(&[&flags[..], &["--data", data.to_str().expect("a plain path")]].concat());
    });
    subject.check(&restored, home.path());
}

fn largest_below(directory: &Path) -> PathBuf {
    let mut files = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(folder).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { left.push(path) } else { files.push(path) }
        }
    }
    files.into_iter().max_by_key(|file| file.metadata().expect("a file").len()).expect("an object")
}

/// Flips one bit of a file on the disk.
fn flip_bit(path: &Path, offset: u64) {
    let file = fs::File::options().read(true).write(true).open(path).expect("a file");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("it is that long");
    file.write_all_at(&[byte[0] ^ 1], offset).expect("written");
    file.sync_all().expect("synced");
}

/// Where the block `content` is in an image, which is sparse.
fn find_block(image: &Path, content: &[u8; 4096]) -> u64 {
    use rustix::fs::SeekFrom;
    let file = fs::File::open(image).expect("a file");
    let mut at = 0;
    while let Ok(start) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
        at = rustix::fs::seek(&file, SeekFrom::Hole(start)).expect("an end");
        let mut data = vec![0; usize::try_from(at - start).expect("it fits into memory")];
        file.read_exact_at(&mut data, start).expect("data");
        if let Some(index) = data.chunks(content.len()).position(|block| block == content) {
            return start + (index * content.len()) as u64;
        }
    }
    panic!("the content is not in {}", image.display());
}

#[test]
fn disk_faults_are_found_and_named_by_scrub() {
    // The pool is a btrfs of the server's own, whatever the host has.
    let disk = testing::Disk::new(2 << 30);
    let mut server = Server::on(&disk.path().join("data"), &["--no-studio"]);
    let home = tempfile::tempdir().expect("a directory");
    let program = |server: &Server, word| of_home(home.path(), word).at(server);
    program(&server, "workspace").must(&["create", "w"]);
    program(&server, "workspace").must(&["exec", "w", "--", "sh", "-c", "head -c 1M /dev/urandom >/home/user/work"]);
    program(&server, "workspace").must(&["destroy", "w", "--yes"]);
    let volume = server.call("POST", "/volumes", Some(json!({ "name": "kept" }))).json();
    let content = "what a disk will forget\n".repeat(8192);
    let (status, body) = volume_file(&server, &volume, "PUT", content.as_bytes());
    assert!((200..300).contains(&status), "{}", String::from_utf8_lossy(&body));
    server.stop();
    let whole: Value = serde_json::from_str(&program(&server, "scrub").must(&["--json"])).expect("JSON");
    assert_eq!(whole["flaws"], json!([]), "{whole}");

    let image = server.file("pool.img");
    flip_bit(&image, find_block(&image, content.as_bytes().first_chunk().expect("it is longer")));
    let archive = largest_below(&home.path().join("data/sandbar/workspaces/objects"));
    flip_bit(&archive, archive.metadata().expect("a file").len() / 2);
    // The kind of the first page.
    flip_bit(&server.file("node.sqlite"), 100);

    let done = program(&server, "scrub").run(&["--json"]);
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    let found: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    for name in ["node.sqlite", "of w", "/kept"] {
        let flaws = found["flaws"].as_array().expect("flaws");
        assert!(
            flaws.iter().any(|flaw| flaw["what"].as_str().is_some_and(|what| what.contains(name))),
            "{name}: {found}"
        );
    }
    let said = program(&server, "scrub").fails(1, &[]);
    assert_eq!(said, "", "what is damaged is the answer, on stdout");
    // With its database set right again the server starts, and refuses what is damaged.
    flip_bit(&server.file("node.sqlite"), 100);
    server.start_again();
    let (status, body) = volume_file(&server, &volume, "GET", b"");
    assert_ne!((status, body.as_slice()), (200, content.as_bytes()), "a damaged file is not served as whole");
}

#[test]
fn a_backup_names_the_database_that_it_does_not_include() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("studio.sqlite");
    let url = format!("sqlite://{}", file.display());
    let server = Server::with(&["--builds", "0", "--database", &url]);
    let target = directory.path().join("backup");
    let not_included = || {
        let program = of_home(directory.path(), "backup").at(&server);
        let said = program.must(&[target.to_str().expect("a plain path"), "--json"]);
        serde_json::from_str::<Value>(&said).expect("JSON")["notIncluded"].clone()
    };
    assert_eq!(not_included(), json!([format!("the records of the studio in {}", file.display())]));

    // The note is all that a backup knows of the database.
    let note = server.file("server.json");
    let mut value: Value = serde_json::from_slice(&fs::read(&note).expect("a note")).expect("JSON");
    value["database"] = json!("postgres://me:hidden@db.example:5433/studio?password=hidden");
    fs::write(&note, value.to_string()).expect("written");
    let place = "postgres://me@db.example:5433/studio";
    assert_eq!(not_included(), json!([format!("the records of the studio in {place} (`pg_dump` copies them)")]));
    value["database"] = json!(format!("sqlite://{}", server.file("studio/other.sqlite").display()));
    fs::write(&note, value.to_string()).expect("written");
    assert_eq!(not_included(), json!([]));
}

#[test]
fn a_volume_that_changes_while_it_is_read_is_in_the_backup() {
    let directory = tempfile::tempdir().expect("a directory");
    // Volumes that are plain directories, as on a server that is not root.
    let data = directory.path().join("server");
    for name in ["busy", "quiet"] {
        fs::create_dir_all(data.join("volumes").join(name)).expect("a directory");
    }
    fs::write(data.join("lock"), "").expect("written");
    fs::write(data.join("volumes/quiet/file"), "kept").expect("written");
    let (log, brief) = (data.join("volumes/busy/log"), data.join("volumes/busy/brief"));
    fs::write(&log, "a line of a log\n".repeat(1 << 20)).expect("written");
    let target = directory.path().join("backup");
    let target = target.to_str().expect("a plain path");
    let flags = [target, "--json", "--data", data.to_str().expect("a plain path")];
    let done = AtomicBool::new(false);
    let report: Value = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut log = fs::File::options().append(true).open(&log).expect("a file");
            while !done.load(Ordering::Relaxed) {
                log.write_all(b"line").expect("written");
                fs::write(&brief, "brief").expect("written");
                fs::remove_file(&brief).expect("removed");
            }
        });
        let output = of_home(directory.path(), "backup").run(&flags);
        done.store(true, Ordering::Relaxed);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    });
    assert_eq!((&report["volumes"], &report["inconsistentVolumes"]), (&json!(2), &json!(["busy"])), "{report}");
    let again: Value = serde_json::from_str(&of_home(directory.path(), "backup").must(&flags)).expect("JSON");
    assert_eq!((&again["volumes"], &again["inconsistentVolumes"]), (&json!(2), &json!([])), "{again}");
    let stamp = report["backup"].as_str().expect("a stamp");
    of_home(directory.path(), "restore").must(&[target, "--verify", "--at", stamp]);
}

#[test]
fn the_server_backs_up_and_scrubs_by_timer() {
    let directory = tempfile::tempdir().expect("a directory");
    let (config, target) = (directory.path().join("config.toml"), directory.path().join("backup"));
    // Two seconds.
    let interval = "interval_hours = 0.0006";
    let text = format!("[backup]\ntarget = {target:?}\n{interval}\n[scrub]\n{interval}\n");
    fs::write(&config, text).expect("written");
    let server = Server::with(&["--no-studio", "--config", config.to_str().expect("a plain path")]);
    eventually("two backups and a scrub", BACKUP_TIMEOUT, || {
        let count = fs::read_dir(target.join("manifests")).map_or(0, Iterator::count);
        (count >= 2 && server.file("scrub.last").exists()).then_some(())
    });
}
