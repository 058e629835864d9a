//! Backups that are made while the server works and restored as on another machine: the restored
//! server has volumes, templates, paused and running sandboxes, workspaces and the studio's jobs.
//! Servers of root and of both kinds of ordinary user pass the same checks.

use crate::support::{Program, Sandbox, Server, eventually};
use serde_json::{Value, json};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use testing::http::request;
use testing::{S3Server, User};

const BACKUP_TIMEOUT: Duration = Duration::from_secs(60);

/// Creates a tree below `$1` with metadata that an archive can lose: modes, owners, links, times,
/// attributes, holes, names. A sandbox with a single id cannot change owners.
const CREATE_TREE: &str = r#"set -e; mkdir -p "$1/deep/empty"; cd "$1"
    printf plain >plain; ln plain hard; ln -s plain relative; ln -s /etc/hostname absolute; ln -s nowhere dangling
    printf tool >tool; printf hidden >hidden; printf owned >owned; mkdir sticky; mkfifo pipe; printf x >"$(printf 'odd\nname')"
    head -c 2M /dev/urandom >deep/big; truncate -s 8M deep/sparse; printf end >>deep/sparse
    touch -d 2001-02-03T04:05:06.789Z deep/old
    python3 -c 'import os; os.setxattr("plain", "user.mark", b"kept")'
    mkdir closed; printf x >closed/file
    chown 1000:33 owned deep/old 2>/dev/null || true
    chown -h 1000:1000 dangling 2>/dev/null || true
    chmod 4755 tool; chmod 0600 hidden; chmod 1777 sticky; chmod 2750 deep; chmod 0444 owned; chmod 0 closed"#;
/// Prints all metadata and digests of the tree below `$1`.
const DESCRIBE_TREE: &str = r#"set -e; cd "$1"; find . -printf '%P|%y|%m|%U:%G|%n|%l|%T@\n' | sort
    find . -type f -print0 | sort -z | xargs -0 sha256sum; stat -c %s deep/sparse
    python3 -c 'import os; print(os.getxattr("plain", "user.mark"))'"#;

fn create_tree(sandbox: &Sandbox, directory: &str) {
    sandbox.must("root", &format!("sh -c '{}' - {directory}", CREATE_TREE.replace('\'', r"'\''")));
}

fn describe_tree(sandbox: &Sandbox, directory: &str) -> String {
    sandbox.must("root", &format!("sh -c '{}' - {directory}", DESCRIBE_TREE.replace('\'', r"'\''")))
}

/// A server with data of every kind, and a user with a workspace on it.
struct Subject {
    /// The user who runs the server and the commands. `None` is the user who runs the tests.
    user: Option<User>,
    /// `None` once it has ended: two servers on one machine must not have sandboxes of the same
    /// ids.
    server: Option<Server>,
    home: TempDir,
    paused: Sandbox,
    running: Sandbox,
    template: String,
    volume: Value,
    job: String,
    token: String,
    run: String,
    /// The output of [`DESCRIBE_TREE`] for the running sandbox's home and for the volume.
    trees: [String; 2],
    /// Files whose content is compared: a screenshot and the key of secrets.
    files: Vec<(&'static str, Vec<u8>)>,
}

const SCREENSHOT: &str = "media/screenshots/shop/agent/20261118T080000000Z_mobile.webp";

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

/// Creates a temporary directory that `user` owns.
fn directory_for(user: Option<User>) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    change_owner(user, directory.path());
    directory
}

/// Makes `user` the owner of a tree.
fn change_owner(user: Option<User>, path: &Path) {
    let Some(User { uid, gid }) = user else { return };
    let done = Command::new("chown").args(["-R", &format!("{uid}:{gid}")]).arg(path).status();
    assert!(done.expect("chown runs").success(), "{}", path.display());
}

