//! The server of this machine as a provider of workspaces: finds the running one, or starts one.
//!
//! A server that is started here keeps running when this program exits. In a directory where a user
//! or a supervisor ran `sandbar up`, none is started: the command waits for that server.

use crate::config::{self, Config};
use async_trait::async_trait;
use data_directory::{Expected, FoundServer, ServerNote};
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

/// From the start of the process until the server is ready. The first start creates the pool.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// For an expected server, which a supervisor or a user starts again.
const EXPECTED_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Bytes at the end of the server's log that an error quotes.
const LOG_EXCERPT_BYTES: usize = 400;

/// Finds or starts the server that a configuration describes.
#[derive(Debug, Clone)]
pub(crate) struct LocalStarter {
    /// The executable of this program.
    program: PathBuf,
    data: PathBuf,
    listen: std::net::SocketAddr,
    /// The configuration file, if one was named.
    file: Option<PathBuf>,
    /// Standard error of a server that is started here.
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
        let mut announced = false;
        let deadline = Instant::now() + START_TIMEOUT;
        let expected_by = Instant::now() + EXPECTED_TIMEOUT;
        loop {
            match data_directory::find_server(&self.data) {
                Ok(FoundServer::Serving(ServerNote { url, api_key, .. })) => {
                    return Ok(LocalEndpoint { url, api_key: Secret::from(api_key) });
                }
                Ok(FoundServer::Busy) => {}
                Ok(FoundServer::Absent | FoundServer::Dead { .. }) => {
                    match (&mut started, data_directory::expected_server(&self.data)) {
                        // A server with other flags would have the lock when the expected one
                        // starts.
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
                            if !std::mem::replace(&mut announced, true) {
                                eprintln!(
                                    "sandbar: the server of {} does not run; waiting up to {seconds} seconds for it (`{command}`)",
                                    self.data.display()
                                );
                            }
                        }
                        (None, None) => {
                            started = Some(self.start().map_err(|error| self.start_error(&error.to_string()))?);
                        }
                        (Some(child), _) => self.check_still_starting(child)?,
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    let whose = format!("{} belongs to another user", self.data.display());
                    return Err(NoLocalServer(format!("{whose}; run this as the user of `sandbar up` (sudo)")));
                }
                Err(error) => return Err(self.start_error(&error.to_string())),
            }
            if Instant::now() >= deadline {
                return Err(self.start_error(&format!("it does not serve after {} seconds", START_TIMEOUT.as_secs())));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn start(&self) -> io::Result<Child> {
        if let Some(directory) = self.log.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let log = File::options().create(true).write(true).truncate(true).mode(0o600).open(&self.log)?;
        // If another program uses the configured address, a free port is taken; clients read the
        // address in the data directory.
        let listen = match TcpListener::bind(self.listen) {
            Ok(_) => self.listen.to_string(),
            Err(_) => "127.0.0.1:0".to_owned(),
        };
        let mut command = Command::new(&self.program);
        command.args(["up", "--on-demand", "--listen", &listen, "--data"]).arg(&self.data);
        if let Some(file) = &self.file {
            command.arg("--config").arg(file);
        }
        // Its output begins with the key, so it is discarded.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        // In its own process group, so that Ctrl-C in this terminal does not reach it.
        command.process_group(0).spawn()
    }

    /// Fails when the started server has exited and no other server has the directory. A server
    /// that lost the race for the lock has exited too; then the next poll finds the winner.
    fn check_still_starting(&self, child: &mut Child) -> Result<(), NoLocalServer> {
        match child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(_))
                if matches!(
                    data_directory::find_server(&self.data),
                    Ok(FoundServer::Busy | FoundServer::Serving(_))
                ) =>
            {
                Ok(())
            }
            Ok(Some(status)) => {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                let from = log.len().saturating_sub(LOG_EXCERPT_BYTES);
                let last = log.get(log.ceil_char_boundary(from)..).unwrap_or_default().trim();
                Err(self.start_error(&format!("it ended with {status}: {last}")))
            }
            Err(error) => Err(self.start_error(&error.to_string())),
        }
    }

    fn start_error(&self, why: &str) -> NoLocalServer {
        NoLocalServer(format!("cannot start the server of {}: {why}", self.data.display()))
    }
}

#[async_trait]
impl LocalServer for LocalStarter {
    async fn endpoint(&self) -> Result<LocalEndpoint, NoLocalServer> {
        let starter = self.clone();
        let found = tokio::task::spawn_blocking(move || starter.find_or_start()).await;
        found.unwrap_or_else(|error| Err(self.start_error(&error.to_string())))
    }
}

/// Finds the running server and never starts one.
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
        match data_directory::find_server(&self.data) {
            Ok(FoundServer::Serving(ServerNote { url, api_key, .. })) => {
                Ok(LocalEndpoint { url, api_key: Secret::from(api_key) })
            }
            Ok(_) => Err(NoLocalServer(format!("no server runs in {}", self.data.display()))),
            Err(error) => Err(NoLocalServer(format!("cannot look into {}: {error}", self.data.display()))),
        }
    }
}

/// The server that runs in this process. Finds and starts no other.
#[derive(Debug, Clone)]
pub(crate) struct OwnEndpoint(pub(crate) LocalEndpoint);

#[async_trait]
impl LocalServer for OwnEndpoint {
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
    async fn concurrent_callers_start_one_server() {
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
    async fn a_failed_start_reports_the_end_of_the_log() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let starter = starter(directory.path(), program());
        fs::create_dir(&starter.data).expect("a directory");
        fs::write(starter.data.join("somebody's"), "work").expect("a file");
        let message = starter.endpoint().await.expect_err("it is another user's directory").to_string();
        assert!(
            message.contains("cannot start the server of") && message.contains("holds other things already"),
            "{message}"
        );

        let absent = LocalStarter { program: "/nonexistent".into(), data: directory.path().join("new"), ..starter };
        assert!(absent.endpoint().await.is_err());
    }
}
