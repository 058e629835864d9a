//! Cgroups that an ordinary user may divide, as systemd gives them to a session that asks for them. Made by root.

use super::eventually;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::Duration;
use testing::User;

const ROOT: &str = "/sys/fs/cgroup";

/// One in every tree that sandboxes need; removed when dropped.
pub(crate) struct Delegated(pub(crate) Vec<PathBuf>);

impl Delegated {
    pub(crate) fn to(user: User) -> Self {
        let name = format!("sandbar-test-delegated-{}", std::process::id());
        let delegated = Self(trees().into_iter().map(|tree| tree.join(&name)).collect());
        for group in &delegated.0 {
            fs::create_dir(group).expect("root may make a cgroup");
            for file in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads", "tasks"] {
                // Not every version has all of them.
                let path = if file.is_empty() { group.clone() } else { group.join(file) };
                if path.exists() {
                    chown(&path, Some(user.uid), Some(user.gid)).expect("root may give it away");
                }
            }
        }
        delegated
    }

    /// What is in them, of the server and of its sandboxes.
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

/// The one tree of cgroup v2 with its controllers handed down, or those of v1 and what of v2 is beside them.
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

/// Not what links lead to: two names of a tree are one.
fn directories(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}
