//! Ranges of user and group ids: each running sandbox has its own, so that a process that got out of one would be nobody to
//! another, and to the host.
//!
//! Invariant: no two live sandboxes of this engine share a range. Ranges that anybody else on the machine uses when the engine opens
//! are left alone. Nothing on disk carries these ids: files are kept 0-based and mapped by their mount.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};

/// Ids a sandbox has: 0 to 65535, as every distribution expects.
pub(crate) const IDS: u32 = 1 << 16;
/// Between systemd's ids for containers and its ids for foreign files lies a stretch that nobody claims.
const FIRST: u32 = 0x7000_0000;
const END: u32 = 0x7FFE_0000;
const RANGES: u32 = (END - FIRST) / IDS;

/// All ranges of the machine, as far as this engine knows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ranges(Arc<Mutex<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    ours: BTreeSet<u32>,
    foreign: HashSet<u32>,
    /// Where the search begins; moves on, so that a range rests a while before it is used again.
    next: u32,
}

/// One range; free again on drop.
#[derive(Debug)]
pub(crate) struct Range {
    base: u32,
    all: Ranges,
}

impl Ranges {
    /// Looks at every process of the machine for ranges in use. `seed` spreads several engines apart.
    pub(crate) fn survey(seed: u32) -> Self {
        let foreign = fs::read_dir("/proc").into_iter().flatten().flatten();
        let foreign =
            foreign.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(base_of).collect();
        Self(Arc::new(Mutex::new(Taken { ours: BTreeSet::new(), foreign, next: seed % RANGES })))
    }

    /// A free range, or the number of those in use.
    pub(crate) fn take(&self) -> Result<Range, usize> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let start = taken.next;
        let free = (0..RANGES)
            .map(|step| FIRST + (start + step) % RANGES * IDS)
            .find(|base| !taken.ours.contains(base) && !taken.foreign.contains(base))
            .ok_or(taken.ours.len())?;
        taken.ours.insert(free);
        taken.next = ((free - FIRST) / IDS + 1) % RANGES;
        Ok(Range { base: free, all: self.clone() })
    }

    /// The range that process `pid`, one of our sandboxes, already has.
    pub(crate) fn adopt(&self, pid: u32) -> Option<Range> {
        let base = base_of(pid)?;
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.foreign.remove(&base);
        taken.ours.insert(base);
        Some(Range { base, all: self.clone() })
    }
}

impl Range {
    pub(crate) fn base(&self) -> u32 {
        self.base
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).ours.remove(&self.base);
    }
}

/// The first id of the user namespace of process `pid`, if it is one of the ranges.
fn base_of(pid: u32) -> Option<u32> {
    let map = fs::read_to_string(format!("/proc/{pid}/uid_map")).ok()?;
    let base: u32 = map.split_ascii_whitespace().nth(1)?.parse().ok()?;
    (FIRST..END).contains(&base).then_some(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_never_overlap_and_come_back() {
        let ranges = Ranges::default();
        let all: Vec<_> = (0..RANGES).map(|_| ranges.take().unwrap()).collect();
        let bases: BTreeSet<_> = all.iter().map(Range::base).collect();
        assert_eq!(bases.len(), all.len());
        assert!(bases.iter().all(|base| base % IDS == 0 && (FIRST..END).contains(base)));
        assert_eq!(ranges.take().unwrap_err(), all.len());
        drop(all);
        assert!(ranges.take().is_ok());
    }
}
