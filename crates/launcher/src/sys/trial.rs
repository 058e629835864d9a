//! The namespaces of a sandbox, entered by a process that only wants to know whether it may.

use std::io;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Moves the calling process, which must have a single thread, into a new namespace of every kind a sandbox has. The pid
/// namespace is for its children.
pub(crate) fn enter_new_namespaces() -> io::Result<()> {
    let all = UnshareFlags::NEWUSER
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWCGROUP;
    // SAFETY: none of these unshares the descriptor table or memory that Rust code relies on being shared.
    Ok(unsafe { unshare_unsafe(all) }?)
}
