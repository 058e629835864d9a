//! Maintains workspaces that no process has open. A process that has a workspace open maintains it
//! by itself; between two commands the sandbox would expire with all changes since the newest
//! checkpoint. So the server extends, rotates, pauses and saves every workspace of its records,
//! with any provider. It also pauses orphans, sandboxes that no record names, and ends them a day
//! later.
//!
//! Invariant: a workspace of this machine's provider is maintained only by the server that has its
//! sandbox. Another server of the same user, with another data directory, reads the same records,
//! would not find the sandbox and would treat it as lost.
//!
//! The studio's worker maintains the workspaces of its jobs. This module only sweeps the orphans of
//! the studio.

use crate::config::{self, Config};
use crate::workspace::app::{DueScreenshots, WorkspaceApp};
use database::Unwritable;
use jiff::Timestamp;
use node::Node;
use sdk::SandboxId;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use workspace::provider::LocalEndpoint;
use workspace::{
    Maintained, MaintenanceOutcome, OpenError, ProviderName, Sweeper, WorkspaceName, WorkspaceView, Workspaces,
};

/// Between two reads of the records.
const ROUND_INTERVAL: Duration = Duration::from_secs(5);
/// Between two sweeps for orphans.
const SWEEP_INTERVAL: Duration = Duration::from_secs(300);
/// Between two attempts to open the records.
const OPEN_BACKOFF: Duration = Duration::from_secs(10);
/// Workspaces that are maintained concurrently. Each may create a sandbox and move all files.
const MAX_CONCURRENT: usize = 4;
/// For tasks that are running when the server stops. The next server resumes what is aborted.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

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
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Why records cannot be written; [`None`] while they can. Does no I/O.
    pub(crate) fn fault(&self) -> Option<Unwritable> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
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
            let sweeping = async {
                if let Some(studio) = studio {
                    let _ = stopped.run_until_cancelled(sweep_regularly(studio, Arc::clone(&node))).await;
                }
            };
            let maintaining = maintain(config, own_endpoint, Arc::clone(&node), state, stopped.clone());
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
    config: Config,
    own_endpoint: LocalEndpoint,
    node: Arc<Node>,
    state: RecordsState,
    stop: CancellationToken,
) {
    let Some((app, local)) = stop.run_until_cancelled(open(&config, &own_endpoint, &state)).await else { return };
    state.set(State::Open(app.workspaces().clone()));
    // The application looks the same after a rotation: no screenshot is needed every hour.
    app.defer_screenshots();
    let mut rounds = Rounds {
        workspaces: app.workspaces().clone(),
        node,
        local,
        known: HashMap::new(),
        in_progress: HashMap::new(),
        tasks: JoinSet::new(),
        unreadable: false,
    };
    let mut sweeping = JoinSet::new();
    let (mut ticks, mut sweeps) = (tokio::time::interval(ROUND_INTERVAL), tokio::time::interval(SWEEP_INTERVAL));
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = ticks.tick() => rounds.start_due().await,
            _ = sweeps.tick(), if sweeping.is_empty() => {
                sweeping.spawn(sweep(rounds.workspaces.clone(), Arc::clone(&rounds.node)));
            }
            Some(_) = sweeping.join_next() => {}
            Some(done) = rounds.tasks.join_next_with_id() => rounds.finish(done),
        }
    }
    // The next sweep finds the orphans that this one has not ended.
    sweeping.shutdown().await;
    while let Some(done) = rounds.tasks.join_next_with_id().await {
        rounds.finish(done);
    }
    app.close(DueScreenshots::Skip).await;
}

/// Calls [`sweep`] at an interval until it is dropped. A sweep can be cancelled at any point.
async fn sweep_regularly(workspaces: Workspaces, node: Arc<Node>) {
    let mut sweeps = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        sweeps.tick().await;
        sweep(workspaces.clone(), Arc::clone(&node)).await;
    }
}

