//! A bound on the browser's memory: a control group of its own, where this process may make one. A page that takes all it can
//! then ends its own browser, and the next capture starts another; nobody else on the machine notices.
//!
//! Without the right to make groups (not root, or no memory controller) there is no such bound: the browser's own limits on
//! scripts and renderers remain, and the kernel's choice falls on the browser first.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tracing::debug;

/// Where control groups are mounted, in both their versions.
const MOUNTED: &str = "/sys/fs/cgroup";
/// How the groups' names begin; the number of the process follows.
const NAME: &str = "sandbar-browser-";
/// A group is not empty at once when its last process has ended.
const REMOVAL_TRIES: usize = 20;
const REMOVAL_PAUSE: Duration = Duration::from_millis(50);

/// A group with a limit. Dropped when nobody is in it any more, it is removed.
pub(crate) struct Bound {
    path: PathBuf,
    /// Whoever writes `0` here enters. Opened by who may, used by who may not any more.
    pub(crate) entrance: File,
}

impl Bound {
    /// A new group of at most `bytes`, if there can be one.
    pub(crate) fn new(bytes: u64) -> Option<Self> {
        match Self::make(bytes) {
            Ok(bound) => Some(bound),
            Err(error) => {
                debug!(%error, "the browser's memory is not bounded by a control group");
                None
            }
        }
    }

    fn make(bytes: u64) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let (parent, kind) = find(&own, Path::new(MOUNTED))
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no memory controller is mounted"))?;
        sweep(&parent, Path::new("/proc"));
        let name = format!("{NAME}{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = parent.join(name);
        fs::create_dir(&path)?;
        // From here on it is removed when something fails.
        let entrance = File::options().write(true).open(path.join("cgroup.procs"));
        let bound = match entrance {
            Ok(entrance) => Self { path, entrance },
            Err(error) => {
                let _ = fs::remove_dir(&path);
                return Err(error);
            }
        };
        match kind {
            Kind::Unified => {
                fs::write(bound.path.join("memory.max"), bytes.to_string())?;
                // All of the browser or nothing: half a browser answers nobody.
                fs::write(bound.path.join("memory.oom.group"), "1")?;
                // A machine without swap has no such file.
                let _ = fs::write(bound.path.join("memory.swap.max"), "0");
            }
            Kind::Controller => fs::write(bound.path.join("memory.limit_in_bytes"), bytes.to_string())?,
        }
        Ok(bound)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        for _ in 0..REMOVAL_TRIES {
            match fs::remove_dir(&self.path) {
                Ok(()) => return,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return,
                Err(_) => thread::sleep(REMOVAL_PAUSE),
            }
        }
        debug!(path = %self.path.display(), "a control group could not be removed");
    }
}

/// Removes the groups of processes that were killed. One that is not empty cannot be removed, and stays.
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
    /// One hierarchy for all, version 2.
    Unified,
    /// The memory controller's own hierarchy, version 1.
    Controller,
}

/// The directory in which a group with a limit can be made: beside this process's own, or at the top.
fn find(own: &str, mounted: &Path) -> Option<(PathBuf, Kind)> {
    let place = |line: &str| line.splitn(3, ':').nth(2).map(|path| path.trim_start_matches('/').to_owned());
    for line in own.lines() {
        if line.split(':').nth(1).is_some_and(|names| names.split(',').any(|name| name == "memory")) {
            let top = mounted.join("memory");
            let group = top.join(place(line)?);
            // Within a container the path is often one of the host's, which is not there.
            let group = if group.is_dir() { group } else { top };
            return group.is_dir().then_some((group, Kind::Controller));
        }
    }
    let line = own.lines().find(|line| line.starts_with("0::"))?;
    let group = mounted.join(place(line)?);
    // Groups with processes cannot have groups with limits, except for the topmost.
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
        fs::create_dir(groups.path().join("sandbar-browser-9-1/inside")).expect("somebody is in it");
        sweep(groups.path(), processes.path());
        let left: Vec<bool> = kept.map(|name| groups.path().join(name).exists()).into();
        assert_eq!((left, groups.path().join("sandbar-browser-8-0").exists()), (vec![true; 4], false));
    }

    #[test]
    fn the_group_is_found_in_either_version() {
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
