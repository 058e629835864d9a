//! Launcher processes as the server sees them: spawned ahead of need, used once.
//!
//! They run a small static executable, which this crate embeds and keeps as a sealed file in
//! memory: no process can change it, and no other version of the program can replace it while the
//! server runs.
//!
//! A spare one has made the namespaces of a sandbox, with ids and a network device, and waits for
//! the specification: spawning and preparing take as long as the rest of a boot. For a boot that is
//! expected, from spare files, it has mounted these files, too. Without a spare a boot sends both
//! messages at once, so there is one way of booting. A spare ends with the server, whose end of the
//! channel then closes. Spawning never forks this process's memory (`posix_spawn`), so the server's
//! size and threads do not matter.
//!
//! Invariant: files are mounted by one launcher at a time. So a boot waits for a spare that is
//! mounting its files or ending, and ends one that it cannot use.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use egress::Device;
use launcher::sealed_file;
use launcher::spec::{Channel, Files, OnDisk, Overlay, Preparation, Report};
use parking_lot::{Condvar, Mutex, MutexGuard};
use protocol::SandboxId;
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

    /// Whether the launcher and the process that may mount the overlays wait for their work.
    fn is_alive(&self) -> bool {
        let status = self.group().map(|group| waitid(WaitId::Pgid(Some(group)), PEEK));
        matches!(status, Some(Ok(None)))
    }

    /// Whether a boot with this limit of processes and these overlays can use it.
    fn suits(&self, processes: Option<u32>, overlays: &[Overlay]) -> bool {
        let Preparation { processes: prepared, files, .. } = &self.preparation;
        *prepared == processes && files.as_ref().is_none_or(|files| files.overlays == overlays) && self.is_alive()
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

/// Spawns launchers, and keeps spare ones.
#[derive(Debug)]
pub(crate) struct Launchers {
    executable: Executable,
    /// Environment mark of the processes that a launcher makes, until they execute the guest; see
    /// [`crate::processes`].
    mark: Option<String>,
    ranges: Ranges,
    id_count: u32,
    on_disk: OnDisk,
    spares: Mutex<SpareLaunchers>,
    /// A launcher is no longer busy.
    settled: Condvar,
}

#[derive(Debug, Default)]
struct SpareLaunchers {
    /// The limit of processes of the last boot, which the next is expected to have.
    processes: Option<u32>,
    /// For every boot; `None`: there is none.
    general: Option<Spare>,
    /// Those that have mounted files, by the name of these.
    mounted: BTreeMap<String, Spare>,
    /// The names of the files for which there should be one.
    expected: BTreeSet<String>,
}

#[derive(Debug)]
enum Spare {
    /// It is being prepared, or it is ending.
    Busy,
    Ready(Box<Launcher>),
}

/// The spare files of an expected boot, and how they are mounted.
#[derive(Debug)]
pub(crate) struct ExpectedFiles {
    pub(crate) writable: PathBuf,
    pub(crate) overlays: Vec<Overlay>,
}

impl SpareLaunchers {
    fn next_missing(&self) -> Option<String> {
        self.expected.iter().find(|name| !self.mounted.contains_key(*name)).cloned()
    }

    fn next_unexpected(&self) -> Option<String> {
        let mut ready = self.mounted.iter().filter(|(_, spare)| matches!(spare, Spare::Ready(_)));
        ready.find(|(name, _)| !self.expected.contains(*name)).map(|(name, _)| name.clone())
    }
}

impl Launchers {
    pub(crate) fn new(mark: Option<String>, ranges: Ranges, id_count: u32, on_disk: OnDisk) -> io::Result<Self> {
        let executable = Executable::new()?;
        Ok(Self { executable, mark, ranges, id_count, on_disk, spares: Mutex::default(), settled: Condvar::new() })
    }

    /// Takes a spare launcher for the boot of the files `name`, or spawns one, which then still
    /// prepares. `processes`: the limit of processes, where no cgroup counts them.
    pub(crate) fn take(
        &self,
        name: &str,
        processes: Option<u32>,
        overlays: &[Overlay],
    ) -> Result<Launcher, NamespacesError> {
        let suits = |spare: &Launcher| spare.suits(processes, overlays);
        if let Some(spare) = self.take_mounted(name).filter(suits) {
            return Ok(spare);
        }
        let spare = {
            let mut spares = self.lock();
            spares.processes = processes;
            spares.general.take_if(|spare| matches!(spare, Spare::Ready(_)))
        };
        match spare {
            Some(Spare::Ready(spare)) if suits(&spare) => Ok(*spare),
            _ => self.spawn(processes, None),
        }
    }

    /// Takes the launcher that has mounted the files `name`. Waits for one that is busy.
    fn take_mounted(&self, name: &str) -> Option<Launcher> {
        let mut spares = self.lock();
        spares.expected.remove(name);
        loop {
            match spares.mounted.remove(name)? {
                Spare::Ready(launcher) => return Some(*launcher),
                Spare::Busy => {
                    spares.mounted.insert(name.to_owned(), Spare::Busy);
                    self.settled.wait(&mut spares);
                }
            }
        }
    }

    /// Ends the launcher that has mounted the files `name`, which are about to be removed. Blocks.
    pub(crate) fn forget(&self, name: &str) {
        drop(self.take_mounted(name));
    }

    /// Replaces the names of the spare files whose boots are expected; returns whether
    /// [`Launchers::refill`] has something to do.
    pub(crate) fn expect(&self, next: &[SandboxId]) -> bool {
        let mut spares = self.lock();
        spares.expected = next.iter().map(SandboxId::to_string).collect();
        spares.next_missing().is_some() || spares.next_unexpected().is_some()
    }

    /// Ends the spare launchers that are not expected any more, and prepares those that are
    /// missing. `find` returns what there is of the files of a name. Without a spare the next boot
    /// is slower, so a failure is ignored. Blocks.
    pub(crate) fn refill(&self, find: impl Fn(&str) -> Option<ExpectedFiles>) {
        while let Some((name, launcher)) = self.begin_end() {
            drop(launcher);
            self.finish(&name, None);
        }
        while let Some((name, processes)) = self.begin_mounted() {
            let made = find(&name).and_then(|files| self.prepare(processes, Some(files)));
            self.finish(&name, made);
        }
        let processes = match &mut *self.lock() {
            SpareLaunchers { general: Some(_), .. } => return,
            SpareLaunchers { general, processes, .. } => {
                *general = Some(Spare::Busy);
                *processes
            }
        };
        let made = self.prepare(processes, None);
        self.lock().general = made.map(Spare::Ready);
    }

    fn prepare(&self, processes: Option<u32>, files: Option<ExpectedFiles>) -> Option<Box<Launcher>> {
        let mut launcher = self.spawn(processes, files).ok()?;
        launcher.finish_preparation().ok()?;
        Some(Box::new(launcher))
    }

    fn begin_end(&self) -> Option<(String, Box<Launcher>)> {
        let mut spares = self.lock();
        let name = spares.next_unexpected()?;
        match spares.mounted.insert(name.clone(), Spare::Busy)? {
            Spare::Ready(launcher) => Some((name, launcher)),
            Spare::Busy => None,
        }
    }

    fn begin_mounted(&self) -> Option<(String, Option<u32>)> {
        let mut spares = self.lock();
        let name = spares.next_missing()?;
        spares.mounted.insert(name.clone(), Spare::Busy);
        Some((name, spares.processes))
    }

    /// Ends the work on the launcher of the files `name`.
    fn finish(&self, name: &str, made: Option<Box<Launcher>>) {
        let mut spares = self.lock();
        match made {
            Some(launcher) => drop(spares.mounted.insert(name.to_owned(), Spare::Ready(launcher))),
            None => {
                spares.mounted.remove(name);
                spares.expected.remove(name);
            }
        }
        self.settled.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, SpareLaunchers> {
        self.spares.lock()
    }

    fn spawn(&self, processes: Option<u32>, files: Option<ExpectedFiles>) -> Result<Launcher, NamespacesError> {
        let ids = self.ranges.take().map_err(NamespacesError::TooMany)?;
        let (id_base, owner, on_disk) = (ids.base(), ids.owner(), self.on_disk);
        let files = files.map(|ExpectedFiles { writable, overlays }| Files {
            id_base,
            on_disk,
            writable,
            overlays,
            volumes: Vec::new(),
        });
        let preparation = Preparation { id_base, id_count: self.id_count, owner, processes, files };
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
        let launchers = Launchers::new(None, ranges.clone(), privilege.id_count(), privilege.on_disk()).unwrap();
        let nothing = |_: &str| None;
        launchers.refill(nothing);
        launchers.refill(nothing);
        let spares = usize::from(matches!(launchers.lock().general, Some(Spare::Ready(_))));
        assert_eq!(ranges.taken(), spares);
        // A spare with another limit of processes cannot be used.
        let launcher = launchers.take("files", Some(17), &[]).unwrap();
        assert_eq!((launcher.preparation.processes, ranges.taken()), (Some(17), 1));
        drop(launcher);
        assert_eq!(ranges.taken(), 0);
        launchers.refill(nothing);
        if let Some(Spare::Ready(spare)) = &launchers.lock().general {
            assert_eq!(spare.preparation.processes, Some(17), "as the last boot");
        }
        drop(launchers);
        assert_eq!(ranges.taken(), 0);
    }
}
