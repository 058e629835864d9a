//! The privilege with which this process creates sandboxes: root of the machine, or root of a user
//! namespace only.
//!
//! The kernel reports which, so it is stored nowhere: [`crate::enter_private_mounts`] moves a
//! process that is not root into such a namespace (see [`launcher::users`]), where it has user id
//! 0. The differences are in few places, all of which ask here:
//!
//! | | root | user namespace with subordinate ids | with a single id |
//! |---|---|---|---|
//! | ids of sandboxes | a range each | one range for all | the user's own |
//! | ids on disk | 0-based, mapped by mounts | the sandbox's, shifted | the user's |
//! | files in the pool | btrfs, limited | directories, not limited | as before |
//! | views of the host | live | partly copies: [`crate::rootfs`] | as before |
//! | processes, limits | cgroups | delegated cgroups, else [`crate::processes`] | as before |

use std::io;
use std::os::unix::fs::lchown;
use std::path::Path;

use launcher::spec::OnDisk;
use launcher::users::{FIRST_SUBORDINATE, Rights, SANDBOX_IDS};
use serde::{Deserialize, Serialize};

/// Which ids this process can give to sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Privilege {
    /// Root of the machine.
    Root,
    /// Root of a user namespace that has ids for a sandbox beside its own.
    Subordinate,
    /// No id but its own.
    Single,
}

impl Privilege {
    pub(crate) fn detect() -> Self {
        match Rights::of_this_process() {
            Rights::All => Self::Root,
            Rights::Range => Self::Subordinate,
            Rights::Own => Self::Single,
        }
    }

    pub(crate) fn is_root(self) -> bool {
        self == Self::Root
    }

    pub(crate) fn on_disk(self) -> OnDisk {
        if self.is_root() { OnDisk::ZeroBased } else { OnDisk::OfSandbox }
    }

    /// How many ids a sandbox has.
    pub(crate) fn id_count(self) -> u32 {
        if self == Self::Single { 1 } else { SANDBOX_IDS }
    }

    /// The difference between an id of a sandbox and the id of its files in this process's user
    /// namespace.
    pub(crate) fn shift(self) -> u32 {
        if self == Self::Subordinate { FIRST_SUBORDINATE } else { 0 }
    }

    /// The id on disk of files that belong to the sandbox's `id`.
    pub(crate) fn id_on_disk(self, id: u32) -> u32 {
        if self == Self::Single { rustix::process::geteuid().as_raw() } else { id + self.shift() }
    }

    /// The sandbox's id of the owner of a file that has `id` on disk.
    pub(crate) fn id_inside(self, id: u32) -> u32 {
        if self == Self::Single { 0 } else { id.saturating_sub(self.shift()) }
    }

    /// Makes a user of sandboxes the owner of a file, not of what a link leads to. With a single id
    /// there is no other owner.
    pub(crate) fn give(self, path: &Path, uid: u32, gid: u32) -> io::Result<()> {
        if self == Self::Single {
            return Ok(());
        }
        lchown(path, Some(self.id_on_disk(uid)), Some(self.id_on_disk(gid)))
    }
}

/// Which ids files in a pool have. Owners of one kind mean nothing to a server of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileIds {
    /// Of a root server: as sandboxes see them.
    Root,
    /// Subordinate ids of a server's user.
    Subordinate,
    /// The id of a server's user.
    Single,
}

impl FileIds {
    /// The kind of ids that files get from this process.
    pub fn of_this_process() -> Self {
        match Privilege::detect() {
            Privilege::Root => Self::Root,
            Privilege::Subordinate => Self::Subordinate,
            Privilege::Single => Self::Single,
        }
    }
}

/// Ways in which sandboxes of a rootless server differ from those of a root server.
pub(crate) fn rootless_limitations(privilege: Privilege, limits: bool) -> Vec<&'static str> {
    let mut all = Vec::new();
    if privilege.is_root() {
        return all;
    }
    if !limits {
        all.push("processor time and memory are not limited: no cgroup was delegated to the server's user");
        all.push("a pause stops processes by signals, which programs may notice");
    }
    all.push("what a sandbox writes is not limited; new ones are refused when the host's disk is nearly full");
    all.push("snapshots and forks copy files, so they take longer the more there are");
    all.push(
        "files of the host's /usr belong to no user inside: packages can be installed, those of the host not upgraded",
    );
    all.push("what the kernel counts by user, watches of files for example, all sandboxes share");
    all.push("a directory of a template cannot be renamed in one step (EXDEV); mv copies it");
    match privilege {
        Privilege::Single => {
            all.push(
                "sandboxes have the id and the groups of the server's user: what broke out of one would be that user",
            );
            all.push("the studio takes no pictures of pages: its browser would need an id of its own");
            all.push("inside everybody is root under one id: sudo runs commands as they are, and other accounts cannot be used");
        }
        _ => all.push("all sandboxes have the same ids: what broke out of one could reach the files of the others"),
    }
    all
}
