//! A controlled process: receives requests and sends responses on dedicated descriptors, separate
//! from its output. The caller supervises it.

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
use super::running::{ProcessEnd, Running};
use super::{Processes, StartedProcess};
use crate::state::Guest;
use crate::users::User;

/// Read size of a response.
const READ_BYTES: usize = 64 << 10;
/// Limit of a response: a few large images.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

/// Killed with its process group when dropped.
pub(crate) struct Controlled {
    process: Arc<Running>,
    source: Source,
    requests: pipe::Sender,
    responses: pipe::Receiver,
    /// Received bytes that were not returned yet.
    unread: Vec<u8>,
    /// Prefix without a line end.
    searched: usize,
    ended: watch::Receiver<Option<Exit>>,
}

impl Processes {
    /// Starts a controlled process.
    pub(crate) fn start_controlled(
        &self,
        guest: &Arc<Guest>,
        user: User,
        process: ProcessConfig,
    ) -> Result<Controlled, LaunchError> {
        let request = StartRequest { process: process.clone().into(), ..StartRequest::default() };
        let plan = Plan::new(guest, user, &request)?.with_control();
        let StartedProcess { process, source, exited, control } = self.launch(&plan, None, process)?;
        let Some(Control { requests, responses }) = control else {
            return Err(LaunchError::Guest(io::Error::other("no way to give requests")));
        };
        let (sender, ended) = watch::channel(None);
        let (guest, settled) = (Arc::clone(guest), Arc::clone(&process));
        tokio::spawn(async move {
            let exit = exited.await.unwrap_or(Exit::Code(-1));
            guest.processes.settle(&settled, ProcessEnd { exit, expired: false });
            sender.send_replace(Some(exit));
        });
        Ok(Controlled { process, source, requests, responses, unread: Vec::new(), searched: 0, ended })
    }
}

impl Controlled {
    /// Its exit, if it has ended.
    pub(crate) fn exit(&self) -> Option<Exit> {
        *self.ended.borrow()
    }

    pub(crate) async fn wait_exit(&mut self) -> Exit {
        let exit = self.ended.wait_for(Option::is_some).await;
        exit.ok().and_then(|exit| *exit).unwrap_or(Exit::Code(-1))
    }

    pub(crate) async fn send_request(&mut self, request: &[u8]) -> io::Result<()> {
        self.requests.write_all(request).await
    }

    /// The next output or response. Cancel safe.
    pub(crate) async fn next(&mut self) -> ControlledEvent {
        loop {
            if let Some(response) = self.take_response() {
                return ControlledEvent::Response(response);
            }
            let size = self.unread.len() + READ_BYTES;
            if size > MAX_RESPONSE_BYTES {
                return ControlledEvent::TooLarge;
            }
            self.unread.reserve(READ_BYTES);
            tokio::select! {
                // Output first, so that a response comes after the output printed before it.
                biased;
                Some(output) = self.source.next() => return ControlledEvent::Output(output),
                read = self.responses.read_buf(&mut self.unread) => {
                    if !read.is_ok_and(|count| count > 0) {
                        return ControlledEvent::Exit(self.wait_exit().await);
                    }
                }
            }
        }
    }

    /// The output available now.
    pub(crate) fn take_output(&mut self) -> Option<Output> {
        self.source.take_ready()
    }

    fn take_response(&mut self) -> Option<Vec<u8>> {
        let Some(end) = memchr::memchr(b'\n', &self.unread[self.searched..]) else {
            self.searched = self.unread.len();
            return None;
        };
        let end = std::mem::take(&mut self.searched) + end;
        let rest = self.unread.split_off(end + 1);
        let mut response = std::mem::replace(&mut self.unread, rest);
        response.pop();
        Some(response)
    }

    /// Interrupts it and its children.
    pub(crate) fn interrupt(&self, how: Interrupt) {
        if self.exit().is_some() {
            return;
        }
        let pid = self.process.pid;
        match how {
            Interrupt::Group => _ = kill_process_group(pid, Signal::INT),
            Interrupt::Signal(signal) => {
                let _gone = kill_process(pid, signal);
                for other in list_group(pid).into_iter().filter(|other| *other != pid) {
                    let _gone = kill_process(other, Signal::INT);
                }
            }
        }
    }

    /// A handle that kills it without owning it.
    pub(crate) fn kill_handle(&self) -> KillHandle {
        KillHandle { process: Arc::clone(&self.process), ended: self.ended.clone() }
    }
}

impl Drop for Controlled {
    fn drop(&mut self) {
        self.kill_handle().kill();
    }
}

/// How a process is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// SIGINT to its group, like Ctrl-C.
    Group,
    /// A signal that the process treats as an interrupt; its children get SIGINT.
    Signal(Signal),
}

/// The live processes of a group. May miss processes started meanwhile.
fn list_group(leader: Pid) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok().and_then(Pid::from_raw));
    let is_member = |pid: &Pid| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        // After the name, which may contain any character: state, parent, group.
        let mut fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
        fields.next() != Some("Z")
            && fields.nth(1).and_then(|group| group.parse().ok()) == Some(leader.as_raw_nonzero())
    };
    pids.filter(is_member).collect()
}

/// A message of a controlled process.
pub(crate) enum ControlledEvent {
    Output(Output),
    /// A line without its line end.
    Response(Vec<u8>),
    /// A response beyond the limit.
    TooLarge,
    Exit(Exit),
}

pub(crate) struct KillHandle {
    process: Arc<Running>,
    ended: watch::Receiver<Option<Exit>>,
}

impl KillHandle {
    /// Kills it and its children. Checks that it has not ended, because its pid may be reused.
    pub(crate) fn kill(&self) {
        if self.ended.borrow().is_none() {
            self.process.kill_group();
        }
    }
}
