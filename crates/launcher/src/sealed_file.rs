//! Sealed files in memory, for executables and their configuration.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;

/// Creates a file in memory that no process can change any more, open for reading.
///
/// Reopened through `/proc`, because the kernel refuses to execute a file that is open for writing.
pub fn sealed_file(name: &str, content: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let writable = match memfd_create(name, flags | MemfdFlags::EXEC) {
        // Kernels before 6.3 make every memory file executable.
        Err(Errno::INVAL) => memfd_create(name, flags)?,
        made => made?,
    };
    let mut file = File::from(writable);
    file.write_all(content)?;
    // Not `WRITE`: the kernel adds that seal only while it holds no other reference to a page of
    // the file, and returns EBUSY when its own housekeeping holds one a moment longer. No process
    // has mapped this file, so sealing future writes is enough.
    fcntl_add_seals(&file, SealFlags::FUTURE_WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?.into())
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Read;

    use super::*;

    #[test]
    fn a_sealed_file_cannot_be_changed() {
        let sealed = sealed_file("program", b"as it was").unwrap();
        let path = format!("/proc/self/fd/{}", sealed.as_raw_fd());
        // Root can open it for writing, but not write.
        let mut again = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        assert_eq!(again.write(b"changed").unwrap_err().raw_os_error(), Some(Errno::PERM.raw_os_error()));
        assert_eq!(again.set_len(2).unwrap_err().raw_os_error(), Some(Errno::PERM.raw_os_error()));
        assert_eq!(again.set_len(200).unwrap_err().raw_os_error(), Some(Errno::PERM.raw_os_error()));
        assert_eq!(fcntl_add_seals(&again, SealFlags::WRITE), Err(Errno::PERM));
        let mut content = Vec::new();
        again.read_to_end(&mut content).unwrap();
        assert_eq!(content, b"as it was");
    }
}