impl Subject {
    fn start(user: Option<User>) -> Self {
        let server = Server::for_account(user, &["--builds", "0"]);
        let made = server.call("POST", "/volumes", Some(json!({ "name": "kept" })));
        assert_eq!(made.status, 201, "{}", made.text());
        let volume = made.json();
        let mounts = json!([{ "name": "kept", "path": "/data" }]);
        let paused = server.create();
        let running = server.create_with(json!({ "templateID": "base", "volumeMounts": mounts }));
        for sandbox in [&paused, &running] {
            assert_eq!(sandbox.write("/home/user/mine", sandbox.id.as_bytes()).status, 200);
            // An overlay stores these removals as a whiteout device and as an opaque attribute.
            sandbox.must("root", "rm /usr/bin/yes; rm -r /usr/share/doc 2>/dev/null; mkdir -p /usr/share/doc; true");
        }
        let trees = ["/home/user/tree", "/data/tree"];
        trees.iter().for_each(|tree| create_tree(&running, tree));
        let trees = trees.map(|tree| describe_tree(&running, tree));
        let taken = server.call("POST", &format!("/sandboxes/{}/snapshots", running.id), Some(json!({})));
        assert_eq!(taken.status, 201, "{}", taken.text());
        let template = taken.json()["snapshotID"].as_str().expect("an id").to_owned();
        let done = server.call("POST", &format!("/sandboxes/{}/pause", paused.id), Some(json!({ "memory": false })));
        assert_eq!(done.status, 204, "{}", done.text());
        let (status, body) = volume_file(&server, &volume, "PUT", b"of the volume");
        assert!((200..300).contains(&status), "{}", String::from_utf8_lossy(&body));
        let token = fs::read_to_string(server.file("studio/token")).expect("a token").trim().to_owned();
        let body = json!({ "name": "page", "goal": "Make a page.", "model": "scripted:demo" }).to_string();
        let (status, started) = studio(&server, &token, "POST", "/api/generation", &body);
        assert_eq!(status, 202, "{started}");
        let job = started["job_id"].as_str().expect("an id").to_owned();
        let secret = server.call("POST", "/secrets", Some(json!({ "name": "key", "value": "hidden" })));
        assert_eq!(secret.status, 201, "{}", secret.text());
        let screenshot = server.file(SCREENSHOT);
        fs::create_dir_all(screenshot.parent().expect("a parent")).expect("a directory");
        fs::write(&screenshot, "a screenshot").expect("written");
        change_owner(user, &server.file("media"));
        let files = [SCREENSHOT, "secrets.key"].map(|name| (name, fs::read(server.file(name)).expect("a file"))).into();
        let (home, run) = (directory_for(user), String::new());
        let server = Some(server);
        let mut subject = Self { user, server, home, paused, running, template, volume, job, token, run, trees, files };
        let script = subject.home.path().join("script.json");
        let turns = json!([crate::agent::bash("echo run"), { "text": "Done." }]);
        fs::write(&script, json!({ "turns": turns }).to_string()).expect("written");
        let model = format!("scripted:{}", script.display());
        let printed = subject.program("run").must(&["--goal", "Say it", "--workspace", "w", "--model", &model]);
        let started = crate::agent::next(&mut printed.as_bytes(), "run_started").expect("it starts");
        subject.run = started["run_id"].as_str().expect("an id").to_owned();
        subject.program("workspace").must(&["exec", "w", "--", "sh", "-c", "echo work >/home/user/work"]);
        subject.program("workspace").must(&["snapshot", "w"]);
        subject
    }

    fn program(&self, word: &'static str) -> Program {
        self.program_in(self.home.path(), word).at(self.server.as_ref().expect("it runs"))
    }

    fn program_in(&self, home: &Path, word: &'static str) -> Program {
        program_in(home, word).by(self.user)
    }

    /// Asserts that a server on the restored data has everything.
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
        let running = self.running.at(&restored.address);
        let [home_tree, volume_tree] = &self.trees;
        assert_eq!(&describe_tree(&running, "/home/user/tree"), home_tree, "the files of a sandbox");
        assert_eq!(&describe_tree(&running, "/data/tree"), volume_tree, "the files of a volume");
        assert_eq!(&describe_tree(&of_template, "/home/user/tree"), home_tree, "the files of a template");
        let path = format!("/api/generation/{}/status", self.job);
        assert_eq!(studio(restored, &self.token, "GET", &path, "").0, 200, "the job is there");
        let secret = restored.call("GET", "/secrets/key", None);
        assert_eq!(secret.status, 200, "{}", secret.text());
        for (name, content) in &self.files {
            assert_eq!(&fs::read(restored.file(name)).expect("a file"), content, "{name}");
        }
        let run = self.program_in(home, "runs").at(restored).json(&["show", &self.run]);
        assert_eq!((&run["state"], &run["stop_reason"]), (&json!("finished"), &json!("completed")), "{run}");
        let events = run["events"].as_array().expect("events");
        assert!(events.iter().any(|event| event["type"] == "tool_call_finished"), "{run}");
        let output =
            self.program_in(home, "workspace").at(restored).must(&["exec", "w", "--", "cat", "/home/user/work"]);
        assert_eq!(output.trim(), "work");
    }
}

