//! A disk that can lose its power: what was in memory at that moment is gone, what the block device
//! had is there.
//!
//! ```text
//!   TOP/outer      btrfs in a loop file; only there for its reflinks
//!     disk.img     a copy of it by reflink is what the block device has, at once
//!   TOP/disk       ext4 in disk.img, or in a copy of it
//! ```
//! Page caches are above the block device, so that nothing of them is in a copy. `TOP` is a shared
//! mount: an unmount also reaches the mount namespaces of servers, which would otherwise keep the
//! file systems mounted.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::eventually;

/// Processes that were killed hold a mount until the kernel has cleared up after them.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(60);

/// A file system on a loop device. Takes root.
#[derive(Debug)]
pub struct Disk {
    top: TempDir,
    /// What is mounted.
    image: PathBuf,
    cuts: u32,
}

/// What the disk had at one moment.
#[derive(Debug)]
pub struct PowerCut(PathBuf);

impl Disk {
    /// An ext4 of `bytes`, sparse.
    pub fn new(bytes: u64) -> Self {
        let top = tempfile::Builder::new().prefix("sandbar-disk-").tempdir().expect("a directory");
        run("mount", &["--bind", text(top.path()), text(top.path())]);
        run("mount", &["--make-shared", text(top.path())]);
        let image = top.path().join("outer/disk.img");
        let disk = Self { top, image, cuts: 0 };
        for name in ["outer", "disk"] {
            std::fs::create_dir(disk.top.path().join(name)).expect("our own directory");
        }
        let outer_image = disk.top.path().join("outer.img");
        // Copies share what did not change; twice the size is room for many of them.
        make_sparse(&outer_image, 2 * bytes + (1 << 30));
        run("mkfs.btrfs", &["--quiet", text(&outer_image)]);
        run("mount", &["-o", "loop,noatime", text(&outer_image), text(&disk.outer())]);
        make_sparse(&disk.image, bytes);
        run("mkfs.ext4", &["-q", "-F", text(&disk.image)]);
        disk.mount();
        disk
    }

    /// Where the file system is mounted.
    pub fn path(&self) -> PathBuf {
        self.top.path().join("disk")
    }

    /// Copies what the block device has at this moment. The disk goes on.
    pub fn cut(&mut self) -> PowerCut {
        self.cuts += 1;
        let copy = self.outer().join(format!("cut-{}.img", self.cuts));
        run("cp", &["--reflink=always", "--", text(&self.image), text(&copy)]);
        PowerCut(copy)
    }

    /// Mounts what a power cut left, in place of what is mounted. Every process that uses the disk
    /// must have been ended.
    pub fn restore(&mut self, PowerCut(image): PowerCut) {
        self.unmount();
        self.image = image;
        self.mount();
    }

    /// Has every write to the disk fail with EIO from now on, until [`Disk::repair`]. What it has
    /// can be read.
    pub fn fail(&self) {
        // EXT4_IOC_SHUTDOWN without a flush of the journal.
        let script = "import fcntl, os, struct, sys; \
                      fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587D, struct.pack('I', 2))";
        run("python3", &["-c", script, text(&self.path())]);
    }

    /// Mounts the disk again after [`Disk::fail`]. Every process that uses it must have been ended.
    pub fn repair(&mut self) {
        self.unmount();
        self.mount();
    }

    fn outer(&self) -> PathBuf {
        self.top.path().join("outer")
    }

    fn mount(&self) {
        run("mount", &["-o", "loop,noatime", text(&self.image), text(&self.path())]);
    }

    #[track_caller]
    fn unmount(&self) {
        let path = self.path();
        eventually("the disk is not in use any more", RELEASE_TIMEOUT, || {
            Command::new("umount").arg(&path).output().expect("umount runs").status.success().then_some(())
        });
        // Where a mount namespace still had it, the file system is alive without being mounted
        // here.
        eventually("the disk is released", RELEASE_TIMEOUT, || (!is_attached(&self.image)).then_some(()));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for point in [self.path(), self.outer(), self.top.path().to_owned()] {
            // Lazily: a test that failed may have left processes.
            let _ = Command::new("umount").arg("--lazy").arg(point).output();
        }
    }
}

fn is_attached(image: &Path) -> bool {
    let devices = std::fs::read_dir("/sys/block").expect("the list of disks").flatten();
    let mut files = devices.filter_map(|device| std::fs::read_to_string(device.path().join("loop/backing_file")).ok());
    files.any(|file| Path::new(file.trim()) == image)
}

fn make_sparse(path: &Path, bytes: u64) {
    std::fs::File::create(path).and_then(|file| file.set_len(bytes)).expect("a sparse file");
}

#[track_caller]
fn run(program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).output().expect("it is installed");
    assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary directories have plain names")
}
