//! Fair shares of the pids that all groups have together.
//!
//! Each group may have more processes than its share while pids are plentiful. Once three
//! quarters of them are used, a group above its share makes no new process until it is below, so
//! that the last quarter is for the others. No process is killed.

use std::collections::BTreeMap;

use super::{Cgroup, CgroupError, Hierarchy, files};

/// Enough for a login shell with a few programs, whatever the number of groups.
const LEAST_SHARE: u64 = 64;

/// The limits that are lowered at present.
#[derive(Debug)]
pub struct ProcessShares {
    hierarchy: Hierarchy,
    /// The limit that each group had before, by its name.
    lowered: BTreeMap<String, u64>,
}

impl ProcessShares {
    pub fn new(hierarchy: Hierarchy) -> Self {
        Self { hierarchy, lowered: BTreeMap::new() }
    }

    /// Lowers the limits of groups above their share when pids run out, and raises them again
    /// when half of them are free. To be called several times per second: a fork bomb takes
    /// thousands. Reads two files while pids are plentiful.
    /// # Errors
    /// [`CgroupError::Io`] when the files of the parent cgroup cannot be read. A group that ended
    /// meanwhile is no error.
    pub fn balance(&mut self) -> Result<(), CgroupError> {
        let together = self.hierarchy.places().pids.path();
        let used = files::read_number(&together.join("pids.current"))?;
        let most = files::read_number(&together.join("pids.max"))?;
        if used < most / 2 {
            self.raise();
        } else if used >= most / 4 * 3 {
            self.lower(most);
        }
        Ok(())
    }

    fn raise(&mut self) {
        for (name, limit) in std::mem::take(&mut self.lowered) {
            if let Some(group) = self.hierarchy.open_existing(&name) {
                // The group may have ended. An adopting server sets the limit again in any case.
                let _ = group.limit_processes(limit);
            }
        }
    }

    fn lower(&mut self, most: u64) {
        let groups: Vec<Cgroup> =
            self.hierarchy.list().iter().filter_map(|name| self.hierarchy.open_existing(name)).collect();
        let share = (most / u64::try_from(groups.len().max(1)).unwrap_or(u64::MAX)).max(LEAST_SHARE);
        for group in groups {
            // A group that ended has neither file.
            let (Ok(used), Ok(limit)) = (group.process_count(), group.process_limit()) else { continue };
            if used > share && limit > share && group.limit_processes(share).is_ok() {
                self.lowered.entry(group.name().to_owned()).or_insert(limit);
            }
        }
    }
}
