//! Reading, writing and watching the small text files of a cgroup tree.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::CgroupError;

/// How long a wait sleeps when the kernel sends no notification. The kernel limits notifications to
/// one per 10 ms and file, so a change soon after another would be seen late without polling.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// Writes with one system call, as cgroup files demand; the file must exist.
pub(super) fn write(path: &Path, value: &str) -> Result<(), CgroupError> {
    write_raw(path, value).map_err(CgroupError::io(format!("write {value:?} to {}", path.display())))
}

/// As [`write()`], for files that some kernels or set-ups lack: a missing file is success.
pub(super) fn write_if_present(path: &Path, value: &str) -> Result<(), CgroupError> {
    match write_raw(path, value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(CgroupError::io(format!("write {value:?} to {}", path.display()))),
    }
}

pub(super) fn write_raw(path: &Path, value: &str) -> io::Result<()> {
    // The kernel ignores truncation here; a stand-in tree of plain files needs it.
    OpenOptions::new().write(true).truncate(true).open(path)?.write_all(value.as_bytes())
}

pub(super) fn read(path: &Path) -> Result<String, CgroupError> {
    fs::read_to_string(path).map_err(CgroupError::io(format!("read {}", path.display())))
}

/// Reads a file that holds one number; `max` is `u64::MAX`.
pub(super) fn read_number(path: &Path) -> Result<u64, CgroupError> {
    let text = read(path)?;
    parse_number(text.trim()).ok_or_else(|| malformed(path))
}

/// The number after `key` in a file of `key value` lines; 0 if the key is absent.
pub(super) fn value_of(text: &str, key: &str) -> u64 {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(name, _)| *name == key)
        .and_then(|(_, value)| parse_number(value.trim()))
        .unwrap_or(0)
}

fn parse_number(text: &str) -> Option<u64> {
    if text == "max" { Some(u64::MAX) } else { text.parse().ok() }
}

fn malformed(path: &Path) -> CgroupError {
    CgroupError::Io {
        what: format!("understand {}", path.display()),
        source: io::Error::from(io::ErrorKind::InvalidData),
    }
}

/// Waits until the content of `path` satisfies `done`; false when `limit` passes first.
pub(super) fn wait_for(path: &Path, limit: Duration, mut done: impl FnMut(&str) -> bool) -> io::Result<bool> {
    let deadline = Instant::now() + limit;
    let mut file = File::open(path)?;
    let mut text = String::new();
    loop {
        text.clear();
        file.rewind()?;
        file.read_to_string(&mut text)?;
        if done(&text) {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        match poll(&mut [PollFd::new(&file, PollFlags::PRI)], Some(&POLL_INTERVAL)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
