//! Kernel calls by which a process changes itself before it becomes process 1: file-system ids,
//! descriptors, filter, exec.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// Sets the ids with which this thread creates files and is checked against their modes.
///
/// The calls return no error; a second call that changes nothing reads the value back.
pub(crate) fn set_file_system_ids(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: no pointers; an id of -1 is never valid and so only reads.
    let (uid_now, gid_now) = unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
        (libc::setfsuid(u32::MAX), libc::setfsgid(u32::MAX))
    };
    // The return type is signed; the ids are compared as bits.
    if uid_now.cast_unsigned() == uid && gid_now.cast_unsigned() == gid {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }
}

/// Makes descriptor `number` a copy of `from` that survives exec. Closes the previous `number`, so
/// its owner must not use it afterwards: only for the last steps before exec.
pub(crate) fn place_descriptor(from: BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    // SAFETY: dup2 takes no pointers; `from` is open for the call.
    let result = unsafe {
        if from.as_raw_fd() == number {
            libc::fcntl(number, libc::F_SETFD, 0)
        } else {
            libc::dup2(from.as_raw_fd(), number)
        }
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets close-on-exec for every descriptor from `first` on.
pub(crate) fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: no pointers. Marking (unlike closing) leaves every descriptor valid for its owner
    // until the exec.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes every descriptor from `first` on. For the first step of a program, before anything in it
/// owns one.
pub(crate) fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: no pointers. The caller promises that nothing owns these descriptors: they came with
    // the exec.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Installs a seccomp filter. The caller holds CAP_SYS_ADMIN in its user namespace, so that set-uid
/// programs such as sudo keep working in a sandbox, or has set `no_new_privs`.
pub(crate) fn install_filter(program: &[libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies `len` instructions from `filter`, which the borrowed slice keeps
    // alive, and writes nothing.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Executes the program of the descriptor `executable`. Returns only the error.
pub(crate) fn exec_descriptor(executable: BorrowedFd<'_>, arguments: &[&CStr], environment: &[&CStr]) -> io::Error {
    let pointers = |strings: &[&CStr]| -> Vec<*const libc::c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: both arrays end with a null pointer and hold valid C strings; all outlive the call,
    // which returns on error only.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            executable.as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    io::Error::last_os_error()
}
