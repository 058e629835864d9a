//! Files in memory, for programs and what they are told.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;

/// A file in memory that nobody can change any more, open for reading.
///
/// Opened anew through `/proc`, because a program cannot be executed while anybody has it open for writing.
pub(crate) fn sealed_file(name: &str, content: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let writable = match memfd_create(name, flags | MemfdFlags::EXEC) {
        // Kernels before 6.3 make every memory file executable.
        Err(Errno::INVAL) => memfd_create(name, flags)?,
        made => made?,
    };
    let mut file = File::from(writable);
    file.write_all(content)?;
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?.into())
}
