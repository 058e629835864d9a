//! Launcher processes as the server sees them: spawned ahead of need, used once.
//!
//! They run a small static executable, which this crate embeds and keeps as a sealed file in
//! memory: no process can change it, and no other version of the program can replace it while the
//! server runs.
//!
//! A spare one has made the namespaces of a sandbox, with ids and a network device, and waits for
//! the specification: spawning and preparing take as long as the rest of a boot. Without a spare a
//! boot sends both messages at once, so there is one way of booting. A spare ends with the server,
//! whose end of the channel then closes. Spawning never forks this process's memory
//! (`posix_spawn`), so the server's size and threads do not matter.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use egress::Device;
use launcher::sealed_file;
use launcher::spec::{Channel, Preparation, Report};
use parking_lot::{Mutex, MutexGuard};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tracing::debug;

use crate::boot::BOOT_TIMEOUT;
use crate::error::NamespacesError;
use crate::ids::{Range, Ranges};
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

/// A launcher, the channel to it, and what exists for its sandbox. Dropping it ends the launcher
/// and every process it has made, but for a process 1 that runs.
#[derive(Debug)]
pub(crate) struct Launcher {
    process: Child,
    pub(crate) channel: Channel,
    pub(crate) preparation: Preparation,
    /// The ids of the preparation; `None` once the sandbox has them.
    pub(crate) ids: Option<Range>,
    /// `None` until the launcher has made the network namespace.
    pub(crate) link: Option<NetworkLink>,
}

/// The network namespace of a sandbox with its device, which nothing serves yet.
#[derive(Debug)]
pub(crate) struct NetworkLink {
    pub(crate) namespace: OwnedFd,
    pub(crate) device: Device,
}

impl NetworkLink {
    /// Makes the device in the namespace that comes with [`Report::Prepared`]. Blocks.
    pub(crate) fn set_up(descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let namespace = descriptors.into_iter().next().ok_or(io::ErrorKind::InvalidData)?;
        let device = Device::set_up(namespace.as_fd())?;
        Ok(Self { namespace, device })
    }
}

impl Launcher {
    /// The process group of the launcher and of the processes it makes.
    pub(crate) fn group(&self) -> Option<Pid> {
        self.process.id().try_into().ok().and_then(Pid::from_raw)
    }

    /// Whether the launcher and the process that will mount the overlays wait for their work.
    fn is_alive(&self) -> bool {
        let status = self.group().map(|group| waitid(WaitId::Pgid(Some(group)), PEEK));
        matches!(status, Some(Ok(None)))
    }

