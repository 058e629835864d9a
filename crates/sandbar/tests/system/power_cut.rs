//! Power cuts: everything that a server acknowledged is on the disk. After each acknowledged call
//! the test copies the block device. Each copy is then mounted in place of the disk, a server
//! starts on it, and must have everything that was acknowledged until then.
//!
//! Needs root, loop devices, ext4 and btrfs. The pool is also tested with rootless servers, whose
//! volumes are plain directories.

use crate::agent::{bash, next};
use crate::support::{Program, Sandbox, Server, eventually, repeats};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::BufReader;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;
use testing::{Disk, PowerCut, User};

const DISK_BYTES: u64 = 6 << 30;
/// The limit of docs/durability.md for writes that were not synced, if the pool is an image.
const UNSYNCED_LIMIT: Duration = Duration::from_secs(30);
/// The same limit if volumes are directories of the host's file system.
const UNSYNCED_DIRECTORY_LIMIT: Duration = Duration::from_secs(60);

/// Asserts that the server that was started after the power cut has what was acknowledged.
type Check = Box<dyn Fn(&Server)>;

/// A server on a disk that can lose its power.
struct Machine {
    /// The user who runs the server and the commands. `None` is root.
    user: Option<User>,
    server: Server,
    disk: Disk,
    /// Acknowledged calls with their checks and the disk's content at that time, oldest first.
    acknowledged: Vec<(String, Check, PowerCut)>,
}

impl Machine {
    fn start(arguments: &[&str]) -> Self {
        Self::for_account(None, arguments)
    }

    fn for_account(user: Option<User>, arguments: &[&str]) -> Self {
        let disk = Disk::new(DISK_BYTES);
        let data = disk.path().join("data");
        if let Some(user) = user {
            disk.give(user, &["data", "home"]);
        }
        let server = Server::for_account_on(user, &data, arguments);
        Self { user, server, disk, acknowledged: Vec::new() }
    }

    /// Copies the disk after a call was acknowledged, which no later power cut may undo.
    fn acknowledge(&mut self, what: impl Into<String>, check: impl Fn(&Server) + 'static) {
        let cut = self.disk.cut();
        self.acknowledged.push((what.into(), Box::new(check), cut));
    }

    /// Simulates a power cut after each acknowledged call in turn, and checks all calls up to it.
    fn check(mut self) {
        let mut checks: Vec<(String, Check)> = Vec::new();
        for (what, check, cut) in std::mem::take(&mut self.acknowledged) {
            self.server.down();
            self.disk.restore(cut);
            self.server.start_again();
            checks.push((what, check));
            let after = &checks.last().expect("it was pushed").0;
            for (what, check) in &checks {
                eprintln!("power cut after: {after}; looking for: {what}");
                check(&self.server);
            }
        }
    }

    fn program(&self, word: &'static str) -> Program {
        let home = self.disk.path().join("home");
        let program = Program::new(word).by(self.user).at(&self.server).variable("XDG_DATA_HOME", home.join("data"));
        program.variable("XDG_CONFIG_HOME", home.join("config"))
    }
}

fn pause(server: &Server, sandbox: &Sandbox, memory: bool) {
    let reply = server.call("POST", &format!("/sandboxes/{}/pause", sandbox.id), Some(json!({ "memory": memory })));
    assert_eq!(reply.status, 204, "{}", reply.text());
}

/// Connects to the sandbox, which resumes it if the power cut paused it.
fn resume(server: &Server, sandbox: &Sandbox) -> Sandbox {
    let reply = server.call("POST", &format!("/v2/sandboxes/{}/connect", sandbox.id), Some(json!({})));
    assert!(matches!(reply.status, 200 | 201), "{} {}", reply.status, reply.text());
    sandbox.at(&server.address)
}

