//! Attacks through checkpoints: archives that a hostile sandbox writes.
//!
//! The studio runs in the server's process, so that the memory of a save and of a listing is the
//! server's. `crates/workspace/tests/snapshots/bounds.rs` has the archives that no `tar` makes, one by
//! one.

use crate::support::http::{Reply, request};
use crate::support::{Sandbox, Server, eventually};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(120);
/// Above what the server had before.
const MOST_MEMORY_KB: u64 = 128 * 1024;

const PAGE: &str = r#"{"turns": [
    {"tool_calls": [{"name": "bash", "input": {"command": "echo '<h1>Hello</h1>' > /home/user/project/index.html"}}]},
    {"text": "Done."}
]}"#;

/// Makes so many empty files below 15 directories with 250-letter names, without any privilege.
fn many_names(count: usize) -> String {
    format!(
        "python3 - <<'END'\nimport os\nos.chdir('/home/user/project')\nfor n in range(15):\n    \
         os.makedirs('d' * 250, exist_ok=True)\n    os.chdir('d' * 250)\nfor n in range({count}):\n    \
         open('f%d' % n, 'w').close()\nEND"
    )
}

/// Sends 400 names of 15 MB each, 6 MB compressed, in place of an archive.
const LONG_NAMES: &str = r#"cat >/usr/local/bin/tar <<'END' && chmod +x /usr/local/bin/tar
#!/usr/bin/python3
import gzip, os, sys, tarfile
if '--extract' in sys.argv:
    os.execv('/usr/bin/tar', sys.argv)
out = gzip.GzipFile(fileobj=sys.stdout.buffer, mode='wb', compresslevel=1)
for n in range(400):
    info = tarfile.TarInfo('%d' % n + 'x' * 15_000_000)
    out.write(info.tobuf(tarfile.PAX_FORMAT))
out.write(bytes(1024))
out.close()
END"#;

/// A server with its studio, and the first user of it.
struct Studio {
    server: Server,
    _scripts: tempfile::TempDir,
    token: String,
}

impl Studio {
    fn start() -> Self {
        let scripts = tempfile::tempdir().expect("a directory");
        fs::write(scripts.path().join("page.json"), PAGE).expect("our own directory");
        let server = Server::with(&["--scripts", scripts.path().to_str().expect("a plain path")]);
        let token = fs::read_to_string(server.file("studio/token")).expect("the first user's token");
        Self { server, _scripts: scripts, token: token.trim().to_owned() }
    }

    fn send(&self, method: &str, path: &str, body: &str) -> Reply {
        let authorization = format!("Bearer {}", self.token);
        let headers = [("Authorization", authorization.as_str()), ("Content-Type", "application/json")];
        request(&self.server.address, method, path, &headers, body.as_bytes()).expect("an answer")
    }

    /// Builds a page, and gives the job.
    fn build(&self, name: &str) -> String {
        let body = json!({ "name": name, "goal": "Make a page.", "model": "scripted:page.json" });
        let begun = self.send("POST", "/api/generation", &body.to_string());
        assert_eq!(begun.status, 202, "{}", begun.text());
        let job = begun.json()["job_id"].as_str().expect("an id").to_owned();
        eventually("the page is built", DEADLINE, || (self.job(&job)["status"] == "ready").then_some(()));
        job
    }

    fn job(&self, job: &str) -> Value {
        self.send("GET", &format!("/api/jobs/{job}"), "").json()
    }

    /// Its sandbox, running.
    fn wake(&self, job: &str) -> Sandbox {
        let awake = self.send("POST", &format!("/api/generation/{job}/resume"), "{}");
        assert_eq!(awake.status, 200, "{}", awake.text());
        let id = awake.json()["sandbox_id"].as_str().expect("a sandbox").to_owned();
        let reply = self.server.call("POST", &format!("/v2/sandboxes/{id}/connect"), Some(json!({})));
        assert!(matches!(reply.status, 200 | 201), "{}", reply.text());
        let token = reply.json()["envdAccessToken"].as_str().expect("a token").to_owned();
        Sandbox::new(&self.server.address, id, token)
    }

    /// Lets the preview sleep, which saves its files first.
    fn put_to_sleep(&self, job: &str) -> Reply {
        self.send("POST", &format!("/api/jobs/{job}/snapshot"), "{}")
    }

