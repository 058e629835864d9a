//! Other users of the machine than the one who runs the tests.

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
    /// The user whom `./dev setup` makes for tests, with subordinate ids.
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

    /// One whom no file knows.
    pub fn with_a_single_id() -> Self {
        Self { uid: 59_981, gid: 59_981 }
    }

    /// What `setpriv` needs to become this user.
    pub fn flags(self) -> [String; 3] {
        [format!("--reuid={}", self.uid), format!("--regid={}", self.gid), "--clear-groups".to_owned()]
    }
}

/// A command for `program` by somebody who has no rights over the files of whoever runs the tests. Root becomes anybody; an ordinary
/// user becomes one of the subordinate ids, which to the host is as foreign.
pub fn as_another_user(program: impl AsRef<OsStr>) -> Command {
    let nobody = User { uid: 65_534, gid: 65_534 };
    let mut command = as_root("setpriv");
    command.args(nobody.flags()).arg(program);
    command
}

/// Removes a server's directory, also what of it belongs to an ordinary user's sandboxes.
pub fn remove_directory(path: &Path) {
    // What stays is in a temporary directory.
    let _ = as_root("rm").arg("-rf").arg(path).stderr(Stdio::null()).status();
}

/// A command by root. An ordinary user is root of the subordinate ids.
fn as_root(program: &str) -> Command {
    if rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut inside = Command::new("unshare");
    inside.args(["--user", "--map-root-user", "--map-auto", program]);
    inside
}