/// The names of the spare root file systems, which the server has in its own mount namespace.
fn spares(server: &Server) -> Vec<String> {
    let text = std::fs::read_to_string(server.file("server.json")).expect("the server says who it is");
    let about: Value = serde_json::from_str(&text).expect("JSON");
    let root = format!("/proc/{}/root{}", about["pid"], server.data().display());
    // A root server mounts its pool at `pool`; a rootless one has directories in `volumes`.
    let pools = ["pool", "volumes"].map(|pool| std::fs::read_dir(format!("{root}/{pool}/.spares")));
    let entries = pools.into_iter().flatten().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn content_of(sandbox: &Sandbox, path: &str) -> String {
    let reply = sandbox.read(path);
    assert_eq!(reply.status, 200, "{path}: {}", reply.text());
    reply.text()
}

struct Volume {
    id: String,
    token: String,
}

impl Volume {
    fn create(server: &Server, name: &str) -> Self {
        let reply = server.call("POST", "/volumes", Some(json!({ "name": name })));
        assert_eq!(reply.status, 201, "{}", reply.text());
        let text = |key: &str| reply.json()[key].as_str().expect("a text").to_owned();
        Self { id: text("volumeID"), token: text("token") }
    }

    fn call(&self, server: &Server, method: &str, target: &str, body: &[u8]) -> (u16, String) {
        let bearer = format!("Bearer {}", self.token);
        let target = format!("/volumecontent/{}/{target}", self.id);
        let headers = [("Authorization", bearer.as_str())];
        let reply = testing::http::request(&server.address, method, &target, &headers, body).expect("an answer");
        (reply.status, reply.text())
    }

    fn put(&self, server: &Server, path: &str, content: &str) {
        let (status, text) = self.call(server, "PUT", &format!("file?path={path}&force=true"), content.as_bytes());
        assert_eq!(status, 201, "{text}");
    }

    /// Asserts that the file has this content, or with `None` that it does not exist.
    fn expect(&self, server: &Server, path: &str, content: Option<&str>) {
        let (status, text) = self.call(server, "GET", &format!("file?path={path}"), b"");
        match content {
            Some(content) => assert_eq!((status, text.as_str()), (200, content), "{path}"),
            None => assert_eq!(status, 404, "{path}: {text}"),
        }
    }
}

/// The keys and certificates of the server's authorities, by their paths.
fn authorities(server: &Server) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for directory in std::fs::read_dir(server.file("authority")).expect("authorities").flatten() {
        for name in ["key.pem", "certificate.pem"] {
            let path = directory.path().join(name);
            let content = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            found.insert(path.display().to_string(), content);
        }
    }
    found
}

#[test]
fn power_cut_takes_nothing_of_sandboxes_and_templates() {
    testing::needs_root!("it mounts a disk");
    cut_sandboxes_and_templates(Machine::start(&["--no-studio"]));
}

#[test]
fn power_cut_takes_nothing_of_sandboxes_with_subordinate_ids() {
    testing::needs_root!("it mounts a disk");
    cut_sandboxes_and_templates(Machine::for_account(Some(User::with_subordinate_ids()), &["--no-studio"]));
}

#[test]
fn power_cut_takes_nothing_of_sandboxes_with_a_single_id() {
    testing::needs_root!("it mounts a disk");
    cut_sandboxes_and_templates(Machine::for_account(Some(User::with_a_single_id()), &["--no-studio"]));
}