fn program_in(home: &Path, word: &'static str) -> Program {
    let program = Program::new(word).variable("XDG_DATA_HOME", home.join("data"));
    program.variable("XDG_CONFIG_HOME", home.join("config"))
}

fn parse_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_backup_in_a_directory_brings_everything_back() {
    back_up_and_restore(None);
}

#[test]
fn a_backup_with_subordinate_ids_brings_everything_back() {
    testing::needs_root!("it becomes users with and without subordinate ids");
    back_up_and_restore(Some(User::with_subordinate_ids()));
}

#[test]
fn a_backup_with_a_single_id_brings_everything_back() {
    testing::needs_root!("it becomes users with and without subordinate ids");
    back_up_and_restore(Some(User::with_a_single_id()));
}

fn back_up_and_restore(user: Option<User>) {
    let mut subject = Subject::start(user);
    // Names of projects may end like the files of SQLite and like drafts, which a backup skips.
    let projects = Path::new("data/sandbar/workspaces/projects");
    let kept = ["travel-journal/snapshots/a", "site.new/snapshots/b", "x.part/c-wal"].map(|name| projects.join(name));
    for file in kept.iter().map(|file| subject.home.path().join(file)) {
        fs::create_dir_all(file.parent().expect("a parent")).expect("a directory");
        fs::write(&file, "kept").expect("written");
    }
    change_owner(user, subject.home.path());
    let directory = directory_for(user);
    let target = directory.path().join("backup");
    let target = target.to_str().expect("a plain path");
    let first = parse_json(&subject.program("backup").must(&[target, "--json"]));
    assert!(first["volumes"].as_u64().is_some_and(|count| count >= 4), "{first}");
    assert!(first["databases"].as_u64().is_some_and(|count| count >= 3), "{first}");
    let second = parse_json(&subject.program("backup").must(&[target, "--json"]));
    let number = |report: &Value, key: &str| report[key].as_u64().expect("a number");
    assert!(number(&second, "copiedBytes") * 2 < number(&first, "copiedBytes"), "{first} {second}");
    let scrubbed = parse_json(&subject.program("scrub").must(&["--json"]));
    assert_eq!(scrubbed["flaws"], json!([]), "{scrubbed}");
    assert!(number(&scrubbed, "snapshots") >= 1 && number(&scrubbed, "poolBytes") > 0, "{scrubbed}");

    // A new home, as on a machine that has only the backup.
    let home = directory_for(user);
    let restore = subject.program_in(home.path(), "restore");
    let message = restore.fails(1, &[target, "--data", directory.path().to_str().expect("text")]);
    assert!(message.contains("not empty"), "{message}");
    drop(subject.server.take());
    let restored = Server::on_new_directory(user, &["--builds", "0"], |data| {
        restore.must(&[target, "--json", "--data", data.to_str().expect("a plain path")]);
    });
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

    // Flips one bit of one object.
    let object = largest_below(&Path::new(target).join("objects"));
    let mut bytes = fs::read(&object).expect("an object");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&object, bytes).expect("damaged");
    let place = directory.path().join("damaged");
    let message = restore.fails(1, &[target, "--data", place.to_str().expect("text")]);
    assert!(message.contains("damaged") && !place.exists(), "{message}");
}

#[test]
fn rootless_servers_without_a_running_sandbox_are_backed_up() {
    testing::needs_root!("it becomes users with and without subordinate ids");
    for user in [User::with_subordinate_ids(), User::with_a_single_id()] {
        back_up_without_processes(user);
    }
}

