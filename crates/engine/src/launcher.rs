//! Launcher processes as the server sees them: spawned ahead of need, used once.
//!
//! A spare one waits for its specification, because spawning takes as long as a third of a boot. It ends with the server,
//! whose end of the channel then closes. Spawning never forks this process's memory (`posix_spawn`), so the server's size and
//! threads do not matter.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::launch;
use crate::launch::spec::Channel;

/// Whether it has ended, leaving the reaping to the owner of the handle.
const LOOK: WaitIdOptions = WaitIdOptions::EXITED.union(WaitIdOptions::NOHANG).union(WaitIdOptions::NOWAIT);

/// A launcher and the way to it. Ended on drop, if it has not ended by itself.
#[derive(Debug)]
pub(crate) struct Launcher {
    process: Child,
    pub(crate) channel: Channel,
}

impl Launcher {
    fn spawn() -> io::Result<Self> {
        let (ours, theirs) = Channel::pair()?;
        let process = Command::new("/proc/self/exe")
            .arg(launch::ARGUMENT)
            .env_clear()
            .process_group(0)
            .stdin(Stdio::from(theirs.into_descriptor()))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { process, channel: ours })
    }

    /// The process group that it shares with what it makes.
    pub(crate) fn group(&self) -> Option<Pid> {
        self.process.id().try_into().ok().and_then(Pid::from_raw)
    }

    fn is_alive(&self) -> bool {
        let looked = self.group().map(|pid| waitid(WaitId::Pid(pid), LOOK));
        matches!(looked, Some(Ok(None)))
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // Does nothing to one that has ended; both do nothing once it has been waited for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Where launchers come from.
#[derive(Debug, Default)]
pub(crate) struct Launchers {
    spare: Mutex<Option<Launcher>>,
}

impl Launchers {
    /// The spare one, or a new one.
    pub(crate) fn take(&self) -> io::Result<Launcher> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
        spare.filter(|spare| spare.is_alive()).map_or_else(Launcher::spawn, Ok)
    }

    /// Spawns a spare one if there is none. Without one the next boot is slower, so a failure does not matter here.
    pub(crate) fn refill(&self) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.is_none() {
            *spare = Launcher::spawn().ok();
        }
    }
}
