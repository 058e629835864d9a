//! Reads, creates and changes entries of a volume.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid, chmodat, chownat, fstat, mkdirat, open,
    openat, openat2, readlinkat,
};
use rustix::io::Errno;

use super::path::VolumePath;
use super::{USER, VolumeDirectory};
use crate::privilege::Privilege;

/// Limit of the entries of a list: sandboxes decide how many entries a volume has.
const MOST_ENTRIES: usize = 100_000;
/// Highest id of a sandbox.
const HIGHEST_ID: u32 = 65_535;
/// How often a path that changed meanwhile is resolved again.
const ATTEMPTS: usize = 32;

/// Why a call on the content of a volume failed.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    #[error("path '{0}' not found")]
    NotFound(String),
    #[error("path '{0}' exists already")]
    Exists(String),
    #[error("path '{0}' is {1}")]
    Unfit(String, &'static str),
    #[error("{0}")]
    Invalid(String),
    /// Removing something from the volume helps.
    #[error("the volume is full")]
    Full,
    #[error("the volume could not be read or written")]
    Io(#[source] io::Error),
}

impl ContentError {
    /// Maps an error of the kernel about `path`.
    pub(super) fn about(path: &VolumePath) -> impl Fn(Errno) -> Self + '_ {
        move |error| match error {
            Errno::NOENT => Self::NotFound(path.to_string()),
            Errno::EXIST | Errno::NOTEMPTY => Self::Exists(path.to_string()),
            Errno::NOTDIR => Self::Unfit(path.to_string(), "not a directory, or below something that is none"),
            Errno::ISDIR => Self::Unfit(path.to_string(), "a directory"),
            Errno::LOOP => Self::Unfit(path.to_string(), "a link that leads nowhere"),
            Errno::NAMETOOLONG => Self::Invalid("a name in the path is too long".to_owned()),
            Errno::NOSPC | Errno::DQUOT => Self::Full,
            other => Self::Io(other.into()),
        }
    }
}

impl From<io::Error> for ContentError {
    fn from(error: io::Error) -> Self {
        match Errno::from_io_error(&error) {
            Some(Errno::NOSPC | Errno::DQUOT) => Self::Full,
            _ => Self::Io(error),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    Other,
}

/// One entry of a volume; links are not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    pub path: String,
    pub kind: Kind,
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub accessed: SystemTime,
    pub modified: SystemTime,
    pub changed: SystemTime,
    /// The target of a link, as it is stored.
    pub target: Option<String>,
}

/// Owner and permission bits of an entry; an absent field keeps its value, or gets the default for
/// a new entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Owner {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub mode: Option<u32>,
}

impl Owner {
    /// With the defaults for a new entry.
    pub(super) fn or_usual(self, mode: u32) -> Self {
        Self { uid: self.uid.or(Some(USER)), gid: self.gid.or(Some(USER)), mode: self.mode.or(Some(mode)) }
    }

    pub(super) fn check(self) -> Result<Self, ContentError> {
        if self.uid.max(self.gid).is_some_and(|id| id > HIGHEST_ID) {
            return Err(ContentError::Invalid(format!("uid and gid go up to {HIGHEST_ID}")));
        }
        if self.mode.is_some_and(|mode| mode > 0o7777) {
            return Err(ContentError::Invalid("mode has bits that are no permissions".to_owned()));
        }
        Ok(self)
    }

