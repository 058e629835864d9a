//! Users of the machine other than the one who runs the tests.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

/// An ordinary user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

impl User {
    /// The user whom `./dev setup` creates for tests, with subordinate ids.
    #[track_caller]
    pub fn with_subordinate_ids() -> Self {
        const NAME: &str = "sandbar-test";
        let id = |kind| {
            let asked = Command::new("id").args([kind, NAME]).output().expect("id runs");
            String::from_utf8_lossy(&asked.stdout).trim().parse().ok()
        };
        match (id("-u"), id("-g")) {
            (Some(uid), Some(gid)) => Self { uid, gid },
            _ => panic!("there is no user {NAME}; run ./dev setup"),
        }
    }

    /// A user without an entry in `/etc/passwd`, `/etc/subuid` and `/etc/subgid`.
    pub fn with_a_single_id() -> Self {
        Self { uid: 59_981, gid: 59_981 }
    }

    /// The flags of `setpriv` to become this user.
    pub fn flags(self) -> [String; 3] {
        [format!("--reuid={}", self.uid), format!("--regid={}", self.gid), "--clear-groups".to_owned()]
    }
}

/// A command for `program` by a user without permissions over the files of the user who runs the
/// tests. Root switches to the user `nobody`; an ordinary user switches to a subordinate id, which
/// has no more permissions on the host.
pub fn as_another_user(program: impl AsRef<OsStr>) -> Command {
    let other = User { uid: 65_534, gid: 65_534 };
    let mut command = as_root("setpriv");
    command.args(other.flags()).arg(program);
    command
}

/// Removes a server's directory, including files that belong to the subordinate ids of an ordinary
/// user.
pub fn remove_directory(path: &Path) {
    // Leftovers are in a temporary directory.
    let _ = as_root("rm").arg("-rf").arg(path).stderr(Stdio::null()).status();
}

/// A command by root. An ordinary user becomes root of a user namespace with the subordinate ids.
fn as_root(program: &str) -> Command {
    if rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut inside = Command::new("unshare");
    inside.args(["--user", "--map-root-user", "--map-auto", program]);
    inside
}