fn cut_sandboxes_and_templates(mut machine: Machine) {
    let (key, signed) = (machine.server.key.clone(), authorities(&machine.server));
    assert!(!signed.is_empty());
    machine.acknowledge("the API key and the authorities", move |server| {
        assert_eq!(server.key, key);
        assert_eq!(authorities(server), signed);
    });
    let made = machine.server.call("POST", "/secrets", Some(json!({ "name": "key", "value": "hidden" })));
    assert_eq!(made.status, 201, "{}", made.text());
    let sealing = std::fs::read(machine.server.file("secrets.key")).expect("the key of the secrets");
    machine.acknowledge("a secret", move |server| {
        let found = server.call("GET", "/secrets/key", None);
        assert_eq!(found.status, 200, "{}", found.text());
        assert_eq!(std::fs::read(server.file("secrets.key")).expect("the key of the secrets"), sealing);
    });

    for round in 0..repeats(1, 10) {
        let running = machine.server.create();
        machine.acknowledge(format!("{round}: create"), {
            let running = running.clone();
            move |server| drop(resume(server, &running).must("user", "echo usable"))
        });

        // A sandbox that takes a spare, before a commit of the pool has written that change.
        eventually("files are made ahead", Duration::from_secs(30), || spares(&machine.server).first().cloned());
        let ahead = machine.server.create();
        machine.acknowledge(format!("{round}: create from files made ahead"), {
            let ahead = ahead.clone();
            move |server| drop(resume(server, &ahead).must("user", "echo usable"))
        });

        let frozen = machine.server.create();
        assert_eq!(frozen.write("/home/user/deep/file", b"frozen").status, 200);
        frozen.must("user", "echo more >>/home/user/deep/file; ln -s deep/file link; head -c 5M /dev/zero >big");
        pause(&machine.server, &frozen, true);
        machine.acknowledge(format!("{round}: write and pause with memory"), {
            let frozen = frozen.clone();
            move |server| {
                let frozen = resume(server, &frozen);
                assert_eq!(content_of(&frozen, "/home/user/link"), "frozenmore\n");
                assert_eq!(frozen.must("user", "stat -c %s big").trim(), "5242880");
            }
        });

        let stopped = machine.server.create();
        assert_eq!(stopped.write("/home/user/file", b"stopped").status, 200);
        pause(&machine.server, &stopped, false);
        machine.acknowledge(format!("{round}: write and pause of files"), {
            let stopped = stopped.clone();
            move |server| assert_eq!(content_of(&resume(server, &stopped), "/home/user/file"), "stopped")
        });

        running.must("user", "echo synced >synced; sync synced");
        machine.acknowledge(format!("{round}: a file that was synced inside"), {
            let running = running.clone();
            move |server| assert_eq!(content_of(&resume(server, &running), "/home/user/synced"), "synced\n")
        });

        assert_eq!(running.write("/home/user/file", b"kept").status, 200);
        let reply = machine.server.call("POST", &format!("/sandboxes/{}/snapshots", running.id), Some(json!({})));
        assert_eq!(reply.status, 201, "{}", reply.text());
        let snapshot = reply.json()["snapshotID"].as_str().expect("an id").to_owned();
        machine.acknowledge(format!("{round}: snapshot"), move |server| {
            let copy = server.create_with(json!({ "templateID": snapshot }));
            assert_eq!(content_of(&copy, "/home/user/file"), "kept");
        });

        assert_eq!(running.write("/home/user/file", b"of the fork").status, 200);
        let forked = machine.server.call("POST", &format!("/sandboxes/{}/fork", running.id), Some(json!({})));
        assert_eq!(forked.status, 201, "{}", forked.text());
        let made = forked.json()[0]["sandbox"].clone();
        let text = |key: &str| made[key].as_str().unwrap_or_else(|| panic!("{key} in {made}")).to_owned();
        let copy = Sandbox::new(&machine.server.address, text("sandboxID"), text("envdAccessToken"));
        machine.acknowledge(format!("{round}: fork"), move |server| {
            assert_eq!(content_of(&resume(server, &copy), "/home/user/file"), "of the fork");
        });

        let context = tempfile::tempdir().expect("a directory");
        std::fs::set_permissions(context.path(), std::fs::Permissions::from_mode(0o755)).expect("our own directory");
        let dockerfile = "FROM e2bdev/base\nCOPY file /file\nRUN echo built >/built\n";
        std::fs::write(context.path().join("Dockerfile"), dockerfile).expect("our own directory");
        std::fs::write(context.path().join("file"), format!("round {round}")).expect("our own directory");
        let (directory, name) = (context.path().display().to_string(), format!("template-{round}"));
        machine.program("template").must(&["build", "--name", &name, &directory]);
        machine.acknowledge(format!("{round}: template build"), move |server| {
            let built = server.create_with(json!({ "templateID": name }));
            assert_eq!(built.must("user", "cat /file /built"), format!("round {round}built\n"));
        });
    }
    machine.check();
}

#[test]
fn power_cut_takes_nothing_of_volumes() {
    testing::needs_root!("it mounts a disk");
    cut_volumes(Machine::start(&["--no-studio"]));
}

#[test]
fn power_cut_takes_nothing_of_volumes_of_a_rootless_server() {
    testing::needs_root!("it mounts a disk");
    cut_volumes(Machine::for_account(Some(User::with_subordinate_ids()), &["--no-studio"]));
}

fn cut_volumes(mut machine: Machine) {
    for round in 0..repeats(1, 20) {
        let name = format!("volume-{round}");
        let volume = Rc::new(Volume::create(&machine.server, &name));
        let acknowledge = |machine: &mut Machine, what: &str, path: &'static str, content: Option<&'static str>| {
            let volume = Rc::clone(&volume);
            machine.acknowledge(format!("{round}: {what}"), move |server| volume.expect(server, path, content));
        };
        volume.put(&machine.server, "/deep/er/file", "one");
        acknowledge(&mut machine, "volume create and write", "/deep/er/file", Some("one"));
        volume.put(&machine.server, "/second", "111");
        machine.acknowledge(format!("{round}: write"), {
            let volume = Rc::clone(&volume);
            move |server| {
                let (status, text) = volume.call(server, "GET", "file?path=/second", b"");
                assert!(status == 200 && (text == "111" || text == "222"), "{status} {text}");
            }
        });
        volume.put(&machine.server, "/second", "222");
        acknowledge(&mut machine, "overwrite", "/second", Some("222"));
        let (status, text) = volume.call(&machine.server, "POST", "dir?path=/made/below&force=true", b"");
        assert_eq!(status, 201, "{text}");
        machine.acknowledge(format!("{round}: directory"), {
            let volume = Rc::clone(&volume);
            move |server| assert_eq!(volume.call(server, "GET", "path?path=/made/below", b"").0, 200)
        });
        volume.put(&machine.server, "/third", "3");
        let (status, text) = volume.call(&machine.server, "DELETE", "path?path=/third", b"");
        assert_eq!(status, 204, "{text}");
        acknowledge(&mut machine, "removal", "/third", None);

        let mounts = json!([{ "name": name, "path": "/data" }]);
        let sandbox = machine.server.create_with(json!({ "templateID": "base", "volumeMounts": mounts }));
        sandbox.must("user", "echo inside >/data/inside; sync /data/inside");
        acknowledge(&mut machine, "write inside that was synced", "/inside", Some("inside\n"));

        // SIGKILL of the server loses no write of a sandbox, synced or not.
        sandbox.must("user", "echo unsynced >/data/unsynced");
        machine.server.kill_9();
        machine.server.start_again();
        volume.expect(&machine.server, "/unsynced", Some("unsynced\n"));
    }
    machine.check();
}

