//! One cgroup that limits memory alone, beside the cgroup of the process that creates it.
//!
//! It needs the memory controller and the right to create a cgroup there, and nothing that a
//! [`Hierarchy`](super::Hierarchy) needs: no other controller, no freezer.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::group::Place;
use super::hierarchy::{hand_down, missing_controller};
use super::own::path_in;
use super::{CgroupError, Controller, Mounts, files, own};

/// A group stays busy for a moment after its last process ended.
const MAX_REMOVAL_ATTEMPTS: usize = 20;
const REMOVAL_BACKOFF: Duration = Duration::from_millis(50);

/// A cgroup with a memory limit. Dropping it removes the group, which must be empty by then.
#[derive(Debug)]
pub struct MemoryCgroup {
    path: PathBuf,
    cgroup_procs: File,
}

impl MemoryCgroup {
    /// Creates a group limited to `bytes`. Its name is `prefix` and the process's id; groups of
    /// that prefix whose processes have ended are removed.
    /// # Errors
    /// [`CgroupError::Unsupported`] without a memory controller; [`CgroupError::Io`] when the
    /// kernel refuses the group or its limit.
    pub fn new(prefix: &str, bytes: u64) -> Result<Self, CgroupError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let own = own::read().map_err(CgroupError::io("read /proc/self/cgroup"))?;
        let mounts = Mounts::detect().map_err(CgroupError::io("read /proc/self/mountinfo"))?;
        let parent = find_parent(&own, &mounts).ok_or_else(|| CgroupError::Unsupported {
            what: "no tree offers the memory controller".into(),
            fix: missing_controller(Controller::Memory),
        })?;
        sweep(parent.path(), prefix, Path::new("/proc"));
        let name = format!("{prefix}{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let place = parent.below(&name);
        let path = place.path();
        fs::create_dir(path).map_err(CgroupError::io(format!("make cgroup {}", path.display())))?;
        let cgroup_procs = File::options().write(true).open(path.join("cgroup.procs")).inspect_err(|_| {
            let _ = fs::remove_dir(path);
        });
        let cgroup_procs = cgroup_procs.map_err(CgroupError::io(format!("open cgroup {}", path.display())))?;
        // From here on `Drop` removes the group on failure.
        let group = Self { path: path.to_owned(), cgroup_procs };
        match &place {
            Place::V2(path) => {
                files::write(&path.join("memory.max"), &bytes.to_string())?;
                // Kills the whole group: programs that need each other would not respond.
                files::write(&path.join("memory.oom.group"), "1")?;
                // The file is missing on a machine without swap.
                files::write_if_present(&path.join("memory.swap.max"), "0")?;
            }
            Place::V1(path) => files::write(&path.join("memory.limit_in_bytes"), &bytes.to_string())?,
        }
        Ok(group)
    }

    /// Writing `0` moves the calling process into the cgroup, also after it has dropped the
    /// privileges to open the file.
    pub fn procs_file(&self) -> &File {
        &self.cgroup_procs
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        // One that stays is removed by the next process that creates a group.
        for _ in 0..MAX_REMOVAL_ATTEMPTS {
            match fs::remove_dir(&self.path) {
                Ok(()) => return,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return,
                Err(_) => thread::sleep(REMOVAL_BACKOFF),
            }
        }
    }
}

/// Removes the groups of killed processes. A group with processes cannot be removed and stays.
fn sweep(parent: &Path, prefix: &str, processes: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(prefix)).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|owner| owner.parse::<u32>().is_ok() && !processes.join(owner).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The directory in which a limited group can be created: next to this process's own group, or at
/// the top.
fn find_parent(own: &str, mounts: &Mounts) -> Option<Place> {
    if let (Some(top), Some(path)) = (mounts.v1.get(&Controller::Memory), path_in(own, Some(Controller::Memory))) {
        // Inside a container the path is often one of the host and does not exist.
        let group = Some(top.join(path)).filter(|group| group.is_dir()).unwrap_or_else(|| top.clone());
        return group.is_dir().then_some(Place::V1(group));
    }
    let top = mounts.unified.as_ref()?;
    let group = top.join(path_in(own, None)?);
    // In version 2, a group with processes cannot have children with limits, except for the root.
    let candidates = [group.parent().filter(|parent| parent.starts_with(top)).map(Path::to_owned), Some(top.clone())];
    let limits = |group: &PathBuf| hand_down(group, &[Controller::Memory]).is_ok();
    candidates.into_iter().flatten().find(limits).map(Place::V2)
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
        sweep(groups.path(), "sandbar-browser-", processes.path());
        let left: Vec<bool> = kept.map(|name| groups.path().join(name).exists()).into();
        assert_eq!((left, groups.path().join("sandbar-browser-8-0").exists()), (vec![true; 4], false));
    }

    #[test]
    fn parent_group_is_found_in_both_cgroup_versions() {
        let mounted = tempfile::tempdir().expect("a directory");
        let root = mounted.path();
        fs::create_dir_all(root.join("memory/shop/till")).expect("directories");
        let v1 = Mounts { v1: [(Controller::Memory, root.join("memory"))].into(), unified: None };
        let old = "9:name=systemd:/\n4:cpu,memory:/shop/till\n0::/\n";
        assert_eq!(find_parent(old, &v1), Some(Place::V1(root.join("memory/shop/till"))));
        assert_eq!(find_parent("4:memory:/elsewhere\n", &v1), Some(Place::V1(root.join("memory"))));
        fs::create_dir_all(root.join("user.slice/job")).expect("directories");
        fs::write(root.join("user.slice/cgroup.subtree_control"), "cpu memory\n").expect("a file");
        let v2 = Mounts { unified: Some(root.to_owned()), ..Mounts::default() };
        assert_eq!(find_parent("0::/user.slice/job\n", &v2), Some(Place::V2(root.join("user.slice"))));
        assert_eq!(find_parent("", &v2), None);
    }
}
