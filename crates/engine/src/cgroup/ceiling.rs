//! What all sandboxes of a server may use together: the limits of their parent group. Without them sandboxes that each stay
//! below their own limits could take every process number of the host, or all of its memory from the server.

use std::fs;
use std::io;
use std::path::Path;

use super::group::{Place, Places};
use super::{CgroupError, Hierarchy, files};

const MIB: u64 = 1 << 20;
/// Memory that stays for the host and the server: a tenth of it, within these bounds, and never more than half.
const MEMORY_RESERVE: (u64, u64) = (512 * MIB, 4096 * MIB);
/// Process numbers that stay for the host: an eighth of them, at least this many, and never more than half.
const PIDS_RESERVE: u64 = 1024;
/// Below what other groups have by default, among them the server's: 100 and 1024.
const CPU_WEIGHT: &str = "80";
const CPU_SHARES: &str = "819";
const IO_WEIGHT: &str = "80";

/// Limits of the group in which all sandboxes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ceiling {
    pub memory: u64,
    pub pids: u64,
}

impl Ceiling {
    /// What this machine can spare.
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
    /// Limits all sandboxes together, also those that run already. A limit below what they use would end processes of
    /// theirs, so it is set no lower than that.
    /// # Errors
    /// Those of the kernel, for the first limit that it does not take. The others are set.
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
    // A group above its limit loses nothing: it only makes no new processes.
    files::write(&places.pids.path().join("pids.max"), &most.to_string())
}

fn weigh(places: &Places) -> Result<(), CgroupError> {
    match &places.cpu {
        Place::V1(path) => files::write(&path.join("cpu.shares"), CPU_SHARES)?,
        Place::V2(path) => files::write(&path.join("cpu.weight"), CPU_WEIGHT)?,
    }
    // Only where the io controller was handed down; both are absent elsewhere.
    let Some(unified) = &places.unified else { return Ok(()) };
    files::write_if_present(&unified.join("io.weight"), IO_WEIGHT)?;
    files::write_if_present(&unified.join("io.bfq.weight"), IO_WEIGHT)
}

/// Whether a scheduler of this machine shares disks by the weights of groups: BFQ, or the kernel's cost model.
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
