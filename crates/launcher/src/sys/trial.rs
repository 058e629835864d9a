//! Enters the namespaces of a sandbox, to find out whether the kernel permits it.

use std::io;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Moves the calling process, which must have a single thread, into a new namespace of every kind
/// that a sandbox has. The pid namespace applies to its children.
pub(crate) fn enter_new_namespaces() -> io::Result<()> {
    let all = UnshareFlags::NEWUSER
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWCGROUP;
    // SAFETY: none of these unshares the descriptor table or memory that Rust code relies on being
    // shared.
    Ok(unsafe { unshare_unsafe(all) }?)
}
