//! Linux isolation: layers, namespaces, cgroups, network, freeze. One machine, no HTTP, no database.
//!
//! An [`Engine`] owns the data directory's file systems and the machine's sandbox cgroups. It boots a [`Machine`] from a
//! [`Boot`] and gives back a handle; what must survive a restart of the server is the [`Instance`], from which
//! [`Engine::adopt`] finds the machine again.
//!
//! A program that embeds the engine calls [`enter_private_mounts`] before it starts any thread.

mod boot;
pub mod cgroup;
mod copy;
mod delegation;
mod engine;
mod error;
mod fingerprint;
mod group;
mod ids;
mod launchers;
mod machine;
pub mod net;
pub mod pool;
pub mod probe;
mod processes;
mod removal;
mod root;
pub mod rootfs;
mod rootless;
mod sealed_file;
mod standing;
mod sys;
pub mod volume;

use std::io;
use std::path::{Path, PathBuf};

pub use copy::allow_for_restored;
pub use engine::Engine;
pub use error::EngineError;
pub use machine::{Machine, Usage};
pub use root::NewRoot;

/// Where the engine keeps things and what it may use.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Durable state, mode 0700: the pool image, layers.
    pub data: PathBuf,
    /// Sockets of running sandboxes; may vanish with a reboot. Short, because a socket path holds 107 bytes.
    pub runtime: PathBuf,
    /// The static guest executable that becomes process 1 of every sandbox.
    pub guest: &'static [u8],
    /// Apparent size of the sparse pool image when the data directory itself is not btrfs.
    pub pool_bytes: u64,
    /// What sandboxes may reach.
    pub egress: net::EgressConfig,
}

/// What one sandbox may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub cpu_count: u32,
    pub memory_mb: u32,
    pub disk_mb: u32,
    pub pids: u32,
}

/// One start of a sandbox.
#[derive(Debug, Clone)]
pub struct Boot {
    /// The sandbox's name: lower-case letters and digits. Its files are kept under this name across boots.
    pub name: String,
    pub files: BootFiles,
    /// Read-only layers beneath the sandbox's own, newest first; see [`Engine::base_template`].
    pub template: rootfs::Template,
    pub limits: Limits,
    /// What the sandbox may reach.
    pub egress: net::Policy,
    /// Volumes that the sandbox has, perhaps with others: see [`Engine::open_volume`].
    pub volumes: Vec<Mount>,
    /// What `/proc/sys/kernel/random/boot_id` shows.
    pub boot_id: String,
    pub hostname: String,
    /// Handed to the guest on descriptor 4; the engine does not read it.
    pub guest_config: Vec<u8>,
}

/// Where the files of a boot come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootFiles {
    /// There are none under that name, and empty ones are made: the first boot of a sandbox of the
    /// base.
    Create,
    /// They are there, from an earlier boot or a copy. Missing ones fail the boot.
    Open,
}

/// A volume in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    pub volume: String,
    /// An absolute path inside; made if it is not there.
    pub at: PathBuf,
}

/// Enough to find a running machine again, and to know that it is the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Instance {
    /// Process 1 of the sandbox, as the host numbers it.
    pub pid: u32,
    /// Start time of that process in clock ticks since boot (field 22 of `/proc/PID/stat`); a reused pid differs.
    pub start_time: u64,
}

/// Gives this process a mount namespace of its own, so that the pool it mounts vanishes with it, however it ends. One that is not
/// root becomes root of a user namespace first: that of the living sandboxes of `data`, if there are any, else a new one.
///
/// With several threads only the calling one would move: call it before any other is started.
pub fn enter_private_mounts(data: &Path) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        rootless::enter(data)?;
    }
    launcher::unshare_mounts()
}

/// Removes what an ordinary user's server made for all its sandboxes, if there are none any more. It belongs to ids that only this
/// process can take it from, and the user may want to remove the data directory. What root made, root can remove.
pub fn remove_shared_files(data: &Path) -> io::Result<()> {
    if standing::Standing::of_this_process().is_root() || pool::has_volumes(data) {
        return Ok(());
    }
    match std::fs::remove_dir_all(data.join(LAYERS)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// In the data directory: what templates are made of.
pub(crate) const LAYERS: &str = "layers";

/// Runs work that blocks where it may.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
) -> Result<T, EngineError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(EngineError::Io {
                what: "finish: the runtime is shutting down".to_owned(),
                source: io::ErrorKind::Interrupted.into(),
            }),
        },
    }
}
