//! A running sandbox: its process 1, the group of its processes, its egress.
//!
//! A handle neither owns nor ends the sandbox: dropping the last one leaves it running, but without
//! egress, which this process carries. [`Machine::kill`] ends it, also while other handles exist.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cgroup::Calls;
use egress::Egress;
use parking_lot::Mutex;
use rustix::process::{WaitId, WaitIdOptions, waitid};
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::blocking;
use crate::error::NamespacesError;
use crate::group::Group;
use crate::ids::Range;
use crate::pool::Volume;
use crate::port::{EngineError, Instance, Machine, Usage};

/// After the kill of a whole cgroup, process 1 ends as soon as the kernel has released its memory
/// and mounts, which includes writing dirty files out.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);

/// A running sandbox. Cheap to clone.
#[derive(Debug, Clone)]
pub struct NamespacesMachine(Arc<Inner>);

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

impl NamespacesMachine {
    pub(crate) fn new(inner: Inner) -> Self {
        Self(Arc::new(inner))
    }

    async fn with_group<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Group) -> Result<T, NamespacesError> + Send + 'static,
    ) -> Result<T, NamespacesError> {
        let group = self.0.group.clone();
        blocking(move || work(&group)).await
    }

    async fn end(&self) -> Result<(), NamespacesError> {
        self.0.egress.lock().take();
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
        self.0.ids.lock().take();
        Ok(())
    }
}

impl Inner {
    fn usage(&self) -> Result<Usage, NamespacesError> {
        let (now, volume) = (self.group.usage()?, &self.volume);
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
            oom_kills: self.group.oom_kills()?,
        })
    }
}

#[async_trait]
impl Machine for NamespacesMachine {
    fn instance(&self) -> Instance {
        self.0.instance
    }

    fn guest_socket(&self) -> &Path {
        &self.0.socket
    }

    fn record_call(&self) {
        // Without cgroups there are no classes, and no task takes the counts.
        if matches!(self.0.group, Group::Cgroup(_)) {
            self.0.calls.record(&self.0.name);
        }
    }

    async fn dial(&self, port: u16) -> io::Result<TcpStream> {
        egress::dial_in(self.0.network.as_fd(), port).await
    }

    fn set_egress_rules(&self, rules: egress::Rules) {
        if let Some(egress) = &*self.0.egress.lock() {
            egress.set_rules(rules);
        }
    }

    async fn freeze(&self) -> Result<(), EngineError> {
        self.with_group(Group::freeze).await.map_err(|error| error.explain("cannot freeze the sandbox"))
    }

    async fn thaw(&self) -> Result<(), EngineError> {
        self.with_group(Group::thaw).await.map_err(|error| error.explain("cannot thaw the sandbox"))
    }

    /// Also removes what the engine created for the processes.
    async fn kill(&self) -> Result<(), EngineError> {
        self.end().await.map_err(|error| error.explain("cannot end the sandbox's processes"))
    }

    async fn usage(&self) -> Result<Usage, EngineError> {
        let inner = self.0.clone();
        let usage = blocking(move || inner.usage()).await;
        usage.map_err(|error| error.explain("cannot read what the sandbox uses"))
    }

    async fn exited(&self) {
        // An error means that the runtime is shutting down; then no task waits any more.
        if let Ok(mut ready) = self.0.process.readable().await {
            ready.retain_ready();
        }
        // Reaps process 1 if it is a child of this process and not of an earlier server.
        let _ = waitid(WaitId::PidFd(self.0.process.get_ref().as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
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
