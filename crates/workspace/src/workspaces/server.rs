//! Maintains all workspaces of the records for a server that runs for long. A process that has a
//! workspace open maintains it by itself; between two commands the sandbox would expire with all
//! changes since the newest checkpoint. So the server extends, rotates, pauses and saves every
//! workspace, with any provider. It also pauses orphans, sandboxes that no record names, and ends
//! them a day later.
//!
//! Invariant: a workspace of this machine's provider is maintained only by the server that has its
//! sandbox. Another server of the same user, with another data directory, reads the same records,
//! would not find the sandbox and would treat it as lost.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use sdk::SandboxId;
use text::error_chain;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{Maintained, MaintenanceOutcome, WorkspaceView, Workspaces};
use crate::name::{ProviderName, WorkspaceName};
use crate::workspace::OpenError;

/// Between two reads of the records.
const ROUND_INTERVAL: Duration = Duration::from_secs(5);
/// Between two sweeps for orphans.
const SWEEP_INTERVAL: Duration = Duration::from_secs(300);
/// Workspaces that are maintained concurrently. Each may create a sandbox and move all files.
const MAX_CONCURRENT: usize = 4;

/// The server that maintains workspaces, and the sandboxes it has.
pub trait OwnServer: Send + Sync {
    /// Whether a server with this id is this one.
    fn is(&self, server_id: &str) -> bool;
    /// Whether it has this sandbox.
    fn has(&self, sandbox: &SandboxId) -> bool;
}

impl Workspaces {
    /// Maintains every workspace and sweeps for orphans until `stop` is cancelled; then starts no
    /// further task and waits for the running ones. Dropping the future aborts them, and the next
    /// server resumes what was aborted. `local` are the providers that are this machine.
    pub async fn maintain_all(
        &self,
        server: Arc<dyn OwnServer>,
        local: HashSet<ProviderName>,
        stop: &CancellationToken,
    ) {
        let mut rounds = Rounds {
            workspaces: self.clone(),
            server,
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
                    let (workspaces, server) = (self.clone(), Arc::clone(&rounds.server));
                    sweeping.spawn(async move { workspaces.sweep_logged(server.as_ref()).await });
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
    }

    /// Sweeps for orphans at an interval until it is dropped. A sweep can be cancelled at any
    /// point.
    pub async fn sweep_regularly(&self, server: &dyn OwnServer) {
        let mut sweeps = tokio::time::interval(SWEEP_INTERVAL);
        loop {
            sweeps.tick().await;
            self.sweep_logged(server).await;
        }
    }

    async fn sweep_logged(&self, server: &dyn OwnServer) {
        if let Err(error) = self.sweep(server).await {
            warn!(error = error_chain(&error), "left-over sandboxes were not looked for");
        }
    }
}

type Done = Result<(tokio::task::Id, (WorkspaceName, Result<Maintained, OpenError>)), JoinError>;

struct Rounds {
    workspaces: Workspaces,
    server: Arc<dyn OwnServer>,
    local: HashSet<ProviderName>,
    known: HashMap<WorkspaceName, Known>,
    in_progress: HashMap<tokio::task::Id, WorkspaceName>,
    tasks: JoinSet<(WorkspaceName, Result<Maintained, OpenError>)>,
    /// A failed read of the records was logged.
    unreadable: bool,
}

/// What the rounds know of a workspace.
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
        !self.local.contains(&view.provider) || id.is_some_and(|id| self.server.has(&id))
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
                    MaintenanceOutcome::Failed(error) => Some(error_chain(&error)),
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
            Err(error) => Some(error_chain(&error)),
        };
        if let Some(error) = trouble.as_ref().filter(|trouble| known.trouble.as_ref() != Some(trouble)) {
            warn!(workspace = %name, error, "what is due for a workspace could not be done; it is tried again");
        }
        known.trouble = trouble;
    }
}
