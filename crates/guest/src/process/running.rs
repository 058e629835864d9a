//! One process from its start to its end: who listens to it, and the task that looks after it.
//!
//! ```text
//! started --output--> listeners        the end is announced when the process is gone AND
//!    |                                 (no writer of its pipes is left, or it was killed)
//!    +--exit status (reaper)
//!    +--deadline: its whole group is killed
//! ```
//! Output is read only while every listener has room, so a slow listener slows the process instead of filling memory.

use std::sync::{Arc, Mutex, PoisonError};

use protocol::rpc::process::ProcessConfig;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::exit::Exit;
use super::input::Input;
use super::output::{Output, Source};

/// Pieces of output a listener may lag behind.
const LAG: usize = 8;
/// How much may still be read from a killed process's pipes: what the kernel can hold, not what children go on writing.
const LAST_WORDS: usize = 64;

/// What a listener hears.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Output(Output),
    End(Ending),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Ending {
    pub(crate) exit: Exit,
    /// The time allowed to it had passed.
    pub(crate) expired: bool,
}

pub(crate) struct Running {
    pub(crate) pid: Pid,
    pub(crate) tag: Option<String>,
    pub(crate) config: ProcessConfig,
    pub(super) input: Input,
    kill_asked: Notify,
    state: Mutex<State>,
}

struct State {
    listeners: Vec<mpsc::Sender<Event>>,
    /// From then on the pid may belong to somebody else.
    reaped: bool,
}

impl Running {
    pub(super) fn new(pid: Pid, tag: Option<String>, config: ProcessConfig, input: Input) -> Self {
        let state = State { listeners: Vec::new(), reaped: false };
        Self { pid, tag, config, input, kill_asked: Notify::new(), state: Mutex::new(state) }
    }

    fn state<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        with(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Everything from now on; the last event is the end.
    pub(crate) fn listen(&self) -> mpsc::Receiver<Event> {
        let (sender, receiver) = mpsc::channel(LAG);
        self.state(|state| state.listeners.push(sender));
        receiver
    }

    /// Signals the process itself, not its children. After a deadly signal the output ends with the process, whoever
    /// still holds its pipes.
    pub(crate) fn signal(&self, signal: Signal) -> rustix::io::Result<()> {
        let result = self.state(|state| if state.reaped { Ok(()) } else { kill_process(self.pid, signal) });
        if result.is_ok() {
            self.kill_asked.notify_one();
        }
        result
    }

    /// Ends everything in its process group. The kernel keeps the group's number while it has members, so this also
    /// reaches children whose parent is gone; an empty group is no failure.
    pub(super) fn kill_group(&self) {
        let _empty = kill_process_group(self.pid, Signal::KILL);
    }

    pub(super) fn reaped(&self) {
        self.state(|state| state.reaped = true);
    }

    /// Waits until every listener has room for one more event.
    async fn room(&self) {
        loop {
            let full = self.state(|state| {
                state.listeners.retain(|listener| !listener.is_closed());
                state.listeners.iter().find(|listener| listener.capacity() == 0).cloned()
            });
            match full {
                // An error means that the listener left; the next round forgets it.
                Some(listener) => drop(listener.reserve().await),
                None => return,
            }
        }
    }

    /// Only this process's task announces, and only after `room`, so a full channel cannot happen.
    fn announce(&self, event: &Event) {
        self.state(|state| state.listeners.retain(|listener| listener.try_send(event.clone()).is_ok()));
    }
}

/// Looks after a process until its end is announced. `settle` is told the end before the listeners are.
pub(super) async fn look_after(
    process: Arc<Running>,
    mut source: Source,
    mut exited: oneshot::Receiver<Exit>,
    deadline: Option<Instant>,
    settle: impl FnOnce(&Arc<Running>, Ending),
) {
    let mut exit = None;
    let (mut open, mut killed, mut expired) = (true, false, false);
    let exit = loop {
        tokio::select! {
            output = async { process.room().await; source.next().await }, if open => match output {
                Some(output) => process.announce(&Event::Output(output)),
                None => open = false,
            },
            // The registry holds the sender until the process is reaped, so an error cannot come before the guest ends.
            status = &mut exited, if exit.is_none() => exit = Some(status.unwrap_or(Exit::Code(-1))),
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() && !expired => {
                (expired, killed) = (true, true);
                process.kill_group();
            }
            () = process.kill_asked.notified(), if !killed => killed = true,
        }
        if let Some(exit) = exit
            && (!open || killed || exit.by_signal())
        {
            break exit;
        }
    };

    let ending = Ending { exit, expired };
    settle(&process, ending);
    for _ in 0..LAST_WORDS {
        process.room().await;
        match source.take_ready() {
            Some(output) => process.announce(&Event::Output(output)),
            None => break,
        }
    }
    drop(source);
    process.room().await;
    process.announce(&Event::End(ending));
    process.state(|state| state.listeners.clear());
}
