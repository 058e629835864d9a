//! Attacks through checkpoints: archives that a hostile sandbox writes.
//!
//! The studio runs in the server's process, so a checkpoint and a listing take the server's memory.
//! `crates/workspace/tests/checkpoints/bounds.rs` has archives that no `tar` makes, one by one.

use crate::support::{Program, Sandbox, Server, eventually, repeats};
use serde_json::{Value, json};
use std::cell::Cell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;
use testing::User;
use testing::http::{Reply, request};

const STUDIO_TIMEOUT: Duration = Duration::from_secs(120);
/// By how much the memory may grow.
const MEMORY_LIMIT_KB: u64 = 128 * 1024;

const PAGE: &str = r#"{"turns": [
    {"tool_calls": [{"name": "bash", "input": {"command": "echo '<h1>Hello</h1>' > /home/user/project/index.html"}}]},
    {"text": "Done."}
]}"#;

/// A command that creates `count` empty files below 15 nested directories with 250-letter names. It
/// needs no privilege.
fn many_names(count: usize) -> String {
    format!(
        "python3 - <<'END'\nimport os\nos.chdir('/home/user/project')\nfor n in range(15):\n    \
         os.makedirs('d' * 250, exist_ok=True)\n    os.chdir('d' * 250)\nfor n in range({count}):\n    \
         open('f%d' % n, 'w').close()\nEND"
    )
}

/// Replaces `tar` by a program that writes 400 names of 15 MB each, 6 MB compressed.
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

/// A server with its studio, and the token of its first user.
struct Studio {
    server: Server,
    _scripts: tempfile::TempDir,
    token: String,
    /// Resident memory of the server before the first attack, in kB. Memory that the allocator
    /// keeps after one attack counts for the next.
    before: Cell<Option<u64>>,
}

impl Studio {
    fn start(serve: impl FnOnce(&[&str]) -> Server) -> Self {
        let scripts = tempfile::tempdir().expect("a directory");
        fs::write(scripts.path().join("page.json"), PAGE).expect("our own directory");
        // The server may run as an ordinary user, who reads the scripts.
        fs::set_permissions(scripts.path(), fs::Permissions::from_mode(0o755)).expect("our own directory");
        let server = serve(&["--scripts", scripts.path().to_str().expect("a plain path")]);
        let token = fs::read_to_string(server.file("studio/token")).expect("the first user's token");
        Self { server, _scripts: scripts, token: token.trim().to_owned(), before: Cell::new(None) }
    }

    fn send(&self, method: &str, path: &str, body: &str) -> Reply {
        send(&self.server, &self.token, method, path, body)
    }

    /// Builds a page and returns the id of the job.
    fn build(&self, name: &str) -> String {
        let body = json!({ "name": name, "goal": "Make a page.", "model": "scripted:page.json" });
        let begun = self.send("POST", "/api/generation", &body.to_string());
        assert_eq!(begun.status, 202, "{}", begun.text());
        let job = begun.json()["job_id"].as_str().expect("an id").to_owned();
        eventually("the page is built", STUDIO_TIMEOUT, || (self.job(&job)["status"] == "ready").then_some(()));
        job
    }

    fn job(&self, job: &str) -> Value {
        self.send("GET", &format!("/api/jobs/{job}"), "").json()
    }

    /// Resumes the job's sandbox.
    fn resume(&self, job: &str) -> Sandbox {
        let resumed = self.send("POST", &format!("/api/generation/{job}/resume"), "{}");
        assert_eq!(resumed.status, 200, "{}", resumed.text());
        let id = resumed.json()["sandbox_id"].as_str().expect("a sandbox").to_owned();
        let reply = self.server.call("POST", &format!("/v2/sandboxes/{id}/connect"), Some(json!({})));
        assert!(matches!(reply.status, 200 | 201), "{}", reply.text());
        let token = reply.json()["envdAccessToken"].as_str().expect("a token").to_owned();
        Sandbox::new(&self.server.address, id, token)
    }

    /// Pauses the preview. The studio makes a checkpoint first.
    fn pause(&self, job: &str) -> Reply {
        self.send("POST", &format!("/api/jobs/{job}/snapshot"), "{}")
    }

