//! Limits of an archive from a sandbox.
//!
//! The sandbox writes the archive, so it may be hostile: every count, length and sum that the
//! reader keeps or passes on is limited here. The limits on bytes derive from the sandbox's disk
//! size, which no honest tree exceeds by much.

use std::io;
use std::time::Duration;

use crate::port::CheckpointSandbox;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Linux' PATH_MAX: no system call takes a longer path, so no program could restore it.
const LONGEST_PATH: usize = 4096;
/// Added to the disk size: headers, padding, and files of the template.
const SLACK_BYTES: u64 = GIB;
/// A save gets this time and that of the whole disk at this rate, in bytes per second.
const SAVE_GRACE: Duration = Duration::from_secs(600);
const SAVE_RATE: u64 = 4 * MIB;
/// Assumed when the server does not report the disk size.
const UNKNOWN_DISK_BYTES: u64 = 64 * GIB;

/// Limits of one archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchiveLimits {
    /// Files, directories, links and devices together.
    pub entries: u64,
    /// Sum of all paths, link targets, owner names and attribute names, in bytes.
    pub name_bytes: u64,
    /// One path or link target, in bytes.
    pub path_bytes: usize,
    /// One extended header, with the names and attributes of one file, in bytes.
    pub header_bytes: u64,
    /// The decompressed archive, in bytes.
    pub inflated_bytes: u64,
    /// The archive as stored, in bytes.
    pub archive_bytes: u64,
    /// Excluded folders, or files that changed while they were read.
    pub reported_paths: usize,
}

impl ArchiveLimits {
    /// For a sandbox with a disk of `bytes`. Twice as much may be decompressed: files with shared
    /// blocks or holes are larger in an archive than on disk.
    pub fn for_disk(bytes: u64) -> Self {
        Self {
            entries: 1_000_000,
            name_bytes: 64 * MIB,
            path_bytes: LONGEST_PATH,
            header_bytes: MIB,
            inflated_bytes: bytes.saturating_mul(2).saturating_add(SLACK_BYTES),
            archive_bytes: bytes.saturating_add(SLACK_BYTES),
            reported_paths: 100_000,
        }
    }

    /// The timeout of a save with all its attempts.
    pub(crate) fn save_timeout(&self, longest: Duration) -> Duration {
        SAVE_GRACE.saturating_add(Duration::from_secs(self.archive_bytes / SAVE_RATE)).min(longest)
    }

    pub(crate) async fn for_sandbox(sandbox: &dyn CheckpointSandbox) -> Self {
        Self::for_disk(sandbox.disk_bytes().await.unwrap_or(UNKNOWN_DISK_BYTES))
    }
}

/// A limit that an archive exceeds. The text says what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Excess {
    #[error(
        "it has more than {0} entries; remove files, or name the folder that has them in `leave_out` of the configuration"
    )]
    Entries(u64),
    #[error(
        "the names of its files have more than {0} bytes together; shorten them, or name the folder that has them in \
         `leave_out` of the configuration"
    )]
    Names(u64),
    #[error("the path of a file or the target of a link has more than {0} bytes; move it up or shorten its name")]
    Path(usize),
    #[error(
        "the path and the extended attributes of a file have more than {0} bytes; shorten it, or remove attributes with \
         `setfattr -x`"
    )]
    Header(u64),
    #[error(
        "it has more than {0} bytes of files, more than the sandbox's disk can hold; remove files (one with holes counts \
         with its whole length)"
    )]
    Inflated(u64),
    #[error("its archive has more than {0} bytes, more than the sandbox's disk can hold; remove files")]
    Archive(u64),
    #[error("more than {0} folders are left out of it, or files change while they are read")]
    Reported(usize),
}

impl Excess {
    /// The exceeded limit that made a reader fail, if any.
    pub(crate) fn from_io(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<Excess> for io::Error {
    fn from(excess: Excess) -> Self {
        Self::new(io::ErrorKind::InvalidData, excess)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_save_has_the_time_that_its_disk_takes() {
        let longest = Duration::from_secs(3600);
        let of = |bytes| ArchiveLimits::for_disk(bytes).save_timeout(longest);
        // The slack of 1 GiB takes 256 s.
        assert_eq!(of(0), Duration::from_secs(600 + 256));
        assert_eq!(of(GIB), Duration::from_secs(600 + 512));
        assert_eq!(of(64 * GIB), longest);
        assert_eq!(ArchiveLimits::for_disk(0).save_timeout(Duration::from_secs(5)), Duration::from_secs(5));
    }
}
