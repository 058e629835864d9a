//! The server of this machine as a provider of workspaces: the one that runs, or one that is
//! started.
//!
//! A server that was started here goes on when this program ends, as one that a person started
//! would. Where `sandbar up` was run, by a person or a supervisor, none is started: a command waits
//! for that one.

use crate::config::{self, Config};
use crate::data::{self, Expected, Found, ServerNote};
use async_trait::async_trait;
use sdk::Secret;
use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use workspace::provider::{LocalEndpoint, LocalServer, NoLocalServer};

/// From the start of the process to a server that serves: the first one makes its pool of disks.
const PATIENCE: Duration = Duration::from_secs(60);
/// For a server that was started by `sandbar up`, and that its supervisor or a person starts again.
const EXPECTED_TIMEOUT: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Of what a server said before it gave up.
const LAST_WORDS: usize = 400;

/// Finds or starts the server that a configuration describes.
#[derive(Debug, Clone)]
pub(crate) struct LocalStarter {
    /// This very program.
    program: PathBuf,
    data: PathBuf,
    listen: std::net::SocketAddr,
    /// The configuration file, when one was named.
    file: Option<PathBuf>,
    /// Where a server that is started here writes what it has to say.
    log: PathBuf,
}

impl LocalStarter {
    pub(crate) fn new(config: &Config, file: Option<&Path>) -> anyhow::Result<Self> {
        Ok(Self {
            program: std::env::current_exe()?,
            data: config.data.clone(),
            listen: config.listen,
            file: file.map(Path::to_owned),
            log: config::workspaces_directory()?.join("server.log"),
        })
    }

    fn find_or_start(&self) -> Result<LocalEndpoint, NoLocalServer> {
        let mut started: Option<Child> = None;
        let mut told = false;
        let deadline = Instant::now() + PATIENCE;
        let expected_by = Instant::now() + EXPECTED_TIMEOUT;
        loop {
            match data::find_server(&self.data) {
                Ok(Found::Serving(ServerNote { url, api_key, .. })) => {
                    return Ok(LocalEndpoint { url, api_key: Secret::from(api_key) });
                }
                Ok(Found::Busy) => {}
                Ok(Found::Nobody | Found::Dead { .. }) => match (&mut started, data::expected_server(&self.data)) {
                    // One with other flags would keep it from coming back.
                    (None, Some(Expected { command })) => {
                        let seconds = EXPECTED_TIMEOUT.as_secs();
                        if Instant::now() >= expected_by {
                            return Err(NoLocalServer(format!(
                                "the server of {} does not run, and did not come back within {seconds} seconds; start it \
                                 with `{command}`. `sandbar down --data {0}` ends its sandboxes and forgets it: then one \
                                 is started when it is needed",
                                self.data.display()
                            )));
                        }
                        if !std::mem::replace(&mut told, true) {
                            eprintln!(
                                "sandbar: the server of {} does not run; waiting up to {seconds} seconds for it (`{command}`)",
                                self.data.display()
                            );
                        }
                    }
                    (None, None) => started = Some(self.start().map_err(|error| self.cannot(&error.to_string()))?),
                    (Some(child), _) => self.still_starts(child)?,
                },
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    let whose = format!("{} belongs to another user", self.data.display());
                    return Err(NoLocalServer(format!("{whose}; run this as the user of `sandbar up` (sudo)")));
                }
                Err(error) => return Err(self.cannot(&error.to_string())),
            }
            if Instant::now() >= deadline {
                return Err(self.cannot(&format!("it does not serve after {} seconds", PATIENCE.as_secs())));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn start(&self) -> io::Result<Child> {
        if let Some(directory) = self.log.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let log = File::options().create(true).write(true).truncate(true).mode(0o600).open(&self.log)?;
        // Where another program has the usual address, any will do: the data directory tells which it is.
        let listen = match TcpListener::bind(self.listen) {
            Ok(_) => self.listen.to_string(),
            Err(_) => "127.0.0.1:0".to_owned(),
        };
        let mut command = Command::new(&self.program);
        command.args(["up", "--on-demand", "--listen", &listen, "--data"]).arg(&self.data);
        if let Some(file) = &self.file {
            command.arg("--config").arg(file);
        }
        // What it prints first is the key.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        // Out of reach of this terminal's Ctrl-C.
        command.process_group(0).spawn()
    }

    /// A server that ended while nobody serves did not start. One that lost a race to another has ended too, but then the
    /// other one is found at the next look.
    fn still_starts(&self, child: &mut Child) -> Result<(), NoLocalServer> {
        match child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(_)) if matches!(data::find_server(&self.data), Ok(Found::Busy | Found::Serving(_))) => Ok(()),
            Ok(Some(status)) => {
                let said = fs::read_to_string(&self.log).unwrap_or_default();
                let from = said.len().saturating_sub(LAST_WORDS);
                let last = said.get(said.ceil_char_boundary(from)..).unwrap_or_default().trim();
                Err(self.cannot(&format!("it ended with {status}: {last}")))
            }
            Err(error) => Err(self.cannot(&error.to_string())),
        }
    }

