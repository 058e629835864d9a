//! Keeps workspaces while no program is in them. A program that works in one keeps it; between two
//! commands a sandbox would end with all that was written since the last snapshot. So the server
//! looks after every workspace of the records that its configuration leads to, with whichever
//! provider it is, and pauses sandboxes that were made for one and that none of them names; those
//! are ended a day later.
//!
//! Invariant: a workspace of this machine's provider is attended only by the server that has its
//! sandbox. Another server of the same user, with another data directory, has the same records,
//! would not find the sandbox and take it for lost.
//!
//! The workspaces of the studio's jobs are kept by its worker; here only the sandboxes are swept
//! that none of its records names.

use crate::config::{self, Config};
use crate::workspace::house::{Due, House};
use database::Unwritable;
use jiff::Timestamp;
use node::Node;
use sdk::SandboxId;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use workspace::provider::LocalEndpoint;
use workspace::{Attendance, Attended, OpenError, ProviderName, WorkspaceName, WorkspaceView, Workspaces};

/// Between two looks at the records.
const ROUND: Duration = Duration::from_secs(5);
/// Between two looks for sandboxes that no record names.
const SWEEP: Duration = Duration::from_secs(300);
/// Between two tries to open them.
const OPEN_AGAIN: Duration = Duration::from_secs(10);
/// Replaced at the same time: each makes a sandbox and moves all files.
const AT_ONCE: usize = 4;
/// For what is under way when the server stops. What is broken off then, the next one puts right.
const LAST_WORK: Duration = Duration::from_secs(20);

/// The records of workspaces as this server has them, for `/ready`.
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

    /// Why workspaces cannot be changed, while they cannot. Does no I/O.
    pub(crate) fn fault(&self) -> Option<Unwritable> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Opening => None,
            State::Unusable(fault) => Some(fault.clone()),
            State::Open(workspaces) => workspaces.fault(),
        }
    }
}

/// The task that looks after workspaces. [`Attendant::stop`] ends it.
pub(crate) struct Attendant {
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl Attendant {
    /// `ourselves` is the server that has `node`, and `studio` the workspaces of its jobs. Whatever
    /// fails here is logged, and the server goes on.
    pub(crate) fn start(
        config: Config,
        ourselves: LocalEndpoint,
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
            let attending = attend(config, ourselves, Arc::clone(&node), state, stopped.clone());
            tokio::join!(sweeping, attending);
        });
        Self { task, stop }
    }

    /// Begins nothing new and waits, within reason, for what is under way.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        if tokio::time::timeout(LAST_WORK, &mut self.task).await.is_err() {
            warn!("a workspace was still being looked after; the next server puts right what is left");
            self.task.abort();
        }
    }
}

async fn attend(
    config: Config,
    ourselves: LocalEndpoint,
    node: Arc<Node>,
    state: RecordsState,
    stop: CancellationToken,
) {
    let Some((house, local)) = stop.run_until_cancelled(open(&config, &ourselves, &state)).await else { return };
    state.set(State::Open(house.workspaces().clone()));
    // A sandbox that takes another's place shows what that one showed: nobody needs a picture of it every hour.
    house.leave_pictures();
    let mut rounds = Rounds {
        workspaces: house.workspaces().clone(),
        node,
        local,
        known: HashMap::new(),
        in_hand: HashSet::new(),
        tasks: JoinSet::new(),
        unreadable: false,
    };
    let mut sweeping = JoinSet::new();
    let (mut ticks, mut sweeps) = (tokio::time::interval(ROUND), tokio::time::interval(SWEEP));
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = ticks.tick() => rounds.look().await,
            _ = sweeps.tick(), if sweeping.is_empty() => {
                sweeping.spawn(sweep(rounds.workspaces.clone(), Arc::clone(&rounds.node)));
            }
            Some(_) = sweeping.join_next() => {}
            Some(done) = rounds.tasks.join_next() => rounds.note(done),
        }
    }
    // Whatever it has not ended yet is still there the next time.
    sweeping.shutdown().await;
    while let Some(done) = rounds.tasks.join_next().await {
        rounds.note(done);
    }
    house.close(Due::LeftOut).await;
}

