//! The processes of a sandbox without a cgroup: those of its PID namespace.
//!
//! - *Killing* is done by the kernel: process 1 takes the whole namespace with it.
//! - *Freezing* sends SIGSTOP to each process, parents first, until all have been seen stopped
//!   twice; *thawing* sends SIGCONT, children first, so that no parent sees a child stopped.
//!   Processes that were stopped before stay stopped. Programs may notice that: unlike with a
//!   cgroup, a handler of SIGCONT runs.
//! - *Limits* exist only for the number of processes, see `launcher`; usage is the sum over all
//!   processes.
//!
//! A note per sandbox in the runtime directory, written before the sandbox is created, lists the
//! existing sandboxes. A sandbox that a killed server leaves without a note is found by the mark of
//! its process 1, which no other program uses.

mod inspect;
mod note;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cgroup::CgroupUsage;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use self::inspect::{Member, members};
use self::note::Note;
use crate::boot::start_time_of;
use crate::error::NamespacesError;
use crate::rootless::Identity;
use crate::{Instance, Resources};

pub(crate) use self::inspect::find_marked;

/// Identifies the sandbox of a process 1: `MARK=IDENTITY/NAME` among its arguments, or while it is
/// still a launcher `MARK=IDENTITY/` in its environment.
pub(crate) const MARK: &str = "SANDBAR_SANDBOX";

/// A process in an uninterruptible wait can delay a freeze without end.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(5);
const KILL_TIMEOUT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// All sandboxes of one data directory.
#[derive(Debug, Clone)]
pub(crate) struct Register {
    directory: PathBuf,
    identity: Identity,
}

/// The processes of one sandbox. Dropping it changes nothing.
#[derive(Debug, Clone)]
pub(crate) struct Processes {
    name: String,
    note: PathBuf,
}

impl Register {
    /// Keeps notes in `directory`, which is created with the sockets.
    pub(crate) fn new(directory: PathBuf, identity: Identity) -> Self {
        Self { directory, identity }
    }

    fn processes_of(&self, name: &str) -> Processes {
        Processes { name: name.to_owned(), note: self.directory.join(format!("{name}.run")) }
    }

    /// Writes the note of sandbox `name`, which is about to be created.
    pub(crate) fn create(&self, name: &str, limits: &Resources) -> Result<Processes, NamespacesError> {
        let processes = self.processes_of(name);
        if processes.first()?.is_some() {
            return Err(NamespacesError::Running(name.to_owned()));
        }
        processes.write(&Note { memory_limit: u64::from(limits.memory_mb) << 20, ..Note::default() })?;
        Ok(processes)
    }

    pub(crate) fn open_existing(&self, name: &str) -> Option<Processes> {
        let processes = self.processes_of(name);
        processes.note.exists().then_some(processes)
    }

    /// The names of all sandboxes that have a note, or that run.
    pub(crate) fn list(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let noted = entries.filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".run")?.to_owned()));
        let mut names: Vec<String> =
            noted.chain(find_marked(self.identity).into_iter().filter_map(|it| it.name)).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Kills every process 1 without a note: a killed server created it, or was about to.
    pub(crate) fn end_strays(&self) {
        for found in find_marked(self.identity) {
            let noted = found.name.and_then(|name| self.processes_of(&name).instance().ok().flatten());
            let ours = found.parent == std::process::id();
            if noted.is_none_or(|instance| instance.pid != found.pid)
                && !ours
                && let Some(process) = open(found.pid)
            {
                // One that has ended meanwhile needs no kill.
                let _ = end(&process);
            }
        }
    }
}

impl Processes {
    fn read(&self) -> Result<Note, NamespacesError> {
        Note::read(&self.note).map_err(NamespacesError::io(format!("read {}", self.note.display())))
    }

    fn write(&self, note: &Note) -> Result<(), NamespacesError> {
        note.write(&self.note).map_err(NamespacesError::io(format!("write {}", self.note.display())))
    }

    fn instance(&self) -> Result<Option<Instance>, NamespacesError> {
        Ok(self.read()?.process)
    }

