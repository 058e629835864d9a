//! A disk that can lose its power: the content of memory at that moment is lost, that of the block
//! device stays.
//!
//! ```text
//!   TOP/outer      btrfs in a loop file; only used for its reflinks
//!     disk.img     a reflink copy of it is an instantaneous copy of the block device
//!   TOP/disk       ext4 in disk.img, or in a copy of it
//! ```
//! Page caches are above the block device, so a copy contains nothing of them. `TOP` is a shared
//! mount: an unmount also reaches the mount namespaces of servers, which would otherwise keep the
//! file systems mounted.

use std::fs::{File, Permissions, set_permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::{User, eventually};

/// A mount stays in use until the kernel has released the resources of killed processes.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(60);

/// A file system on a loop device. Requires root.
#[derive(Debug)]
pub struct Disk {
    top: TempDir,
    /// The mounted image.
    image: PathBuf,
    cuts: u32,
}

/// A copy of the block device at one moment.
#[derive(Debug)]
pub struct PowerCut(PathBuf);

impl Disk {
    /// Creates a sparse ext4 of `bytes`.
    pub fn new(bytes: u64) -> Self {
        Self::made_with(bytes, &[])
    }

    /// Creates a sparse ext4 of `bytes` that has room for about this many files.
    pub fn with_inodes(bytes: u64, inodes: u64) -> Self {
        Self::made_with(bytes, &["-N", &inodes.to_string()])
    }

    fn made_with(bytes: u64, options: &[&str]) -> Self {
        let top = tempfile::Builder::new().prefix("sandbar-disk-").tempdir().expect("a directory");
        run("mount", &["--bind", text(top.path()), text(top.path())]);
        run("mount", &["--make-shared", text(top.path())]);
        let image = top.path().join("outer/disk.img");
        let disk = Self { top, image, cuts: 0 };
        for name in ["outer", "disk"] {
            std::fs::create_dir(disk.top.path().join(name)).expect("our own directory");
        }
        let outer_image = disk.top.path().join("outer.img");
        // Reflink copies share unchanged blocks; twice the size suffices for many of them.
        make_sparse(&outer_image, 2 * bytes + (1 << 30));
        run("mkfs.btrfs", &["--quiet", text(&outer_image)]);
        run("mount", &["-o", "loop,noatime", text(&outer_image), text(&disk.outer())]);
        make_sparse(&disk.image, bytes);
        run("mkfs.ext4", &[&["-q", "-F"], options, &[text(&disk.image)]].concat());
        disk.mount();
        disk
    }

    /// Where the file system is mounted.
    pub fn path(&self) -> PathBuf {
        self.top.path().join("disk")
    }

    /// Makes directories at the top of the disk that belong to `user`, and syncs them to the block
    /// device.
    pub fn give(&self, user: User, names: &[&str]) {
        set_permissions(self.top.path(), Permissions::from_mode(0o711)).expect("our own directory");
        for name in names {
            let path = self.path().join(name);
            std::fs::create_dir(&path).expect("our own directory");
            chown(&path, Some(user.uid), Some(user.gid)).expect("root may give it away");
        }
        let disk = File::open(self.path()).expect("it is mounted");
        rustix::fs::syncfs(disk).expect("it can be written");
    }

    /// Copies the block device as it is at this moment. The disk stays mounted.
    pub fn cut(&mut self) -> PowerCut {
        self.cuts += 1;
        let copy = self.outer().join(format!("cut-{}.img", self.cuts));
        run("cp", &["--reflink=always", "--", text(&self.image), text(&copy)]);
        PowerCut(copy)
    }

    /// Mounts the copy of a power cut instead of the present image. The caller has ended every
    /// process that uses the disk.
    pub fn restore(&mut self, PowerCut(image): PowerCut) {
        self.unmount();
        self.image = image;
        self.mount();
    }

    /// Makes every write to the disk fail with EIO from now on, until [`Disk::repair`]. Reads
    /// succeed.
    pub fn fail(&self) {
        // EXT4_IOC_SHUTDOWN without a flush of the journal.
        let script = "import fcntl, os, struct, sys; \
                      fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587D, struct.pack('I', 2))";
        run("python3", &["-c", script, text(&self.path())]);
    }

    /// Mounts the disk again after [`Disk::fail`]. The caller has ended every process that uses it.
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
        // A mount namespace of another process may still keep the file system mounted.
        eventually("the disk is released", RELEASE_TIMEOUT, || (!is_attached(&self.image)).then_some(()));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for point in [self.path(), self.outer(), self.top.path().to_owned()] {
            // Lazily: a failed test may have left processes.
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
    File::create(path).and_then(|file| file.set_len(bytes)).expect("a sparse file");
}

#[track_caller]
fn run(program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).output().expect("it is installed");
    assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary directories have plain names")
}