    /// Waits until all is prepared, and makes the device. Blocks.
    fn finish_preparation(&mut self) -> io::Result<()> {
        set_socket_timeout(&self.channel, Timeout::Recv, Some(BOOT_TIMEOUT))?;
        loop {
            match self.channel.receive()? {
                Some((Report::Prepared, descriptors)) => {
                    self.link = Some(NetworkLink::set_up(descriptors)?);
                    return Ok(());
                }
                Some((Report::Timings(marks), _)) => debug!(?marks, "preparation"),
                Some((Report::Failed { step, errno }, _)) => {
                    debug!(step, errno, "no spare launcher");
                    return Err(io::Error::from_raw_os_error(errno));
                }
                _ => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // Killing has no effect on processes that have ended. The launcher is not waited for yet,
        // so no other group has its number.
        if let Some(group) = self.group() {
            let _ = kill_process_group(group, Signal::KILL);
            while waitid(WaitId::Pgid(Some(group)), WaitIdOptions::EXITED).is_ok() {}
        }
    }
}

/// Spawns launchers and keeps a spare one.
#[derive(Debug)]
pub(crate) struct Launchers {
    executable: Executable,
    /// Environment mark of the processes that a launcher makes, until they execute the guest; see
    /// [`crate::processes`].
    mark: Option<String>,
    ranges: Ranges,
    id_count: u32,
    spare: Mutex<Spare>,
}

/// What the next boot finds.
#[derive(Debug)]
enum Spare {
    /// Nothing. The last launcher had this limit of processes, which the next is expected to have.
    Absent {
        processes: Option<u32>,
    },
    /// One is being prepared.
    Underway,
    Ready(Box<Launcher>),
}

impl Launchers {
    pub(crate) fn new(mark: Option<String>, ranges: Ranges, id_count: u32) -> io::Result<Self> {
        let spare = Mutex::new(Spare::Absent { processes: None });
        Ok(Self { executable: Executable::new()?, mark, ranges, id_count, spare })
    }

    /// Takes the spare launcher, or spawns one, which then still prepares. `processes`: the limit
    /// of processes, where no cgroup counts them.
    pub(crate) fn take(&self, processes: Option<u32>) -> Result<Launcher, NamespacesError> {
        let spare = {
            let mut spare = self.lock();
            match &*spare {
                Spare::Underway => None,
                _ => match std::mem::replace(&mut *spare, Spare::Absent { processes }) {
                    Spare::Ready(launcher) => Some(*launcher),
                    _ => None,
                },
            }
        };
        match spare.filter(|spare| spare.preparation.processes == processes && spare.is_alive()) {
            Some(spare) => Ok(spare),
            None => self.spawn(processes),
        }
    }

    /// Prepares a spare launcher if there is none. Without one the next boot is slower, so a
    /// failure is ignored. Blocks.
    pub(crate) fn refill(&self) {
        let processes = match &mut *self.lock() {
            spare @ Spare::Absent { .. } => match std::mem::replace(spare, Spare::Underway) {
                Spare::Absent { processes } => processes,
                _ => return,
            },
            _ => return,
        };
        let made = self.spawn(processes).ok().and_then(|mut launcher| {
            launcher.finish_preparation().ok()?;
            Some(Box::new(launcher))
        });
        *self.lock() = made.map_or(Spare::Absent { processes }, Spare::Ready);
    }

    fn lock(&self) -> MutexGuard<'_, Spare> {
        self.spare.lock()
    }

    fn spawn(&self, processes: Option<u32>) -> Result<Launcher, NamespacesError> {
        let ids = self.ranges.take().map_err(NamespacesError::TooMany)?;
        let preparation = Preparation { id_base: ids.base(), id_count: self.id_count, owner: ids.owner(), processes };
        self.spawn_with(ids, preparation).map_err(NamespacesError::io("spawn the launcher"))
    }

    fn spawn_with(&self, ids: Range, preparation: Preparation) -> io::Result<Launcher> {
        let (ours, theirs) = Channel::pair()?;
        let process = self
            .executable
            .command(launcher::LAUNCH)
            .envs(self.mark.as_ref().map(|mark| (MARK, mark)))
            .process_group(0)
            .stdin(Stdio::from(theirs.into_descriptor()))
            .stdout(Stdio::null())
            .spawn()?;
        let launcher = Launcher { process, channel: ours, preparation, ids: Some(ids), link: None };
        launcher.channel.send(&launcher.preparation, &[])?;
        Ok(launcher)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::privilege::Privilege;

    /// A process that may not make namespaces gets no spare; what it had taken is given back, too.
    #[test]
    fn the_ids_of_an_unused_spare_are_given_back() {
        let privilege = Privilege::detect();
        let ranges = Ranges::survey(privilege, 0);
        let launchers = Launchers::new(None, ranges.clone(), privilege.id_count()).unwrap();
        launchers.refill();
        launchers.refill();
        let spares = usize::from(matches!(*launchers.lock(), Spare::Ready(_)));
        assert_eq!(ranges.taken(), spares);
        // A spare with another limit of processes cannot be used.
        let launcher = launchers.take(Some(17)).unwrap();
        assert_eq!((launcher.preparation.processes, ranges.taken()), (Some(17), 1));
        drop(launcher);
        assert_eq!(ranges.taken(), 0);
        launchers.refill();
        if let Spare::Ready(spare) = &*launchers.lock() {
            assert_eq!(spare.preparation.processes, Some(17), "as the last boot");
        }
        drop(launchers);
        assert_eq!(ranges.taken(), 0);
    }
}
