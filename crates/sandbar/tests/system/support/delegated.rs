//! Cgroups delegated to an ordinary user, as systemd delegates them to a session. Creating them
//! takes root.

use super::eventually;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::Duration;
use testing::User;

const ROOT: &str = "/sys/fs/cgroup";

/// One delegated cgroup per cgroup tree that sandboxes need. Removed on drop.
pub(crate) struct Delegated(pub(crate) Vec<PathBuf>);

impl Delegated {
    pub(crate) fn for_user(user: User) -> Self {
        let name = format!("sandbar-test-delegated-{}", std::process::id());
        let delegated = Self(trees().into_iter().map(|tree| tree.join(&name)).collect());
        for group in &delegated.0 {
            fs::create_dir(group).expect("root may make a cgroup");
            for file in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads", "tasks"] {
                // `tasks` is of cgroup v1, `cgroup.subtree_control` and `cgroup.threads` of v2.
                let path = if file.is_empty() { group.clone() } else { group.join(file) };
                if path.exists() {
                    chown(&path, Some(user.uid), Some(user.gid)).expect("root may give it away");
                }
            }
        }
        delegated
    }

    /// The child cgroups, which the server made for itself and for its sandboxes.
    pub(crate) fn inside(&self) -> Vec<PathBuf> {
        self.0.iter().flat_map(|group| directories(group)).collect()
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        for group in &self.0 {
            let removed = || {
                directories(group).iter().for_each(|inner| drop(fs::remove_dir(inner)));
                (fs::remove_dir(group).is_ok() || !group.exists()).then_some(())
            };
            if !std::thread::panicking() {
                eventually("the delegated cgroup is empty", Duration::from_secs(20), removed);
            } else {
                removed();
            }
        }
    }
}

/// The single tree of cgroup v2, after its controllers were enabled for children; or the trees of
/// cgroup v1 together with the `unified` tree of a hybrid machine.
fn trees() -> Vec<PathBuf> {
    let root = Path::new(ROOT);
    if root.join("cgroup.controllers").exists() {
        fs::write(root.join("cgroup.subtree_control"), "+cpu +memory +pids").expect("root may hand them down");
        return vec![root.to_owned()];
    }
    let needed =
        |name: &str| name.split(',').any(|it| ["cpu", "cpuacct", "memory", "pids", "freezer", "unified"].contains(&it));
    directories(root)
        .into_iter()
        .filter(|tree| tree.file_name().and_then(|name| name.to_str()).is_some_and(needed))
        .collect()
}

/// Subdirectories without symbolic links, since `cpu` and `cpuacct` may be links to one tree.
fn directories(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}