    fn count_checkpoints(&self, job: &str) -> usize {
        let listed = self.send("GET", &format!("/api/jobs/{job}/snapshots"), "").json();
        listed["snapshots"].as_array().expect("a list").len()
    }

    /// Restores the files of the newest checkpoint.
    fn restore(&self, job: &str) {
        let listed = self.send("GET", &format!("/api/jobs/{job}/snapshots"), "").json();
        let key = listed["snapshots"][0]["key"].clone();
        let begun = self.send("POST", &format!("/api/jobs/{job}/restore"), &json!({ "key": key }).to_string());
        assert_eq!(begun.status, 202, "{}", begun.text());
        // During a restore the job has this stage and refuses another restore.
        eventually("the files are restored", STUDIO_TIMEOUT, || {
            (self.job(job)["stage_label"] != "Restoring the files").then_some(())
        });
    }

    /// Runs `work` and asserts that the server's peak memory grows by less than
    /// [`MEMORY_LIMIT_KB`].
    #[track_caller]
    fn assert_frugal<T>(&self, what: &str, work: impl FnOnce() -> T) -> T {
        let note: Value =
            serde_json::from_slice(&fs::read(self.server.file("server.json")).expect("a note")).expect("JSON");
        let pid = u32::try_from(note["pid"].as_u64().expect("a number")).expect("a process");
        fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("our own process");
        let before = self.before.get().unwrap_or_else(|| memory(pid, "VmRSS").expect("the server runs"));
        self.before.set(Some(before));
        let done = work();
        let grown = memory(pid, "VmHWM").expect("the server runs").saturating_sub(before);
        eprintln!("{what}: {grown} kB");
        assert!(grown < MEMORY_LIMIT_KB, "{what} took {grown} kB");
        done
    }
}

fn send(server: &Server, token: &str, method: &str, path: &str, body: &str) -> Reply {
    let authorization = format!("Bearer {token}");
    let headers = [("Authorization", authorization.as_str()), ("Content-Type", "application/json")];
    request(&server.address, method, path, &headers, body.as_bytes()).expect("an answer")
}

/// A field of `/proc/PID/status`, in kB. `None` once the process has ended.
fn memory(pid: u32, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim_matches([':', '\t', ' ', 'k', 'B']).trim().parse().ok()
}

