//! Private root directory of the browser: system programs, fonts, its profile, a few devices and
//! its own `/proc`. No other file of the host is readable, and no other process visible.
//!
//! The child builds it between fork and exec without allocating, so the parent prepares every path.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

/// Where the new root is mounted: a directory that every system has.
const BASE: &CStr = c"/tmp";
const OLD: &str = "/old";
const NEW: &str = "/new";

/// Bind-mounted read-only if the host has them.
const READ_ONLY_PATHS: [&str; 10] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/fonts",
    "/etc/ld.so.cache",
    "/var/cache/fontconfig",
];
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// The steps by which the child builds its root, in order.
#[derive(Debug)]
pub(crate) struct Root {
    steps: Vec<Step>,
    /// The working directory, inside the new root.
    profile: CString,
}

#[derive(Debug)]
enum Step {
    Directory(CString),
    /// An empty file as a mount point.
    File(CString),
    Link {
        target: CString,
        at: CString,
    },
    Tmpfs(CString, &'static CStr),
    Bind {
        from: CString,
        at: CString,
        read_only: bool,
    },
}

impl Root {
    /// Plans a root for a program that keeps its files in `profile`.
    pub(crate) fn new(program: &Path, profile: &Path) -> io::Result<Self> {
        let profile_inside = CString::new(profile.as_os_str().as_bytes())?;
        let mut root = Self { steps: Vec::new(), profile: profile_inside };
        for shown in READ_ONLY_PATHS {
            root.show(Path::new(shown))?;
        }
        root.directory(Path::new("/tmp"))?;
        root.steps.push(Step::Tmpfs(inside(NEW, Path::new("/tmp"))?, c"mode=1777,size=64m"));
        // Google's package installs outside `/usr`.
        let program = program.canonicalize()?;
        if let Some(directory) = program.parent().filter(|directory| !directory.starts_with("/usr")) {
            root.show(directory)?;
        }
        root.directory(Path::new("/proc"))?;
        root.directory(Path::new("/dev"))?;
        for device in DEVICES {
            let device = Path::new(device);
            root.steps.push(Step::File(inside(NEW, device)?));
            root.bind(device, false)?;
        }
        root.directory(Path::new("/dev/shm"))?;
        root.steps.push(Step::Tmpfs(inside(NEW, Path::new("/dev/shm"))?, c"mode=1777,size=512m"));
        root.directory(profile)?;
        root.bind(profile, false)?;
        Ok(root)
    }

    fn show(&mut self, path: &Path) -> io::Result<()> {
        let Ok(metadata) = path.symlink_metadata() else { return Ok(()) };
        if metadata.is_symlink() {
            let target = CString::new(path.read_link()?.as_os_str().as_bytes())?;
            self.steps.push(Step::Link { target, at: inside(NEW, path)? });
            return Ok(());
        }
        if metadata.is_dir() {
            self.directory(path)?;
        } else {
            self.directory(path.parent().unwrap_or(path))?;
            self.steps.push(Step::File(inside(NEW, path)?));
        }
        self.bind(path, true)
    }

    /// Adds a directory and all its ancestors.
    fn directory(&mut self, path: &Path) -> io::Result<()> {
        let mut made = PathBuf::from("/");
        for part in path.components() {
            let Component::Normal(part) = part else { continue };
            made.push(part);
            self.steps.push(Step::Directory(inside(NEW, &made)?));
        }
        Ok(())
    }

    fn bind(&mut self, path: &Path, read_only: bool) -> io::Result<()> {
        self.steps.push(Step::Bind { from: inside(OLD, path)?, at: inside(NEW, path)?, read_only });
        Ok(())
    }

    /// Builds the root and enters it, in a private mount namespace. Allocates nothing.
    pub(super) fn enter(&self) -> rustix::io::Result<()> {
        use rustix::mount::{mount, mount_change, unmount};
        mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        let plain = MountFlags::NOSUID | MountFlags::NODEV;
        mount(c"tmpfs", BASE, c"tmpfs", plain, c"mode=755,size=16m")?;
        rustix::process::chdir(BASE)?;
        rustix::fs::mkdir(c"old", DIRECTORY)?;
        rustix::fs::mkdir(c"new", DIRECTORY)?;
        rustix::process::pivot_root(c".", c"old")?;
        rustix::process::chdir(c"/")?;
        // A mount of its own, because `pivot_root` requires one.
        mount(c"tmpfs", c"/new", c"tmpfs", plain, c"mode=755,size=16m")?;
        for step in &self.steps {
            step.perform()?;
        }
        mount(c"proc", c"/new/proc", c"proc", plain | MountFlags::NOEXEC, None::<&CStr>)?;
        restrict(c"/new", 0)?;
        unmount(c"/old", UnmountFlags::DETACH)?;
        rustix::process::chdir(c"/new")?;
        rustix::process::pivot_root(c".", c".")?;
        unmount(c".", UnmountFlags::DETACH)?;
        rustix::process::chdir(&self.profile)
    }
}

const DIRECTORY: Mode = Mode::RWXU.union(Mode::RGRP).union(Mode::XGRP).union(Mode::ROTH).union(Mode::XOTH);

impl Step {
    fn perform(&self) -> rustix::io::Result<()> {
        match self {
            Self::Directory(path) => match rustix::fs::mkdir(path, DIRECTORY) {
                Err(Errno::EXIST) => Ok(()),
                made => made,
            },
            Self::File(path) => {
                use rustix::fs::OFlags;
                rustix::fs::open(path, OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC, Mode::RUSR).map(drop)
            }
            Self::Link { target, at } => rustix::fs::symlink(target, at),
            Self::Tmpfs(path, options) => {
                let flags = MountFlags::NOSUID | MountFlags::NODEV;
                rustix::mount::mount(c"tmpfs", path, c"tmpfs", flags, *options)
            }
            Self::Bind { from, at, read_only } => {
                rustix::mount::mount_bind_recursive(from, at)?;
                if *read_only { restrict(at, libc::AT_RECURSIVE) } else { Ok(()) }
            }
        }
    }
}

/// Makes a mount read-only, and with [`libc::AT_RECURSIVE`] all mounts below it. Flags locked by
/// the owner of the host's namespace stay as they are.
fn restrict(path: &CStr, flags: i32) -> rustix::io::Result<()> {
    let attributes = libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: the path is NUL-terminated and the size matches the structure; both outlive the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))
    }
}

fn inside(root: &str, path: &Path) -> io::Result<CString> {
    let bytes = [OsStr::new(root).as_bytes(), path.as_os_str().as_bytes()].concat();
    Ok(CString::new(bytes)?)
}
