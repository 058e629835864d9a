//! The sandbox that a build runs in. It is not listed and not recorded, so the next server removes
//! what is left of one whose server died.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use egress::{Policy, Rules};
use engine::{Boot, BootFiles, EngineError, FilesId, Machine, Resources};
use protocol::SandboxId;
use protocol::guest::GuestConfig;
use tokio::fs::File;
use tracing::warn;

use super::log::Splitter;
use super::runner::{Failed, Reporter};
use super::scripts::ARCHIVE;
use crate::guest_config;
use crate::guest_files;
use crate::guest_process::{self, Output, Script};
use crate::id::{Token, new_build_sandbox_id, new_files_id};
use crate::log::LogLevel;
use crate::start_command::{DEFAULT_USER, GuestAccess};
use crate::state::NodeState;

const MIB: u64 = 1 << 20;
/// The guest ends itself some time after this if no server does.
pub(super) const BUILD_TIMEOUT: Duration = Duration::from_secs(2 * 60 * 60);

/// Why a command of a build did not succeed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    #[error("the command failed: {0}")]
    Exited(String),
    /// It was not started, or its end is unknown.
    #[error("the command could not be run: {0}")]
    Lost(String),
}

impl From<CommandError> for Failed {
    fn from(error: CommandError) -> Self {
        Self::new(error.to_string())
    }
}

pub(super) struct BuildMachine {
    node_state: Arc<NodeState>,
    id: SandboxId,
    machine: Arc<dyn Machine>,
    token: Token,
}

impl BuildMachine {
    /// Boots a sandbox whose files are a copy of `files`, or the base without changes.
    pub(super) async fn boot(
        node_state: &Arc<NodeState>,
        files: Option<&FilesId>,
        resources: Resources,
    ) -> Result<Self, EngineError> {
        let (id, token) = (new_build_sandbox_id(), Token::random());
        let booted = async {
            if let Some(files) = files {
                node_state.engine.copy_files(files, &FilesId::from(&id)).await?;
            }
            let ends = crate::clock::after(node_state.clock.now(), BUILD_TIMEOUT);
            let guest = GuestConfig {
                sandbox_id: id.to_string(),
                access_token: Some(token.reveal().to_owned()),
                system_env: BTreeMap::from([("E2B_SANDBOX".to_owned(), "true".to_owned())]),
                default_user: DEFAULT_USER.to_owned(),
                lease_ends_unix_ms: u64::try_from(ends.as_millisecond()).ok(),
                memory_limit_bytes: u64::from(resources.memory_mb) * MIB,
                cpu_count: resources.cpu_count,
                disk_limit_bytes: u64::from(resources.disk_mb) * MIB,
                ..GuestConfig::default()
            };
            let boot_id = uuid::Uuid::new_v4().to_string();
            node_state
                .engine
                .boot(Boot {
                    id: id.clone(),
                    files: if files.is_some() { BootFiles::Open } else { BootFiles::Create },
                    resources,
                    egress: Policy::unheard(Rules::default()),
                    volumes: Vec::new(),
                    boot_id,
                    hostname: id.to_string(),
                    guest_config: guest_config::encode(&*node_state.engine, &id, guest).await?,
                })
                .await
        };
        match booted.await {
            Ok(machine) => Ok(Self { node_state: Arc::clone(node_state), id, machine, token }),
            Err(error) => {
                node_state.remove_unused(&[FilesId::from(&id)]).await;
                Err(error)
            }
        }
    }

    pub(super) fn guest(&self) -> GuestAccess<'_> {
        GuestAccess { socket: self.machine.guest_socket(), token: Some(&self.token) }
    }

    /// Writes an archive to the path where [`super::scripts::copy`] reads it.
    pub(super) async fn send_archive(&self, file: File) -> Result<(), Failed> {
        let sent = guest_files::put(self.guest(), ARCHIVE, file).await;
        sent.map_err(|error| Failed::new(format!("the files could not be sent into the sandbox: {error}")))
    }

    /// Runs `script` until it exits, which must be with code 0; its output goes to the log.
    pub(super) async fn run(&self, script: Script<'_>, reporter: &Reporter<'_>) -> Result<(), CommandError> {
        let lost = |error: &dyn std::fmt::Display| CommandError::Lost(error.to_string());
        let started = guest_process::start(self.guest().socket, Some(&self.token), script).await;
        let mut process = started.map_err(|error| lost(&error))?;
        let (mut stdout, mut stderr) = (Splitter::default(), Splitter::default());
        let log_stdout = |line: &str| reporter.write(LogLevel::Info, line);
        let log_stderr = |line: &str| reporter.write(LogLevel::Warn, line);
        while let Some(output) = process.next().await.map_err(|error| lost(&error))? {
            match output {
                Output::Stdout(bytes) => stdout.push(&bytes, log_stdout),
                Output::Stderr(bytes) => stderr.push(&bytes, log_stderr),
                Output::Ended { exit_code, status } => {
                    stdout.flush(log_stdout);
                    stderr.flush(log_stderr);
                    return if exit_code == 0 { Ok(()) } else { Err(CommandError::Exited(status)) };
                }
            }
        }
        Err(lost(&"the sandbox ended"))
    }

    /// Copies the current files under a new id.
    pub(super) async fn keep_files(&self) -> Result<FilesId, EngineError> {
        let files = new_files_id();
        self.machine.freeze().await?;
        let copied = self.node_state.engine.copy_files(&FilesId::from(&self.id), &files).await;
        self.machine.thaw().await?;
        copied.map(|()| files)
    }

    /// Kills the sandbox and removes its files.
    pub(super) async fn end(self) {
        if let Err(error) = self.machine.kill().await {
            warn!(%error, "the sandbox of a build may be left until the next start");
        }
        self.node_state.remove_unused(&[FilesId::from(&self.id)]).await;
    }
}