#[test]
fn power_cut_takes_no_write_older_than_30_seconds() {
    testing::needs_root!("it mounts a disk");
    cut_unsynced(Machine::start(&["--no-studio"]), UNSYNCED_LIMIT);
}

#[test]
fn power_cut_takes_no_rootless_write_older_than_a_minute() {
    testing::needs_root!("it mounts a disk");
    // Only the kernel's writeback ensures this limit, so that only `./dev soak` tests it.
    for _ in 0..repeats(0, 1) {
        let machine = Machine::for_account(Some(User::with_subordinate_ids()), &["--no-studio"]);
        cut_unsynced(machine, UNSYNCED_DIRECTORY_LIMIT);
    }
}

fn cut_unsynced(mut machine: Machine, limit: Duration) {
    let volume = Volume::create(&machine.server, "shared");
    let mounts = json!([{ "name": "shared", "path": "/data" }]);
    let sandbox = machine.server.create_with(json!({ "templateID": "base", "volumeMounts": mounts }));
    // A process that writes all the time does not delay the writeback of earlier writes.
    let mut writer = sandbox.start_as("user", "while :; do date >>log; sleep 0.2; done");
    writer.pid();
    sandbox.must("user", "head -c 5M /dev/urandom >big; sha256sum big >sum; echo old >/data/old");
    // A fixed sleep: the limit is about time, and no event shows it.
    std::thread::sleep(limit);
    machine.acknowledge("writes that were not synced", move |server| {
        resume(server, &sandbox).must("user", "sha256sum --check --quiet sum");
        volume.expect(server, "/old", Some("old\n"));
    });
    machine.check();
}

fn repository(directory: &Path) {
    let script = r#"set -e; cd "$0"; git init -q -b main; git config user.email t@example.com; git config user.name T
        echo '<h1>Shop</h1>' >index.html; git add .; git commit -qm one"#;
    let made = std::process::Command::new("/bin/sh").args(["-c", script]).arg(directory).output().expect("a shell");
    assert!(made.status.success(), "{made:?}");
}

#[test]
fn power_cut_takes_nothing_of_workspaces() {
    testing::needs_root!("it mounts a disk");
    let mut machine = Machine::start(&["--no-studio"]);
    let source = tempfile::tempdir().expect("a directory");
    repository(source.path());
    for round in 0..repeats(1, 5) {
        let name = format!("shop-{round}");
        let workspace = machine.program("workspace");
        workspace.must(&["create", &name, "--repo", source.path().to_str().expect("text")]);
        let says = |machine: &Machine, line: &'static str, expected: &'static str| {
            let (workspace, name) = (machine.program("workspace"), name.clone());
            move |_: &Server| assert_eq!(workspace.must(&["exec", &name, "-c", line]), expected)
        };
        let check = says(&machine, "cat index.html", "<h1>Shop</h1>\n");
        machine.acknowledge(format!("{round}: workspace create"), check);

        workspace.must(&["exec", &name, "-c", "echo late >late; echo outside >/tmp/outside"]);
        workspace.must(&["pause", &name]);
        let check = says(&machine, "cat late index.html", "late\n<h1>Shop</h1>\n");
        machine.acknowledge(format!("{round}: workspace pause"), check);
    }
    machine.check();
}

