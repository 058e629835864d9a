//! Records on a full file system: a restarted server has every acknowledged change, refuses changes
//! that it cannot record, and recovers without a restart once there is space.

use crate::agent::{bash, next};
use crate::support::program::text;
use crate::support::{Program, Server, eventually};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use testing::http::{Reply, request};
use testing::repeats;

const RECOVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// A tmpfs, unmounted on drop. Mounting needs root.
struct SmallFileSystem {
    mount: TempDir,
}

impl SmallFileSystem {
    fn mount(size: &str) -> Self {
        let mount = tempfile::Builder::new().prefix("sandbar-small-").tempdir().expect("a directory");
        let options = format!("size={size}");
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "none"]).arg(mount.path()).output();
        let done = done.expect("mount starts");
        assert!(done.status.success(), "{done:?}");
        Self { mount }
    }

    fn path(&self) -> &Path {
        self.mount.path()
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    /// Allocates all free space, to the last byte.
    fn fill(&self) {
        let mut file = File::create(self.filler()).expect("a file for the rest of the space");
        let mut size = 1 << 20;
        while size > 0 {
            if file.write_all(&vec![1; size]).is_err() {
                size /= 2;
            }
        }
    }

    fn free(&self) {
        fs::remove_file(self.filler()).expect("the filler is there");
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        // Lazily, since a server that is ending may have a file open.
        let _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
    }
}

/// The studio of a server whose records are on a small file system.
struct Studio {
    server: Server,
    token: String,
}

impl Studio {
    fn start(small: &SmallFileSystem) -> Self {
        let database = format!("sqlite://{}", small.path().join("records.sqlite").display());
        // Without workers: these tests are about the records.
        let server = Server::with(&["--database", &database, "--builds", "0"]);
        let token = fs::read_to_string(server.file("studio/token")).expect("the first user's token");
        Self { server, token: token.trim().to_owned() }
    }

    fn send(&self, method: &str, path: &str, body: &str) -> Reply {
        let authorization = format!("Bearer {}", self.token);
        let headers = [("Authorization", authorization.as_str()), ("Content-Type", "application/json")];
        request(&self.server.address, method, path, &headers, body.as_bytes()).expect("an answer")
    }

    fn generate(&self, name: &str) -> Reply {
        let body = json!({ "name": name, "goal": "Make a page.", "model": "scripted:demo" });
        self.send("POST", "/api/generation", &body.to_string())
    }

    fn ready(&self) -> (u16, Value) {
        let reply = self.server.call("GET", "/ready", None);
        (reply.status, reply.json())
    }

    fn assert_recorded(&self, jobs: &[String]) {
        for job in jobs {
            let status = self.send("GET", &format!("/api/generation/{job}/status"), "");
            assert_eq!(status.status, 200, "{job} was acknowledged and is lost: {}", status.text());
        }
    }
}

/// A regression test: older versions lost all jobs that they acknowledged on a full disk.
#[test]
fn a_full_disk_loses_no_acknowledged_job() {
    testing::needs_root!("it mounts a disk");
    (0..repeats(1, 5)).for_each(|_| fill_disk_of_the_studio());
}