    fn cannot(&self, why: &str) -> NoLocalServer {
        NoLocalServer(format!("cannot start the server of {}: {why}", self.data.display()))
    }
}

#[async_trait]
impl LocalServer for LocalStarter {
    async fn endpoint(&self) -> Result<LocalEndpoint, NoLocalServer> {
        let starter = self.clone();
        let found = tokio::task::spawn_blocking(move || starter.find_or_start()).await;
        found.unwrap_or_else(|error| Err(self.cannot(&error.to_string())))
    }
}

/// The server that runs, for those who only look: none is started.
#[derive(Debug, Clone)]
pub(crate) struct LocalFinder {
    data: PathBuf,
}

impl LocalFinder {
    pub(crate) fn new(config: &Config) -> Self {
        Self { data: config.data.clone() }
    }
}

#[async_trait]
impl LocalServer for LocalFinder {
    async fn endpoint(&self) -> Result<LocalEndpoint, NoLocalServer> {
        match data::find_server(&self.data) {
            Ok(Found::Serving(ServerNote { url, api_key, .. })) => {
                Ok(LocalEndpoint { url, api_key: Secret::from(api_key) })
            }
            Ok(_) => Err(NoLocalServer(format!("no server runs in {}", self.data.display()))),
            Err(error) => Err(NoLocalServer(format!("cannot look into {}: {error}", self.data.display()))),
        }
    }
}

/// This very process, for what runs inside the server: it looks for no other, and starts none.
#[derive(Debug, Clone)]
pub(crate) struct Ourselves(pub(crate) LocalEndpoint);

#[async_trait]
impl LocalServer for Ourselves {
    async fn endpoint(&self) -> Result<LocalEndpoint, NoLocalServer> {
        Ok(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testing::program;

    fn starter(directory: &Path, program: PathBuf) -> LocalStarter {
        LocalStarter {
            program,
            data: directory.join("data"),
            listen: std::net::SocketAddr::from(([127, 0, 0, 1], 0)),
            file: None,
            log: directory.join("logs/server.log"),
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn many_ask_and_one_server_serves_them_all() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let starter = starter(directory.path(), program());
        let asked = futures::future::join_all((0..4).map(|_| starter.endpoint())).await;
        let again = starter.endpoint().await.expect("it runs");
        let down = Command::new(program()).args(["down", "--data"]).arg(&starter.data).output().expect("it runs");
        for endpoint in asked {
            assert_eq!(endpoint.expect("one starts"), again);
        }
        assert!(down.status.success(), "{down:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_server_that_cannot_start_is_told_with_its_last_words() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let starter = starter(directory.path(), program());
        fs::create_dir(&starter.data).expect("a directory");
        fs::write(starter.data.join("somebody's"), "work").expect("a file");
        let said = starter.endpoint().await.expect_err("it is somebody else's directory").to_string();
        assert!(said.contains("cannot start the server of") && said.contains("holds other things already"), "{said}");

        let absent = LocalStarter { program: "/nonexistent".into(), data: directory.path().join("new"), ..starter };
        assert!(absent.endpoint().await.is_err());
    }
}
