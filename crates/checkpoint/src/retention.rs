//! Selects the checkpoints to remove. Pure.
//!
//! The newest complete checkpoint is retained, and as many others as the count allows: those of a
//! phase before those of a pause, and newer ones first. In addition to the count are retained
//! - all that are younger than the configured time,
//! - those from before a sharp shrink of the tree to less than half, until a newer one is as large
//!   or a user confirms the shrink: an empty tree saved five times would otherwise push out the
//!   last checkpoint with files, and a tree of which a part came back would do so too.
//!
//! The small tree after a shrink is removed by the count. So a prune returns which checkpoints it
//! retained for a shrink, and the next one is passed them.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::key::Stamp;
use crate::occasion::SaveOccasion;

/// A stored checkpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Generation {
    pub(crate) stamp: Stamp,
    /// When a save last found these files.
    pub(crate) saved_at: Timestamp,
    pub(crate) occasion: SaveOccasion,
    /// The size of its tree; [`None`] if damaged, which cannot be restored.
    pub(crate) tree: Option<TreeSize>,
}

/// The size of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TreeSize {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

impl TreeSize {
    /// Whether it has less than half of the files or bytes of the other.
    fn is_sharply_smaller_than(self, other: Self) -> bool {
        self.files < other.files.div_ceil(2) || self.bytes < other.bytes.div_ceil(2)
    }

    fn is_as_large_as(self, other: Self) -> bool {
        self.files >= other.files && self.bytes >= other.bytes
    }
}

/// How many checkpoints are retained because of a shrink, the oldest first, which are the largest.
/// Code in a sandbox can let its tree shrink and grow again for ever.
const MOST_PROTECTED: usize = 5;

/// The retention policy.
#[derive(Debug, Clone, Default)]
pub(crate) struct RetentionPolicy {
    /// The number of complete checkpoints, at least one.
    pub(crate) keep: usize,
    /// In addition, all that are younger.
    pub(crate) keep_for: Duration,
    /// In addition, this one.
    pub(crate) spare: Option<Stamp>,
    /// The checkpoint at which a user confirmed that the tree is meant to be this small.
    pub(crate) shrink_confirmed: Option<Stamp>,
    /// Those that an earlier prune retained because of a shrink.
    pub(crate) before_shrink: BTreeSet<Stamp>,
}

/// What a prune does.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    /// The checkpoints to remove, oldest first.
    pub(crate) removable: Vec<Stamp>,
    /// Those that are retained because of a shrink.
    pub(crate) before_shrink: BTreeSet<Stamp>,
}

