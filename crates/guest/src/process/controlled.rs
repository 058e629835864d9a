//! A process that does what it is told, again and again: orders and answers travel on descriptors of their own, beside what
//! it prints. Whoever started it looks after it.

use std::fs;
use std::io;
use std::sync::Arc;

use protocol::rpc::process::{ProcessConfig, StartRequest};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::watch;

use super::exit::Exit;
use super::launch::{Control, LaunchError, Plan};
use super::output::{Output, Source};
use super::running::{Ending, Running};
use super::{Processes, Started};
use crate::state::Guest;
use crate::users::User;

/// An answer is read this far at a time.
const PIECE: usize = 64 << 10;
/// The longest answer: a few large pictures.
const LONGEST_ANSWER: usize = 64 << 20;

/// Ended, with all it started, when it is dropped.
pub(crate) struct Controlled {
    process: Arc<Running>,
    source: Source,
    orders: pipe::Sender,
    answers: pipe::Receiver,
    /// Read, and not yet taken.
    unread: Vec<u8>,
    /// So far no line ends there.
    searched: usize,
    ended: watch::Receiver<Option<Exit>>,
}

impl Processes {
    /// Starts a process that takes orders.
    pub(crate) fn start_controlled(
        &self,
        guest: &Arc<Guest>,
        user: User,
        process: ProcessConfig,
    ) -> Result<Controlled, LaunchError> {
        let request = StartRequest { process: process.clone().into(), ..StartRequest::default() };
        let plan = Plan::new(guest, user, &request)?.controlled();
        let Started { process, source, exited, control } = self.launch(&plan, None, process)?;
        let Some(Control { orders, answers }) = control else {
            return Err(LaunchError::Guest(io::Error::other("no way to give orders")));
        };
        let (tell, ended) = watch::channel(None);
        let (guest, told) = (Arc::clone(guest), Arc::clone(&process));
        tokio::spawn(async move {
            let exit = exited.await.unwrap_or(Exit::Code(-1));
            guest.processes.settle(&told, Ending { exit, expired: false });
            tell.send_replace(Some(exit));
        });
        Ok(Controlled { process, source, orders, answers, unread: Vec::new(), searched: 0, ended })
    }
}

impl Controlled {
    /// How it ended, if it has.
    pub(crate) fn exit(&self) -> Option<Exit> {
        *self.ended.borrow()
    }

    pub(crate) async fn ended(&mut self) -> Exit {
        let exit = self.ended.wait_for(Option::is_some).await;
        exit.ok().and_then(|exit| *exit).unwrap_or(Exit::Code(-1))
    }

    pub(crate) async fn order(&mut self, order: &[u8]) -> io::Result<()> {
        self.orders.write_all(order).await
    }

    /// The next thing it prints or answers. Cancelling loses nothing.
    pub(crate) async fn next(&mut self) -> Said {
        loop {
            if let Some(answer) = self.take_answer() {
                return Said::Answer(answer);
            }
            let room = self.unread.len() + PIECE;
            if room > LONGEST_ANSWER {
                return Said::TooMuch;
            }
            self.unread.reserve(PIECE);
            tokio::select! {
                // First, so that an answer comes after what was printed before it.
                biased;
                Some(output) = self.source.next() => return Said::Output(output),
                read = self.answers.read_buf(&mut self.unread) => {
                    if !read.is_ok_and(|count| count > 0) {
                        return Said::Exit(self.ended().await);
                    }
                }
            }
        }
    }

    /// What it has printed by now.
    pub(crate) fn printed(&mut self) -> Option<Output> {
        self.source.take_ready()
    }

    fn take_answer(&mut self) -> Option<Vec<u8>> {
        let Some(end) = memchr::memchr(b'\n', &self.unread[self.searched..]) else {
            self.searched = self.unread.len();
            return None;
        };
        let end = std::mem::take(&mut self.searched) + end;
        let rest = self.unread.split_off(end + 1);
        let mut answer = std::mem::replace(&mut self.unread, rest);
        answer.pop();
        Some(answer)
    }

    /// Interrupts it and what it runs.
    pub(crate) fn interrupt(&self, how: Interrupt) {
        if self.exit().is_some() {
            return;
        }
        let pid = self.process.pid;
        match how {
            Interrupt::Group => _ = kill_process_group(pid, Signal::INT),
            Interrupt::Told(signal) => {
                let _gone = kill_process(pid, signal);
                for other in group(pid).into_iter().filter(|other| *other != pid) {
                    let _gone = kill_process(other, Signal::INT);
                }
            }
        }
    }

    /// A way to end it for who does not have it.
    pub(crate) fn ender(&self) -> Ender {
        Ender { process: Arc::clone(&self.process), ended: self.ended.clone() }
    }
}

impl Drop for Controlled {
    fn drop(&mut self) {
        self.ender().end();
    }
}

/// How a process is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// As Ctrl-C does, for it and what it runs.
    Group,
    /// By a signal that it takes for an interruption; what it runs is interrupted as Ctrl-C does.
    Told(Signal),
}

/// The processes of a group that have not ended. Whoever is started meanwhile may be missing.
fn group(leader: Pid) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok().and_then(Pid::from_raw));
    let is_member = |pid: &Pid| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        // Behind the name, which may hold anything: state, parent, group.
        let mut fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
        fields.next() != Some("Z")
            && fields.nth(1).and_then(|group| group.parse().ok()) == Some(leader.as_raw_nonzero())
    };
    pids.filter(is_member).collect()
}

/// What came from it.
pub(crate) enum Said {
    Output(Output),
    /// A line, without its end.
    Answer(Vec<u8>),
    /// An answer longer than any sensible one.
    TooMuch,
    Exit(Exit),
}

pub(crate) struct Ender {
    process: Arc<Running>,
    ended: watch::Receiver<Option<Exit>>,
}

impl Ender {
    /// Ends it and what it runs. One that has ended may have given its number to others.
    pub(crate) fn end(&self) {
        if self.ended.borrow().is_none() {
            self.process.kill_group();
        }
    }
}
