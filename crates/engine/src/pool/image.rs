//! The sparse file with the pool's btrfs, where the data directory itself is not on one.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, IFlags, flock, ioctl_getflags, ioctl_setflags};
use rustix::mount::{MountFlags, UnmountFlags};

use super::{PoolError, SMALLEST_IMAGE, is_btrfs};
use crate::sys::{btrfs, loopdev};

/// Another server opens the same image in milliseconds; recovery after a crash may take seconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Offset of btrfs's superblock, and the magic in it.
const SUPERBLOCK: u64 = 64 << 10;
const MAGIC: &[u8; 8] = b"_BHRfS_M";

pub(super) fn image_in(data: &Path) -> PathBuf {
    data.join("pool.img")
}

pub(super) fn exists(data: &Path) -> bool {
    // Also true when it cannot be examined: mounting then reports why, and no other pool replaces
    // it.
    !matches!(image_in(data).symlink_metadata(), Err(error) if error.kind() == io::ErrorKind::NotFound)
}

/// Creates the image. It gets its name by an atomic rename when it is complete, so that a crash
/// leaves nothing that looks like a pool.
pub(super) fn create(data: &Path, bytes: u64) -> Result<(), PoolError> {
    let image = image_in(data);
    if bytes < SMALLEST_IMAGE {
        let source = io::Error::new(io::ErrorKind::InvalidInput, format!("{bytes} bytes are too few"));
        return Err(PoolError::io(format!("make {}", image.display()))(source));
    }
    let unfinished = data.join("pool.img.new");
    let written = write(&unfinished, bytes).and_then(|()| durable::rename(&unfinished, &image));
    written.map_err(|error| {
        let _ = fs::remove_file(&unfinished);
        PoolError::io(format!("make {}", image.display()))(error)
    })
}

/// Removes an image that was just created and could not be used.
pub(super) fn discard(data: &Path) {
    let _ = fs::remove_file(image_in(data));
}

fn write(path: &Path, bytes: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    if is_btrfs(path)? {
        // Copy-on-write below copy-on-write would fragment the image; the flag can be set on an
        // empty file only.
        ioctl_setflags(&file, ioctl_getflags(&file)? | IFlags::NOCOW)?;
    }
    file.set_len(bytes)?;
    // One copy of the metadata: the file system below protects its disk itself. A sparse file needs
    // no discard.
    let made = Command::new(mkfs()?)
        .args(["--quiet", "--nodiscard", "--metadata", "single", "--data", "single", "--label", "sandbar"])
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()?;
    if !made.status.success() {
        let stderr = String::from_utf8_lossy(&made.stderr);
        return Err(io::Error::other(format!("mkfs.btrfs: {}", stderr.trim())));
    }
    file.sync_all()
}

/// Searches also the directories of administrators' programs, which are not in every user's search
/// path.
pub(super) fn mkfs() -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    directories.map(|directory| directory.join("mkfs.btrfs")).find(|file| file.is_file()).ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, "mkfs.btrfs is not installed (apt-get install btrfs-progs)")
    })
}

/// The mounted image; unmounted on drop if it was mounted here.
#[derive(Debug)]
pub(super) struct Mounted {
    point: PathBuf,
    ours: bool,
}

impl Mounted {
    pub(super) fn path(&self) -> &Path {
        &self.point
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.ours {
            // Detached: sandboxes have mounts of their own, and the loop device is released with
            // the last of them.
            let _ = rustix::mount::unmount(&self.point, UnmountFlags::DETACH);
        }
    }
}

/// Mounts the image of `data` at `data/pool`, over the loop device it is attached to already or a
/// new one.
pub(super) fn mount(data: &Path) -> Result<Mounted, PoolError> {
    let image = image_in(data);
    let unmountable = |source| PoolError::Unmountable { image: image.clone(), source };
    let point = data.join("pool");
    fs::create_dir_all(&point).map_err(PoolError::io(format!("make {}", point.display())))?;
    let file = OpenOptions::new().read(true).write(true).open(&image).map_err(unmountable)?;
    // A separate descriptor: the loop device keeps the other one, and would keep its lock.
    let lock = File::open(&image).map_err(unmountable)?;
    acquire(&lock).map_err(PoolError::io(format!("lock {}", image.display())))?;
    let id = identity(&file).map_err(unmountable)?;
    let mounted_before = mounted_id(data, &point).map_err(PoolError::io(format!("examine {}", point.display())))?;
    if let Some(found) = mounted_before {
        if found == id {
            return Ok(Mounted { point, ours: false });
        }
        return Err(unmountable(io::Error::other(format!("another file system is mounted at {}", point.display()))));
    }
    let device = match loopdev::find(&file).map_err(unmountable)? {
        Some(device) => device,
        None => loopdev::attach(&file).map_err(unmountable)?,
    };
    // The overlay's mount decides what sandboxes may do with devices and set-user-id files, not
    // this one.
    let flags = MountFlags::NOATIME | MountFlags::NOSUID | MountFlags::NODEV;
    let in_use = btrfs::state_directory(id).is_dir();
    rustix::mount::mount(device.path(), &point, "btrfs", flags, c"discard=async").map_err(|error| {
        // A file system that is mounted elsewhere can be mounted here too, unless the kernel has
        // aborted it.
        if in_use { PoolError::Held { image: image.clone(), source: error.into() } } else { unmountable(error.into()) }
    })?;
    Ok(Mounted { point, ours: true })
}

fn acquire(lock: &File) -> io::Result<()> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => thread::sleep(LOCK_RETRY_INTERVAL),
            Err(error) => return Err(error.into()),
        }
    }
}

/// The file system id in the image's superblock.
fn identity(image: &File) -> io::Result<[u8; 16]> {
    let mut block = [0; 0x48];
    image.read_exact_at(&mut block, SUPERBLOCK)?;
    if &block[0x40..] != MAGIC {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it has no btrfs superblock"));
    }
    Ok(block[0x20..0x30].try_into().expect("the slice has 16 bytes"))
}

/// The id of the file system that is mounted at `point` in this mount namespace, if any.
fn mounted_id(data: &Path, point: &Path) -> io::Result<Option<[u8; 16]>> {
    if fs::metadata(data)?.dev() == fs::metadata(point)?.dev() {
        return Ok(None);
    }
    if !is_btrfs(point)? {
        return Ok(Some([0; 16]));
    }
    btrfs::file_system_id(File::open(point)?).map(Some)
}