/// Backs up while no process has the server's user namespace, so that the command creates one.
fn back_up_without_processes(user: User) {
    let (home, directory) = (directory_for(Some(user)), directory_for(Some(user)));
    let mut server = Server::for_user(user, &["--no-studio"]);
    let sandbox = server.create();
    create_tree(&sandbox, "/home/user/tree");
    let tree = describe_tree(&sandbox, "/home/user/tree");
    sandbox.must("user", &format!("python3 -c \"{CREATE_LONG_PATH}\""));
    let paused = server.call("POST", &format!("/sandboxes/{}/pause", sandbox.id), Some(json!({ "memory": false })));
    assert_eq!(paused.status, 204, "{}", paused.text());
    let target = directory.path().join("backup");
    let target = target.to_str().expect("a plain path");
    let back_up = |server: &Server| {
        let report = parse_json(&program_in(home.path(), "backup").by(Some(user)).at(server).must(&[target, "--json"]));
        assert_eq!((&report["volumes"], &report["inconsistentVolumes"]), (&json!(1), &json!([])), "{report}");
    };
    back_up(&server);
    server.stop();
    back_up(&server);
    server.start_again();
    server.kill_9();
    back_up(&server);
    drop(server);
    let restored = Server::on_new_directory(Some(user), &["--no-studio"], |data| {
        let data = data.to_str().expect("a plain path");
        program_in(home.path(), "restore").by(Some(user)).must(&[target, "--data", data]);
    });
    let connected = restored.call("POST", &format!("/v2/sandboxes/{}/connect", sandbox.id), Some(json!({})));
    assert!(matches!(connected.status, 200 | 201), "{}", connected.text());
    assert_eq!(describe_tree(&sandbox.at(&restored.address), "/home/user/tree"), tree);
}

/// Creates a directory whose path is longer than `PATH_MAX`.
const CREATE_LONG_PATH: &str = "import os; os.chdir('/home/user')
for _ in range(300): os.mkdir('d' * 30); os.chdir('d' * 30)
open('file', 'w').close()";

#[test]
fn a_path_that_is_too_long_costs_only_itself() {
    let (home, directory) = (directory_for(None), directory_for(None));
    let server = Server::with(&["--no-studio"]);
    let sandbox = server.create();
    assert_eq!(sandbox.write("/home/user/mine", b"mine").status, 200);
    sandbox.must("user", &format!("python3 -c \"{CREATE_LONG_PATH}\""));
    let target = directory.path().join("backup");
    let target = target.to_str().expect("a plain path");
    let report = parse_json(&program_in(home.path(), "backup").at(&server).must(&[target, "--json"]));
    let left_out = format!("files of volume {} with paths of 3900 bytes or more", sandbox.id);
    assert_eq!((&report["volumes"], &report["notIncluded"]), (&json!(1), &json!([left_out])), "{report}");
    program_in(home.path(), "scrub").at(&server).must(&[]);
    drop(server);
    let restored = Server::on_new_directory(None, &["--no-studio"], |data| {
        program_in(home.path(), "restore").must(&[target, "--data", data.to_str().expect("a plain path")]);
    });
    let connected = restored.call("POST", &format!("/v2/sandboxes/{}/connect", sandbox.id), Some(json!({})));
    assert!(matches!(connected.status, 200 | 201), "{}", connected.text());
    let sandbox = sandbox.at(&restored.address);
    assert_eq!(sandbox.read("/home/user/mine").body, b"mine");
    let depth = sandbox.must("user", "find /home/user -name 'ddd*' | wc -l");
    assert!(depth.trim().parse::<u32>().is_ok_and(|depth| depth > 100), "what is not too long is there: {depth}");
}

#[test]
fn a_backup_is_restored_only_where_its_owners_exist() {
    testing::needs_root!("it becomes users with and without subordinate ids");
    let (subordinate, single) = (Some(User::with_subordinate_ids()), Some(User::with_a_single_id()));
    for (maker, others, reason) in [
        (None, [subordinate, single].as_slice(), "as root"),
        (subordinate, &[None, single], "subordinate ids"),
        (single, &[None], "as the user who will run the server"),
    ] {
        let (home, directory) = (directory_for(maker), directory_for(maker));
        let server = Server::for_account(maker, &["--no-studio"]);
        let made = server.call("POST", "/volumes", Some(json!({ "name": "kept" })));
        assert_eq!(made.status, 201, "{}", made.text());
        let target = directory.path().join("backup");
        let target = target.to_str().expect("a plain path");
        program_in(home.path(), "backup").by(maker).at(&server).must(&[target]);
        for other in others {
            // Now the other user can read the backup and write beside it.
            change_owner(other.or(Some(User { uid: 0, gid: 0 })), directory.path());
            change_owner(other.or(Some(User { uid: 0, gid: 0 })), home.path());
            let (place, restore) = (directory.path().join("restored"), program_in(home.path(), "restore").by(*other));
            let message = restore.fails(1, &[target, "--data", place.to_str().expect("a plain path")]);
            assert!(message.contains(reason) && !place.exists(), "{maker:?} {other:?}: {message}");
            restore.must(&[target, "--verify"]);
        }
    }
}

