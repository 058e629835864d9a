//! Selects the checkpoints to remove. Pure.
//!
//! The newest complete checkpoint is retained, and as many others as the count allows: those of a
//! phase before those of a pause, and newer ones first. In addition to the count are retained
//! - all that are younger than the configured time,
//! - those from before a sharp shrink of the tree, until a newer one has at least half of their
//!   files and bytes or a user confirms the shrink: an empty tree saved five times would otherwise
//!   push out the last checkpoint with files.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::key::Stamp;
use super::occasion::Occasion;

/// A stored checkpoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct Generation {
    pub(super) stamp: Stamp,
    /// When a save last found these files.
    pub(super) saved_at: Timestamp,
    pub(super) occasion: Occasion,
    /// The size of its tree; [`None`] if damaged, which cannot be restored.
    pub(super) tree: Option<TreeSize>,
}

/// The size of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TreeSize {
    pub(super) files: u64,
    pub(super) bytes: u64,
}

impl TreeSize {
    /// Whether it has less than half of the files or bytes of the other.
    fn is_sharply_smaller_than(self, other: Self) -> bool {
        self.files < other.files.div_ceil(2) || self.bytes < other.bytes.div_ceil(2)
    }
}

/// The retention policy.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Retention {
    /// The number of complete checkpoints, at least one.
    pub(super) keep: usize,
    /// In addition, all that are younger.
    pub(super) keep_for: Duration,
    /// In addition, this one.
    pub(super) spare: Option<Stamp>,
    /// The checkpoint at which a user confirmed that the tree is meant to be this small.
    pub(super) shrink_confirmed: Option<Stamp>,
}

impl Retention {
    /// The checkpoints to remove, oldest first. `all` is ordered by age too.
    pub(super) fn select_removable(&self, all: &[Generation], now: Timestamp) -> Vec<Stamp> {
        let keep = self.keep.max(1);
        let mut whole: Vec<&Generation> = all.iter().rev().filter(|one| one.tree.is_some()).collect();
        if whole.len() < keep {
            return Vec::new();
        }
        let protected = self.select_before_shrink(&whole);
        let keep_for = SignedDuration::try_from(self.keep_for).unwrap_or(SignedDuration::MAX);
        // Stamps may be ahead of the clock, so zero must not match any.
        let young = |one: &Generation| !keep_for.is_zero() && now.duration_since(one.saved_at) < keep_for;
        // Except the newest, which is always retained.
        whole[1..].sort_by_key(|one| std::cmp::Reverse((one.occasion, one.stamp)));
        let counted: BTreeSet<Stamp> = whole.iter().take(keep).map(|one| one.stamp).collect();
        let oldest = counted.first().copied();
        let stays = |one: &Generation| {
            counted.contains(&one.stamp)
                || protected.contains(&one.stamp)
                || self.spare == Some(one.stamp)
                || young(one)
                // Damaged ones do not count; they are removed once they are older than all retained
                // ones.
                || (one.tree.is_none() && Some(one.stamp) > oldest)
        };
        all.iter().filter(|one| !stays(one)).map(|one| one.stamp).collect()
    }

    /// Those that are larger than every newer one by far. Each is less than half of the one before
    /// it, so there are few.
    fn select_before_shrink(&self, newest_first: &[&Generation]) -> BTreeSet<Stamp> {
        let mut protected = BTreeSet::new();
        for (place, one) in newest_first.iter().enumerate().skip(1) {
            let Some(tree) = one.tree else { continue };
            let newer = newest_first[..place].iter().filter_map(|newer| newer.tree);
            let confirmed = self.shrink_confirmed.is_some_and(|confirmed| one.stamp < confirmed);
            if !confirmed && newer.into_iter().all(|newer| newer.is_sharply_smaller_than(tree)) {
                protected.insert(one.stamp);
            }
        }
        protected
    }
}

#[cfg(test)]
mod tests {
    use super::Occasion::{Interval, Phase, Requested, Stop};
    use super::*;

    fn stamp(second: i64) -> Stamp {
        Stamp::after(None, Timestamp::from_second(second).expect("a moment"))
    }

    /// Checks generations with these occasions and file counts, one per minute; [`None`] is a
    /// damaged one.
    #[track_caller]
    fn check(retention: Retention, all: &[(Occasion, Option<u64>)], removed: &[usize]) {
        let one = |(place, (occasion, files)): (usize, &(Occasion, Option<u64>))| Generation {
            stamp: stamp(60 * place as i64),
            saved_at: stamp(60 * place as i64).time(),
            occasion: *occasion,
            tree: files.map(|files| TreeSize { files, bytes: files * 100 }),
        };
        let all: Vec<Generation> = all.iter().enumerate().map(one).collect();
        let now = stamp(60 * all.len() as i64).time();
        let wanted: Vec<Stamp> = removed.iter().map(|place| all[*place].stamp).collect();
        assert_eq!(retention.select_removable(&all, now), wanted);
    }

    const THREE: Retention = Retention { keep: 3, keep_for: Duration::ZERO, spare: None, shrink_confirmed: None };

    #[test]
    fn newest_and_phases_are_retained_first() {
        let saved = |occasions: &[Occasion]| occasions.iter().map(|one| (*one, Some(10))).collect::<Vec<_>>();
        check(THREE, &saved(&[Stop, Stop]), &[]);
        check(THREE, &saved(&[Stop, Stop, Stop, Stop, Stop]), &[0, 1]);
        check(THREE, &saved(&[Phase, Phase, Stop, Stop, Stop]), &[2, 3]);
        check(THREE, &saved(&[Phase, Phase, Phase, Phase, Interval]), &[0, 1]);
        check(THREE, &saved(&[Requested, Stop, Interval, Interval, Interval]), &[2, 3]);
        check(Retention { keep: 0, ..THREE }, &saved(&[Phase, Stop]), &[0]);
        check(Retention { spare: Some(stamp(0)), ..THREE }, &saved(&[Stop; 5]), &[1]);
        check(Retention { keep_for: Duration::from_secs(150), keep: 1, ..THREE }, &saved(&[Stop; 5]), &[0, 1, 2]);
    }

    #[test]
    fn damaged_checkpoints_do_not_count() {
        check(THREE, &[(Stop, Some(1)), (Stop, None), (Stop, None), (Stop, Some(1)), (Stop, None)], &[]);
        check(THREE, &[(Stop, None), (Stop, Some(1)), (Stop, None), (Stop, Some(1)), (Stop, Some(1))], &[0]);
    }

    #[test]
    fn a_large_tree_is_retained_until_the_shrink_is_over() {
        let saved = |files: &[u64]| files.iter().map(|files| (Stop, Some(*files))).collect::<Vec<_>>();
        check(THREE, &saved(&[100, 3, 3, 3, 3]), &[1]);
        check(THREE, &saved(&[90, 100, 3, 3, 3, 3, 3]), &[0, 2, 3]);
        // Exactly half is not sharply smaller.
        check(THREE, &saved(&[100, 50, 50, 50]), &[0]);
        check(THREE, &saved(&[100, 3, 3, 99, 3]), &[0, 1]);
        // Two shrinks in a row.
        check(THREE, &saved(&[100, 40, 3, 3, 3]), &[]);
        let confirmed = Retention { shrink_confirmed: Some(stamp(120)), ..THREE };
        check(confirmed, &saved(&[100, 3, 3, 3, 3]), &[0, 1]);
        check(Retention { shrink_confirmed: Some(stamp(60)), ..THREE }, &saved(&[3, 100, 3, 3, 3, 3]), &[0, 2]);
    }
}
