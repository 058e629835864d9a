//! Ranges of user and group ids: each running sandbox has its own, so that a process that got out of one would be nobody to
//! another, and to the host.
//!
//! Invariant: no two live sandboxes of this engine share a range. Ranges that anybody else on the machine uses when the engine opens
//! are left alone. Nothing on disk carries these ids: files are kept 0-based and mapped by their mount.
//!
//! Who is root of a user namespace only has one range for all sandboxes, or a single id. What the kernel counts by user it then
//! counts by the owner of each sandbox's namespace, and that is another for each where there are ids enough.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use launcher::users::SANDBOX_IDS;

use crate::standing::Standing;
use crate::sys::namespace::owner_of;

/// Ids a sandbox has: 0 to 65535, as every distribution expects.
const IDS: u32 = SANDBOX_IDS;
/// Between systemd's ids for containers and its ids for foreign files lies a stretch that nobody claims.
const FIRST: u32 = 0x7000_0000;
const END: u32 = 0x7FFE_0000;
const RANGES: u32 = (END - FIRST) / IDS;
/// Among the subordinate ids: where nobody in a sandbox has an account.
const FIRST_OWNER: u32 = 30_000;

/// All ranges of the machine, as far as this engine knows.
#[derive(Debug, Clone)]
pub(crate) struct Ranges {
    standing: Standing,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    /// Their numbers, from 0.
    ours: BTreeSet<u32>,
    foreign: HashSet<u32>,
    /// Where the search begins; moves on, so that a range rests a while before it is used again.
    next: u32,
}

/// One range; free again on drop.
#[derive(Debug)]
pub(crate) struct Range {
    number: u32,
    all: Ranges,
}

impl Ranges {
    /// Looks at every process of the machine for ranges in use. `seed` spreads several engines apart.
    pub(crate) fn survey(standing: Standing, seed: u32) -> Self {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        // Another user's are in another namespace.
        let foreign = if standing.is_root() { processes.filter_map(number_of).collect() } else { HashSet::new() };
        let taken = Taken { ours: BTreeSet::new(), foreign, next: seed % RANGES };
        Self { standing, taken: Arc::new(Mutex::new(taken)) }
    }

    /// A free range, or the number of those in use.
    pub(crate) fn take(&self) -> Result<Range, usize> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let start = taken.next;
        let number = (0..RANGES)
            .map(|step| (start + step) % RANGES)
            .find(|number| !taken.ours.contains(number) && !taken.foreign.contains(number))
            .ok_or(taken.ours.len())?;
        taken.ours.insert(number);
        taken.next = (number + 1) % RANGES;
        Ok(Range { number, all: self.clone() })
    }

    /// The range that process `pid`, one of our sandboxes, already has.
    pub(crate) fn adopt(&self, pid: u32) -> Option<Range> {
        let number = match self.standing {
            Standing::Root => number_of(pid)?,
            Standing::Subordinate => owner_number_of(pid)?,
            // All have the same, and nobody counts.
            Standing::Single => return None,
        };
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.foreign.remove(&number);
        taken.ours.insert(number);
        Some(Range { number, all: self.clone() })
    }
}

impl Range {
    /// The sandbox's id 0, as this process knows ids.
    pub(crate) fn base(&self) -> u32 {
        match self.all.standing {
            Standing::Root => FIRST + self.number * IDS,
            other => other.shift(),
        }
    }

    /// The user to whom the sandbox's namespaces belong.
    pub(crate) fn owner(&self) -> u32 {
        match self.all.standing {
            Standing::Root => self.base(),
            Standing::Subordinate => FIRST_OWNER + self.number,
            Standing::Single => 0,
        }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        self.all.taken.lock().unwrap_or_else(PoisonError::into_inner).ours.remove(&self.number);
    }
}

/// The number of the range that the user namespace of process `pid` has, if it is one of ours.
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
mod tests {
    use super::*;

    #[test]
    fn ranges_never_overlap_and_come_back() {
        let ranges = Ranges { standing: Standing::Root, taken: Arc::default() };
        let all: Vec<_> = (0..RANGES).map(|_| ranges.take().unwrap()).collect();
        let bases: BTreeSet<_> = all.iter().map(Range::base).collect();
        assert_eq!(bases.len(), all.len());
        assert!(bases.iter().all(|base| base % IDS == 0 && (FIRST..END).contains(base)));
        assert_eq!(ranges.take().unwrap_err(), all.len());
        drop(all);
        assert!(ranges.take().is_ok());
    }

    #[test]
    fn who_has_one_range_gives_each_sandbox_an_owner() {
        let ranges = Ranges { standing: Standing::Subordinate, taken: Arc::default() };
        let (one, other) = (ranges.take().unwrap(), ranges.take().unwrap());
        assert_eq!((one.base(), other.base()), (1, 1));
        assert_ne!(one.owner(), other.owner());
        const { assert!(FIRST_OWNER + RANGES < IDS) };
    }
}
