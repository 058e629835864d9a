//! Configuration of a machine's sandboxes: defaults and limits.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The `[sandboxes]` section of the configuration: defaults and limits of the sandboxes of one
/// machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxesConfig {
    /// Processors per sandbox, unless the create call has another number.
    pub cpu_count: u32,
    /// MiB of memory per sandbox, unless the create call has another number.
    pub memory_mb: u32,
    /// MiB of disk per sandbox, unless the create call has another number.
    pub disk_mb: u32,
    /// MiB of disk per volume.
    pub volume_mb: u32,
    /// Most processes and threads per sandbox.
    pub pids: u32,
    /// Most processors that one create call may request.
    pub max_cpu_count: u32,
    /// Most MiB of memory that one create call may request.
    pub max_memory_mb: u32,
    /// Most MiB of disk that one create call may request.
    pub max_disk_mb: u32,
    /// Most sandboxes that hold memory at once: running, or paused with their memory.
    pub max_sandboxes: usize,
    /// Longest timeout that one call may request, in seconds.
    pub max_timeout_seconds: u64,
    /// Root file systems prepared ahead of create calls, for the base and for each of the three
    /// templates used last, so that a create call does not wait for the disk. `0` prepares none.
    pub spares: u32,
    /// Days for which files that no record names stay in the trash (`sandbar recover`). Only time
    /// in which a server ran counts, so that a jump of the clock deletes nothing.
    pub trash_days: u32,
    /// Most MiB of an unpacked image.
    pub max_image_mb: u32,
    /// Registries to pull from instead of an image's own: `{ "docker.io" =
    /// "http://mirror.lan:5000" }`. A registry on loopback or a private address is asked only if it
    /// is named here, if need be for itself: `{ "localhost:5000" = "localhost:5000" }`.
    pub registry_mirrors: BTreeMap<String, String>,
}

impl Default for SandboxesConfig {
    fn default() -> Self {
        Self {
            cpu_count: 2,
            memory_mb: 1024,
            disk_mb: 10 * 1024,
            volume_mb: 10 * 1024,
            pids: 4096,
            max_cpu_count: 64,
            max_memory_mb: 64 * 1024,
            max_disk_mb: 256 * 1024,
            max_sandboxes: 1000,
            max_timeout_seconds: 30 * 24 * 60 * 60,
            spares: 6,
            trash_days: 7,
            max_image_mb: 32 * 1024,
            registry_mirrors: BTreeMap::new(),
        }
    }
}

/// With less memory a login shell does not start reliably.
const LEAST_MEMORY_MB: u32 = 128;
const LEAST_DISK_MB: u32 = 64;
/// Enough for a login shell, its children and the guest's own threads.
const LEAST_PIDS: u32 = 32;
/// The kernel's limit of process ids.
const MOST_PIDS: u32 = 4 << 20;

impl SandboxesConfig {
    /// Allowed values of `cpuCount`.
    pub fn cpu_counts(&self) -> RangeInclusive<u32> {
        1..=self.max_cpu_count
    }

    /// Allowed values of `memoryMB`.
    pub fn memory_sizes(&self) -> RangeInclusive<u32> {
        LEAST_MEMORY_MB..=self.max_memory_mb
    }

    /// Allowed values of `diskSizeMB`.
    pub fn disk_sizes(&self) -> RangeInclusive<u32> {
        LEAST_DISK_MB..=self.max_disk_mb
    }

    /// Checks the defaults against the limits.
    ///
    /// # Errors
    /// A message that names the field, its value and its range.
    pub fn check(&self) -> Result<(), String> {
        for (name, value, range) in [
            ("cpu_count", self.cpu_count, self.cpu_counts()),
            ("memory_mb", self.memory_mb, self.memory_sizes()),
            ("disk_mb", self.disk_mb, self.disk_sizes()),
            ("volume_mb", self.volume_mb, LEAST_DISK_MB..=u32::MAX),
            ("pids", self.pids, LEAST_PIDS..=MOST_PIDS),
        ] {
            if !range.contains(&value) {
                return Err(format!("{name} is {value}; it must be between {} and {}", range.start(), range.end()));
            }
        }
        Ok(())
    }

    pub(crate) fn volume_bytes(&self) -> u64 {
        u64::from(self.volume_mb) << 20
    }

    pub fn max_timeout(&self) -> Duration {
        Duration::from_secs(self.max_timeout_seconds)
    }
}
