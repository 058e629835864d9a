//! `/proc`, `/sys`, `/dev` and `/run` of a sandbox: its own instances. Files of `/proc` that reveal
//! or affect the host are masked; `/sys` contains only an allow list.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::Path;

use rustix::fs::{CWD, Mode, mkdir, mkdirat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_bind, mount_remount, move_mount,
    open_tree, unmount,
};

use crate::failure::{At, Failure};
use crate::spec::BootSpec;

/// Files shown as empty: they reveal the host (command line, memory, keys, disks, modules) or the
/// activity of other sandboxes (interrupts, locks, counters of memory and disks).
///
/// Not masked although they describe the whole machine, because programs fail or misjudge without
/// them: `stat` and `loadavg` (top, uptime, psutil, load averages of every language), `meminfo` and
/// `cpuinfo` (free, nproc, allocators), `uptime`, `version`, `filesystems`, `cgroups` (the JVM
/// detects the cgroup version by it). They are sums over all sandboxes.
const MASKED_FILES: [&str; 21] = [
    "/proc/buddyinfo",
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/diskstats",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/kpagecount",
    "/proc/latency_stats",
    "/proc/locks",
    "/proc/modules",
    "/proc/partitions",
    "/proc/sched_debug",
    "/proc/softirqs",
    "/proc/swaps",
    "/proc/sysrq-trigger",
    "/proc/timer_list",
    "/proc/vmstat",
    "/proc/zoneinfo",
];
/// Directories shown as empty.
const MASKED_DIRECTORIES: [&str; 8] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/bus",
    "/proc/driver",
    "/proc/fs",
    "/proc/irq",
    "/proc/pressure",
    "/proc/scsi",
];
const READ_ONLY_DIRECTORIES: [&str; 1] = ["/proc/sys"];
/// The parts of sysfs that a sandbox sees, each with the directories that lead to it: processors
/// (lscpu, nproc, the JVM, Chromium), its own network devices, and whether memory comes in huge
/// pages (allocators). The rest names the host's disks, file systems, modules and devices, with
/// counters of each: `fs/btrfs` the usage of every sandbox, `block/loop*` the data directory. NUMA
/// nodes are left out, because each contains memory counters of the machine.
const SHOWN_OF_SYS: [&str; 4] =
    ["class/net", "devices/system/cpu", "devices/virtual/net", "kernel/mm/transparent_hugepage"];
/// Directories of `/sys`, parents first: those that lead to the shown parts, and those that
/// programs list and accept empty.
const SYS_DIRECTORIES: [&str; 18] = [
    "block",
    "bus",
    "class",
    "class/block",
    "class/net",
    "dev",
    "devices",
    "devices/system",
    "devices/system/cpu",
    "devices/virtual",
    "devices/virtual/net",
    "firmware",
    "fs",
    "fs/cgroup",
    "kernel",
    "kernel/mm",
    "kernel/mm/transparent_hugepage",
    "module",
];
/// Where `/sys` is assembled: on the sandbox's `/dev`, before the sandbox's root is entered.
const SYS_DRAFT: &str = "/dev/.sys";
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
/// Limit of open terminals per sandbox: all sandboxes share the machine's few thousand.
const TERMINALS: &str = "256";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

const QUIET: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);
pub(crate) const INERT: MountAttrFlags = QUIET.union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

const READ_ONLY: MountFlags = MountFlags::BIND
    .union(MountFlags::RDONLY)
    .union(MountFlags::NOSUID)
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC);

/// The mounts that are the same for every sandbox, made ahead of the boot in the host's tree.
///
/// A mount takes others only once it is attached, so they are in the sandbox's mount namespace
/// already: `/dev` at its place, `/sys` in [`SYS_DRAFT`].
pub(super) struct Devices {
    dev: OwnedFd,
    sys: OwnedFd,
    nothing: OwnedFd,
}

impl Devices {
    /// Makes them while the host's tree is still visible: the kernel grants a new `/sys` only to a
    /// process that sees an unmasked one. `id_count`: how many ids the sandbox has.
    pub(super) fn make(id_count: u32) -> Result<Self, Failure> {
        let devices = Self {
            dev: make(
                "tmpfs",
                &[("mode", "755"), ("size", "1m"), ("nr_inodes", "4096")],
                MountAttrFlags::MOUNT_ATTR_NOSUID,
            )?,
            sys: make("tmpfs", &[("mode", "755"), ("size", "64k"), ("nr_inodes", "64")], INERT)?,
            nothing: make("tmpfs", &[("mode", "555"), ("size", "4k")], INERT | MountAttrFlags::MOUNT_ATTR_RDONLY)?,
        };
        devices.furnish_dev(id_count)?;
        devices.assemble_sys()?;
        Ok(devices)
    }