#[test]
fn power_cut_takes_no_event_of_a_run() {
    testing::needs_root!("it mounts a disk");
    let mut machine = Machine::start(&["--no-studio"]);
    let directory = tempfile::tempdir().expect("a directory");
    let script = directory.path().join("script.json");
    let turns = json!([bash("echo one >>count"), bash("echo two >>count; echo done"), { "text": "Done." }]);
    std::fs::write(&script, json!({ "turns": turns }).to_string()).expect("our own directory");
    let model = format!("scripted:{}", script.display());
    let arguments = ["--goal", "Count", "--workspace", "shop", "--model", &model, "--json-events"];
    let mut run = machine.program("run").command(&arguments).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut output = BufReader::new(run.stdout.take().expect("it is piped"));
    let started = next(&mut output, "run_started").expect("it starts");
    let id = started["run_id"].as_str().expect("an id").to_owned();

    // The event was printed, so that the journal has it, and the run resumes from there.
    let call = next(&mut output, "tool_call_finished").expect("the first call ends")["seq"].clone();
    let runs = Rc::new(machine.program("runs"));
    machine.acknowledge("an event of a run", {
        let (id, runs) = (id.clone(), Rc::clone(&runs));
        move |_| {
            let shown = runs.json(&["show", &id]);
            let events = shown["events"].as_array().expect("events");
            assert!(events.iter().any(|event| event["seq"] == call), "{call} is missing in {shown}");
            if shown["state"] != "finished" {
                runs.must(&["resume", &id, "--json-events"]);
                assert_eq!(runs.json(&["show", &id])["stop_reason"], "completed");
            }
        }
    });
    next(&mut output, "run_finished").expect("it ends");
    machine.acknowledge("the end of a run", move |_| {
        let shown = runs.json(&["show", &id]);
        assert_eq!((&shown["state"], &shown["stop_reason"]), (&json!("finished"), &json!("completed")), "{shown}");
    });
    assert!(run.wait().expect("it ends").success());
    machine.check();
}

#[test]
fn power_cut_takes_no_acknowledged_job() {
    testing::needs_root!("it mounts a disk");
    // Without workers, so that the records do not change meanwhile.
    let mut machine = Machine::start(&["--builds", "0"]);
    let token = std::fs::read_to_string(machine.server.file("studio/token")).expect("the first user's token");
    for round in 0..repeats(1, 10) {
        let call = {
            let token = token.clone();
            move |server: &Server, method: &str, path: &str, body: &str| {
                let bearer = format!("Bearer {}", token.trim());
                let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
                testing::http::request(&server.address, method, path, &headers, body.as_bytes()).expect("an answer")
            }
        };
        let credits = |reply: testing::http::Reply| reply.json()["credits"].as_i64().expect("a number");
        let left = credits(call(&machine.server, "GET", "/api/me", "")) - 1;
        let body = json!({ "name": format!("round-{round}"), "goal": "a page", "model": "scripted:demo" }).to_string();
        let reply = call(&machine.server, "POST", "/api/generation", &body);
        assert_eq!(reply.status, 202, "{}", reply.text());
        let job: Value = reply.json();
        let id = job["job_id"].as_str().unwrap_or_else(|| panic!("job_id in {job}")).to_owned();
        let token = token.clone();
        machine.acknowledge(format!("{round}: job, credits, timeline"), move |server| {
            let reply = eventually("the studio answers", Duration::from_secs(20), || {
                let reply = call(server, "GET", &format!("/api/generation/{id}/status"), "");
                (reply.status < 500).then_some(reply)
            });
            assert_eq!(reply.status, 200, "{}", reply.text());
            let now = credits(call(server, "GET", "/api/me", ""));
            assert!(now <= left, "{now} credits; {left} were left once the job was taken in");
            let timeline = timeline_until(server, &token, &id, "credit");
            assert!(timeline.contains(&format!("\"balance\":{left}")), "{timeline}");
        });
    }
    machine.check();
}

/// Reads a job's timeline until it has an event of this type, and returns what was read.
fn timeline_until(server: &Server, token: &str, job: &str, kind: &str) -> String {
    let bearer = format!("Bearer {}", token.trim());
    let (path, headers) = (format!("/api/jobs/{job}/events"), [("Authorization", bearer.as_str())]);
    let stream = testing::http::start(&server.address, "GET", &path, &headers, b"");
    let (mut stream, mut text) = (stream.expect("an answer"), String::new());
    while !text.lines().any(|line| line.starts_with("data:") && line.contains(&format!("\"type\":\"{kind}\""))) {
        let piece = stream.next_piece().unwrap_or_else(|error| panic!("no event {kind} ({error}) in {text}"));
        text.push_str(&String::from_utf8_lossy(&piece.unwrap_or_else(|| panic!("no event {kind} in {text}"))));
    }
    text
}
