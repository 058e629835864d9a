//! Removes trees that untrusted code has made: of any depth, with locked directories, perhaps while
//! the code still writes there. It does not descend: each directory found is moved up into the
//! topmost one and processed there, so that neither the stack nor the open descriptors grow. Links
//! are removed, never followed.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, chmod, fchmod, open, openat, openat2,
    renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use crate::pool::unlock;

/// How often a directory is emptied again that a process inside it still fills.
const ATTEMPTS: usize = 64;
/// Limit of subvolumes inside subvolumes: nothing can be moved from one into another.
const DEEPEST_SUBVOLUME: usize = 64;
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes the entry `name` of the directory at `parent`; absent is success.
pub(crate) fn remove_tree(parent: &Path, name: &str) -> io::Result<()> {
    let name = CString::new(name)?;
    let parent = open(parent, DIRECTORY, Mode::empty())?;
    let directory = match open_directory(&parent, &name) {
        Ok(directory) => directory,
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => return Ok(unlink(&parent, &name, AtFlags::empty())?),
        Err(error) => return Err(error.into()),
    };
    // Moved up into the doomed directory itself: a crash leaves nothing beside it.
    remove_content(&directory, 0)?;
    Ok(unlink(&parent, &name, AtFlags::REMOVEDIR)?)
}

/// Removes the entry `name` of `staging`, which is on the same file system and takes what is moved
/// up.
pub(crate) fn remove_all(staging: &OwnedFd, name: CString) -> rustix::io::Result<()> {
    remove_below(staging, vec![name], 0)
}

fn remove_content(directory: &OwnedFd, depth: usize) -> rustix::io::Result<()> {
    if depth > DEEPEST_SUBVOLUME {
        return Err(Errno::LOOP);
    }
    remove_below(directory, names(directory)?, depth)
}

fn remove_below(staging: &OwnedFd, mut doomed: Vec<CString>, depth: usize) -> rustix::io::Result<()> {
    let mut again = 0;
    while let Some(name) = doomed.pop() {
        match unlink(staging, &name, AtFlags::empty()) {
            Err(Errno::ISDIR) => {}
            Ok(()) => continue,
            Err(error) => return Err(error),
        }
        let directory = match open_directory(staging, &name) {
            Err(Errno::NOENT) => continue,
            opened => opened?,
        };
        for inner in names(&directory)? {
            match unlink(&directory, &inner, AtFlags::empty()) {
                Err(Errno::ISDIR) => {}
                removed => {
                    removed?;
                    continue;
                }
            }
            match lift(&directory, &inner, staging) {
                Ok(lifted) => doomed.push(lifted),
                Err(Errno::NOENT) => {}
                // The root of a subvolume: its content cannot be moved out of it.
                Err(Errno::XDEV) => {
                    remove_content(&directory, depth + 1)?;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        match unlink(staging, &name, AtFlags::REMOVEDIR) {
            // A process that works in there has created something meanwhile.
            Err(Errno::NOTEMPTY) if again < ATTEMPTS => {
                again += 1;
                doomed.push(name);
            }
            removed => removed?,
        }
    }
    Ok(())
}

/// Unlinks the entry; unlocks the directory and the entry where the kernel refuses for that reason.
/// Absent is success.
fn unlink(directory: &OwnedFd, name: &CString, flags: AtFlags) -> rustix::io::Result<()> {
    let unlinked = match unlinkat(directory, name.as_c_str(), flags) {
        Err(Errno::PERM | Errno::ROFS) => {
            unlock(directory);
            unlock_entry(directory, name);
            unlinkat(directory, name.as_c_str(), flags)
        }
        Err(Errno::ACCESS) => {
            // With a single id: a directory that a program has closed to itself.
            let _ = fchmod(directory, Mode::RWXU);
            unlinkat(directory, name.as_c_str(), flags)
        }
        unlinked => unlinked,
    };
    if unlinked == Err(Errno::NOENT) { Ok(()) } else { unlinked }
}

/// Renames the directory `name` to a free name in `staging`.
fn lift(directory: &OwnedFd, name: &CString, staging: &OwnedFd) -> rustix::io::Result<CString> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut is_unlocked = false;
    loop {
        let lifted = format!(".removing-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let lifted = CString::new(lifted).expect("a number has no zero byte");
        match renameat_with(directory, name.as_c_str(), staging, lifted.as_c_str(), RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(lifted),
            Err(Errno::EXIST) => {}
            Err(Errno::PERM | Errno::ROFS | Errno::ACCESS) if !is_unlocked => {
                is_unlocked = true;
                let _ = fchmod(directory, Mode::RWXU);
                unlock(directory);
                // A directory that moves gets another parent, which is a write to itself.
                unlock_entry(directory, name);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Opens a directory without crossing a mount point: a file system that is mounted there is not to
/// be removed.
fn open_directory(parent: &OwnedFd, name: &CString) -> rustix::io::Result<OwnedFd> {
    let open = || openat2(parent, name.as_c_str(), DIRECTORY, Mode::empty(), ResolveFlags::NO_XDEV);
    match open() {
        Err(Errno::ACCESS) => {
            allow_owner(parent, name)?;
            open()
        }
        opened => opened,
    }
}

/// Gives the owner of the directory `name` its permissions back. Uses a descriptor, since the name
/// may become a link.
fn allow_owner(parent: &OwnedFd, name: &CString) -> rustix::io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(parent, name.as_c_str(), flags, Mode::empty())?;
    chmod(format!("/proc/self/fd/{}", directory.as_raw_fd()), Mode::RWXU)
}

/// Only files and directories can be locked, and only they can be opened without a side effect.
fn unlock_entry(parent: &OwnedFd, name: &CString) {
    let Ok(found) = statat(parent, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW) else { return };
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => drop(allow_owner(parent, name)),
        FileType::RegularFile => {}
        _ => return,
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    if let Ok(entry) = openat(parent, name.as_c_str(), flags, Mode::empty()) {
        unlock(&entry);
    }
}

/// The names of a directory's entries.
pub(crate) fn names(directory: &OwnedFd) -> rustix::io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}