fn fill_disk_of_the_studio() {
    let small = SmallFileSystem::mount("24m");
    let mut studio = Studio::start(&small);
    let mut acknowledged = Vec::new();
    let mut accept = |reply: Reply| {
        if reply.status == 202 {
            acknowledged.push(reply.json()["job_id"].as_str().expect("an id").to_owned());
        }
        reply
    };
    assert_eq!(accept(studio.generate("before")).status, 202);
    assert_eq!(studio.ready().0, 200);

    small.fill();
    for number in 0..6 {
        let refused = accept(studio.generate(&format!("full {number}")));
        assert_eq!(refused.status, 507, "{}", refused.text());
        let message = refused.text();
        let place = small.path().to_str().expect("a plain path");
        assert!(message.contains(place) && message.contains("full") && message.contains("free space"), "{message}");
    }
    let (status, ready) = studio.ready();
    assert_eq!((status, &ready["ready"]), (503, &json!(false)), "{ready}");
    assert_eq!(ready["parts"]["studio"]["ok"], false, "{ready}");
    assert!(ready["parts"]["studio"]["cause"].as_str().is_some_and(|cause| cause.contains("full")), "{ready}");
    assert_eq!(ready["parts"]["records"]["ok"], true, "{ready}");
    let health = request(&studio.server.address, "GET", "/health", &[], b"").expect("an answer");
    assert_eq!((health.status, health.text().contains("studio")), (503, true), "{}", health.text());
    let open = request(&studio.server.address, "GET", "/ready", &[], b"").expect("an answer");
    assert_eq!(open.json()["parts"]["studio"], json!({ "ok": false }), "paths are for callers with the key");
    let usage = studio.send("GET", "/api/jobs", "");
    assert_eq!(usage.status, 200, "a full disk can be read: {}", usage.text());

    small.free();
    eventually("the studio accepts changes again", RECOVERY_TIMEOUT, || (studio.ready().0 == 200).then_some(()));
    for number in 0..3 {
        let reply = accept(studio.generate(&format!("freed {number}")));
        assert_eq!(reply.status, 202, "{}", reply.text());
    }
    let health = request(&studio.server.address, "GET", "/health", &[], b"").expect("an answer");
    assert_eq!((health.status, health.text().as_str()), (200, "OK"));
    studio.assert_recorded(&acknowledged);
    studio.server.kill_9();
    studio.server.start_again();
    studio.assert_recorded(&acknowledged);
}

/// The records of workspaces and runs are on a small file system, which becomes full during a run.
#[test]
fn full_host_disk_stops_a_run_that_can_be_resumed() {
    testing::needs_root!("it mounts a disk");
    (0..repeats(1, 5)).for_each(|_| fill_disk_during_a_run());
}

fn fill_disk_during_a_run() {
    let small = SmallFileSystem::mount("24m");
    // The server uses the same records, by a link in place of its data home.
    let mut server = Server::with(&["--no-studio"]);
    server.stop();
    let _ = fs::remove_dir_all(server.file("none"));
    std::os::unix::fs::symlink(small.path(), server.file("none")).expect("our own directory");
    server.start_again();
    let program = |server: &Server, word| Program::new(word).at(server).variable("XDG_DATA_HOME", small.path());
    let directory = tempfile::tempdir().expect("a directory");
    let script = directory.path().join("script.json");
    // More events than fit into the blocks that the database has allocated.
    let noisy = (0..40).map(|number| bash(&format!("echo {number} >>count; head -c 30000 /dev/zero | tr '\\0' x")));
    let turns: Vec<Value> =
        [bash("until test -e /home/user/go; do sleep 0.1; done")].into_iter().chain(noisy).collect();
    fs::write(&script, json!({ "turns": turns }).to_string()).expect("our own directory");
    let model = format!("scripted:{}", script.display());
    let arguments = ["--goal", "Count", "--workspace", "shop", "--model", &model, "--json-events", "--max-turns", "99"];
    let mut run = program(&server, "run").command(&arguments);
    let mut run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut output = BufReader::new(run.stdout.take().expect("it is piped"));
    let id = next(&mut output, "run_started").expect("it starts")["run_id"].as_str().expect("an id").to_owned();
    next(&mut output, "tool_call_started").expect("the first call");
    small.fill();
    let sandbox =
        program(&server, "workspace").json(&["show", "shop"])["sandboxID"].as_str().expect("an id").to_owned();
    program(&server, "sandbox").must(&["exec", &sandbox, "--", "touch", "/home/user/go"]);
    while next(&mut output, "").is_some() {}
    let ended = run.wait_with_output().expect("it ends");
    let message = text(&ended.stderr);
    assert!(!ended.status.success() && message.contains("full"), "{message}");
    let refused = program(&server, "workspace").run(&["create", "other"]);
    let message = text(&refused.stderr);
    assert!(!refused.status.success() && message.contains("full") && !message.contains("another process"), "{message}");

    small.free();
    let printed = program(&server, "runs").must(&["resume", &id, "--json-events"]);
    let last = next(&mut printed.as_bytes(), "run_finished").expect("it ends");
    assert_eq!(last["stop_reason"], "completed", "{last}");
    let count = program(&server, "workspace").must(&["exec", "shop", "-c", "sort -n count | uniq | wc -l"]);
    assert_eq!(count, "40\n");
}
