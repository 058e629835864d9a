//! A real `sandbar up` in a temporary directory.

use std::io::{BufRead, BufReader, PipeReader, pipe};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use tempfile::TempDir;

use crate::{Tied, User, program, without_settings};

/// An ordinary user's first start copies a part of the host's directories.
const READY_TIMEOUT: Duration = Duration::from_secs(180);

/// Sets the umask, enters the cgroups before `--`, and executes the command after it.
const PREPARE_SCRIPT: &str =
    r#"umask "$0"; while [ "$1" != -- ]; do echo 0 >"$1/cgroup.procs" || exit; shift; done; shift; exec "$@""#;

/// How a server is started.
#[derive(Debug, Clone, Copy)]
pub struct ServerLaunch<'a> {
    pub program: &'a Path,
    pub data: &'a Path,
    /// More flags for `sandbar up`.
    pub arguments: &'a [&'a str],
    pub umask: &'a str,
    /// The user of the server, if not the user who runs the tests. Requires root.
    pub user: Option<User>,
}

/// A server that has reported that it is ready; terminated by SIGTERM when dropped.
#[derive(Debug)]
pub struct RunningServer {
    /// `127.0.0.1:PORT`.
    pub address: String,
    pub key: String,
    process: Tied,
    log: Arc<Mutex<Vec<String>>>,
}

impl RunningServer {
    /// Starts a server and waits until it is ready. The server does not see the caller's
    /// configuration.
    #[track_caller]
    pub fn launch(launch: ServerLaunch<'_>) -> Self {
        Self::launch_at("127.0.0.1:0", launch)
    }

    /// As [`RunningServer::launch`], at a given address: a restarted server keeps its address.
    #[track_caller]
    pub fn launch_at(listen: &str, launch: ServerLaunch<'_>) -> Self {
        Self::begin(listen, &[], launch)
    }

    /// As [`RunningServer::launch`], in other cgroups than those of the test program.
    /// Requires root.
    #[track_caller]
    pub fn launch_in(cgroups: &[PathBuf], launch: ServerLaunch<'_>) -> Self {
        Self::begin("127.0.0.1:0", cgroups, launch)
    }

    #[track_caller]
    fn begin(listen: &str, cgroups: &[PathBuf], launch: ServerLaunch<'_>) -> Self {
        let ServerLaunch { program, data, arguments, umask, user } = launch;
        let tied = Tied::command("TERM", program);
        let mut command = Command::new("/bin/sh");
        command.args(["-c", PREPARE_SCRIPT, umask]).args(cgroups).arg("--").arg(tied.get_program());
        command.args(user.map(User::flags).into_iter().flatten()).args(tied.get_args());
        command.args(["up", "--listen", listen, "--data"]).arg(data).args(arguments);
        without_settings(&mut command)
            .env("SANDBAR_LOG", std::env::var("SANDBAR_LOG").unwrap_or_else(|_| "warn".to_owned()));
        // A server maintains the workspaces of the user who starts it; those of the user who runs
        // the tests are not for it.
        command.env("XDG_CONFIG_HOME", data.join("none")).env("XDG_DATA_HOME", data.join("none"));
        let (errors, stderr) = pipe().expect("a pipe");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let (process, output) = Tied::start(command, "TERM");
        let (ready, started) = mpsc::channel();
        std::thread::spawn(move || read(output.expect("stdout is piped"), &ready));
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let lines = Arc::clone(&log);
        std::thread::spawn(move || copy_log(errors, &lines));
        let address = match started.recv_timeout(READY_TIMEOUT) {
            Ok(address) => address,
            Err(error) => panic!("the server did not become ready: {error}"),
        };
        let key = exported(program, data, user, "E2B_API_KEY").expect("a server has a key");
        Self { address, key, process, log }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The lines that the server has logged so far.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().clone()
    }

    /// Sends the server a signal and waits until it has ended.
    #[track_caller]
    pub fn end_by(&mut self, signal: &str) {
        self.process.end_by(signal, Duration::from_secs(30));
    }

    /// Waits for the server to end by itself.
    #[track_caller]
    pub fn wait(&mut self, within: Duration) {
        self.process.wait(within);
    }
}

/// Reads to the end, so that the server never blocks on a full pipe.
fn read(output: ChildStdout, ready: &mpsc::Sender<String>) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        if let Some(address) = line.strip_prefix("ready: http://") {
            let _ = ready.send(address.to_owned());
        }
    }
}