#[test]
fn a_backup_in_a_bucket_brings_everything_back() {
    let mut subject = Subject::start(None);
    let s3 = S3Server::shared();
    let (target, endpoint) = (format!("s3://{}/backups-{}", S3Server::BUCKET, std::process::id()), s3.endpoint());
    let flags = [target.as_str(), "--endpoint", &endpoint];
    let with_keys = |program: Program| {
        let program = program.variable("AWS_ACCESS_KEY_ID", S3Server::KEY_ID);
        program.variable("AWS_SECRET_ACCESS_KEY", S3Server::SECRET).variable("AWS_REGION", S3Server::REGION)
    };
    with_keys(subject.program("backup")).must(&flags);
    let home = tempfile::tempdir().expect("a directory");
    let program = || with_keys(program_in(home.path(), "restore"));
    program().must(&[&flags[..], &["--verify"]].concat());
    assert_eq!(program().must(&[&flags[..], &["--list"]].concat()).lines().count(), 1);
    drop(subject.server.take());
    let restored = Server::on_new_directory(None, &["--builds", "0"], |data| {
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

/// Finds the offset of the block `content` in a sparse image.
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
    testing::needs_root!("it mounts a disk");
    // A disk of its own, so that the pool is a btrfs image, whatever file system the host has.
    let disk = testing::Disk::new(2 << 30);
    let mut server = Server::on(&disk.path().join("data"), &["--no-studio"]);
    let home = tempfile::tempdir().expect("a directory");
    let program = |server: &Server, word| program_in(home.path(), word).at(server);
    program(&server, "workspace").must(&["create", "w"]);
    program(&server, "workspace").must(&["exec", "w", "--", "sh", "-c", "head -c 1M /dev/urandom >/home/user/work"]);
    program(&server, "workspace").must(&["destroy", "w", "--yes"]);
    let volume = server.call("POST", "/volumes", Some(json!({ "name": "kept" }))).json();
    // Two blocks with different content.
    let content = "what a disk will forget\n".repeat(300);
    let (status, body) = volume_file(&server, &volume, "PUT", content.as_bytes());
    assert!((200..300).contains(&status), "{}", String::from_utf8_lossy(&body));
    server.stop();
    let whole: Value = serde_json::from_str(&program(&server, "scrub").must(&["--json"])).expect("JSON");
    assert_eq!(whole["flaws"], json!([]), "{whole}");

    let image = server.file("pool.img");
    flip_bit(&image, find_block(&image, content.as_bytes().first_chunk().expect("it is longer")));
    let archive = largest_below(&home.path().join("data/sandbar/workspaces/objects"));
    flip_bit(&archive, archive.metadata().expect("a file").len() / 2);
    // The type of the first page.
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
    let message = program(&server, "scrub").fails(1, &[]);
    assert_eq!(message, "", "what is damaged is the answer, on stdout");
    // After its database is repaired the server starts, and reports the damaged file as an error.
    flip_bit(&server.file("node.sqlite"), 100);
    server.start_again();
    let (status, body) = volume_file(&server, &volume, "GET", b"");
    assert_eq!(status, 500, "a damaged file is an error: {}", String::from_utf8_lossy(&body));
}

#[test]
fn scrub_of_a_rootless_server_says_what_it_cannot_check() {
    testing::needs_root!("it becomes users with and without subordinate ids");
    for user in [User::with_subordinate_ids(), User::with_a_single_id()] {
        scrub_plain_directories(user);
    }
}

fn scrub_plain_directories(user: User) {
    let mut server = Server::for_user(user, &["--no-studio"]);
    let home = directory_for(Some(user));
    let program = |server: &Server, word| program_in(home.path(), word).by(Some(user)).at(server);
    program(&server, "workspace").must(&["create", "w"]);
    program(&server, "workspace").must(&["exec", "w", "--", "sh", "-c", "head -c 1M /dev/urandom >/home/user/work"]);
    program(&server, "workspace").must(&["destroy", "w", "--yes"]);
    let volume = server.call("POST", "/volumes", Some(json!({ "name": "kept" }))).json();
    let (status, body) = volume_file(&server, &volume, "PUT", &[b'x'; 64 << 10]);
    assert!((200..300).contains(&status), "{}", String::from_utf8_lossy(&body));
    let scrub = |server: &Server| {
        let done = program(server, "scrub").run(&["--json"]);
        (done.status.code(), parse_json(&String::from_utf8_lossy(&done.stdout)))
    };
    let check_silent = |server: &Server| {
        let (code, report) = scrub(server);
        assert_eq!((code, &report["flaws"]), (Some(0), &json!([])), "{report}");
        let not_checked = report["notChecked"].as_array().expect("a list");
        assert!(not_checked.iter().any(|what| what.as_str().is_some_and(|it| it.contains("no checksums"))), "{report}");
        assert!(report["poolBytes"].as_u64().is_some_and(|bytes| bytes >= 64 << 10), "{report}");
    };
    check_silent(&server);
    server.stop();
    check_silent(&server);
    assert!(program(&server, "scrub").must(&[]).contains("not checked: the content of the pool's files"));

    // These bytes have no checksum.
    flip_bit(&largest_below(&server.file("volumes")), 5);
    check_silent(&server);
    let archive = largest_below(&home.path().join("data/sandbar/workspaces/objects"));
    flip_bit(&archive, archive.metadata().expect("a file").len() / 2);
    // The type of the first page.
    flip_bit(&server.file("node.sqlite"), 100);
    let (code, report) = scrub(&server);
    assert_eq!(code, Some(1), "{report}");
    for name in ["node.sqlite", "of w"] {
        let flaws = report["flaws"].as_array().expect("flaws");
        let names = |flaw: &Value| flaw["what"].as_str().is_some_and(|what| what.contains(name));
        assert!(flaws.iter().any(names), "{name}: {report}");
    }
    // Repairs the database, since `down` reads the records.
    flip_bit(&server.file("node.sqlite"), 100);
}

#[test]
fn a_backup_names_the_database_that_it_does_not_include() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("studio.sqlite");
    let url = format!("sqlite://{}", file.display());
    let server = Server::with(&["--builds", "0", "--database", &url]);
    let target = directory.path().join("backup");
    let not_included = || {
        let program = program_in(directory.path(), "backup").at(&server);
        let printed = program.must(&[target.to_str().expect("a plain path"), "--json"]);
        serde_json::from_str::<Value>(&printed).expect("JSON")["notIncluded"].clone()
    };
    assert_eq!(not_included(), json!([format!("the records of the studio in {}", file.display())]));

    // A backup knows the database only by the server's note.
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
    // Volumes that are plain directories, as those of a rootless server.
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
        let output = program_in(directory.path(), "backup").run(&flags);
        done.store(true, Ordering::Relaxed);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    });
    assert_eq!((&report["volumes"], &report["inconsistentVolumes"]), (&json!(2), &json!(["busy"])), "{report}");
    let again: Value = serde_json::from_str(&program_in(directory.path(), "backup").must(&flags)).expect("JSON");
    assert_eq!((&again["volumes"], &again["inconsistentVolumes"]), (&json!(2), &json!([])), "{again}");
    let stamp = report["backup"].as_str().expect("a stamp");
    program_in(directory.path(), "restore").must(&[target, "--verify", "--at", stamp]);
}

#[test]
fn the_server_backs_up_and_scrubs_by_timer() {
    back_up_by_timer(None);
}

#[test]
fn rootless_servers_back_up_and_scrub_by_timer() {
    testing::needs_root!("it becomes users with and without subordinate ids");
    back_up_by_timer(Some(User::with_subordinate_ids()));
    back_up_by_timer(Some(User::with_a_single_id()));
}

fn back_up_by_timer(user: Option<User>) {
    let directory = directory_for(user);
    let (config, target) = (directory.path().join("config.toml"), directory.path().join("backup"));
    // About two seconds.
    let interval = "interval_hours = 0.0006";
    let text = format!("[backup]\ntarget = {target:?}\n{interval}\n[scrub]\n{interval}\n");
    fs::write(&config, text).expect("written");
    let server = Server::for_account(user, &["--no-studio", "--config", config.to_str().expect("a plain path")]);
    eventually("two backups and a scrub", BACKUP_TIMEOUT, || {
        let count = fs::read_dir(target.join("manifests")).map_or(0, Iterator::count);
        (count >= 2 && server.file("scrub.last").exists()).then_some(())
    });
}
