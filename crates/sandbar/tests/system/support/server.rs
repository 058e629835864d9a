//! A real `sandbar up` in a temporary directory. Dropped, it leaves nothing behind, also when the test failed.

use super::http::{self, Reply};
use super::sandbox::Sandbox;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_sandbar");

pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    pub(crate) key: String,
    data: TempDir,
    arguments: Vec<String>,
    umask: &'static str,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with more flags for `sandbar up`.
    pub(crate) fn with(arguments: &[&str]) -> Self {
        Self::new(arguments, "022")
    }

    /// Starts a server as a careful administrator's shell would.
    pub(crate) fn under_umask(umask: &'static str) -> Self {
        Self::new(&[], umask)
    }

    fn new(arguments: &[&str], umask: &'static str) -> Self {
        let data = tempfile::Builder::new().prefix("sandbar-test-").tempdir().expect("a temporary directory");
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let (child, address, key) = launch(data.path(), &arguments, umask);
        Self { child, address, key, data, arguments, umask }
    }

    pub(crate) fn data(&self) -> &Path {
        self.data.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.data.path().join(name)
    }

    /// Ends the server as a crash would, without a chance to clean up.
    pub(crate) fn kill_9(&mut self) {
        self.child.kill().expect("the server is ours");
        self.child.wait().expect("the server has ended");
    }

    /// Ends the server politely; sandboxes stay.
    pub(crate) fn stop(&mut self) {
        self.end_by("TERM");
    }

    pub(crate) fn end_by(&mut self, name: &str) {
        signal(self.child.id(), name);
        super::eventually("the server ends", Duration::from_secs(30), || {
            self.child.try_wait().expect("the server is ours")
        });
    }

    /// Starts a server on the same data directory again.
    pub(crate) fn start_again(&mut self) {
        let (child, address, key) = launch(self.data.path(), &self.arguments, self.umask);
        (self.child, self.address, self.key) = (child, address, key);
    }

    /// A control-plane call with the key.
    pub(crate) fn call(&self, method: &str, path: &str, body: Option<Value>) -> Reply {
        self.try_call(method, path, body).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    pub(crate) fn try_call(&self, method: &str, path: &str, body: Option<Value>) -> std::io::Result<Reply> {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let headers = [("X-API-Key", self.key.as_str()), ("Content-Type", "application/json")];
        http::request(&self.address, method, path, &headers, body.as_bytes())
    }

    #[track_caller]
    pub(crate) fn create(&self) -> Sandbox {
        self.create_with(serde_json::json!({ "templateID": "base" }))
    }

    #[track_caller]
    pub(crate) fn create_with(&self, body: Value) -> Sandbox {
        let reply = self.call("POST", "/v2/sandboxes", Some(body));
        assert_eq!(reply.status, 201, "{}", reply.text());
        let answer = reply.json();
        let text = |key: &str| answer[key].as_str().unwrap_or_else(|| panic!("{key} in {answer}")).to_owned();
        Sandbox::new(&self.address, text("sandboxID"), text("envdAccessToken"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // `down` ends a running server as well as what a killed one left.
        let done = Command::new(PROGRAM).args(["down", "--data"]).arg(self.data.path()).output();
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Ok(done) = done
            && !done.status.success()
            && !std::thread::panicking()
        {
            panic!("sandbar down failed: {}", String::from_utf8_lossy(&done.stderr));
        }
    }
}

fn launch(data: &Path, arguments: &[String], umask: &str) -> (Child, String, String) {
    let mut child = Command::new("/bin/bash")
        .args(["-c", "umask \"$0\"; exec \"$@\"", umask, PROGRAM])
        .args(["up", "--listen", "127.0.0.1:0", "--data"])
        .arg(data)
        .args(arguments)
        .env("SANDBAR_LOG", std::env::var("SANDBAR_LOG").unwrap_or_else(|_| "warn".to_owned()))
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
    let (mut key, started) = (None, Instant::now());
    loop {
        let line = match lines.next() {
            Some(line) => line.expect("the server's lines are text"),
            None => panic!("the server ended before it was ready: {:?}", child.wait()),
        };
        if let Some(value) = line.strip_prefix("export E2B_API_KEY=") {
            key = Some(value.to_owned());
        }
        if let Some(address) = line.strip_prefix("ready: http://") {
            assert!(started.elapsed() < Duration::from_secs(30), "ready only after {:?}", started.elapsed());
            return (child, address.to_owned(), key.expect("the key is printed before ready"));
        }
    }
}

pub(crate) fn signal(pid: u32, name: &str) {
    let done = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status().expect("kill runs");
    assert!(done.success(), "kill -{name} {pid}");
}
