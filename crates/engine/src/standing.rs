//! With what rights this process makes sandboxes: as root of the machine, or as root of a user namespace only.
//!
//! The kernel says which, so nobody has to remember it: [`crate::enter_private_mounts`] moves a process that is not root into such a
//! namespace (see [`launcher::users`]), and from then on it looks like root to itself. What differs is in few places, all of which ask here:
//!
//! | | root | user namespace with subordinate ids | with a single id |
//! |---|---|---|---|
//! | ids of sandboxes | a range each | one range for all | the user's own |
//! | ids on disk | 0-based, mapped by each mount | the sandbox's, as the server sees them | the user's |
//! | files in the pool | btrfs, limited | directories, not limited | as before |
//! | views of the host | live | directories and set-user-id programs are copies: [`crate::rootfs`] | as before |
//! | processes, limits | cgroups | delegated cgroups, else [`crate::processes`] | as before |

use std::io;
use std::os::unix::fs::lchown;
use std::path::Path;

use launcher::spec::OnDisk;
use launcher::users::{FIRST_SUBORDINATE, Rights, SANDBOX_IDS};

/// What this process can give to sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Root of the machine.
    Root,
    /// Root of a user namespace that has ids for a sandbox beside its own.
    Subordinate,
    /// No id but its own.
    Single,
}

impl Standing {
    pub(crate) fn of_this_process() -> Self {
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

    /// Between an id of a sandbox and the id that its files have here.
    pub(crate) fn shift(self) -> u32 {
        if self == Self::Subordinate { FIRST_SUBORDINATE } else { 0 }
    }

    /// The id that files of the sandbox's `id` have here.
    pub(crate) fn id_on_disk(self, id: u32) -> u32 {
        if self == Self::Single { rustix::process::geteuid().as_raw() } else { id + self.shift() }
    }

    /// The id by which a sandbox knows the owner of a file that has `id` here.
    pub(crate) fn id_inside(self, id: u32) -> u32 {
        if self == Self::Single { 0 } else { id.saturating_sub(self.shift()) }
    }

    /// Gives a file, not what it leads to, to a user of sandboxes. Where there is a single id, it is everybody's.
    pub(crate) fn give(self, path: &Path, uid: u32, gid: u32) -> io::Result<()> {
        if self == Self::Single {
            return Ok(());
        }
        lchown(path, Some(self.id_on_disk(uid)), Some(self.id_on_disk(gid)))
    }
}

/// In how far sandboxes of this server are otherwise than those of one that is root, for whoever runs it and whoever uses them.
pub(crate) fn differences(standing: Standing, limits: bool) -> Vec<&'static str> {
    let mut all = Vec::new();
    if standing.is_root() {
        return all;
    }
    if !limits {
        all.push("processor time and memory are not limited: no cgroup was delegated to the server's user");
        all.push("a pause stops processes by signals, which programs may notice");
    }
    all.push("what a sandbox writes is not limited; new ones are refused when the host's disk is nearly full");
    all.push("snapshots and forks copy files, so they take longer the more there are");
    all.push(
        "files of the host's /usr belong to nobody inside: packages can be installed, those of the host not upgraded",
    );
    all.push("what the kernel counts by user, watches of files for example, all sandboxes share");
    all.push("a directory of a template cannot be renamed in one step (EXDEV); mv copies it");
    match standing {
        Standing::Single => {
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
