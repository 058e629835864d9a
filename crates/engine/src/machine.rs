//! A running sandbox: its first process, what holds its processes together, its way to the network.
//!
//! A handle neither owns nor ends what it names: dropping the last one leaves the sandbox running (without its way to the
//! internet, which this process carries), and [`Machine::kill`] ends it whoever else holds a handle.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{WaitId, WaitIdOptions, waitid};
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::error::EngineError;
use crate::group::Group;
use crate::ids::Range;
use crate::net::{self, Egress};
use crate::pool::Volume;
use crate::{Instance, blocking};

/// After the kill of a whole cgroup, process 1 is gone as soon as the kernel has taken its memory and mounts apart, which
/// includes writing its dirty files out.
const EXIT_LIMIT: Duration = Duration::from_secs(30);

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
    /// Given back when the sandbox is known to be gone.
    pub(crate) ids: Mutex<Option<Range>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").field("name", &self.name).field("instance", &self.instance).finish_non_exhaustive()
    }
}

/// What a sandbox uses now.
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
    /// Processes the kernel has killed since boot because the sandbox was out of memory.
    pub oom_kills: u64,
}

impl Machine {
    pub(crate) fn new(inner: Inner) -> Self {
        Self(Arc::new(inner))
    }

    /// What finds this machine again after a restart of the server.
    pub fn instance(&self) -> Instance {
        self.0.instance
    }

    /// The unix socket at which the guest serves.
    pub fn guest_socket(&self) -> &Path {
        &self.0.socket
    }

    /// Connects to `port` on the sandbox's own loopback.
    /// # Errors
    /// `ConnectionRefused` when nothing listens there.
    pub async fn dial(&self, port: u16) -> io::Result<TcpStream> {
        net::dial_in(self.0.network.as_fd(), port).await
    }

    /// Other rules for what the sandbox may reach, from now on. Connections that they do not allow are cut.
    pub fn set_egress_rules(&self, rules: net::Rules) {
        if let Some(egress) = &*self.0.egress.lock().unwrap_or_else(PoisonError::into_inner) {
            egress.set_rules(rules);
        }
    }

    /// Stops every process where it is. Frozen already: success.
    pub async fn freeze(&self) -> Result<(), EngineError> {
        self.with_group(Group::freeze).await
    }

    /// Lets every process go on. Running already: success.
    pub async fn thaw(&self) -> Result<(), EngineError> {
        self.with_group(Group::thaw).await
    }

    /// Ends every process, frozen or not, and removes what the engine made for them. The files stay. Repeating it, or
    /// calling it for a machine whose processes have ended by themselves, succeeds.
    pub async fn kill(&self) -> Result<(), EngineError> {
        self.0.egress.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.with_group(Group::kill_all).await?;
        timeout(EXIT_LIMIT, self.exited()).await.map_err(|_| EngineError::Io {
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

    /// What the sandbox uses now, and what it may.
    pub async fn usage(&self) -> Result<Usage, EngineError> {
        let inner = self.0.clone();
        blocking(move || {
            let (now, volume) = (inner.group.usage()?, &inner.volume);
            let disk_used = volume.used_bytes().map_err(EngineError::io("count the bytes of a volume"))?;
            Ok(Usage {
                cpu_usec: now.cpu_usec,
                memory_used: now.memory_used,
                memory_cache: now.memory_cache,
                memory_limit: now.memory_limit,
                // More may be charged to a volume that was copied: see `Volume::set_allowance`.
                disk_used: disk_used.min(volume.limit_bytes()),
                disk_limit: volume.limit_bytes(),
                pids: now.pids,
                oom_kills: inner.group.oom_kills()?,
            })
        })
        .await
    }

    /// Resolves when process 1, and with it every process of the sandbox, has ended. May be called any number of times.
    pub async fn exited(&self) {
        // An error would mean that the runtime is shutting down; then nobody is waiting any more.
        if let Ok(mut ready) = self.0.process.readable().await {
            ready.retain_ready();
        }
        // Ours to reap unless another server made it.
        let _ = waitid(WaitId::PidFd(self.0.process.get_ref().as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }

    async fn with_group<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Group) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let group = self.0.group.clone();
        blocking(move || work(&group)).await
    }
}

/// Where names that a sandbox resolved are kept, beside its socket.
pub(crate) fn names_beside(socket: &Path) -> PathBuf {
    socket.with_extension("names")
}

/// Removes a sandbox's socket, after what is kept beside it.
pub(crate) fn remove_socket(path: &Path) -> Result<(), EngineError> {
    remove(&names_beside(path))?;
    remove(path)
}

pub(crate) fn remove(path: &Path) -> Result<(), EngineError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(EngineError::io(format!("remove {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}
