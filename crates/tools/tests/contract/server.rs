//! A real `sandbar up` in a temporary directory, shared by all tests that run at the same time. When the last of them has
//! ended it is stopped; when the test program is killed it ends too.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use sdk::{Client, Create, Sandbox};
use tempfile::TempDir;

const READY: Duration = Duration::from_secs(60);

/// What the server offers beyond E2B's own protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extensions {
    On,
    Off,
}

pub(crate) struct Server {
    url: String,
    key: String,
    pid: u32,
    /// Owns the process: it is tied to the life of the thread that started it.
    owner: Option<JoinHandle<()>>,
    _data: TempDir,
}

impl Server {
    /// The server of all tests that run now.
    pub(crate) fn shared(extensions: Extensions) -> Arc<Self> {
        static SHARED: Mutex<[Weak<Server>; 2]> = Mutex::new([Weak::new(), Weak::new()]);
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let place = &mut shared[extensions as usize];
        if let Some(running) = place.upgrade() {
            return running;
        }
        let started = Arc::new(Self::start(extensions));
        *place = Arc::downgrade(&started);
        started
    }

    fn start(extensions: Extensions) -> Self {
        let data = tempfile::Builder::new().prefix("sandbar-tools-").tempdir().expect("a temporary directory");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM"]).arg(program()).args(["up", "--listen", "127.0.0.1:0", "--ephemeral"]);
        command.arg("--data").arg(data.path()).stdin(Stdio::null()).stdout(Stdio::piped());
        if extensions == Extensions::Off {
            command.arg("--no-extensions");
        }
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
                if let (Some(url), Some(key)) = (line.strip_prefix("ready: "), &key) {
                    let _ = ready.send((child.id(), url.to_owned(), key.clone()));
                }
            }
            let _ = child.wait();
        });
        let (pid, url, key) = started.recv_timeout(READY).expect("the server becomes ready");
        Self { url, key, pid, owner: Some(owner), _data: data }
    }

    pub(crate) fn client(&self) -> Client {
        let client = Client::builder().ignore_environment().api_key(self.key.as_str());
        client.api_url(&self.url).sandbox_url(&self.url).build().expect("valid options")
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