/// Shows the server's log beside that of the tests, and keeps it.
fn copy_log(errors: PipeReader, lines: &Mutex<Vec<String>>) {
    for line in BufReader::new(errors).lines().map_while(Result::ok) {
        eprintln!("{line}");
        lines.lock().push(line);
    }
}

/// A variable of the server of `data`, as `sandbar env` prints it.
#[track_caller]
pub fn exported(program: &Path, data: &Path, user: Option<User>, name: &str) -> Option<String> {
    let mut command = match user {
        Some(user) => {
            let mut command = Command::new("setpriv");
            command.args(user.flags()).arg(program);
            command
        }
        None => Command::new(program),
    };
    without_settings(command.args(["env", "--data"]).arg(data));
    command.env("XDG_CONFIG_HOME", data.join("none")).env("XDG_DATA_HOME", data.join("none"));
    let printed = command.output().expect("the program runs");
    assert!(printed.status.success(), "sandbar env failed: {}", String::from_utf8_lossy(&printed.stderr));
    let prefix = format!("export {name}=");
    String::from_utf8_lossy(&printed.stdout).lines().find_map(|line| line.strip_prefix(&prefix)).map(str::to_owned)
}

/// An ephemeral server: its sandboxes end with it.
#[derive(Debug)]
pub struct Server {
    running: RunningServer,
    /// Last field: removed after the server has ended.
    data: TempDir,
}

impl Server {
    /// The server that all running tests with these flags share. It ends with the last of them.
    pub fn shared(arguments: &'static [&'static str]) -> Arc<Self> {
        static SHARED: Mutex<Vec<(&[&str], Weak<Server>)>> = Mutex::new(Vec::new());
        let mut shared = SHARED.lock();
        if let Some(running) = shared.iter().find(|(known, _)| *known == arguments).and_then(|(_, it)| it.upgrade()) {
            return running;
        }
        let started = Arc::new(Self::start(arguments));
        shared.retain(|(known, _)| *known != arguments);
        shared.push((arguments, Arc::downgrade(&started)));
        started
    }

    /// Starts a server for one test, with more flags for `sandbar up`.
    #[track_caller]
    pub fn start(arguments: &[&str]) -> Self {
        let data = tempfile::Builder::new().prefix("sandbar-test-").tempdir().expect("a temporary directory");
        let arguments = [&["--ephemeral"], arguments].concat();
        let launch =
            ServerLaunch { program: &program(), data: data.path(), arguments: &arguments, umask: "022", user: None };
        Self { running: RunningServer::launch(launch), data }
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> &str {
        &self.running.address
    }

    pub fn url(&self) -> String {
        self.running.url()
    }

    pub fn key(&self) -> &str {
        &self.running.key
    }

    /// The same server over TLS, for clients that trust [`Server::certificate`].
    pub fn https(&self) -> String {
        let port = self.address().rsplit(':').next().expect("an address has a port");
        format!("https://localhost:{port}")
    }

    /// The certificate of the authority that signs for the server's host names, in PEM.
    pub fn certificate(&self) -> Vec<u8> {
        std::fs::read(self.data.path().join("authority/hosts/certificate.pem")).expect("a server has one")
    }

    pub fn pid(&self) -> u32 {
        self.running.pid()
    }
}

#[cfg(feature = "client")]
pub(crate) mod client {
    use std::time::Duration;

    use sdk::{Client, ClientBuilder, Create, Sandbox};

    use super::Server;

    /// A client of the server at `address`, which another process started.
    pub fn client(address: &str, key: &str) -> ClientBuilder {
        let url = format!("http://{address}");
        Client::builder().ignore_environment().api_key(key).api_url(&url).sandbox_url(&url)
    }

    impl Server {
        pub fn client(&self) -> Client {
            self.builder(self.address()).build().expect("valid options")
        }

        /// A client of a proxy at `address` that forwards to this server.
        pub fn builder(&self, address: &str) -> ClientBuilder {
            client(address, self.key())
        }

        /// Creates a sandbox with a timeout of ten minutes; it ends with the server at the latest.
        pub async fn sandbox(&self) -> Sandbox {
            let create = Create::template("base").timeout(Duration::from_secs(600));
            self.client().create(create).await.expect("a sandbox")
        }
    }
}
