//! Parts of a used data directory that are missing: a real server, a real pool. Nothing is booted
//! empty, nothing is swept away.

use crate::support::http::{Reply, request};
use crate::support::server::PROGRAM;
use crate::support::{Sandbox, Server, eventually};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

fn pause(server: &Server, sandbox: &Sandbox, memory: bool) {
    let reply = server.call("POST", &format!("/sandboxes/{}/pause", sandbox.id), Some(json!({ "memory": memory })));
    assert_eq!(reply.status, 204, "{}", reply.text());
}

fn connect(server: &Server, id: &str) -> (u16, Value) {
    let reply = server.call("POST", &format!("/v2/sandboxes/{id}/connect"), Some(json!({})));
    (reply.status, reply.json())
}

/// A sandbox as a recovered one: with a token of its own.
#[track_caller]
fn resumed(server: &Server, id: &str) -> Sandbox {
    let (status, answer) = connect(server, id);
    assert!(matches!(status, 200 | 201), "{status} {answer}");
    Sandbox::new(&server.address, id.to_owned(), answer["envdAccessToken"].as_str().expect("a token").to_owned())
}

fn up(data: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    testing::without_settings(&mut command).env("SANDBAR_LOG", "error");
    command.args(["up", "--listen", "127.0.0.1:0", "--no-studio", "--data"]).arg(data).args(more);
    command.env("XDG_CONFIG_HOME", data.join("none")).env("XDG_DATA_HOME", data.join("none"));
    command.output().expect("it runs")
}

/// Demands that a server refuses to start, twice, and gives what it says.
#[track_caller]
fn refused(data: &Path) -> String {
    let said = [up(data, &[]), up(data, &[])].map(|done| {
        assert!(!done.status.success());
        String::from_utf8(done.stderr).expect("text")
    });
    assert_eq!(said[0], said[1], "the first refusal changes nothing");
    assert!(said[0].contains("--accept-missing-files"), "{}", said[0]);
    said[0].clone()
}

fn trash(server: &Server) -> Vec<Value> {
    let reply = server.call("GET", "/sandbar/trash", None);
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json().as_array().expect("a list").clone()
}

/// One of each kind, with a word in each.
struct Works {
    sandbox: Sandbox,
    volume: String,
    token: String,
}

impl Works {
    fn make(server: &Server) -> Self {
        let sandbox = server.create_with(json!({ "templateID": "base", "metadata": { "of": "me" } }));
        sandbox.must("user", "echo work > file");
        let snapshot =
            server.call("POST", &format!("/sandboxes/{}/snapshots", sandbox.id), Some(json!({ "name": "state" })));
        assert_eq!(snapshot.status, 201, "{}", snapshot.text());
        pause(server, &sandbox, false);
        let made = server.call("POST", "/volumes", Some(json!({ "name": "cache" })));
        assert_eq!(made.status, 201, "{}", made.text());
        let text = |key: &str| made.json()[key].as_str().expect("text").to_owned();
        let works = Self { sandbox, volume: text("volumeID"), token: text("token") };
        assert!(works.volume_call(server, "PUT", b"kept").status < 300);
        works
    }

    fn volume_call(&self, server: &Server, method: &str, body: &[u8]) -> Reply {
        let path = format!("/volumecontent/{}/file?path=/note", self.volume);
        let authorization = format!("Bearer {}", self.token);
        let headers = [("Authorization", authorization.as_str()), ("Content-Type", "application/octet-stream")];
        request(&server.address, method, &path, &headers, body).expect("an answer")
    }

    /// Everything is there, as it was.
    #[track_caller]
    fn check(&self, server: &Server) {
        let sandbox = resumed(server, &self.sandbox.id);
        assert_eq!(sandbox.must("user", "cat file"), "work\n");
        let listed = server.call("GET", &format!("/sandboxes/{}", self.sandbox.id), None).json();
        assert_eq!(listed["metadata"]["of"], "me", "{listed}");
        let copy = server.create_with(json!({ "templateID": "state" }));
        assert_eq!(copy.must("user", "cat file"), "work\n");
        assert_eq!(server.call("DELETE", &format!("/sandboxes/{}", copy.id), None).status, 204);
        let volumes = server.call("GET", "/volumes", None).json();
        assert_eq!(volumes[0]["name"], "cache", "{volumes}");
        pause(server, &sandbox, false);
    }
}

/// Puts the database aside, or back.
fn move_database(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for name in ["node.sqlite", "node.sqlite-wal", "node.sqlite-shm"] {
        // Only the first is there when no server has it open.
        let _ = std::fs::remove_file(to.join(name));
        let _ = std::fs::rename(from.join(name), to.join(name));
    }
}

