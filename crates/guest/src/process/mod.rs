//! The processes that clients started: which run, which ended lately, and who gets which exit status.

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
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use protocol::guest::LogLevel;
use protocol::rpc::process::process_selector::Selector;
use protocol::rpc::process::{ProcessConfig, StartRequest};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

pub(crate) use self::controlled::{Controlled, Ender, Interrupt, Said};
pub(crate) use self::exit::Exit;
pub(crate) use self::launch::LaunchError;
use self::launch::{Control, Launched, Plan};
pub(crate) use self::output::Output;
use self::output::Source;
pub(crate) use self::reaper::reap;
use self::running::{Ending, Event, Running};
pub(crate) use self::service::ProcessService;
use crate::log::Log;
use crate::state::Guest;
use crate::users::User;

/// How long after its end a process can still be joined, to learn how it ended.
const REMEMBERED: Duration = Duration::from_secs(30);
/// However many end within that time, no more are remembered.
const MOST_REMEMBERED: usize = 4096;

pub(crate) struct Processes {
    table: Mutex<Table>,
    log: Arc<Log>,
}

#[derive(Default)]
struct Table {
    running: HashMap<u32, (Arc<Running>, Option<oneshot::Sender<Exit>>)>,
    ended: VecDeque<Ended>,
}

struct Ended {
    pid: u32,
    tag: Option<String>,
    ending: Ending,
    at: Instant,
}

/// A process that is on the list and that nobody looks after yet.
struct Started {
    process: Arc<Running>,
    source: Source,
    exited: oneshot::Receiver<Exit>,
    control: Option<Control>,
}

/// What a selector found.
enum Found {
    Running(Arc<Running>),
    Ended { pid: u32, ending: Ending },
}

impl Processes {
    pub(crate) fn new(log: Arc<Log>) -> Self {
        Self { table: Mutex::default(), log }
    }

    fn table<T>(&self, with: impl FnOnce(&mut Table) -> T) -> T {
        with(&mut self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts a process and returns the first listener to it.
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
        let Started { process, source, exited, control: _ } = self.launch(&plan, tag, config)?;
        let pid = number(&process);
        let events = process.listen();
        let guest = Arc::clone(guest);
        tokio::spawn(running::look_after(process, source, exited, deadline, move |process, ending| {
            guest.processes.settle(process, ending);
        }));
        Ok((pid, events))
    }

    /// Starts what was planned and puts it on the list.
    fn launch(&self, plan: &Plan, tag: Option<String>, config: ProcessConfig) -> Result<Started, LaunchError> {
        let command = config.cmd.clone();
        let (exit_sender, exited) = oneshot::channel();
        // The lock is held over the spawn: a process that ends at once is in the table before the reaper looks there.
        let (process, source, control) = self.table(|table| {
            let Launched { pid, input, source, control } = plan.launch()?;
            let process = Arc::new(Running::new(pid, tag, config, input));
            table.running.insert(number(&process), (Arc::clone(&process), Some(exit_sender)));
            Ok::<_, LaunchError>((process, source, control))
        })?;
        let pid = number(&process).to_string();
        self.log.add(LogLevel::Info, "process started", [("command", command), ("pid", pid)]);
        Ok(Started { process, source, exited, control })
    }

    /// The reaper's news. Unknown pids are orphans, of no interest to anybody.
    fn exited(&self, pid: u32, exit: Exit) {
        let owner = self.table(|table| {
            let (process, sender) = table.running.get_mut(&pid)?;
            process.reaped();
            sender.take()
        });
        if let Some(owner) = owner {
            // Its task listens until it has heard this.
            let _delivered = owner.send(exit);
        }
    }

    /// The process is over for everybody: no longer listed, only remembered.
    fn settle(&self, process: &Arc<Running>, ending: Ending) {
        let pid = number(process);
        self.table(|table| {
            table.running.remove(&pid);
            table.forget_old();
            if table.ended.len() == MOST_REMEMBERED {
                table.ended.pop_front();
            }
            table.ended.push_back(Ended { pid, tag: process.tag.clone(), ending, at: Instant::now() });
        });
        let outcome = if ending.expired { "killed at its deadline".to_owned() } else { ending.exit.to_string() };
        let fields = [("command", process.config.cmd.clone()), ("pid", pid.to_string()), ("exit", outcome)];
        self.log.add(LogLevel::Info, "process ended", fields);
    }

    fn find(&self, selector: &Selector) -> Option<Found> {
        self.table(|table| {
            table.forget_old();
            let running = match selector {
                Selector::Pid(pid) => table.running.get(pid),
                Selector::Tag(tag) => table.running.values().find(|entry| entry.0.tag.as_deref() == Some(tag)),
            };
            if let Some((process, _)) = running {
                return Some(Found::Running(Arc::clone(process)));
            }
            let ended = table.ended.iter().rev().find(|ended| match selector {
                Selector::Pid(pid) => ended.pid == *pid,
                Selector::Tag(tag) => ended.tag.as_deref() == Some(tag),
            })?;
            Some(Found::Ended { pid: ended.pid, ending: ended.ending })
        })
    }

    fn running(&self) -> Vec<Arc<Running>> {
        let mut all: Vec<_> = self.table(|table| table.running.values().map(|entry| Arc::clone(&entry.0)).collect());
        all.sort_by_key(|process| number(process));
        all
    }

    /// Ends everything that was started here.
    pub(crate) fn kill_all(&self) {
        for process in self.running() {
            process.kill_group();
        }
    }
}

impl Table {
    fn forget_old(&mut self) {
        while self.ended.front().is_some_and(|ended| ended.at.elapsed() > REMEMBERED) {
            self.ended.pop_front();
        }
    }
}

fn number(process: &Running) -> u32 {
    process.pid.as_raw_pid().unsigned_abs()
}
