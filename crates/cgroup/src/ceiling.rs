//! Limits of all groups of a program together, set on their parent cgroup. Without them groups
//! that each stay below their own limits could take every pid of the host, or the memory that the
//! server needs.

use std::fs;
use std::io;
use std::path::Path;

use super::group::{Place, Places};
use super::{CgroupError, Hierarchy, files};

const MIB: u64 = 1 << 20;
/// Memory reserved for the host and the server: a tenth, within these bounds, and at most half.
const MEMORY_RESERVE: (u64, u64) = (512 * MIB, 4096 * MIB);
/// Pids reserved for the host: an eighth, at least this many, and at most half.
const PIDS_RESERVE: u64 = 1024;
/// Below the defaults of other cgroups, the server's among them: 100 in v2 and 1024 in v1.
const CPU_WEIGHT: &str = "80";
const CPU_SHARES: &str = "819";
const IO_WEIGHT: &str = "80";

/// Limits of the parent cgroup of all groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ceiling {
    pub memory: u64,
    pub pids: u64,
}

impl Ceiling {
    /// The memory and pids of this machine without the reserves of the host.
    pub fn of_this_machine() -> io::Result<Self> {
        let meminfo = fs::read_to_string("/proc/meminfo")?;
        let kib =
            meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok());
        let number = |path: &str| fs::read_to_string(path)?.trim().parse().map_err(io::Error::other);
        let pids: u64 = number("/proc/sys/kernel/pid_max")?;
        let threads: u64 = number("/proc/sys/kernel/threads-max")?;
        Ok(Self::below(kib.unwrap_or(u64::MAX / 1024) * 1024, pids.min(threads)))
    }

    fn below(memory: u64, pids: u64) -> Self {
        let memory_reserve = (memory / 10).clamp(MEMORY_RESERVE.0, MEMORY_RESERVE.1).min(memory / 2);
        let pids_reserve = (pids / 8).max(PIDS_RESERVE).min(pids / 2);
        Self { memory: memory - memory_reserve, pids: pids - pids_reserve }
    }
}

impl Hierarchy {
    /// Limits all groups together, also those that run already. The memory limit is not set
    /// below what they use, since the kernel would end processes of theirs.
    /// # Errors
    /// [`CgroupError::Io`] for the first limit that the kernel refuses. The others are set.
    pub fn limit_together(&self, ceiling: Ceiling) -> Result<(), CgroupError> {
        let places = self.places();
        let limits = [limit_memory(places, ceiling.memory), limit_pids(places, ceiling.pids), weigh(places)];
        limits.into_iter().collect()
    }
}

fn limit_memory(places: &Places, most: u64) -> Result<(), CgroupError> {
    let (path, limit, used) = match &places.memory {
        Place::V1(path) => (path, "memory.limit_in_bytes", "memory.usage_in_bytes"),
        Place::V2(path) => (path, "memory.max", "memory.current"),
    };
    let used = files::read_number(&path.join(used)).unwrap_or(0);
    files::write(&path.join(limit), &most.max(used.saturating_add(used / 8)).to_string())
}

fn limit_pids(places: &Places, most: u64) -> Result<(), CgroupError> {
    // A cgroup above its limit keeps its processes and only makes no new ones.
    files::write(&places.pids.path().join("pids.max"), &most.to_string())
}

fn weigh(places: &Places) -> Result<(), CgroupError> {
    match &places.cpu {
        Place::V1(path) => files::write(&path.join("cpu.shares"), CPU_SHARES)?,
        Place::V2(path) => files::write(&path.join("cpu.weight"), CPU_WEIGHT)?,
    }
    // Both files exist only where the io controller was handed down.
    let Some(unified) = &places.unified else { return Ok(()) };
    files::write_if_present(&unified.join("io.weight"), IO_WEIGHT)?;
    files::write_if_present(&unified.join("io.bfq.weight"), IO_WEIGHT)
}

/// Whether a scheduler of this machine shares disks by the weights of cgroups: BFQ, or the kernel's
/// cost model.
pub(super) fn disks_are_weighed(unified: &Path) -> bool {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let bfq = |text: String| text.contains("[bfq]");
    let cost = fs::read_to_string(unified.join("io.cost.qos")).unwrap_or_default();
    cost.contains("enable=1")
        || devices.filter_map(|device| fs::read_to_string(device.path().join("queue/scheduler")).ok()).any(bfq)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_keeps_a_reserve_of_everything() {
        let gib = 1024 * MIB;
        assert_eq!(Ceiling::below(24 * gib, 32_768).pids, 28_672);
        assert_eq!(Ceiling::below(20 * gib, 32_768).memory, 18 * gib);
        assert_eq!(Ceiling::below(256 * gib, 4_194_304).memory, 252 * gib);
        assert_eq!(Ceiling::below(gib / 2, 1000), Ceiling { memory: gib / 4, pids: 500 });
        let ceiling = Ceiling::of_this_machine().expect("/proc is mounted");
        assert!(ceiling.memory > 0 && ceiling.pids > 0);
    }
}
