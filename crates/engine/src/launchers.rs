//! Launcher processes as the server sees them: spawned ahead of need, used once.
//!
//! They run a small static executable, which this crate embeds and keeps as a sealed file in
//! memory: no process can change it, and no other version of the program can replace it while the
//! server runs.
//!
//! A spare one waits for its specification, because spawning takes as long as a third of a boot. It
//! ends with the server, whose end of the channel then closes. Spawning never forks this process's
//! memory (`posix_spawn`), so the server's size and threads do not matter.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use launcher::sealed_file;
use launcher::spec::Channel;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::processes::MARK;

/// The launcher's executable, built by the build script.
static IMAGE: &[u8] = include_bytes!(env!("SANDBAR_LAUNCHER_IMAGE"));

/// Reads whether a process has ended and leaves the reaping to the owner of the handle.
const PEEK: WaitIdOptions = WaitIdOptions::EXITED.union(WaitIdOptions::NOHANG).union(WaitIdOptions::NOWAIT);

/// The launcher's executable as a file.
#[derive(Debug)]
pub(crate) struct Executable(OwnedFd);

impl Executable {
    pub(crate) fn new() -> io::Result<Self> {
        sealed_file("sandbar-launcher", IMAGE).map(Self)
    }

    /// The command must be spawned while `self` lives: `/proc/self` is then the child, which has
    /// the descriptor until it executes the launcher.
    pub(crate) fn command(&self, part: &str) -> Command {
        let mut command = Command::new(format!("/proc/self/fd/{}", self.0.as_raw_fd()));
        command.arg0("sandbar-launcher").arg(part).env_clear();
        command
    }
}

/// A launcher and the channel to it. Killed on drop, if it has not ended by itself.
#[derive(Debug)]
pub(crate) struct Launcher {
    process: Child,
    pub(crate) channel: Channel,
}

impl Launcher {
    fn spawn(executable: &Executable, mark: Option<&str>) -> io::Result<Self> {
        let (ours, theirs) = Channel::pair()?;
        let process = executable
            .command(launcher::LAUNCH)
            .envs(mark.map(|mark| (MARK, mark)))
            .process_group(0)
            .stdin(Stdio::from(theirs.into_descriptor()))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { process, channel: ours })
    }

    /// The process group of the launcher and of the processes it makes.
    pub(crate) fn group(&self) -> Option<Pid> {
        self.process.id().try_into().ok().and_then(Pid::from_raw)
    }

    fn is_alive(&self) -> bool {
        let status = self.group().map(|pid| waitid(WaitId::Pid(pid), PEEK));
        matches!(status, Some(Ok(None)))
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // Killing has no effect on a launcher that has ended; neither has an effect once it was
        // waited for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Spawns launchers and keeps a spare one.
#[derive(Debug)]
pub(crate) struct Launchers {
    executable: Executable,
    /// Environment mark of the processes that a launcher makes, until they execute the guest; see
    /// [`crate::processes`].
    mark: Option<String>,
    spare: Mutex<Option<Launcher>>,
}

impl Launchers {
    pub(crate) fn new(mark: Option<String>) -> io::Result<Self> {
        Ok(Self { executable: Executable::new()?, mark, spare: Mutex::new(None) })
    }

    /// Takes the spare launcher, or spawns one.
    pub(crate) fn take(&self) -> io::Result<Launcher> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
        spare.filter(Launcher::is_alive).map_or_else(|| self.spawn(), Ok)
    }

    /// Spawns a spare launcher if there is none. Without one the next boot is slower, so a failure
    /// is ignored.
    pub(crate) fn refill(&self) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.is_none() {
            *spare = self.spawn().ok();
        }
    }

    fn spawn(&self) -> io::Result<Launcher> {
        Launcher::spawn(&self.executable, self.mark.as_deref())
    }
}
