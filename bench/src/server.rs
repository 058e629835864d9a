//! Starts the server under measurement on a free port, with its own data directory, and stops it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tempfile::TempDir;

use crate::http::{self, Connection};

const START_DEADLINE: Duration = Duration::from_secs(120);
const STOP_DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct Server {
    child: Child,
    data: TempDir,
    pub(crate) address: SocketAddr,
    pub(crate) key: String,
    /// The token of the studio's first user; `None` if the server has no studio.
    pub(crate) token: Option<String>,
}

/// Address and credentials of a started server.
struct StartInfo {
    address: SocketAddr,
    key: String,
    token: Option<String>,
}

/// The value of a variable that a line exports.
fn exported(line: &str, name: &str) -> Option<String> {
    let (_, value) = line.split_once(&format!("{name}="))?;
    value.split_whitespace().next().map(|value| value.trim_matches(['"', '\'']).to_owned())
}

impl Server {
    /// Starts `sandbar up --ephemeral` and waits until it prints that it is ready. Its studio runs
    /// no builds: a build would affect every measurement.
    pub(crate) fn start(program: &Path, data: Option<&Path>) -> anyhow::Result<Self> {
        let data = match data {
            Some(parent) => TempDir::with_prefix_in("sandbar-bench-", parent),
            None => TempDir::with_prefix("sandbar-bench-"),
        }
        .context("cannot make a data directory")?;
        let mut command = Command::new(program);
        command.args(["up", "--listen", "127.0.0.1:0", "--ephemeral", "--builds", "0", "--data"]).arg(data.path());
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("E2B_") || name.starts_with("SANDBAR_") {
                command.env_remove(&*name);
            }
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        match Self::wait_until_ready(&mut child, program, data.path()) {
            Ok(StartInfo { address, key, token }) => Ok(Self { child, data, address, key, token }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error.context("the server did not become ready; `sandbar up` tells why"))
            }
        }
    }

    fn wait_until_ready(child: &mut Child, program: &Path, data: &Path) -> anyhow::Result<StartInfo> {
        let output = child.stdout.take().context("the server has no output")?;
        let (send, lines) = mpsc::channel();
        // Reads on after the ready line: a full pipe would block the server. Ends with the server's
        // output.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        let end = Instant::now() + START_DEADLINE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = lines.recv_timeout(left).context("no line `ready: …`")?;
            if let Some(url) = line.strip_prefix("ready: ") {
                let printed = Command::new(program).args(["env", "--data"]).arg(data).output();
                let printed = String::from_utf8(printed.context("cannot run `sandbar env`")?.stdout)?;
                let find = |name: &str| printed.lines().find_map(|line| exported(line, name));
                let key = find("E2B_API_KEY").context("`sandbar env` prints no E2B_API_KEY")?;
                return Ok(StartInfo { address: http::address(url.trim())?, key, token: find("SANDBAR_TOKEN") });
            }
        }
    }

    pub(crate) fn connect(&self) -> anyhow::Result<Connection> {
        Connection::open(self.address)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A directory on the file system of the sandboxes' files, and its description.
    ///
    /// The pool is mounted in the server's own mount namespace, which root sees in
    /// `/proc/PID/root`.
    pub(crate) fn pool_directory(&self) -> (PathBuf, &'static str) {
        let inside = self.data.path().join("pool");
        let relative = inside.strip_prefix("/").unwrap_or(&inside);
        let seen = PathBuf::from(format!("/proc/{}/root", self.pid())).join(relative);
        let probe = seen.join(".sandbar-bench-probe");
        if std::fs::create_dir(&probe).is_ok() {
            let _ = std::fs::remove_dir(&probe);
            return (seen, "the pool's file system");
        }
        (self.data.path().to_owned(), "the data directory's file system (the pool was not reachable)")
    }

    /// Stops the server, which kills every sandbox.
    pub(crate) fn close(mut self) -> anyhow::Result<()> {
        let pid = self.child.id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status().context("cannot signal the server")?;
        let end = Instant::now() + STOP_DEADLINE;
        while Instant::now() < end {
            if self.child.try_wait()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("the server did not end within {} s of SIGTERM", STOP_DEADLINE.as_secs())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Without effect after `close`; on an error they end the server.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
