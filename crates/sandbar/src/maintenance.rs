//! Runs the maintenance of workspaces in this server: those of the user's records, and for orphans
//! those of the studio, whose worker maintains the rest.

use crate::config::{self, Config};
use crate::workspace::app::{DueScreenshots, WorkspaceApp};
use database::Unwritable;
use jiff::Timestamp;
use node::Node;
use parking_lot::Mutex;
use sdk::SandboxId;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::warn;
use workspace::provider::LocalEndpoint;
use workspace::{OwnServer, ProviderName, Workspaces};

/// Between two attempts to open the records.
const OPEN_BACKOFF: Duration = Duration::from_secs(10);
/// For tasks that are running when the server stops. The next server resumes what is aborted.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// The sandboxes of this server's node.
struct ThisServer(Arc<Node>);

impl OwnServer for ThisServer {
    fn is(&self, server_id: &str) -> bool {
        self.0.id().to_string() == server_id
    }

    fn has(&self, sandbox: &SandboxId) -> bool {
        sandbox.as_str().parse().is_ok_and(|id| self.0.get(&id).is_some())
    }
}

/// Whether the records of workspaces can be used, for `/ready`.
#[derive(Clone, Default)]
pub(crate) struct RecordsState(Arc<Mutex<State>>);

#[derive(Default)]
enum State {
    #[default]
    Opening,
    Unusable(Unwritable),
    Open(Workspaces),
}

impl RecordsState {
    fn set(&self, state: State) {
        *self.0.lock() = state;
    }

    /// Why records cannot be written; [`None`] while they can. Does no I/O.
    pub(crate) fn fault(&self) -> Option<Unwritable> {
        match &*self.0.lock() {
            State::Opening => None,
            State::Unusable(fault) => Some(fault.clone()),
            State::Open(workspaces) => workspaces.fault(),
        }
    }
}

/// The background task. [`MaintenanceTask::stop`] ends it.
pub(crate) struct MaintenanceTask {
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl MaintenanceTask {
    /// `own_endpoint` is the server that has `node`, `studio` the workspaces of the studio's jobs.
    /// Failures are logged and retried; the server keeps running.
    pub(crate) fn start(
        config: Config,
        own_endpoint: LocalEndpoint,
        node: Arc<Node>,
        studio: Option<Workspaces>,
        state: RecordsState,
    ) -> Self {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let server: Arc<dyn OwnServer> = Arc::new(ThisServer(node));
            let sweeping = async {
                if let Some(studio) = studio {
                    let _ = stopped.run_until_cancelled(studio.sweep_regularly(server.as_ref())).await;
                }
            };
            let maintaining = maintain(&config, &own_endpoint, Arc::clone(&server), &state, &stopped);
            tokio::join!(sweeping, maintaining);
        });
        Self { task, stop }
    }

    /// Starts no new task, waits up to [`STOP_TIMEOUT`] for running ones, then aborts them.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        if tokio::time::timeout(STOP_TIMEOUT, &mut self.task).await.is_err() {
            warn!("a workspace was still being looked after; the next server puts right what is left");
            self.task.abort();
        }
    }
}

async fn maintain(
    config: &Config,
    own_endpoint: &LocalEndpoint,
    server: Arc<dyn OwnServer>,
    state: &RecordsState,
    stop: &CancellationToken,
) {
    let Some((app, local)) = stop.run_until_cancelled(open(config, own_endpoint, state)).await else { return };
    state.set(State::Open(app.workspaces().clone()));
    // The application looks the same after a rotation: no screenshot is needed every hour.
    app.defer_screenshots();
    app.workspaces().maintain_all(server, local, stop).await;
    app.close(DueScreenshots::Skip).await;
}

/// Opens the records, with retries, and names the providers that are this machine.
async fn open(
    config: &Config,
    own_endpoint: &LocalEndpoint,
    state: &RecordsState,
) -> (WorkspaceApp, HashSet<ProviderName>) {
    let mut logged = None;
    loop {
        let opened = async {
            anyhow::Ok((WorkspaceApp::for_server(config, own_endpoint.clone()).await?, config.local_providers()?))
        };
        let error = match opened.await {
            Ok(opened) => return opened,
            Err(error) => format!("{error:#}"),
        };
        if logged.as_ref() != Some(&error) {
            warn!(error, "workspaces are not looked after: their records cannot be opened");
            let path = config::workspaces_directory().unwrap_or_else(|_| PathBuf::from(data_directory::WORKSPACES));
            state.set(State::Unusable(Unwritable { path, cause: error.clone(), since: Timestamp::now() }));
            logged = Some(error);
        }
        tokio::time::sleep(OPEN_BACKOFF).await;
    }
}