    /// To hand them to another process, which calls [`Devices::from_descriptors`].
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [&self.dev, &self.sys, &self.nothing].map(AsFd::as_fd)
    }

    pub(super) fn from_descriptors(descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let [dev, sys, nothing] = <[OwnedFd; 3]>::try_from(descriptors)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "expected three mounts"))?;
        Ok(Self { dev, sys, nothing })
    }

    fn furnish_dev(&self, id_count: u32) -> Result<(), Failure> {
        // The group `tty`, if the sandbox has more than one group id.
        let tty = if id_count == 1 { "0" } else { "5" };
        let pts = make(
            "devpts",
            &[("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620"), ("gid", tty), ("max", TERMINALS)],
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC,
        )?;
        let mqueue = make("mqueue", &[], INERT)?;
        // Before `/dev` is covered.
        let devices = DEVICES
            .iter()
            .map(|name| {
                let device = open_tree(CWD, Path::new("/dev").join(name), CLONE).at(&format!("take /dev/{name}"))?;
                Ok((*name, device))
            })
            .collect::<Result<Vec<_>, Failure>>()?;
        place(&self.dev, "/dev").at("mount /dev")?;
        for (name, device) in devices {
            let path = Path::new("/dev").join(name);
            File::options().write(true).create_new(true).mode(0o666).open(&path).at("make a device's mount point")?;
            place(&device, &path).at(&format!("mount {}", path.display()))?;
        }
        for (name, target) in DEVICE_LINKS {
            symlink(target, Path::new("/dev").join(name)).at("link in /dev")?;
        }
        attach(&pts, Path::new("/dev/pts"))?;
        attach(&mqueue, Path::new("/dev/mqueue"))
    }

    /// Assembles `/sys` in [`SYS_DRAFT`]: a bind needs a mounted sysfs as its source, which is at
    /// `/sys` meanwhile.
    fn assemble_sys(&self) -> Result<(), Failure> {
        let sysfs = make("sysfs", &[], INERT | MountAttrFlags::MOUNT_ATTR_RDONLY)?;
        place(&sysfs, "/sys").at("mount /sys")?;
        mkdir(SYS_DRAFT, Mode::RWXU).at("make /sys")?;
        place(&self.sys, SYS_DRAFT).at("make /sys")?;
        for path in SYS_DIRECTORIES {
            mkdir(format!("{SYS_DRAFT}/{path}"), Mode::from_raw_mode(0o755)).at("make /sys")?;
        }
        for path in SHOWN_OF_SYS {
            let shown = mount_bind(format!("/sys/{path}"), format!("{SYS_DRAFT}/{path}"));
            if_present(shown).at(&format!("show /sys/{path}"))?;
        }
        mount_remount(SYS_DRAFT, READ_ONLY, c"").at("make /sys read-only")?;
        unmount("/sys", UnmountFlags::DETACH).at("hide the rest of sysfs")
    }
}

/// The sandbox's mounts, made and assembled before its root is entered, while another process still
/// mounts that root.
pub(super) struct Tree {
    devices: Devices,
    proc: OwnedFd,
    run: OwnedFd,
}

impl Tree {
    /// Adds what depends on the sandbox to the mounts that were made ahead. To be called by process
    /// 1 while the host's tree is still visible: the kernel grants a new `/proc` only to a process
    /// that sees an unmasked one.
    pub(super) fn assemble(devices: Devices, spec: &BootSpec) -> Result<Self, Failure> {
        let shared_memory = spec.shared_memory_bytes.to_string();
        // A fifth of the memory: the out-of-memory killer cannot free the memory of files, and
        // /dev/shm may use half already.
        let run = (spec.shared_memory_bytes / 5 * 2).to_string();
        let tree = Self {
            devices,
            proc: make("proc", &[], INERT)?,
            run: make("tmpfs", &[("mode", "755"), ("size", &run)], QUIET)?,
        };
        if unified_cgroups() && spec.cgroup_unified.is_some() {
            let cgroup = make("cgroup2", &[], INERT | MountAttrFlags::MOUNT_ATTR_RDONLY)?;
            place(&cgroup, format!("{SYS_DRAFT}/fs/cgroup")).at("mount /sys/fs/cgroup")?;
        }
        let shm = make("tmpfs", &[("mode", "1777"), ("size", &shared_memory)], QUIET)?;
        attach(&shm, Path::new("/dev/shm"))?;
        mkdirat(&tree.run, "lock", Mode::from_raw_mode(0o1777)).at("make /run/lock")?;
        place(&tree.proc, "/proc").at("mount /proc")?;
        tree.mask()?;
        cover_boot_id(&spec.boot_id)?;
        Ok(tree)
    }