#[test]
fn checkpoints_of_hostile_jobs_cost_the_server_little_memory() {
    let studio = Studio::start(Server::with);
    let job = studio.build("hostile");
    let sandbox = studio.resume(&job);

    // More names than a checkpoint may have: no checkpoint is made, and the sandbox keeps working.
    sandbox.must("user", &many_names(repeats(20_000, 150_000)));
    let saved = studio.count_checkpoints(&job);
    let refused = studio.assert_frugal("too many names", || studio.pause(&job));
    assert_eq!(refused.status, 200, "its sandbox sleeps and keeps the files: {}", refused.text());
    assert_eq!(studio.count_checkpoints(&job), saved, "no snapshot is made, and none is removed");

    // Within the limit: saved, listed by three callers at once, and restored.
    let sandbox = studio.resume(&job);
    sandbox.must("user", "cd /home/user/project && find . -name 'f?????*' -delete");
    let paused = studio.assert_frugal("a save", || studio.pause(&job));
    assert_eq!(paused.status, 200, "{}", paused.text());
    eventually("it sleeps", STUDIO_TIMEOUT, || (studio.job(&job)["sandbox_paused"] == true).then_some(()));
    assert!(studio.count_checkpoints(&job) > saved, "what is allowed is saved");
    let deep = vec!["d".repeat(250); 15].join("/");
    let listed = studio.assert_frugal("three listings", || {
        let (server, token) = (&studio.server, &studio.token);
        std::thread::scope(|scope| {
            let list = || send(server, token, "GET", &format!("/api/jobs/{job}/files?path={deep}"), "");
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

    let sandbox = studio.resume(&job);
    sandbox.must("user", "rm -rf /home/user/project/d*");
    studio.assert_frugal("a restore", || studio.restore(&job));
    let sandbox = studio.resume(&job);
    assert_eq!(sandbox.must("user", "find /home/user/project -name 'f*' | wc -l").trim(), "10000");

    // As root, which sudo of the base template gives to every user.
    sandbox.must("root", LONG_NAMES);
    let saved = studio.count_checkpoints(&job);
    sandbox.must("user", "echo more >/home/user/project/more");
    let refused = studio.assert_frugal("long names", || studio.pause(&job));
    assert_eq!(refused.status, 200, "its sandbox sleeps and keeps the files: {}", refused.text());
    assert_eq!(studio.count_checkpoints(&job), saved);

    // The control: another workspace of the same server is saved.
    let other = studio.build("honest");
    studio.resume(&other);
    assert_eq!(studio.pause(&other).status, 200);
    assert!(studio.count_checkpoints(&other) > 0);
}

/// The command line program saves and restores a workspace. Its peak memory is compared with that
/// for an honest workspace.
#[test]
fn checkpoints_of_hostile_workspaces_cost_little_memory() {
    let server = Server::with(&["--no-studio"]);
    let home = tempfile::tempdir().expect("a directory");
    let workspace = Program::new("workspace").at(&server).variable("XDG_DATA_HOME", home.path().join("data"));
    let workspace = workspace.variable("XDG_CONFIG_HOME", home.path().join("config"));
    let peak = |arguments: &[&str]| {
        let mut child = workspace.command(arguments).stdout(Stdio::null()).spawn().expect("it starts");
        let mut peak = 0;
        let status = loop {
            peak = memory(child.id(), "VmHWM").unwrap_or(0).max(peak);
            if let Some(status) = child.try_wait().expect("our own child") {
                break status;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        assert!(status.success(), "{arguments:?}");
        peak
    };
    let measure = |name: &str, prepare: &str| {
        workspace.must(&["create", name]);
        workspace.must(&["exec", name, "-c", prepare]);
        let peaks = (peak(&["snapshot", name]), peak(&["restore", name, "--yes"]));
        workspace.must(&["destroy", name, "--yes"]);
        peaks
    };
    let (save, restore) = measure("honest", "echo x >x");
    // Pairs of hard links: the reader remembers the first name of each pair.
    let links = format!(
        "python3 -c \"import os\nfor n in range({}): open('a%d' % n, 'w').close(); os.link('a%d' % n, 'b%d' % n)\"",
        repeats(2_000, 200_000)
    );
    for (name, prepare) in [("long-names", many_names(repeats(4_000, 16_000))), ("links", links)] {
        let peaks = measure(name, &prepare);
        let (saving, restoring) = (peaks.0.saturating_sub(save), peaks.1.saturating_sub(restore));
        eprintln!("{name}: a save {saving} kB, a restore {restoring} kB above an honest one's {save} and {restore}");
        assert!(saving < MEMORY_LIMIT_KB && restoring < MEMORY_LIMIT_KB, "{name}: {saving} and {restoring} kB");
    }
}

#[test]
fn rootless_servers_refuse_hostile_archives_at_little_cost() {
    testing::needs_root!("it becomes users with and without subordinate ids");
    for user in [User::with_subordinate_ids(), User::with_a_single_id()] {
        let studio = Studio::start(|arguments| Server::for_user(user, arguments));
        let job = studio.build("hostile");
        let sandbox = studio.resume(&job);
        sandbox.must("root", LONG_NAMES);
        let saved = studio.count_checkpoints(&job);
        sandbox.must("user", "echo more >/home/user/project/more");
        let refused = studio.assert_frugal("long names", || studio.pause(&job));
        assert_eq!(refused.status, 200, "its sandbox sleeps and keeps the files: {}", refused.text());
        assert_eq!(studio.count_checkpoints(&job), saved);
        // The control: with the real `tar` the same files are saved.
        let sandbox = studio.resume(&job);
        sandbox.must("root", "rm /usr/local/bin/tar");
        assert_eq!(studio.pause(&job).status, 200);
        assert_eq!(studio.count_checkpoints(&job), saved + 1);
    }
}
