//! Space of the host that is allocated ahead of need, so that another program which fills the
//! host's disk does not make the kernel abort the pool.
//!
//! The image is sparse: a write to one of its holes takes a block of the host. When the host has
//! none, a write of data fails and its writer gets an error, but a write of metadata makes btrfs
//! abort the file system for good. So
//!
//! - the parts of the image that hold btrfs's metadata always have their blocks
//!   ([`Reserve::allocate_metadata`]), and a new file system gets a large part at once, because the
//!   kernel may write to one that it adds before the next call ([`Reserve::enlarge_metadata`]);
//! - a ballast file beside the image is removed when the host runs out, which lets the databases
//!   commit and the pool allocate new metadata, and is created again when there is space
//!   ([`Reserve::balance`]).

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use tracing::{info, warn};

use crate::sys::{btrfs, extents};

const MIB: u64 = 1 << 20;
const LARGEST_BALLAST: u64 = 256 * MIB;
/// A part of small disks: 48 MiB of 3 GiB.
const BALLAST_SHARE: u64 = 64;
/// Limit of what metadata takes ahead of need, as a part of the disk. btrfs allocates 256 MiB or 1
/// GiB at a time.
const METADATA_SHARE: u64 = 8;
/// Less metadata space than this is enlarged.
const SMALLEST_METADATA: u64 = 64 * MIB;
/// Superblock, its first copy, and what lies before the first chunk.
const SUPERBLOCKS: [(u64, u64); 2] = [(0, MIB), (64 * MIB, 64 << 10)];

#[derive(Debug)]
pub(super) struct Reserve {
    image: File,
    ballast: PathBuf,
}

impl Reserve {
    pub(super) fn new(data: &Path, image: &Path) -> io::Result<Self> {
        let image = OpenOptions::new().read(true).write(true).open(image)?;
        Ok(Self { image, ballast: data.join("pool.reserve") })
    }

    /// Moves the metadata of a new file system, a few blocks, to a chunk of the kernel's usual
    /// size. Without it only the time until the next call after the kernel has added a chunk is
    /// unguarded, so a failure is logged.
    pub(super) fn enlarge_metadata(&self, pool: &File) {
        let is_small = |chunks: Vec<btrfs::BtrfsChunk>| {
            let metadata = chunks.into_iter().filter(|chunk| chunk.holds_metadata);
            metadata.map(|chunk| chunk.length).sum::<u64>() < SMALLEST_METADATA
        };
        let enlarged = btrfs::chunks(pool).and_then(|chunks| match is_small(chunks) {
            true => btrfs::balance_metadata(pool),
            false => Ok(()),
        });
        if let Err(error) = enlarged {
            warn!(%error, "the pool's metadata space stays small");
        }
    }

    /// Allocates the blocks of the image that hold metadata of the file system at `pool`, as far as
    /// a host of this size can spare them. Cheap when they are allocated. A host that is full, or
    /// cannot allocate ahead, is no failure.
    pub(super) fn allocate_metadata(&self, pool: &File, host_bytes: u64) -> io::Result<()> {
        let mut left = host_bytes / METADATA_SHARE;
        let mut chunks = btrfs::chunks(pool)?;
        // The small chunk that maps all others comes first.
        chunks.sort_by_key(|chunk| chunk.length);
        let metadata = chunks.iter().filter(|chunk| chunk.holds_metadata).map(|chunk| (chunk.start, chunk.length));
        for (start, length) in SUPERBLOCKS.into_iter().chain(metadata) {
            let length = length.min(left);
            left -= length;
            match self.allocate(start, length) {
                Err(Errno::NOSPC | Errno::DQUOT | Errno::OPNOTSUPP) => return Ok(()),
                allocated => allocated?,
            }
        }
        Ok(())
    }

    fn allocate(&self, start: u64, length: u64) -> rustix::io::Result<()> {
        // Checks first: allocating waits for all I/O of the image and writes to the host's journal.
        if length == 0 || extents::is_allocated(&self.image, start, length)? {
            return Ok(());
        }
        fallocate(&self.image, FallocateFlags::KEEP_SIZE, start, length)
    }

    /// Removes the ballast when the host has less than half of it free, and creates it when there
    /// is plenty.
    pub(super) fn balance(&self, host_bytes: u64, free_bytes: u64) -> io::Result<()> {
        let ballast = LARGEST_BALLAST.min(host_bytes / BALLAST_SHARE);
        let held = fs::metadata(&self.ballast).is_ok();
        if held && free_bytes < ballast / 2 {
            fs::remove_file(&self.ballast)?;
            warn!(file = %self.ballast.display(), bytes = ballast, "the host's disk is full; the reserve was given up");
        } else if !held && free_bytes > 4 * ballast {
            self.take(ballast)?;
            info!(file = %self.ballast.display(), bytes = ballast, "took a reserve of disk space");
        }
        Ok(())
    }

    fn take(&self, bytes: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&self.ballast)?;
        fallocate(&file, FallocateFlags::empty(), 0, bytes).map_err(|error| {
            // An incomplete ballast would be taken for a complete one.
            let _ = fs::remove_file(&self.ballast);
            error.into()
        })
    }
}
