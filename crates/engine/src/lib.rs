//! Engines, which isolate sandboxes on one machine: the [`port`] that callers see, and
//! [`Namespaces`], the engine of Linux namespaces: layers, cgroups, freeze. No HTTP, no database.
//!
//! An [`Engine`] owns the files of sandboxes on this machine. It boots a [`Machine`] from a
//! [`Boot`] and returns a handle. The [`Instance`] must survive a restart of the server: from it
//! [`Engine::adopt`] finds the machine again.
//!
//! A program that embeds the engine calls [`enter_private_mounts`] before it starts any thread.

mod boot;
mod copy;
mod delegation;
mod error;
mod files_id;
mod fingerprint;
mod group;
mod ids;
mod launchers;
mod machine;
mod namespaces;
pub mod pool;
pub mod port;
mod privilege;
pub mod probe;
mod processes;
mod removal;
mod root;
pub mod rootfs;
mod rootless;
mod spares;
mod sys;
pub mod volume;

use std::io;
use std::path::{Path, PathBuf};

pub use copy::allow_for_restored;
pub use error::NamespacesError;
pub use files_id::{FilesId, InvalidFilesId};
pub use machine::NamespacesMachine;
pub use namespaces::Namespaces;
pub use port::{
    Boot, BootFiles, Engine, EngineCapabilities, EngineError, Fill, Instance, IsolationClass, Machine, Mount,
    Resources, RootError, Trash, Trashed, Usage,
};
pub use privilege::FileIds;
pub use root::NewRoot;

/// Directories of the engine and limits of what it uses.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Durable state, mode 0700: the pool image and the layers.
    pub data: PathBuf,
    /// Sockets of running sandboxes; may vanish with a reboot. Short, because a socket path has at
    /// most 107 bytes.
    pub runtime: PathBuf,
    /// The static guest executable that becomes process 1 of every sandbox.
    pub guest: &'static [u8],
    /// Apparent size of the sparse pool image when the data directory itself is not btrfs.
    pub pool_bytes: u64,
    /// What sandboxes may connect to.
    pub egress: egress::EgressConfig,
}

/// Gives this process a mount namespace of its own, so that the kernel unmounts the pool when the
/// process ends, however it ends. A process that is not root becomes root of a user namespace
/// first: that of the running sandboxes of `data`, if there are any, else a new one.
///
/// With several threads only the calling one would move: call it before any other is started.
pub fn enter_private_mounts(data: &Path) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        rootless::enter(data)?;
    }
    launcher::unshare_mounts()
}

/// Removes what a rootless server made for all its sandboxes, if there are no sandboxes left. The
/// files belong to ids that only this process can use, and the user may want to remove the data
/// directory. What root made, root can remove.
pub fn remove_shared_files(data: &Path) -> io::Result<()> {
    if privilege::Privilege::detect().is_root() || pool::has_volumes(data) {
        return Ok(());
    }
    match std::fs::remove_dir_all(data.join(LAYERS)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// In the data directory: the layers of templates.
pub(crate) const LAYERS: &str = "layers";

/// Runs blocking work on the runtime's blocking pool. A panic of the work continues in the caller.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, NamespacesError> + Send + 'static,
) -> Result<T, NamespacesError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(NamespacesError::Io {
                what: "finish: the runtime is shutting down".to_owned(),
                source: io::ErrorKind::Interrupted.into(),
            }),
        },
    }
}
