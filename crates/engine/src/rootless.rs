//! How a process that is not root becomes able to create sandboxes: by a user namespace, see
//! [`launcher::users`].
//!
//! Sandboxes outlive their server, and only the user namespace they were created in has rights over
//! them. So the next server of the same data directory joins the namespace of the last one as long
//! as a sandbox runs in it, and creates a new one otherwise. That has the same kind of ids as long
//! as there are files; the kind is stored in the data directory, because files of one kind mean
//! nothing to the other.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use launcher::users::{Ids, enter_new, join};

use crate::fingerprint::Fingerprint;
use crate::launchers::Executable;
use crate::pool::has_volumes;
use crate::privilege::Privilege;
use crate::processes::find_marked;
use crate::sys::namespace::parent_of;

/// In the data directory: the kind of ids that its files have.
const NOTE: &str = "ids";
const SINGLE: &str = "single";
const SUBORDINATE: &str = "subordinate";

/// Identifies the sandboxes of a data directory on this machine; always the same for the same
/// directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity(pub(crate) u32);

impl Identity {
    /// For a directory by its canonical path.
    pub(crate) fn for_data(data: &Path) -> Self {
        let mut identity = Fingerprint::new();
        identity.add(data.as_os_str().as_encoded_bytes());
        let [.., a, b, c, d] = identity.value().to_be_bytes();
        Self(u32::from_be_bytes([a, b, c, d]))
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sandbar-{:08x}", self.0)
    }
}

/// Makes the calling process, which must have a single thread, root of a user namespace.
pub(crate) fn enter(data: &Path) -> io::Result<()> {
    match data.canonicalize().ok().and_then(|data| namespace_of(Identity::for_data(&data))) {
        Some(namespace) => join(namespace.as_fd()),
        None => {
            let executable = Executable::new()?;
            let noted = fs::read_to_string(data.join(NOTE)).ok().filter(|_| has_volumes(data));
            let ids = choose(noted.as_deref(), Ids::of_this_user())?;
            enter_new(executable.command(launcher::HOLD), &ids)
        }
    }
}

/// The kind of ids of existing files, else the available one.
fn choose(noted: Option<&str>, available: Ids) -> io::Result<Ids> {
    match (noted, available) {
        (Some(SINGLE), Ids::Subordinate { .. }) => {
            let (why, fix) = ("its files have a single id".to_owned(), "sandbar down".to_owned());
            Ok(Ids::Single { why, fix })
        }
        (Some(SUBORDINATE), Ids::Single { why, fix }) => {
            Err(io::Error::other(format!("its sandboxes have subordinate ids, but {why}; {fix}")))
        }
        (_, available) => Ok(available),
    }
}

/// Stores which kind of ids the files of `data` get from now on.
pub(crate) fn note_ids(data: &Path, privilege: Privilege) -> io::Result<()> {
    match privilege {
        Privilege::Root => Ok(()),
        Privilege::Subordinate => fs::write(data.join(NOTE), SUBORDINATE),
        Privilege::Single => fs::write(data.join(NOTE), SINGLE),
    }
}

/// The user namespace in which the running sandboxes of a data directory were created.
fn namespace_of(identity: Identity) -> Option<OwnedFd> {
    find_marked(identity).iter().find_map(|found| {
        let own = File::open(format!("/proc/{}/ns/user", found.pid)).ok()?;
        parent_of(own.as_fd()).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_keep_the_kind_of_ids_they_have() {
        let single = || Ids::Single { why: "newuidmap is not installed".into(), fix: "install it".into() };
        let subordinate = || Ids::Subordinate { user: 100_000, group: 100_000 };
        assert_eq!(choose(None, subordinate()).unwrap(), subordinate());
        assert_eq!(choose(Some(SUBORDINATE), subordinate()).unwrap(), subordinate());
        assert!(matches!(choose(Some(SINGLE), subordinate()).unwrap(), Ids::Single { .. }));
        let error = choose(Some(SUBORDINATE), single()).unwrap_err().to_string();
        assert!(error.contains("newuidmap is not installed; install it"), "{error}");
    }
}