    /// Process 1, if it runs.
    fn first(&self) -> Result<Option<(u32, OwnedFd)>, NamespacesError> {
        let Some(Instance { pid, start_time }) = self.instance()? else { return Ok(None) };
        let process = open(pid);
        // Checked after the pidfd is open: from here on the pid cannot be reused unnoticed.
        let same = start_time_of(pid).is_ok_and(|now| now == start_time);
        Ok(process.filter(|_| same).map(|process| (pid, process)))
    }

    /// Writes process 1 to the note, as soon as it exists.
    pub(crate) fn record_started(&self, pid: u32) -> Result<(), NamespacesError> {
        let start_time = start_time_of(pid).map_err(NamespacesError::io("identify process 1"))?;
        self.write(&Note { process: Some(Instance { pid, start_time }), ..self.read()? })
    }

    /// The processes that the server may have to reap.
    pub(crate) fn children(&self) -> Result<Vec<u32>, NamespacesError> {
        Ok(self.first()?.into_iter().map(|(pid, _)| pid).collect())
    }

    /// Kills every process, and returns when none is left. Without processes: success.
    pub(crate) fn kill_all(&self) -> Result<(), NamespacesError> {
        let Some((_, process)) = self.first()? else { return Ok(()) };
        end(&process).map_err(NamespacesError::io(format!("end the processes of sandbox {}", self.name)))
    }

    pub(crate) fn remove(&self) -> Result<(), NamespacesError> {
        match fs::remove_file(&self.note) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(NamespacesError::io(format!("remove {}", self.note.display()))(error))
            }
            _ => Ok(()),
        }
    }

    /// Stops every process. When one could not be stopped in time, all run again.
    pub(crate) fn freeze(&self) -> Result<(), NamespacesError> {
        let Some((first, _)) = self.first()? else { return Ok(()) };
        let note = self.read()?;
        if note.stopped.is_none() {
            let stopped = members(first).into_iter().filter(Member::is_stopped).map(|member| member.pid).collect();
            self.write(&Note { stopped: Some(stopped), ..note })?;
        }
        let deadline = Instant::now() + FREEZE_TIMEOUT;
        let mut quiet = 0;
        // Twice: the second pass sees a process that was being forked during the first.
        while quiet < 2 {
            let moving: Vec<Member> = members(first).into_iter().filter(|member| !member.is_stopped()).collect();
            quiet = if moving.is_empty() { quiet + 1 } else { 0 };
            moving.iter().for_each(|member| member.send(Signal::STOP));
            if Instant::now() >= deadline {
                self.thaw()?;
                let what = format!("freeze sandbox {}", self.name);
                return Err(NamespacesError::io(what)(io::ErrorKind::TimedOut.into()));
            }
            if quiet == 0 {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        Ok(())
    }

    /// Lets every process continue that ran before.
    pub(crate) fn thaw(&self) -> Result<(), NamespacesError> {
        let Some((first, _)) = self.first()? else { return Ok(()) };
        let note = self.read()?;
        let Some(stopped) = &note.stopped else { return Ok(()) };
        for member in members(first).iter().rev().filter(|member| !stopped.contains(&member.pid)) {
            member.send(Signal::CONT);
        }
        self.write(&Note { stopped: None, ..note })
    }

    pub(crate) fn usage(&self) -> Result<CgroupUsage, NamespacesError> {
        let members = self.first()?.map(|(first, _)| members(first)).unwrap_or_default();
        let used = members.iter().map(Member::used);
        let (cpu_usec, memory_used) = used.fold((0, 0), |(time, memory), used| (time + used.0, memory + used.1));
        let pids = members.iter().map(|member| member.threads().count() as u64).sum();
        Ok(CgroupUsage { cpu_usec, memory_used, memory_cache: 0, memory_limit: self.read()?.memory_limit, pids })
    }
}

fn open(pid: u32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid.try_into().ok()?)?, PidfdFlags::empty()).ok()
}

/// Kills a process 1 and waits until its namespace is empty: it ends after all others.
fn end(process: &OwnedFd) -> io::Result<()> {
    match pidfd_send_signal(process, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => return Err(error.into()),
    }
    match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&KILL_TIMEOUT))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}
