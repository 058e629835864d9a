//! One process from start to end: its listeners, and the supervising task.
//!
//! ```text
//! started --output--> listeners        the end is announced when the process has exited AND
//!    |                                 (no writer of its pipes is left, or it was killed)
//!    +--exit status (reaper)
//!    +--deadline: its whole group is killed
//! ```
//! Output is read only while every listener has space, so a slow listener applies backpressure to
//! the process instead of filling the memory.

use std::sync::Arc;

use parking_lot::Mutex;
use protocol::rpc::process::ProcessConfig;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::exit::Exit;
use super::input::Input;
use super::output::{Output, Source};

/// Chunks of output that a listener may lag behind.
const MAX_LAG_CHUNKS: usize = 8;
/// Chunks read from a killed process's pipes: what the kernel can buffer, not what children
/// continue to write.
const MAX_TRAILING_CHUNKS: usize = 64;

/// An event for a listener.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Output(Output),
    End(ProcessEnd),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessEnd {
    pub(crate) exit: Exit,
    /// Whether it was killed at its deadline.
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
    /// From then on the kernel may reuse the pid.
    reaped: bool,
}

impl Running {
    pub(super) fn new(pid: Pid, tag: Option<String>, config: ProcessConfig, input: Input) -> Self {
        let state = State { listeners: Vec::new(), reaped: false };
        Self { pid, tag, config, input, kill_asked: Notify::new(), state: Mutex::new(state) }
    }

    fn state<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        with(&mut self.state.lock())
    }

    /// All events from now on; the last one is the end.
    pub(crate) fn listen(&self) -> mpsc::Receiver<Event> {
        let (sender, receiver) = mpsc::channel(MAX_LAG_CHUNKS);
        self.state(|state| state.listeners.push(sender));
        receiver
    }

    /// Signals the process itself, not its children. After a fatal signal the output ends with the
    /// process, even if children hold its pipes.
    pub(crate) fn signal(&self, signal: Signal) -> rustix::io::Result<()> {
        let result = self.state(|state| if state.reaped { Ok(()) } else { kill_process(self.pid, signal) });
        if result.is_ok() {
            self.kill_asked.notify_one();
        }
        result
    }

    /// Kills its process group. The kernel keeps the group's id while it has members, so this also
    /// reaches children whose parent is gone; an empty group is not an error.
    pub(super) fn kill_group(&self) {
        let _empty = kill_process_group(self.pid, Signal::KILL);
    }

    pub(super) fn mark_reaped(&self) {
        self.state(|state| state.reaped = true);
    }

    /// Waits until every listener has space for one more event.
    async fn listeners_ready(&self) {
        loop {
            let full = self.state(|state| {
                state.listeners.retain(|listener| !listener.is_closed());
                state.listeners.iter().find(|listener| listener.capacity() == 0).cloned()
            });
            match full {
                // An error means that the listener was dropped; the next round removes it.
                Some(listener) => drop(listener.reserve().await),
                None => return,
            }
        }
    }

    /// Only this process's task announces, and only after `listeners_ready`, so no channel is full.
    fn announce(&self, event: &Event) {
        self.state(|state| state.listeners.retain(|listener| listener.try_send(event.clone()).is_ok()));
    }
}

/// Supervises a process until its end is announced. Calls `settle` before the listeners get the
/// end.
pub(super) async fn supervise(
    process: Arc<Running>,
    mut source: Source,
    mut exited: oneshot::Receiver<Exit>,
    deadline: Option<Instant>,
    settle: impl FnOnce(&Arc<Running>, ProcessEnd),
) {
    let mut exit = None;
    let (mut open, mut killed, mut expired) = (true, false, false);
    let exit = loop {
        tokio::select! {
            output = async { process.listeners_ready().await; source.next().await }, if open => match output {
                Some(output) => process.announce(&Event::Output(output)),
                None => open = false,
            },
            // The registry holds the sender until the process is reaped, so an error means that the
            // guest ends.
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

    let ending = ProcessEnd { exit, expired };
    settle(&process, ending);
    for _ in 0..MAX_TRAILING_CHUNKS {
        process.listeners_ready().await;
        match source.take_ready() {
            Some(output) => process.announce(&Event::Output(output)),
            None => break,
        }
    }
    drop(source);
    process.listeners_ready().await;
    process.announce(&Event::End(ending));
    process.state(|state| state.listeners.clear());
}
