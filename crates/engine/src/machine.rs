//! A running sandbox: its process 1, the group of its processes, its egress.
//!
//! A handle neither owns nor ends the sandbox: dropping the last one leaves it running, but without
//! egress, which this process carries. [`Machine::kill`] ends it, also while other handles exist.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use egress::Egress;
use rustix::process::{WaitId, WaitIdOptions, waitid};
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::cgroup::Calls;
use crate::error::NamespacesError;
use crate::group::Group;
use crate::ids::Range;
use crate::pool::Volume;
use crate::{Instance, blocking};

/// After the kill of a whole cgroup, process 1 ends as soon as the kernel has released its memory
/// and mounts, which includes writing dirty files out.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);

/// A running sandbox. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Machine(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) name: String,
    pub(crate) instance: Instance,
    /// Becomes readable when process 1 has ended.
    pub(crate) process: AsyncFd<OwnedFd>,
    pub(crate) network: OwnedFd,
    pub(crate) group: Group,
    pub(crate) volume: Volume,
    pub(crate) socket: PathBuf,
    pub(crate) egress: Mutex<Option<Egress>>,
    pub(crate) calls: Arc<Calls>,
    /// Released when the sandbox is known to have ended.
    pub(crate) ids: Mutex<Option<Range>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").field("name", &self.name).field("instance", &self.instance).finish_non_exhaustive()
    }
}

/// What a sandbox uses at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Processor time since the sandbox was booted.
    pub cpu_usec: u64,
    pub memory_used: u64,
    pub memory_cache: u64,
    pub memory_limit: u64,
    pub disk_used: u64,
    pub disk_limit: u64,
    pub pids: u64,
    /// Processes that the kernel killed since the boot because the sandbox was out of memory.
    pub oom_kills: u64,
}

impl Machine {
    pub(crate) fn new(inner: Inner) -> Self {
        Self(Arc::new(inner))
    }

    /// Identifies this machine to [`Engine::adopt`](crate::Engine::adopt) after a restart of the
    /// server.
    pub fn instance(&self) -> Instance {
        self.0.instance
    }

    /// The Unix socket on which the guest listens.
    pub fn guest_socket(&self) -> &Path {
        &self.0.socket
    }

    /// Counts a call of an authenticated client, whose work takes precedence over that of sandboxes
    /// without calls.
    pub fn record_call(&self) {
        // Without cgroups there are no classes, and no task takes the counts.
        if matches!(self.0.group, Group::Cgroup(_)) {
            self.0.calls.record(&self.0.name);
        }
    }

    /// Connects to `port` on the sandbox's own loopback interface.
    /// # Errors
    /// `ConnectionRefused` when no process listens there.
    pub async fn dial(&self, port: u16) -> io::Result<TcpStream> {
        egress::dial_in(self.0.network.as_fd(), port).await
    }

    /// Replaces the egress rules. Connections that the new rules do not allow are closed.
    pub fn set_egress_rules(&self, rules: egress::Rules) {
        if let Some(egress) = &*self.0.egress.lock().unwrap_or_else(PoisonError::into_inner) {
            egress.set_rules(rules);
        }
    }

    /// Stops every process. A frozen machine is success.
    pub async fn freeze(&self) -> Result<(), NamespacesError> {
        self.with_group(Group::freeze).await
    }

    /// Lets every process continue. A running machine is success.
    pub async fn thaw(&self) -> Result<(), NamespacesError> {
        self.with_group(Group::thaw).await
    }

    /// Kills every process, frozen or not, and removes what the engine created for them. The files
    /// stay. Idempotent; also succeeds for a machine whose processes have ended by themselves.
    pub async fn kill(&self) -> Result<(), NamespacesError> {
        self.0.egress.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.with_group(Group::kill_all).await?;
        timeout(EXIT_TIMEOUT, self.exited()).await.map_err(|_| NamespacesError::Io {
            what: format!("end process 1 of sandbox {}", self.0.name),
            source: io::ErrorKind::TimedOut.into(),
        })?;
        let socket = self.0.socket.clone();
        self.with_group(move |group| {
            group.remove()?;
            remove_socket(&socket)
        })
        .await?;
        self.0.ids.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(())
    }

    /// What the sandbox uses now, and its limits.
    pub async fn usage(&self) -> Result<Usage, NamespacesError> {
        let inner = self.0.clone();
        blocking(move || {
            let (now, volume) = (inner.group.usage()?, &inner.volume);
            let disk_used = volume.used_bytes().map_err(NamespacesError::io("count the bytes of a volume"))?;
            Ok(Usage {
                cpu_usec: now.cpu_usec,
                memory_used: now.memory_used,
                memory_cache: now.memory_cache,
                memory_limit: now.memory_limit,
                // More may be charged to a volume that was copied: see [`Volume::set_allowance`].
                disk_used: disk_used.min(volume.limit_bytes()),
                disk_limit: volume.limit_bytes(),
                pids: now.pids,
                oom_kills: inner.group.oom_kills()?,
            })
        })
        .await
    }

    /// Resolves when process 1, and with it every process of the sandbox, has ended. May be called
    /// any number of times.
    pub async fn exited(&self) {
        // An error means that the runtime is shutting down; then no task waits any more.
        if let Ok(mut ready) = self.0.process.readable().await {
            ready.retain_ready();
        }
        // Reaps process 1 if it is a child of this process and not of an earlier server.
        let _ = waitid(WaitId::PidFd(self.0.process.get_ref().as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }

    async fn with_group<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Group) -> Result<T, NamespacesError> + Send + 'static,
    ) -> Result<T, NamespacesError> {
        let group = self.0.group.clone();
        blocking(move || work(&group)).await
    }
}

/// The file beside `socket` with the names that the sandbox resolved.
pub(crate) fn names_path(socket: &Path) -> PathBuf {
    socket.with_extension("names")
}

/// Removes a sandbox's socket, after the files beside it.
pub(crate) fn remove_socket(path: &Path) -> Result<(), NamespacesError> {
    remove(&names_path(path))?;
    remove(path)
}

pub(crate) fn remove(path: &Path) -> Result<(), NamespacesError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(NamespacesError::io(format!("remove {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}
