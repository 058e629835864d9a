//! Linux isolation: layers, namespaces, cgroups, freeze. One machine, no HTTP, no
//! database.
//!
//! An [`Engine`] owns the data directory's file systems and the machine's sandbox cgroups. It boots
//! a [`Machine`] from a [`Boot`] and returns a handle. The [`Instance`] must survive a restart of
//! the server: from it [`Engine::adopt`] finds the machine again.
//!
//! A program that embeds the engine calls [`enter_private_mounts`] before it starts any thread.

mod boot;
pub mod cgroup;
mod copy;
mod delegation;
mod engine;
mod error;
mod files_id;
mod fingerprint;
mod group;
mod ids;
mod launchers;
mod machine;
pub mod pool;
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
pub use engine::Engine;
pub use error::NamespacesError;
pub use files_id::{FilesId, InvalidFilesId};
pub use machine::{Machine, Usage};
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

/// Resource limits of one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resources {
    pub cpu_count: u32,
    pub memory_mb: u32,
    pub disk_mb: u32,
    pub pids: u32,
}

/// The parameters of one start of a sandbox.
#[derive(Debug, Clone)]
pub struct Boot {
    /// The sandbox's name: lower-case letters and digits. Its files are kept under this name across
    /// boots.
    pub name: String,
    pub files: BootFiles,
    /// Read-only layers beneath the sandbox's own, newest first; see [`Engine::base_template`].
    pub template: rootfs::Template,
    pub limits: Resources,
    /// What the sandbox may connect to.
    pub egress: egress::Policy,
    /// Volumes that the sandbox mounts, perhaps like other sandboxes: see [`Engine::open_volume`].
    pub volumes: Vec<Mount>,
    /// Content of `/proc/sys/kernel/random/boot_id` in the sandbox.
    pub boot_id: String,
    pub hostname: String,
    /// Passed to the guest as descriptor 4; the engine does not read it.
    pub guest_config: Vec<u8>,
}

/// Where the files of a boot come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootFiles {
    /// No files exist under that name, and the engine creates empty ones: the first boot of a
    /// sandbox of the base.
    Create,
    /// The files exist, from an earlier boot or a copy. Missing ones fail the boot.
    Open,
}

/// A volume that a sandbox mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    pub volume: String,
    /// An absolute path in the sandbox, created if it does not exist.
    pub at: PathBuf,
}

/// Identifies a running machine, so that a later server can find it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Instance {
    /// Process 1 of the sandbox, by its pid on the host.
    pub pid: u32,
    /// Start time of that process in clock ticks since boot (field 22 of `/proc/PID/stat`); that of
    /// a reused pid differs.
    pub start_time: u64,
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