/// Pauses orphans, whose creation was interrupted, and ends them a day later. Of the sandboxes of
/// Sandbar servers only those of this one: another server of the same user has the same records.
async fn sweep(workspaces: Workspaces, node: Arc<Node>) {
    let own_id = node.id().to_string();
    let owns = |id: &SandboxId| id.as_str().parse().is_ok_and(|id| node.get(&id).is_some());
    let sweeper = Sweeper { is_own_server: &|id| id == own_id, owns: &owns };
    if let Err(error) = workspaces.sweep(sweeper).await {
        warn!(error = format!("{:#}", anyhow::Error::new(error)), "left-over sandboxes were not looked for");
    }
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
            let path = config::workspaces_directory().unwrap_or_else(|_| PathBuf::from(config::WORKSPACES));
            state.set(State::Unusable(Unwritable { path, cause: error.clone(), since: Timestamp::now() }));
            logged = Some(error);
        }
        tokio::time::sleep(OPEN_BACKOFF).await;
    }
}

type Done = Result<(tokio::task::Id, (WorkspaceName, Result<Maintained, OpenError>)), JoinError>;

struct Rounds {
    workspaces: Workspaces,
    node: Arc<Node>,
    local: HashSet<ProviderName>,
    known: HashMap<WorkspaceName, Known>,
    in_progress: HashMap<tokio::task::Id, WorkspaceName>,
    tasks: JoinSet<(WorkspaceName, Result<Maintained, OpenError>)>,
    /// A failed read of the records was logged.
    unreadable: bool,
}

/// What the task knows of a workspace between two rounds.
struct Known {
    /// At the last round. A process that changed the record since may have changed what is due.
    view: WorkspaceView,
    /// When maintenance is due next, by the monotonic clock.
    next: Instant,
    /// The last error, which is logged once.
    trouble: Option<String>,
}

impl Rounds {
    /// Starts maintenance of the workspaces of which something may be due.
    async fn start_due(&mut self) {
        let views = match self.workspaces.list().await {
            Ok(views) => views,
            Err(error) => {
                if !std::mem::replace(&mut self.unreadable, true) {
                    warn!(%error, "workspaces are not looked after: their records cannot be read");
                }
                return;
            }
        };
        self.unreadable = false;
        let names: HashSet<&WorkspaceName> = views.iter().map(|view| &view.workspace).collect();
        self.known.retain(|name, _| names.contains(name));
        let now = Instant::now();
        for view in views {
            let name = view.workspace.clone();
            let trouble = match self.known.get(&name) {
                Some(known) if known.view == view && known.next > now => continue,
                Some(known) => known.trouble.clone(),
                None => None,
            };
            if self.tasks.len() >= MAX_CONCURRENT
                || self.in_progress.values().any(|other| *other == name)
                || !self.is_ours(&view)
            {
                continue;
            }
            self.known.insert(name.clone(), Known { view, next: now, trouble });
            let workspaces = self.workspaces.clone();
            let task = self.tasks.spawn({
                let name = name.clone();
                async move {
                    let maintained = workspaces.maintain(&name).await;
                    (name, maintained)
                }
            });
            self.in_progress.insert(task.id(), name);
        }
    }

    /// Whether this server maintains the workspace.
    fn is_ours(&self, view: &WorkspaceView) -> bool {
        let id = view.sandbox.as_deref().and_then(|id| id.parse().ok());
        !self.local.contains(&view.provider) || id.is_some_and(|id| self.node.get(&id).is_some())
    }

    fn finish(&mut self, done: Done) {
        let (task, (name, maintained)) = match done {
            Ok(done) => done,
            Err(error) => {
                let workspace = self.in_progress.remove(&error.id());
                warn!(%error, ?workspace, "the maintenance of a workspace panicked; it is tried again");
                return;
            }
        };
        self.in_progress.remove(&task);
        let Some(known) = self.known.get_mut(&name) else { return };
        let trouble = match maintained {
            Ok(Maintained { next, outcome }) => {
                known.next = Instant::now() + next;
                match outcome {
                    MaintenanceOutcome::Failed(error) => Some(format!("{:#}", anyhow::Error::new(error))),
                    MaintenanceOutcome::Done => {
                        info!(workspace = %name, "looked after, with no process in it");
                        None
                    }
                    MaintenanceOutcome::LeftTo { owner } => {
                        debug!(workspace = %name, owner, "left to who has it");
                        return;
                    }
                    _ => None,
                }
            }
            Err(error) => Some(format!("{:#}", anyhow::Error::new(error))),
        };
        if let Some(error) = trouble.as_ref().filter(|trouble| known.trouble.as_ref() != Some(trouble)) {
            warn!(workspace = %name, error, "what is due for a workspace could not be done; it is tried again");
        }
        known.trouble = trouble;
    }
}
