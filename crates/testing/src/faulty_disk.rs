//! A disk whose calls fail at any chosen point: a test runs its own program again as a child, into
//! which `faulty_disk.c` is preloaded.
//!
//! ```text
//!   DIRECTORY/faulty_disk.so
//!   DIRECTORY/control          what fails next
//!   DIRECTORY/data             calls that change files below it can fail
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;

use crate::repeats;

const SCENARIO: &str = "FAULT_SCENARIO";
const PREFIX: &str = "FAULT_PREFIX";
const CONTROL: &str = "FAULT_CONTROL";

/// Which calls fail, and how.
#[derive(Debug, Clone, Copy)]
pub struct DiskFault {
    pub name: &'static str,
    errno: Errno,
    /// How many calls fail; 0 for all later ones.
    count: u32,
}

/// Each error once, and from then on.
pub const DISK_FAULTS: [DiskFault; 4] = [
    DiskFault { name: "full for one call", errno: Errno::NOSPC, count: 1 },
    DiskFault { name: "full from then on", errno: Errno::NOSPC, count: 0 },
    DiskFault { name: "one I/O error", errno: Errno::IO, count: 1 },
    DiskFault { name: "broken from then on", errno: Errno::IO, count: 0 },
];

/// The disk as the child sees it.
#[derive(Debug)]
pub struct FaultyDisk {
    data: PathBuf,
    control: PathBuf,
}

impl FaultyDisk {
    /// Runs `scenario`, an ignored test of this program, in a child with a faulty disk.
    #[track_caller]
    pub fn run(scenario: &str) {
        // On tmpfs where available: tests sync hundreds of times, and the library makes the faults.
        let memory = Path::new("/dev/shm");
        let directory = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let directory = directory.expect("a directory");
        let library = directory.path().join("faulty_disk.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/faulty_disk.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).arg("-ldl");
        let compiled = compiler.output().expect("a C compiler, as ./dev installs it");
        assert!(compiled.status.success(), "{compiled:?}");
        let data = directory.path().join("data");
        fs::create_dir(&data).expect("a directory");
        let mut child = Command::new(std::env::current_exe().expect("the test has a path"));
        child.env("LD_PRELOAD", &library).env(SCENARIO, "yes").env(PREFIX, &data);
        child.env(CONTROL, directory.path().join("control"));
        child.args(["--exact", scenario, "--ignored", "--nocapture", "--test-threads=1"]);
        let done = child.output().expect("the child starts");
        let output = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success() && output.contains("1 passed"), "{output}");
        print!("{output}");
    }

    /// The disk of this child; [`None`] outside of it, as with `cargo test -- --ignored`.
    pub fn of_child() -> Option<Self> {
        std::env::var_os(SCENARIO)?;
        let path = |name| std::env::var_os(name).map(PathBuf::from);
        Some(Self { data: path(PREFIX)?, control: path(CONTROL)? })
    }

    /// Calls that change files below it can fail.
    pub fn path(&self) -> &Path {
        &self.data
    }

    /// Makes calls fail after `skip` calls from now on.
    pub fn arm(&self, fault: DiskFault, skip: usize) {
        let text = format!("{skip} {} {}", fault.errno.raw_os_error(), fault.count);
        fs::write(&self.control, text).expect("its own directory");
    }

    /// Repairs the disk. Returns whether a call failed.
    pub fn disarm(&self) -> bool {
        fs::write(&self.control, "").expect("its own directory");
        fs::remove_file(self.control.with_extension("hit")).is_ok()
    }

    /// The numbers of calls to skip before a fault: each in `./dev soak`, every `stride`-th
    /// otherwise.
    pub fn skips(stride: usize) -> impl Iterator<Item = usize> {
        (0..).step_by(repeats(stride, 1))
    }
}
