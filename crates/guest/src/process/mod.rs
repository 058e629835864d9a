//! The processes that clients started: running ones, recently ended ones, and delivery of exit
//! statuses.

mod controlled;
mod exit;
mod inflate;
mod input;
mod launch;
mod output;
mod reaper;
mod running;
mod service;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use protocol::guest::LogLevel;
use protocol::rpc::process::process_selector::Selector;
use protocol::rpc::process::{ProcessConfig, StartRequest};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

pub(crate) use self::controlled::{Controlled, ControlledEvent, Interrupt, KillHandle};
pub(crate) use self::exit::Exit;
pub(crate) use self::launch::LaunchError;
use self::launch::{Control, Launched, Plan};
pub(crate) use self::output::Output;
use self::output::Source;
pub(crate) use self::reaper::reap;
use self::running::{Event, ProcessEnd, Running};
pub(crate) use self::service::ProcessService;
use crate::log::GuestLog;
use crate::state::Guest;
use crate::users::User;

/// How long after its end a process can still be connected to, to get its exit.
const ENDED_RETENTION: Duration = Duration::from_secs(30);
/// Limit of ended processes within that time.
const MAX_ENDED: usize = 4096;

pub(crate) struct Processes {
    table: Mutex<Table>,
    log: Arc<GuestLog>,
}

#[derive(Default)]
struct Table {
    running: HashMap<u32, (Arc<Running>, Option<oneshot::Sender<Exit>>)>,
    ended: VecDeque<EndedProcess>,
}

struct EndedProcess {
    pid: u32,
    tag: Option<String>,
    ending: ProcessEnd,
    at: Instant,
}

/// A registered process without a supervising task yet.
struct StartedProcess {
    process: Arc<Running>,
    source: Source,
    exited: oneshot::Receiver<Exit>,
    control: Option<Control>,
}

/// The result of a selector.
enum SelectedProcess {
    Running(Arc<Running>),
    EndedProcess { pid: u32, ending: ProcessEnd },
}

impl Processes {
    pub(crate) fn new(log: Arc<GuestLog>) -> Self {
        Self { table: Mutex::default(), log }
    }

    fn table<T>(&self, with: impl FnOnce(&mut Table) -> T) -> T {
        with(&mut self.table.lock())
    }

    /// Starts a process and returns its first listener.
    fn start(
        &self,
        guest: &Arc<Guest>,
        user: User,
        request: StartRequest,
        deadline: Option<Instant>,
    ) -> Result<(u32, mpsc::Receiver<Event>), LaunchError> {
        let plan = Plan::new(guest, user, &request)?;
        let StartRequest { process, tag, .. } = request;
        let config = process.into_option().unwrap_or_default();
        let StartedProcess { process, source, exited, control: _ } = self.launch(&plan, tag, config)?;
        let pid = number(&process);
        let events = process.listen();
        let guest = Arc::clone(guest);
        tokio::spawn(running::supervise(process, source, exited, deadline, move |process, ending| {
            guest.processes.settle(process, ending);
        }));
        Ok((pid, events))
    }

    /// Starts a planned process and registers it.
    fn launch(&self, plan: &Plan, tag: Option<String>, config: ProcessConfig) -> Result<StartedProcess, LaunchError> {
        let command = config.cmd.clone();
        let (exit_sender, exited) = oneshot::channel();
        // Holds the lock during the spawn: a process that exits immediately is in the table before
        // the reaper looks it up.
        let (process, source, control) = self.table(|table| {
            let Launched { pid, input, source, control } = plan.launch()?;
            let process = Arc::new(Running::new(pid, tag, config, input));
            table.running.insert(number(&process), (Arc::clone(&process), Some(exit_sender)));
            Ok::<_, LaunchError>((process, source, control))
        })?;
        let pid = number(&process).to_string();
        self.log.add(LogLevel::Info, "process started", [("command", command), ("pid", pid)]);
        Ok(StartedProcess { process, source, exited, control })
    }

    /// Called by the reaper. Unknown pids are orphans and ignored.
    fn record_exit(&self, pid: u32, exit: Exit) {
        let owner = self.table(|table| {
            let (process, sender) = table.running.get_mut(&pid)?;
            process.mark_reaped();
            sender.take()
        });
        if let Some(owner) = owner {
            // The supervising task waits for it.
            let _delivered = owner.send(exit);
        }
    }

    /// Moves the process from the running to the ended ones.
    fn settle(&self, process: &Arc<Running>, ending: ProcessEnd) {
        let pid = number(process);
        self.table(|table| {
            table.running.remove(&pid);
            table.evict_ended();
            if table.ended.len() == MAX_ENDED {
                table.ended.pop_front();
            }
            table.ended.push_back(EndedProcess { pid, tag: process.tag.clone(), ending, at: Instant::now() });
        });
        let outcome = if ending.expired { "killed at its deadline".to_owned() } else { ending.exit.to_string() };
        let fields = [("command", process.config.cmd.clone()), ("pid", pid.to_string()), ("exit", outcome)];
        self.log.add(LogLevel::Info, "process ended", fields);
    }

    fn find(&self, selector: &Selector) -> Option<SelectedProcess> {
        self.table(|table| {
            table.evict_ended();
            let running = match selector {
                Selector::Pid(pid) => table.running.get(pid),
                Selector::Tag(tag) => table.running.values().find(|entry| entry.0.tag.as_deref() == Some(tag)),
            };
            if let Some((process, _)) = running {
                return Some(SelectedProcess::Running(Arc::clone(process)));
            }
            let ended = table.ended.iter().rev().find(|ended| match selector {
                Selector::Pid(pid) => ended.pid == *pid,
                Selector::Tag(tag) => ended.tag.as_deref() == Some(tag),
            })?;
            Some(SelectedProcess::EndedProcess { pid: ended.pid, ending: ended.ending })
        })
    }

    fn running(&self) -> Vec<Arc<Running>> {
        let mut all: Vec<_> = self.table(|table| table.running.values().map(|entry| Arc::clone(&entry.0)).collect());
        all.sort_by_key(|process| number(process));
        all
    }

    /// Kills all processes started here.
    pub(crate) fn kill_all(&self) {
        for process in self.running() {
            process.kill_group();
        }
    }
}

impl Table {
    fn evict_ended(&mut self) {
        while self.ended.front().is_some_and(|ended| ended.at.elapsed() > ENDED_RETENTION) {
            self.ended.pop_front();
        }
    }
}

fn number(process: &Running) -> u32 {
    process.pid.as_raw_pid().unsigned_abs()
}
