//! Limits the browser's memory with a cgroup, if this process may create one. The OOM killer then
//! ends a browser whose page takes too much memory, and the next capture starts another; other
//! processes are not affected.
//!
//! Without that privilege (not root, or no memory controller) only the browser's own limits on
//! scripts and renderers apply, and its raised OOM score makes the kernel kill it first.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tracing::debug;

/// Mount point of cgroups, in both versions.
const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// Prefix of the group names; the process id follows.
const NAME: &str = "sandbar-browser-";
/// A group stays busy for a moment after its last process ended.
const MAX_REMOVAL_ATTEMPTS: usize = 20;
const REMOVAL_BACKOFF: Duration = Duration::from_millis(50);

/// A cgroup with a memory limit. Dropping it removes the group, which must be empty by then.
pub(crate) struct MemoryCgroup {
    path: PathBuf,
    /// Writing `0` moves the calling process into the cgroup. Opened before privileges are dropped,
    /// used after.
    pub(crate) cgroup_procs: File,
}

impl MemoryCgroup {
    /// Creates a group limited to `bytes`, if possible.
    pub(crate) fn new(bytes: u64) -> Option<Self> {
        match Self::make(bytes) {
            Ok(cgroup) => Some(cgroup),
            Err(error) => {
                debug!(%error, "the browser's memory is not bounded by a control group");
                None
            }
        }
    }

    fn make(bytes: u64) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let (parent, kind) = find(&own, Path::new(CGROUP_ROOT))
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no memory controller is mounted"))?;
        sweep(&parent, Path::new("/proc"));
        let name = format!("{NAME}{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = parent.join(name);
        fs::create_dir(&path)?;
        // From here on `Drop` removes the group on failure.
        let cgroup_procs = File::options().write(true).open(path.join("cgroup.procs"));
        let cgroup = match cgroup_procs {
            Ok(cgroup_procs) => Self { path, cgroup_procs },
            Err(error) => {
                let _ = fs::remove_dir(&path);
                return Err(error);
            }
        };
        match kind {
            Kind::Unified => {
                fs::write(cgroup.path.join("memory.max"), bytes.to_string())?;
                // Kills the whole browser: a partial one would not respond.
                fs::write(cgroup.path.join("memory.oom.group"), "1")?;
                // The file is missing on a machine without swap.
                let _ = fs::write(cgroup.path.join("memory.swap.max"), "0");
            }
            Kind::Controller => fs::write(cgroup.path.join("memory.limit_in_bytes"), bytes.to_string())?,
        }
        Ok(cgroup)
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        for _ in 0..MAX_REMOVAL_ATTEMPTS {
            match fs::remove_dir(&self.path) {
                Ok(()) => return,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return,
                Err(_) => thread::sleep(REMOVAL_BACKOFF),
            }
        }
        debug!(path = %self.path.display(), "cgroup could not be removed");
    }
}

/// Removes the groups of killed processes. A group with processes cannot be removed and stays.
fn sweep(parent: &Path, processes: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(NAME)).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|owner| owner.parse::<u32>().is_ok() && !processes.join(owner).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One hierarchy for all controllers (version 2).
    Unified,
    /// The memory controller's own hierarchy (version 1).
    Controller,
}

/// The directory in which a limited group can be created: next to this process's own group, or at
/// the top.
fn find(own: &str, mounted: &Path) -> Option<(PathBuf, Kind)> {
    let place = |line: &str| line.splitn(3, ':').nth(2).map(|path| path.trim_start_matches('/').to_owned());
    for line in own.lines() {
        if line.split(':').nth(1).is_some_and(|names| names.split(',').any(|name| name == "memory")) {
            let top = mounted.join("memory");
            let group = top.join(place(line)?);
            // Inside a container the path is often one of the host and does not exist.
            let group = if group.is_dir() { group } else { top };
            return group.is_dir().then_some((group, Kind::Controller));
        }
    }
    let line = own.lines().find(|line| line.starts_with("0::"))?;
    let group = mounted.join(place(line)?);
    // In version 2, a group with processes cannot have children with limits, except for the root.
    let candidates =
        [group.parent().map(Path::to_owned).filter(|parent| parent.starts_with(mounted)), Some(mounted.into())];
    let limits = |group: &PathBuf| {
        let control = fs::read_to_string(group.join("cgroup.subtree_control")).unwrap_or_default();
        control.split_whitespace().any(|name| name == "memory")
            || fs::write(group.join("cgroup.subtree_control"), "+memory").is_ok()
    };
    candidates.into_iter().flatten().find(limits).map(|group| (group, Kind::Unified))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_killed_processes_are_removed() {
        let (groups, processes) =
            (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
        fs::create_dir(processes.path().join("7")).expect("a directory");
        let kept = ["sandbar-browser-7-0", "sandbar-browser-9-1", "sandbar-browser-x", "another-8-0"];
        for name in kept.into_iter().chain(["sandbar-browser-8-0"]) {
            fs::create_dir(groups.path().join(name)).expect("a directory");
        }
        fs::create_dir(groups.path().join("sandbar-browser-9-1/inside")).expect("a process is in it");
        sweep(groups.path(), processes.path());
        let left: Vec<bool> = kept.map(|name| groups.path().join(name).exists()).into();
        assert_eq!((left, groups.path().join("sandbar-browser-8-0").exists()), (vec![true; 4], false));
    }

    #[test]
    fn parent_group_is_found_in_both_cgroup_versions() {
        let mounted = tempfile::tempdir().expect("a directory");
        let root = mounted.path();
        fs::create_dir_all(root.join("memory/shop/till")).expect("directories");
        let old = "9:name=systemd:/\n4:cpu,memory:/shop/till\n0::/\n";
        assert_eq!(find(old, root), Some((root.join("memory/shop/till"), Kind::Controller)));
        assert_eq!(find("4:memory:/elsewhere\n", root), Some((root.join("memory"), Kind::Controller)));
        fs::create_dir_all(root.join("user.slice/job")).expect("directories");
        fs::write(root.join("user.slice/cgroup.subtree_control"), "cpu memory\n").expect("a file");
        assert_eq!(find("0::/user.slice/job\n", root), Some((root.join("user.slice"), Kind::Unified)));
        assert_eq!(find("", root), None);
    }
}
