//! The part of the mount interface that `rustix` lacks: changing the attributes of a mount.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const EMPTY_PATH: &CStr = c"";

fn mount_setattr(mount: BorrowedFd<'_>, mut attributes: libc::mount_attr) -> io::Result<()> {
    // SAFETY: the path is a valid C string, and the size given is that of the structure pointed to;
    // both outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            EMPTY_PATH.as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw mut attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Id-maps a detached mount by `user_namespace`: id 0 on disk is shown as that namespace's root.
pub(crate) fn map_ids(mount: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>) -> io::Result<()> {
    set_attributes(mount, Some(user_namespace), 0)
}

/// As [`map_ids`] if a namespace is given; in addition the kernel ignores devices and set-uid bits
/// on the mount.
pub(crate) fn share(mount: BorrowedFd<'_>, user_namespace: Option<BorrowedFd<'_>>) -> io::Result<()> {
    set_attributes(mount, user_namespace, libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV)
}

/// As [`share`]; in addition the kernel executes no file on the mount.
pub(crate) fn disarm(mount: BorrowedFd<'_>, user_namespace: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let further = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
    set_attributes(mount, user_namespace, further)
}

fn set_attributes(mount: BorrowedFd<'_>, user_namespace: Option<BorrowedFd<'_>>, further: u64) -> io::Result<()> {
    let number = |descriptor: BorrowedFd<'_>| u64::try_from(descriptor.as_raw_fd()).expect("an open descriptor");
    mount_setattr(
        mount,
        libc::mount_attr {
            attr_set: further | if user_namespace.is_some() { libc::MOUNT_ATTR_IDMAP } else { 0 },
            attr_clr: 0,
            propagation: 0,
            userns_fd: user_namespace.map_or(0, number),
        },
    )
}
