//! A real `sandbar up` in a temporary directory, shared by all tests that run at the same time; a real S3 server; and trees
//! of files that are compared without the code under test.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use sandbar_workspace::snapshot::{Objects, ProjectId, Settings, Snapshots};
use sdk::{Client, Create, Sandbox};
use tempfile::TempDir;

const READY: Duration = Duration::from_secs(60);

pub(crate) struct Server {
    /// `127.0.0.1:PORT`.
    pub(crate) address: String,
    pub(crate) key: String,
    pid: u32,
    /// Owns the process: it is tied to the life of the thread that started it.
    owner: Option<JoinHandle<()>>,
    _data: TempDir,
}

impl Server {
    /// The server of all tests that run now.
    pub(crate) fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = shared.upgrade() {
            return running;
        }
        let started = Arc::new(Self::start());
        *shared = Arc::downgrade(&started);
        started
    }

    fn start() -> Self {
        let data = tempfile::Builder::new().prefix("sandbar-workspace-").tempdir().expect("a temporary directory");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM"]).arg(program()).args(["up", "--listen", "127.0.0.1:0", "--ephemeral"]);
        command.arg("--data").arg(data.path()).stdin(Stdio::null()).stdout(Stdio::piped());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("E2B_") || name.starts_with("SANDBAR_")) {
            command.env_remove(name);
        }
        command.env("SANDBAR_LOG", std::env::var("SANDBAR_LOG").unwrap_or_else(|_| "warn".to_owned()));
        let (ready, started) = mpsc::channel();
        let owner = std::thread::spawn(move || {
            let mut child = command.spawn().expect("the server starts");
            let lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
            let mut key = None;
            for line in lines.map_while(Result::ok) {
                if let Some(value) = line.strip_prefix("export E2B_API_KEY=") {
                    key = Some(value.to_owned());
                }
                if let (Some(address), Some(key)) = (line.strip_prefix("ready: http://"), &key) {
                    let _ = ready.send((child.id(), address.to_owned(), key.clone()));
                }
            }
            let _ = child.wait();
        });
        let (pid, address, key) = started.recv_timeout(READY).expect("the server becomes ready");
        Self { address, key, pid, owner: Some(owner), _data: data }
    }

    pub(crate) fn client(&self) -> Client {
        client(&self.address, &self.key)
    }

    /// A sandbox that lives for ten minutes, or as long as the server.
    pub(crate) async fn sandbox(&self) -> Sandbox {
        let create = Create::template("base").timeout(Duration::from_secs(600));
        self.client().create(create).await.expect("a sandbox")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.pid.to_string()]).status();
        if let Some(owner) = self.owner.take() {
            let _ = owner.join();
        }
    }
}

pub(crate) fn client(address: &str, key: &str) -> Client {
    let url = format!("http://{address}");
    let builder = Client::builder().ignore_environment().api_key(key).api_url(&url).sandbox_url(&url);
    builder.build().expect("valid options")
}

/// The program of this build, made when it is missing.
fn program() -> PathBuf {
    let tests = std::env::current_exe().expect("the test has a path");
    let built = tests.ancestors().nth(2).expect("tests are two levels below the target directory").join("sandbar");
    if !built.exists() {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let made = Command::new(cargo).args(["build", "-p", "sandbar"]).status().expect("cargo runs");
        assert!(made.success() && built.exists(), "no {} to test against", built.display());
    }
    built
}

/// Snapshots that are tried again at once.
pub(crate) fn snapshots(objects: Objects) -> Snapshots {
    Snapshots::new(objects).with(Settings { backoff: Duration::from_millis(10), ..Settings::default() })
}

pub(crate) fn project(name: &str) -> ProjectId {
    name.parse().expect("a project's id")
}

/// Runs a line as root, which must succeed.
pub(crate) async fn run(sandbox: &Sandbox, line: &str) -> String {
    let command = sdk::Command::exec("/bin/bash", ["-c", line]).user("root").cwd("/home/user");
    let output = sandbox.commands().run(command).await.expect("the sandbox answers");
    assert!(output.success(), "{line}\n{}{}", output.stdout_text(), output.stderr_text());
    output.stdout_text().into_owned()
}

async fn python(sandbox: &Sandbox, text: &str) -> String {
    let command = sdk::Command::exec("python3", ["-c", text]).user("root").cwd("/home/user");
    let output = sandbox.commands().run(command).await.expect("the sandbox answers");
    assert!(output.success(), "{}", output.stderr_text());
    output.stdout_text().into_owned()
}

/// Everything about every file below the home directory, one line each.
pub(crate) async fn tree(sandbox: &Sandbox) -> Vec<String> {
    let text = python(sandbox, include_str!("tree.py")).await;
    text.lines().map(str::to_owned).collect()
}

/// Makes a tree with everything that is hard to keep.
pub(crate) async fn make_hostile_tree(sandbox: &Sandbox) {
    python(sandbox, include_str!("hostile.py")).await;
}

#[track_caller]
pub(crate) fn assert_same(found: &[String], wanted: &[String]) {
    let differing = |a: &[String], b: &[String]| a.iter().filter(|line| !b.contains(line)).cloned().collect::<Vec<_>>();
    assert!(
        found == wanted,
        "the trees differ; missing:\n{}\ntoo much:\n{}",
        differing(wanted, found).join("\n"),
        differing(found, wanted).join("\n")
    );
}