    fn snapshots(&self, job: &str) -> usize {
        let listed = self.send("GET", &format!("/api/jobs/{job}/snapshots"), "").json();
        listed["snapshots"].as_array().expect("a list").len()
    }

    /// What a field of its status file says, in kB.
    fn memory(&self, field: &str) -> u64 {
        let note: Value =
            serde_json::from_slice(&fs::read(self.server.file("server.json")).expect("a note")).expect("JSON");
        let status = fs::read_to_string(format!("/proc/{}/status", note["pid"])).expect("the server runs");
        let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("a line of it");
        line.trim_matches([':', '\t', ' ', 'k', 'B']).trim().parse().expect("a number")
    }

    /// Does something, and gives what the server's memory grew by at most.
    #[track_caller]
    fn assert_frugal<T>(&self, what: &str, work: impl FnOnce() -> T) -> T {
        let note: Value =
            serde_json::from_slice(&fs::read(self.server.file("server.json")).expect("a note")).expect("JSON");
        fs::write(format!("/proc/{}/clear_refs", note["pid"]), "5").expect("our own process");
        let before = self.memory("VmRSS");
        let done = work();
        let grown = self.memory("VmHWM").saturating_sub(before);
        assert!(grown < MOST_MEMORY_KB, "{what} took {grown} kB");
        done
    }
}

#[test]
fn snapshots_of_hostile_sandboxes_cost_the_server_little_memory() {
    let studio = Studio::start();
    let job = studio.build("hostile");
    let sandbox = studio.wake(&job);

    // More names than a snapshot may have: refused, and the sandbox goes on.
    sandbox.must("user", &many_names(20_000));
    let saved = studio.snapshots(&job);
    let refused = studio.assert_frugal("too many names", || studio.put_to_sleep(&job));
    assert_eq!(refused.status, 200, "its sandbox sleeps and keeps the files: {}", refused.text());
    assert_eq!(studio.snapshots(&job), saved, "no snapshot is made, and none is removed");

    // Within the bound: saved, listed by three at once, and restored.
    let sandbox = studio.wake(&job);
    sandbox.must("user", "cd /home/user/project && find . -name 'f1????' -delete");
    let slept = studio.assert_frugal("a save", || studio.put_to_sleep(&job));
    assert_eq!(slept.status, 200, "{}", slept.text());
    eventually("it sleeps", DEADLINE, || (studio.job(&job)["sandbox_paused"] == true).then_some(()));
    assert!(studio.snapshots(&job) > saved, "what is allowed is saved");
    let deep = vec!["d".repeat(250); 15].join("/");
    let listed = studio.assert_frugal("three listings", || {
        std::thread::scope(|scope| {
            let list = || studio.send("GET", &format!("/api/jobs/{job}/files?path={deep}"), "");
            [scope.spawn(list), scope.spawn(list), scope.spawn(list)].map(|one| one.join().expect("an answer"))
        })
    });
    for reply in listed {
        assert_eq!(reply.status, 200, "{}", reply.text());
        let listing = reply.json();
        assert_eq!((&listing["source"], &listing["truncated"]), (&json!("snapshot"), &json!(true)));
        assert!(listing["entries"].as_array().is_some_and(|entries| entries.len() > 100));
    }
    let page = studio.send("GET", &format!("/api/jobs/{job}/file?path=index.html"), "").json();
    assert_eq!(page["text"], "<h1>Hello</h1>\n", "{page}");

    // With sudo, as the base template gives it.
    let sandbox = studio.wake(&job);
    sandbox.must("root", LONG_NAMES);
    let saved = studio.snapshots(&job);
    sandbox.must("user", "echo more >/home/user/project/more");
    let refused = studio.assert_frugal("long names", || studio.put_to_sleep(&job));
    assert_eq!(refused.status, 200, "its sandbox sleeps and keeps the files: {}", refused.text());
    assert_eq!(studio.snapshots(&job), saved);

    // Another workspace of the same server is saved as ever.
    let other = studio.build("honest");
    studio.wake(&other);
    assert_eq!(studio.put_to_sleep(&other).status, 200);
    assert!(studio.snapshots(&other) > 0);
}