impl RetentionPolicy {
    /// Selects the checkpoints to remove. `all` is ordered by age, oldest first.
    pub(crate) fn select(&self, all: &[Generation], now: Timestamp) -> Selection {
        let keep = self.keep.max(1);
        let mut whole: Vec<&Generation> = all.iter().rev().filter(|one| one.tree.is_some()).collect();
        if whole.len() < keep {
            return Selection { removable: Vec::new(), before_shrink: self.before_shrink.clone() };
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
        let removable = all.iter().filter(|one| !stays(one)).map(|one| one.stamp).collect();
        Selection { removable, before_shrink: protected }
    }

    /// Those that a sharply smaller one followed, while every newer one is smaller.
    fn select_before_shrink(&self, newest_first: &[&Generation]) -> BTreeSet<Stamp> {
        let mut protected = BTreeSet::new();
        for (place, one) in newest_first.iter().enumerate().skip(1) {
            let Some(tree) = one.tree else { continue };
            let mut newer = newest_first[..place].iter().filter_map(|newer| newer.tree);
            let shrank = self.before_shrink.contains(&one.stamp)
                || newest_first[place - 1].tree.is_some_and(|next| next.is_sharply_smaller_than(tree));
            let confirmed = self.shrink_confirmed.is_some_and(|confirmed| one.stamp < confirmed);
            if shrank && !confirmed && !newer.any(|newer| newer.is_as_large_as(tree)) {
                protected.insert(one.stamp);
            }
        }
        protected.into_iter().take(MOST_PROTECTED).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::SaveOccasion::{Interval, Phase, Requested, Stop};
    use super::*;

    fn stamp(second: i64) -> Stamp {
        Stamp::after(None, Timestamp::from_second(second).expect("a moment"))
    }

    fn generation(place: usize, occasion: SaveOccasion, files: Option<u64>) -> Generation {
        let stamp = stamp(60 * place as i64);
        let tree = files.map(|files| TreeSize { files, bytes: files * 100 });
        Generation { stamp, saved_at: stamp.time(), occasion, tree }
    }

    /// Checks generations with these occasions and file counts, one per minute; [`None`] is a
    /// damaged one.
    #[track_caller]
    fn check(retention: &RetentionPolicy, all: &[(SaveOccasion, Option<u64>)], removed: &[usize]) {
        let one =
            |(place, (occasion, files)): (usize, &(SaveOccasion, Option<u64>))| generation(place, *occasion, *files);
        let all: Vec<Generation> = all.iter().enumerate().map(one).collect();
        let now = stamp(60 * all.len() as i64).time();
        let wanted: Vec<Stamp> = removed.iter().map(|place| all[*place].stamp).collect();
        assert_eq!(retention.select(&all, now).removable, wanted);
    }

    /// Saves trees of these sizes, with a prune after each, and returns those that are left.
    fn save_all(mut retention: RetentionPolicy, sizes: &[u64]) -> Vec<u64> {
        let mut all: Vec<Generation> = Vec::new();
        for (place, files) in sizes.iter().enumerate() {
            all.push(generation(place, Stop, Some(*files)));
            let selection = retention.select(&all, stamp(60 * place as i64).time());
            all.retain(|one| !selection.removable.contains(&one.stamp));
            retention.before_shrink = selection.before_shrink;
        }
        all.iter().filter_map(|one| one.tree).map(|tree| tree.files).collect()
    }

    const THREE: RetentionPolicy = RetentionPolicy {
        keep: 3,
        keep_for: Duration::ZERO,
        spare: None,
        shrink_confirmed: None,
        before_shrink: BTreeSet::new(),
    };

    #[test]
    fn newest_and_phases_are_retained_first() {
        let saved = |occasions: &[SaveOccasion]| occasions.iter().map(|one| (*one, Some(10))).collect::<Vec<_>>();
        check(&THREE, &saved(&[Stop, Stop]), &[]);
        check(&THREE, &saved(&[Stop, Stop, Stop, Stop, Stop]), &[0, 1]);
        check(&THREE, &saved(&[Phase, Phase, Stop, Stop, Stop]), &[2, 3]);
        check(&THREE, &saved(&[Phase, Phase, Phase, Phase, Interval]), &[0, 1]);
        check(&THREE, &saved(&[Requested, Stop, Interval, Interval, Interval]), &[2, 3]);
        check(&RetentionPolicy { keep: 0, ..THREE }, &saved(&[Phase, Stop]), &[0]);
        check(&RetentionPolicy { spare: Some(stamp(0)), ..THREE }, &saved(&[Stop; 5]), &[1]);
        check(
            &RetentionPolicy { keep_for: Duration::from_secs(150), keep: 1, ..THREE },
            &saved(&[Stop; 5]),
            &[0, 1, 2],
        );
    }

    #[test]
    fn damaged_checkpoints_do_not_count() {
        check(&THREE, &[(Stop, Some(1)), (Stop, None), (Stop, None), (Stop, Some(1)), (Stop, None)], &[]);
        check(&THREE, &[(Stop, None), (Stop, Some(1)), (Stop, None), (Stop, Some(1)), (Stop, Some(1))], &[0]);
    }

    #[test]
    fn a_large_tree_is_retained_until_the_shrink_is_over() {
        let saved = |files: &[u64]| files.iter().map(|files| (Stop, Some(*files))).collect::<Vec<_>>();
        check(&THREE, &saved(&[100, 3, 3, 3, 3]), &[1]);
        check(&THREE, &saved(&[90, 100, 3, 3, 3, 3, 3]), &[0, 2, 3]);
        // Exactly half is not sharply smaller.
        check(&THREE, &saved(&[100, 50, 50, 50]), &[0]);
        check(&THREE, &saved(&[100, 3, 3, 99, 3]), &[1]);
        check(&THREE, &saved(&[100, 3, 60, 60, 60, 60, 60]), &[1, 2, 3]);
        check(&THREE, &saved(&[100, 3, 100, 100, 100, 100]), &[0, 1, 2]);
        // Many small steps are no sharp shrink.
        check(&THREE, &saved(&[100, 99, 60, 40, 30, 3, 3]), &[0, 1, 2, 3]);
        // Two shrinks in a row.
        check(&THREE, &saved(&[100, 40, 3, 3, 3]), &[]);
        // Also once the small one is removed.
        assert_eq!(save_all(THREE, &[100, 3, 60, 60, 60, 60, 60]), [100, 60, 60, 60]);
        assert_eq!(save_all(THREE, &[100, 3, 60, 60, 60, 60, 100]), [60, 60, 100]);
        assert_eq!(save_all(THREE, &[100, 3, 60, 3, 3, 3, 3, 3]), [100, 60, 3, 3, 3]);
        // Sizes that shrink and grow for ever fill no store.
        let swinging: Vec<u64> = (0..100).flat_map(|step| [1000 - step, 1]).collect();
        assert_eq!(save_all(THREE, &swinging), [1000, 999, 998, 997, 996, 1, 901, 1]);
        let confirmed = RetentionPolicy { shrink_confirmed: Some(stamp(120)), ..THREE };
        check(&confirmed, &saved(&[100, 3, 3, 3, 3]), &[0, 1]);
        check(&RetentionPolicy { shrink_confirmed: Some(stamp(60)), ..THREE }, &saved(&[3, 100, 3, 3, 3, 3]), &[0, 2]);
    }
}
