//! Id ranges: each running sandbox has its own, so that a process that escapes from one has no
//! rights in another, nor on the host.
//!
//! Invariant: no two live sandboxes of this engine share a range. Ranges that other processes of
//! the machine use when the engine opens are not used. Nothing on disk has these ids: files are
//! stored 0-based and mapped by their mount.
//!
//! A server that is root of a user namespace only has one range for all sandboxes, or a single id.
//! What the kernel counts per user it then counts per owner of a sandbox's namespace, so each
//! sandbox has its own owner where there are ids enough.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::sync::Arc;

use launcher::users::{CONFINED_IDS, SANDBOX_IDS};
use parking_lot::Mutex;

use crate::privilege::Privilege;
use crate::sys::namespace::owner_of;

/// Ids of a sandbox: 0 to 65535, as every distribution expects.
const IDS: u32 = SANDBOX_IDS;
/// Between systemd's ids for containers and its ids for foreign files lies a range that no other
/// program claims. The last 65536 of it belong to confined processes.
const FIRST: u32 = 0x7000_0000;
const END: u32 = CONFINED_IDS;
const RANGES: u32 = (END - FIRST) / IDS;
/// Among the subordinate ids: ids from here on have no account in a sandbox.
const FIRST_OWNER: u32 = 30_000;

/// All ranges of the machine, as far as this engine knows.
#[derive(Debug, Clone)]
pub(crate) struct Ranges {
    privilege: Privilege,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    /// Numbers of the ranges of this engine's sandboxes, from 0.
    ours: BTreeSet<u32>,
    foreign: HashSet<u32>,
    /// Where the search starts; advances, so that a released range is not reused immediately.
    next: u32,
}

/// One range; released on drop.
#[derive(Debug)]
pub(crate) struct Range {
    number: u32,
    all: Ranges,
}

impl Ranges {
    /// Reads the ranges in use from every process of the machine. `seed` makes several engines
    /// start at different ranges.
    pub(crate) fn survey(privilege: Privilege, seed: u32) -> Self {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        // A server that is not root has a user namespace of its own, where no other server takes
        // ids.
        let foreign = if privilege.is_root() { processes.filter_map(number_of).collect() } else { HashSet::new() };
        let taken = Taken { ours: BTreeSet::new(), foreign, next: seed % RANGES };
        Self { privilege, taken: Arc::new(Mutex::new(taken)) }
    }

    /// Takes a free range; fails with the number of those in use.
    pub(crate) fn take(&self) -> Result<Range, usize> {
        let mut taken = self.taken.lock();
        let start = taken.next;
        let number = (0..RANGES)
            .map(|step| (start + step) % RANGES)
            .find(|number| !taken.ours.contains(number) && !taken.foreign.contains(number))
            .ok_or(taken.ours.len())?;
        taken.ours.insert(number);
        taken.next = (number + 1) % RANGES;
        Ok(Range { number, all: self.clone() })
    }

    /// The range that process `pid`, one of this engine's sandboxes, already has.
    pub(crate) fn adopt(&self, pid: u32) -> Option<Range> {
        let number = match self.privilege {
            Privilege::Root => number_of(pid)?,
            Privilege::Subordinate => owner_number_of(pid)?,
            // All sandboxes have the same id, and the kernel counts nothing per sandbox.
            Privilege::Single => return None,
        };
        let mut taken = self.taken.lock();
        taken.foreign.remove(&number);
        taken.ours.insert(number);
        Some(Range { number, all: self.clone() })
    }
}

impl Range {
    /// The sandbox's id 0, as a number in this process's user namespace.
    pub(crate) fn base(&self) -> u32 {
        match self.all.privilege {
            Privilege::Root => FIRST + self.number * IDS,
            other => other.shift(),
        }
    }

    /// The user that owns the sandbox's namespaces.
    pub(crate) fn owner(&self) -> u32 {
        match self.all.privilege {
            Privilege::Root => self.base(),
            Privilege::Subordinate => FIRST_OWNER + self.number,
            Privilege::Single => 0,
        }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        self.all.taken.lock().ours.remove(&self.number);
    }
}

/// The number of the range of process `pid`'s user namespace, if it is one of a sandbox.
fn number_of(pid: u32) -> Option<u32> {
    let map = fs::read_to_string(format!("/proc/{pid}/uid_map")).ok()?;
    let base: u32 = map.split_ascii_whitespace().nth(1)?.parse().ok()?;
    (FIRST..END).contains(&base).then(|| (base - FIRST) / IDS)
}

fn owner_number_of(pid: u32) -> Option<u32> {
    let namespace = File::open(format!("/proc/{pid}/ns/user")).ok()?;
    owner_of(namespace.as_fd()).ok()?.checked_sub(FIRST_OWNER).filter(|number| *number < RANGES)
}

#[cfg(test)]
impl Ranges {
    /// How many ranges this engine has taken.
    pub(crate) fn taken(&self) -> usize {
        self.taken.lock().ours.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_never_overlap_and_come_back() {
        let ranges = Ranges { privilege: Privilege::Root, taken: Arc::default() };
        let all: Vec<_> = (0..RANGES).map(|_| ranges.take().unwrap()).collect();
        let bases: BTreeSet<_> = all.iter().map(Range::base).collect();
        assert_eq!(bases.len(), all.len());
        assert!(bases.iter().all(|base| base % IDS == 0 && (FIRST..END).contains(base)));
        assert_eq!(ranges.take().unwrap_err(), all.len());
        drop(all);
        assert!(ranges.take().is_ok());
    }

    #[test]
    fn with_one_range_each_sandbox_has_its_own_owner() {
        let ranges = Ranges { privilege: Privilege::Subordinate, taken: Arc::default() };
        let (one, other) = (ranges.take().unwrap(), ranges.take().unwrap());
        assert_eq!((one.base(), other.base()), (1, 1));
        assert_ne!(one.owner(), other.owner());
        const { assert!(FIRST_OWNER + RANGES < IDS) };
    }
}