#[test]
fn a_missing_pool_is_told_and_never_replaced_by_an_empty_one() {
    let mut server = Server::with(&["--no-studio"]);
    let works = Works::make(&server);
    server.stop();
    let (pool, aside) = (server.file("pool.img"), server.file("aside.img"));
    assert!(pool.exists(), "these tests run where the pool is an image");
    let away = || std::fs::rename(&pool, &aside);
    eventually("the pool is let go", Duration::from_secs(30), || away().ok());
    let said = refused(server.data());
    assert!(said.contains("pool.img") && said.contains("names the files of 3"), "{said}");
    assert!(!pool.exists(), "none was made");

    // Accepted: the sandbox is listed, its resume is refused with a code, and so is all that needs
    // its files.
    server.start_again_with(&["--no-studio", "--accept-missing-files"]);
    let id = &works.sandbox.id;
    let (status, answer) = connect(&server, id);
    assert_eq!((status, &answer["error_code"]), (410, &json!("sandbox_files_missing")), "{answer}");
    assert!(answer["message"].as_str().is_some_and(|text| text.contains(id) && text.contains("missing")), "{answer}");
    let made = server.call("POST", "/v2/sandboxes", Some(json!({ "templateID": "state" })));
    assert_eq!((made.status, &made.json()["error_code"]), (410, &json!("template_files_missing")), "{}", made.text());
    let mounts = json!({ "templateID": "base", "volumeMounts": [{ "name": "cache", "path": "/cache" }] });
    let made = server.call("POST", "/v2/sandboxes", Some(mounts));
    assert_eq!((made.status, &made.json()["error_code"]), (410, &json!("volume_files_missing")), "{}", made.text());
    assert_eq!(works.volume_call(&server, "GET", b"").status, 410);
    server.stop();

    // The pool comes back, and with it everything.
    eventually("the new pool is let go", Duration::from_secs(30), || std::fs::rename(&aside, &pool).ok());
    server.start_again_with(&["--no-studio"]);
    works.check(&server);
    assert_eq!(works.volume_call(&server, "GET", b"").text(), "kept");
    assert_eq!(trash(&server), [Value::Null; 0]);
}

#[test]
fn a_database_that_is_missing_empty_or_old_loses_nothing() {
    let mut server = Server::with(&["--no-studio"]);
    let (data, aside) = (server.data().to_owned(), server.file("aside"));
    // Yesterday's copy knows nothing yet.
    server.stop();
    std::fs::create_dir_all(&aside).expect("a directory");
    std::fs::copy(data.join("node.sqlite"), aside.join("yesterday")).expect("a copy");
    server.start_again();
    let works = Works::make(&server);
    server.stop();

    move_database(&data, &aside);
    let said = refused(&data);
    assert!(said.contains("node.sqlite is missing or empty") && said.contains("files of 3"), "{said}");
    assert!(!data.join("node.sqlite").exists(), "none was made");
    std::fs::write(data.join("node.sqlite"), "").expect("written");
    refused(&data);
    move_database(&aside, &data);
    server.start_again();
    works.check(&server);
    assert_eq!(trash(&server), [Value::Null; 0], "a normal start raises no alarm");
    server.stop();

    // Accepted, or with an older copy: everything is in the trash, or a volume where it was, and
    // comes back.
    for old in [false, true] {
        move_database(&data, &aside);
        if old {
            std::fs::copy(aside.join("yesterday"), data.join("node.sqlite")).expect("a copy");
            server.start_again();
        } else {
            server.start_again_with(&["--no-studio", "--accept-missing-files"]);
        }
        assert_eq!(connect(&server, &works.sandbox.id).0, 404, "no record names it");
        let found = trash(&server);
        let mut kinds: Vec<_> = found.iter().map(|row| row["kind"].as_str().expect("text")).collect();
        kinds.sort_unstable();
        assert_eq!(kinds, ["sandbox", "template", "volume"], "{found:?}");
        let mut recover = Command::new(PROGRAM);
        testing::without_settings(&mut recover).args(["recover", "--all", "--json", "--data"]).arg(&data);
        let recover = recover.output().expect("it runs");
        assert!(recover.status.success(), "{recover:?}");
        assert_eq!(trash(&server), [Value::Null; 0]);
        works.check(&server);
        server.stop();
        server.start_again_with(&["--no-studio"]);
        works.check(&server);
        assert_eq!(trash(&server), [Value::Null; 0]);
        server.stop();
    }
    server.start_again();
}

#[test]
fn a_lease_that_ends_in_a_pause_keeps_the_memory_without_a_server() {
    /// Longer than a guest waits whose lease would kill it.
    const AFTER: Duration = Duration::from_secs(35);
    let mut server = Server::with(&["--no-studio"]);
    let create = |pause: bool| server.create_with(json!({ "templateID": "base", "timeout": 8, "autoPause": pause }));
    let (paused, killed) = (create(true), create(false));
    let mut sleeper = paused.start_as("user", "exec sleep 3600");
    let pid = sleeper.pid();
    let boot_id = paused.read("/proc/sys/kernel/random/boot_id").text();
    server.kill_9();
    // Nothing can be awaited: that the guest does not end is the point.
    std::thread::sleep(Duration::from_secs(8) + AFTER);
    server.start_again();
    let state = || server.call("GET", &format!("/sandboxes/{}", paused.id), None).json()["state"].clone();
    eventually("it is paused", Duration::from_secs(30), || (state() == "paused").then_some(()));
    assert_eq!(server.call("GET", &format!("/sandboxes/{}", killed.id), None).status, 404);
    let awake = resumed(&server, &paused.id);
    awake.must("user", &format!("kill -0 {pid}"));
    assert_eq!(awake.read("/proc/sys/kernel/random/boot_id").text(), boot_id, "the same boot, with its memory");

    // What the lease killed while no server ran can be brought back.
    let reply = server.call("POST", &format!("/sandbar/trash/{}", killed.id), None);
    assert_eq!(reply.status, 200, "{}", reply.text());
    resumed(&server, &killed.id);
}
