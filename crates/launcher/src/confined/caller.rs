//! The server's side: starts one confined process per call and reads its answer.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Serialize;

use super::{Confinement, Ending, Report};
use crate::spec::Channel;

/// How long a supervisor takes to kill its process and to exit; then the server kills the
/// supervisor.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// The limits of a call.
#[derive(Debug, Clone, Copy)]
pub struct Bounds<'a> {
    pub timeout: Duration,
    pub answer_bytes: usize,
    /// The server cancels the call when the other end of this descriptor closes.
    pub alive: Option<BorrowedFd<'a>>,
    /// The `cgroup.procs` files of the cgroup that supervisor and confined process join.
    pub cgroup: &'a [PathBuf],
}

/// Why a call has no answer. The confined process has ended in every case.
#[derive(Debug)]
pub enum ConfinedError {
    /// The program could not be started, or the request could not be sent.
    Start(io::Error),
    /// The kernel refused a step of the confinement. No work was done.
    Confine {
        step: String,
        source: io::Error,
    },
    /// The confined process ended before it had answered.
    Ended(Ending),
    /// The supervisor was killed, and with it the confined process.
    Lost,
    TimedOut(Duration),
    AnswerTooLong,
    Cancelled,
}

/// Starts `command`, whose main function is [`super::run`], and returns its answer. The first of
/// `descriptors` is the directory of [`Confinement::has_tree`]; the others are passed to the work.
/// Blocks.
///
/// # Errors
/// Every variant of [`ConfinedError`]; the caller discards what the process wrote until then.
pub fn call<W: Serialize>(
    command: Command,
    confinement: &Confinement,
    work: &W,
    descriptors: Vec<OwnedFd>,
    bounds: Bounds<'_>,
) -> Result<Vec<u8>, ConfinedError> {
    let deadline = Instant::now() + bounds.timeout;
    let (answers, answer) = io::pipe().map_err(ConfinedError::Start)?;
    let mut supervisor = Supervisor::start(command).map_err(ConfinedError::Start)?;
    // Before the request: the supervisor clones the confined process once it has that.
    supervisor.join(bounds.cgroup).map_err(ConfinedError::Start)?;
    let all: Vec<BorrowedFd<'_>> = [answer.as_fd()].into_iter().chain(descriptors.iter().map(AsFd::as_fd)).collect();
    supervisor.channel().send(&(confinement, work), &all).map_err(ConfinedError::Start)?;
    // From here on the confined process alone holds them: the pipe reports end of file when that
    // process exits, and it decides when a file is closed.
    drop((answer, descriptors));
    let answers = File::from(OwnedFd::from(answers));
    let bytes = read_all(answers, bounds, deadline)?;
    // The pipe reached end of file, so the confined process has exited or is about to.
    match supervisor.report(Instant::now() + END_TIMEOUT)? {
        Report::Ended(Ending::Exit(0)) => Ok(bytes),
        Report::Ended(ending) => Err(ConfinedError::Ended(ending)),
        Report::Failed { step, errno } => {
            Err(ConfinedError::Confine { step, source: io::Error::from_raw_os_error(errno) })
        }
    }
}

/// Reads the answer to end of file.
fn read_all(mut answers: File, bounds: Bounds<'_>, deadline: Instant) -> Result<Vec<u8>, ConfinedError> {
    let mut bytes = Vec::new();
    loop {
        let mut watched = vec![PollFd::new(&answers, PollFlags::IN)];
        watched.extend(bounds.alive.as_ref().map(|alive| PollFd::new(alive, PollFlags::empty())));
        wait_for(&mut watched, deadline)?.ok_or(ConfinedError::TimedOut(bounds.timeout))?;
        if watched.get(1).is_some_and(|alive| !alive.revents().is_empty()) {
            return Err(ConfinedError::Cancelled);
        }
        let mut piece = [0; 1 << 16];
        match answers.read(&mut piece).map_err(ConfinedError::Start)? {
            0 => return Ok(bytes),
            count if bytes.len() + count > bounds.answer_bytes => return Err(ConfinedError::AnswerTooLong),
            count => bytes.extend_from_slice(&piece[..count]),
        }
    }
}

/// Polls for an event. Returns `None` when the deadline passes without one.
fn wait_for(watched: &mut [PollFd<'_>], deadline: Instant) -> Result<Option<()>, ConfinedError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left =
            Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
        match poll(watched, Some(&left)) {
            Ok(0) => return Ok(None),
            Ok(_) => return Ok(Some(())),
            Err(Errno::INTR) => {}
            Err(error) => return Err(ConfinedError::Start(error.into())),
        }
    }
}

/// A supervisor and the channel to it. Dropping it makes the supervisor kill its process and exit,
/// and reaps it.
struct Supervisor {
    process: Child,
    channel: Option<Channel>,
}

impl Supervisor {
    fn start(mut command: Command) -> io::Result<Self> {
        let (ours, theirs) = Channel::pair()?;
        // `command` owns the supervisor's end; it is dropped when this function returns.
        command.stdin(Stdio::from(theirs.into_descriptor())).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self { process: command.spawn()?, channel: Some(ours) })
    }

    fn channel(&self) -> &Channel {
        self.channel.as_ref().expect("it is taken on drop only")
    }

    fn join(&self, cgroup: &[PathBuf]) -> io::Result<()> {
        cgroup.iter().try_for_each(|file| fs::write(file, self.process.id().to_string()))
    }

    fn report(&mut self, deadline: Instant) -> Result<Report, ConfinedError> {
        let channel = self.channel();
        let come = wait_for(&mut [PollFd::new(channel, PollFlags::IN)], deadline)?;
        match come.map(|()| channel.receive::<Report>()) {
            Some(Ok(Some((report, _)))) => Ok(report),
            _ => Err(ConfinedError::Lost),
        }
    }

    /// Whether the supervisor exits within [`END_TIMEOUT`].
    fn ends(&self) -> bool {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let ended =
            process.map(|process| wait_for(&mut [PollFd::new(&process, PollFlags::IN)], Instant::now() + END_TIMEOUT));
        matches!(ended, Some(Ok(Some(()))))
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // The supervisor kills its process when this end of the channel closes.
        drop(self.channel.take());
        if !self.ends() {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}