    /// Moves all mounts below the root of this process, which is the sandbox's. To be called before
    /// the host's tree, where they are, is unmounted.
    pub(super) fn attach(self) -> Result<(), Failure> {
        let Devices { dev, sys, .. } = &self.devices;
        for (mount, path) in [(dev, "/dev"), (&self.run, "/run"), (&self.proc, "/proc"), (sys, "/sys")] {
            attach(mount, Path::new(path))?;
        }
        fs::remove_dir(SYS_DRAFT).at("make /sys")
    }

    /// Masks files and directories of `/proc` where the host's is, in this process's own mount
    /// namespace.
    fn mask(&self) -> Result<(), Failure> {
        // mount(2) binds with one call each; a clone and a move are three, with a namespace in
        // between.
        for path in READ_ONLY_DIRECTORIES {
            if if_present(mount_bind(path, path)).at(&format!("cover {path}"))?.is_some() {
                mount_remount(path, READ_ONLY, c"").at(&format!("make {path} read-only"))?;
            }
        }
        for path in MASKED_FILES {
            if_present(mount_bind("/dev/null", path)).at(&format!("mask {path}"))?;
        }
        let mut first: Option<&str> = None;
        for path in MASKED_DIRECTORIES {
            let placed = match first {
                None => place(&self.devices.nothing, path),
                Some(first) => mount_bind(first, path),
            };
            if if_present(placed).at(&format!("mask {path}"))?.is_some() {
                first = first.or(Some(path));
            }
        }
        Ok(())
    }
}

/// Covers the host's boot id. The source file is on the sandbox's `/dev` and is unlinked once it is
/// mounted.
fn cover_boot_id(boot_id: &str) -> Result<(), Failure> {
    let hidden = "/dev/.boot_id";
    let step = "set the boot id";
    let mut file = File::options().write(true).create_new(true).mode(0o444).open(hidden).at(step)?;
    file.write_all(format!("{boot_id}\n").as_bytes()).at(step)?;
    mount_bind(hidden, BOOT_ID).at(step)?;
    mount_remount(BOOT_ID, READ_ONLY, c"").at(step)?;
    fs::remove_file(hidden).at(step)
}

const CLONE: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC);

/// Whether the host uses cgroup version 2 only. A sandbox that has its own cgroup then sees it:
/// programs that size themselves by their limits (JVM, Node.js) read it there.
fn unified_cgroups() -> bool {
    rustix::fs::statfs("/sys/fs/cgroup").is_ok_and(|found| found.f_type == libc::CGROUP2_SUPER_MAGIC)
}

/// Creates a file system as a detached mount.
pub(crate) fn make(kind: &str, options: &[(&str, &str)], attributes: MountAttrFlags) -> Result<OwnedFd, Failure> {
    let made = || -> rustix::io::Result<OwnedFd> {
        let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in options {
            match *value {
                "" => fsconfig_set_flag(&context, *key)?,
                value => fsconfig_set_string(&context, *key, value)?,
            }
        }
        fsconfig_create(&context)?;
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    };
    made().at(&format!("make a {kind}"))
}

/// Mounts at `path`, and creates the directory if a user of the sandbox has removed it.
pub(super) fn attach(mount: &OwnedFd, path: &Path) -> Result<(), Failure> {
    let step = format!("mount {}", path.display());
    match place(mount, path) {
        Err(Errno::NOENT) => {
            fs::create_dir_all(path).at(&step)?;
            place(mount, path).at(&step)
        }
        result => result.at(&step),
    }
}

fn place(mount: &OwnedFd, path: impl rustix::path::Arg) -> rustix::io::Result<()> {
    move_mount(mount, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS)
}

/// Maps ENOENT to `None`: a file that this kernel lacks needs no mask.
fn if_present<T>(result: rustix::io::Result<T>) -> rustix::io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}