    /// Applies them to the open descriptor, whatever its name refers to by now.
    pub(super) fn apply(self, to: BorrowedFd<'_>, privilege: Privilege) -> rustix::io::Result<()> {
        let uid = self.uid.map(|id| Uid::from_raw(privilege.id_on_disk(id)));
        let gid = self.gid.map(|id| Gid::from_raw(privilege.id_on_disk(id)));
        if privilege != Privilege::Single && (uid.is_some() || gid.is_some()) {
            chownat(to, "", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        // Last, since a change of owner clears bits. The link in /proc is the descriptor itself:
        // nothing is followed.
        match self.mode {
            Some(mode) => {
                let itself = format!("/proc/self/fd/{}", to.as_raw_fd());
                chmodat(CWD, itself.as_str(), Mode::from_raw_mode(mode), AtFlags::empty())
            }
            None => Ok(()),
        }
    }
}

impl VolumeDirectory {
    pub fn stat(&self, path: &VolumePath) -> Result<Entry, ContentError> {
        entry(path, self.hold(path)?.as_fd(), self.privilege)
    }

    /// Lists a directory, `depth` levels deep, each directory before its entries.
    pub fn list(&self, path: &VolumePath, depth: usize) -> Result<Vec<Entry>, ContentError> {
        let root = self.root()?;
        let mut found = Vec::new();
        // The next one is at the end.
        let mut waiting = children(&root, path)?.into_iter().map(|name| (path.join(&name), 1)).collect::<Vec<_>>();
        waiting.reverse();
        while let Some((path, level)) = waiting.pop() {
            // An entry that has vanished meanwhile is no failure.
            let Ok(held) = self.hold(&path) else { continue };
            let entry = entry(&path, held.as_fd(), self.privilege)?;
            if entry.kind == Kind::Directory && level < depth {
                let names = children(&root, &path).unwrap_or_default();
                waiting.extend(names.into_iter().rev().map(|name| (path.join(&name), level + 1)));
            }
            found.push(entry);
            if found.len() + waiting.len() > MOST_ENTRIES {
                let message = format!("more than {MOST_ENTRIES} entries; list a part of them");
                return Err(ContentError::Invalid(message));
            }
        }
        Ok(found)
    }

    /// Creates a directory, and its parents if `parents`.
    pub fn make_directory(&self, path: &VolumePath, owner: Owner, parents: bool) -> Result<Entry, ContentError> {
        let Some((above, name)) = path.split() else { return Err(ContentError::Exists(path.to_string())) };
        let directory = if parents { self.make_all(&above)? } else { self.follow(&above, OFlags::DIRECTORY)? };
        let made = make_one(directory.as_fd(), name, owner.check()?, self.privilege);
        let made = made.map_err(ContentError::about(path))?;
        sync(made.as_fd())?;
        sync(directory.as_fd())?;
        entry(path, made.as_fd(), self.privilege)
    }

    /// Opens a file for reading; links are followed inside the volume.
    pub fn read(&self, path: &VolumePath) -> Result<File, ContentError> {
        let root = self.root()?;
        // NONBLOCK: opening a pipe would otherwise wait for its writer.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = resolve(root.as_fd(), path, flags).map_err(ContentError::about(path))?;
        match FileType::from_raw_mode(fstat(&file).map_err(ContentError::about(path))?.st_mode) {
            FileType::RegularFile => Ok(File::from(file)),
            FileType::Directory => Err(ContentError::Unfit(path.to_string(), "a directory")),
            _ => Err(ContentError::Unfit(path.to_string(), "not a file")),
        }
    }

    /// Changes owner and permissions; of a link, the owner alone.
    pub fn change(&self, path: &VolumePath, owner: Owner) -> Result<Entry, ContentError> {
        let held = self.hold(path)?;
        let kind = entry(path, held.as_fd(), self.privilege)?.kind;
        let owner = owner.check()?;
        let owner = if kind == Kind::Symlink { Owner { mode: None, ..owner } } else { owner };
        owner.apply(held.as_fd(), self.privilege).map_err(ContentError::about(path))?;
        // A link, a pipe and a device have no descriptor that could be synced; a power cut may undo
        // the change of their owner.
        if matches!(kind, Kind::File | Kind::Directory) {
            sync(held.as_fd())?;
        }
        entry(path, held.as_fd(), self.privilege)
    }

    pub(super) fn root(&self) -> Result<OwnedFd, ContentError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        open(&self.files, flags, Mode::empty()).map_err(|error| ContentError::Io(error.into()))
    }

    /// Opens what a path leads to, with links followed inside the volume.
    pub(super) fn follow(&self, path: &VolumePath, flags: OFlags) -> Result<OwnedFd, ContentError> {
        resolve(self.root()?.as_fd(), path, OFlags::PATH | flags).map_err(ContentError::about(path))
    }

    /// Opens what a path names: links above it are followed inside the volume, the last part is
    /// not.
    fn hold(&self, path: &VolumePath) -> Result<OwnedFd, ContentError> {
        let Some((above, name)) = path.split() else { return self.root() };
        let directory = self.follow(&above, OFlags::DIRECTORY).map_err(|error| match error {
            ContentError::NotFound(_) | ContentError::Unfit(..) => ContentError::NotFound(path.to_string()),
            other => other,
        })?;
        openat(&directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
            .map_err(ContentError::about(path))
    }

    /// Opens the directory at `path` and creates it with its parents where there is none. What was
    /// created is on the disk, but for the last one.
    pub(super) fn make_all(&self, path: &VolumePath) -> Result<OwnedFd, ContentError> {
        let mut directory = self.root()?;
        for count in 1..=path.parts().len() {
            let part = path.first(count);
            directory = match self.follow(&part, OFlags::DIRECTORY) {
                Err(ContentError::NotFound(_)) => {
                    let made = make_one(directory.as_fd(), part.name(), Owner::default(), self.privilege);
                    let made = made.map_err(ContentError::about(&part))?;
                    sync(directory.as_fd())?;
                    made
                }
                found => found?,
            };
        }
        Ok(directory)
    }
}

/// Resolves a path with the volume as its root: neither a link nor `..` in one leads out of it.
fn resolve(root: BorrowedFd<'_>, path: &VolumePath, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let relative = path.relative();
    for _ in 0..ATTEMPTS {
        match openat2(root, &relative, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            // Something was renamed meanwhile, and the kernel cannot exclude that it led out.
            Err(Errno::AGAIN) => {}
            found => return found,
        }
    }
    Err(Errno::AGAIN)
}

fn make_one(directory: BorrowedFd<'_>, name: &str, owner: Owner, privilege: Privilege) -> rustix::io::Result<OwnedFd> {
    mkdirat(directory, name, Mode::RWXU)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = openat(directory, name, flags, Mode::empty())?;
    owner.or_usual(0o755).apply(made.as_fd(), privilege)?;
    Ok(made)
}

/// Syncs the file or directory of `held`, which may be open as a path only.
pub(super) fn sync(held: BorrowedFd<'_>) -> io::Result<()> {
    let link = format!("/proc/self/fd/{}", held.as_raw_fd());
    Ok(rustix::fs::fsync(open(link, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?)?)
}

/// The names in a directory, sorted. Names that are not UTF-8 are left out: no path in a request
/// can contain them.
fn children(root: &OwnedFd, path: &VolumePath) -> Result<Vec<String>, ContentError> {
    let directory =
        resolve(root.as_fd(), path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(ContentError::about(path))?;
    let mut names = Vec::new();
    for entry in Dir::new(directory).map_err(ContentError::about(path))? {
        let entry = entry.map_err(ContentError::about(path))?;
        match entry.file_name().to_str() {
            Ok("." | "..") | Err(_) => {}
            Ok(name) => names.push(name.to_owned()),
        }
        if names.len() > MOST_ENTRIES {
            return Err(ContentError::Invalid(format!("'{path}' has more than {MOST_ENTRIES} entries")));
        }
    }
    names.sort();
    Ok(names)
}

fn entry(path: &VolumePath, held: BorrowedFd<'_>, privilege: Privilege) -> Result<Entry, ContentError> {
    let stat = fstat(held).map_err(ContentError::about(path))?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        _ => Kind::Other,
    };
    let target = match kind {
        Kind::Symlink => Some(readlinkat(held, "", Vec::new()).map_err(ContentError::about(path))?),
        _ => None,
    };
    let Stat { st_size, st_mode, st_uid, st_gid, .. } = stat;
    Ok(Entry {
        name: path.name().to_owned(),
        path: path.to_string(),
        kind,
        size: u64::try_from(st_size).unwrap_or(0),
        mode: st_mode & 0o7777,
        uid: privilege.id_inside(st_uid),
        gid: privilege.id_inside(st_gid),
        accessed: time(stat.st_atime, stat.st_atime_nsec),
        modified: time(stat.st_mtime, stat.st_mtime_nsec),
        changed: time(stat.st_ctime, stat.st_ctime_nsec),
        target: target.map(|target| target.to_string_lossy().into_owned()),
    })
}

/// A sandbox sets times as it likes; a time before 1970 is shown as 1970.
fn time(seconds: i64, nanoseconds: impl TryInto<u32>) -> SystemTime {
    let whole = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let rest = Duration::from_nanos(nanoseconds.try_into().unwrap_or(0).into());
    SystemTime::UNIX_EPOCH.checked_add(whole + rest).unwrap_or(SystemTime::UNIX_EPOCH)
}