/// [`sweep`]s until it is dropped. What was under way is found again by the next one.
async fn sweep_regularly(workspaces: Workspaces, node: Arc<Node>) {
    let mut sweeps = tokio::time::interval(SWEEP);
    loop {
        sweeps.tick().await;
        sweep(workspaces.clone(), Arc::clone(&node)).await;
    }
}

/// Pauses, and a day later ends, the sandboxes of creations that no process waited for to the end.
/// Of this machine's sandboxes only those of this server: another server of the same user has the
/// same records.
async fn sweep(workspaces: Workspaces, node: Arc<Node>) {
    let owns = |id: &SandboxId| id.as_str().parse().is_ok_and(|id| node.get(&id).is_some());
    if let Err(error) = workspaces.sweep(&owns).await {
        warn!(error = format!("{:#}", anyhow::Error::new(error)), "left-over sandboxes were not looked for");
    }
}

/// The records, as soon as they can be used, and which providers are this machine.
async fn open(config: &Config, ourselves: &LocalEndpoint, state: &RecordsState) -> (House, HashSet<ProviderName>) {
    let mut told = None;
    loop {
        let opened =
            async { anyhow::Ok((House::of_server(config, ourselves.clone()).await?, config.local_providers()?)) };
        let error = match opened.await {
            Ok(opened) => return opened,
            Err(error) => format!("{error:#}"),
        };
        if told.as_ref() != Some(&error) {
            warn!(error, "workspaces are not looked after: their records cannot be opened");
            let path = config::workspaces_directory().unwrap_or_else(|_| PathBuf::from(config::WORKSPACES));
            state.set(State::Unusable(Unwritable { path, cause: error.clone(), since: Timestamp::now() }));
            told = Some(error);
        }
        tokio::time::sleep(OPEN_AGAIN).await;
    }
}

struct Rounds {
    workspaces: Workspaces,
    node: Arc<Node>,
    local: HashSet<ProviderName>,
    known: HashMap<WorkspaceName, Known>,
    in_hand: HashSet<WorkspaceName>,
    tasks: JoinSet<(WorkspaceName, Result<Attended, OpenError>)>,
    /// It was said that the records cannot be read.
    unreadable: bool,
}

/// What is remembered of a workspace between two looks.
struct Known {
    /// As it was then. Whoever worked there since may have changed when something is due.
    view: WorkspaceView,
    /// By a clock that does not jump.
    next: Instant,
    /// What was said about it last, so that it is not said at every look.
    trouble: Option<String>,
}

impl Rounds {
    /// Attends to those of which something may be due.
    async fn look(&mut self) {
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
            if self.tasks.len() >= AT_ONCE || self.in_hand.contains(&name) || !self.is_ours(&view) {
                continue;
            }
            self.known.insert(name.clone(), Known { view, next: now, trouble });
            self.in_hand.insert(name.clone());
            let workspaces = self.workspaces.clone();
            self.tasks.spawn(async move {
                let attended = workspaces.attend(&name).await;
                (name, attended)
            });
        }
    }

    /// Whether this server is the one to look after it.
    fn is_ours(&self, view: &WorkspaceView) -> bool {
        let id = view.sandbox.as_deref().and_then(|id| id.parse().ok());
        !self.local.contains(&view.provider) || id.is_some_and(|id| self.node.get(&id).is_some())
    }

    fn note(&mut self, done: Result<(WorkspaceName, Result<Attended, OpenError>), tokio::task::JoinError>) {
        let (name, attended) = match done {
            Ok(done) => done,
            Err(error) => {
                // Whose it was is not known any more; what it had in hand is looked at again.
                warn!(%error, "looking after a workspace broke off");
                self.in_hand.clear();
                return;
            }
        };
        self.in_hand.remove(&name);
        let Some(known) = self.known.get_mut(&name) else { return };
        let trouble = match attended {
            Ok(Attended { next, attendance }) => {
                known.next = Instant::now() + next;
                match attendance {
                    Attendance::Failed(error) => Some(format!("{:#}", anyhow::Error::new(error))),
                    Attendance::Done => {
                        info!(workspace = %name, "looked after, with nobody in it");
                        None
                    }
                    Attendance::LeftTo { owner } => {
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
