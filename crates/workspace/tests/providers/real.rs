//! The real server as the local provider.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sandbar_workspace::provider::{CreateRequest, Resources};
use tempfile::TempDir;

use crate::support::{BlackHole, Placement, local, local_at, request, service, told};

const READY: Duration = Duration::from_secs(60);

/// A `sandbar up` in a directory of its own.
struct Server {
    url: String,
    key: String,
    pid: u32,
    /// Owns the process: it is tied to the life of the thread that started it.
    owner: Option<JoinHandle<()>>,
    _data: TempDir,
}

impl Server {
    fn start() -> Self {
        let data = tempfile::Builder::new().prefix("sandbar-workspace-").tempdir().expect("a temporary directory");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM"]).arg(program()).args(["up", "--listen", "127.0.0.1:0", "--ephemeral"]);
        command.arg("--data").arg(data.path()).stdin(Stdio::null()).stdout(Stdio::piped());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("E2B_") || name.starts_with("SANDBAR_")) {
            command.env_remove(name);
        }
        command.env("SANDBAR_LOG", "warn").env("XDG_CONFIG_HOME", data.path().join("none"));
        let (ready, started) = mpsc::channel();
        let owner = std::thread::spawn(move || {
            let mut child = command.spawn().expect("the server starts");
            let lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
            let mut key = None;
            for line in lines.map_while(Result::ok) {
                if let Some(value) = line.strip_prefix("export E2B_API_KEY=") {
                    key = Some(value.to_owned());
                }
                if let (Some(url), Some(key)) = (line.strip_prefix("ready: "), &key) {
                    let _ = ready.send((child.id(), url.to_owned(), key.clone()));
                }
            }
            let _ = child.wait();
        });
        let (pid, url, key) = started.recv_timeout(READY).expect("the server becomes ready");
        Self { url, key, pid, owner: Some(owner), _data: data }
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

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_service_is_left_for_this_machine() {
    let server = Server::start();
    let hole = BlackHole::open();
    let placement =
        Placement::new(vec![service("managed", &hole.url()), local()], &local_at(&server.url, &server.key)).await;
    let sizes = Resources { cpu_count: Some(1), memory_mb: Some(512), disk_mb: Some(1024) };
    let started = Instant::now();
    let wanted = CreateRequest { resources: sizes, ..request() };
    let placed = placement.orchestrator.create(&wanted).await.expect("this machine takes it");
    let took = started.elapsed();

    let (provider, skipped) = told(&placed);
    assert_eq!((provider.as_str(), skipped.len()), ("local", 1));
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert_eq!((placed.size.cpu_count, placed.size.memory_mb, placed.size.disk_mb), (1, 512, 1024));
    let output = placed.sandbox.commands().run("echo $TOKEN").await.expect("it runs");
    assert_eq!(output.stdout_text(), "hidden\n");

    let huge = Resources { cpu_count: Some(10_000), ..Resources::default() };
    let wanted = CreateRequest { resources: huge, provider: Some(placed.provider.clone()), ..request() };
    let said = placement.orchestrator.create(&wanted).await.expect_err("no machine has them").to_string();
    assert!(said.contains("provider local cannot give cpu_count = 10000: it takes 1 to"), "{said}");
    placed.sandbox.kill().await.expect("it ends");
}
