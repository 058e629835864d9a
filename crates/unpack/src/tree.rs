//! Layers, applied one on another to a directory.
//!
//! The kernel resolves every path with that directory as its root, so that a link of an earlier
//! layer leads nowhere else, and never follows the last part of a path. Whiteouts of a layer delete
//! what earlier layers brought and nothing of its own.

mod entry;
mod pax;

use std::collections::HashSet;
use std::ffi::CString;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, fchmod, fchown, linkat, mkdirat, mknodat, openat, openat2, statat,
    symlinkat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use serde::{Deserialize, Serialize};
use tar::EntryType;

use self::entry::{Entry, normalized};
use crate::error::ImageError;
use crate::layer::UnpackBudget;
use crate::remove::{FOLLOW_NOTHING, names, remove_all};

/// What is in the way of a bomb.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Limits {
    /// Of all layers together, unpacked.
    pub bytes: u64,
    pub entries: u64,
}

/// Whose the files become.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Owners {
    /// The ids of the image, counted from here.
    From(u32),
    /// This process has no ids to give: all files are its own.
    Ours,
}

/// What was left out on the way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unpacked {
    pub entries: u64,
    /// Below `/dev`, which a sandbox has of its own.
    pub devices: u64,
    /// Files whose owner has a number that sandboxes do not have; they belong to `nobody` now.
    pub strangers: u64,
}

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Sandboxes have the ids below; see the engine.
const IDS: u64 = 65536;
const OVERFLOW_ID: u32 = 65534;
const DIRECTORY_MODE: u32 = 0o755;

/// A directory that becomes an image's tree.
pub(crate) struct Tree {
    root: OwnedFd,
    owners: Owners,
    limits: Limits,
    budget: UnpackBudget,
    done: Unpacked,
    /// Paths that the present layer has brought, with the directories above them.
    brought: HashSet<Vec<u8>>,
    /// The directory that was used last: most entries come in the order of their directories.
    recent: Option<(Vec<u8>, OwnedFd)>,
}

impl Tree {
    /// `root` is an empty directory, which this process may write.
    pub(crate) fn new(root: OwnedFd, owners: Owners, limits: Limits) -> Self {
        let budget = UnpackBudget { left: limits.bytes, all: limits.bytes };
        Self { root, owners, limits, budget, done: Unpacked::default(), brought: HashSet::new(), recent: None }
    }

    pub(crate) fn budget(&self) -> UnpackBudget {
        self.budget
    }

    pub(crate) fn spend(&mut self, budget: &UnpackBudget) {
        self.budget = *budget;
    }

    pub(crate) fn done(&self) -> Unpacked {
        self.done
    }

    /// Applies the entries of a tar archive. Names that mean deletions do so with `is_layer` only.
    pub(crate) fn apply_layer(&mut self, content: &mut impl Read, is_layer: bool) -> Result<(), ImageError> {
        self.brought.clear();
        self.recent = None;
        entry::each(content, |entry, data| {
            self.done.entries += 1;
            if self.done.entries > self.limits.entries {
                return Err(ImageError::TooMany(self.limits.entries));
            }
            self.apply(&entry, data, is_layer)
        })
    }

    fn apply(&mut self, entry: &Entry, data: &mut dyn Read, is_layer: bool) -> Result<(), ImageError> {
        let path = normalized(&entry.path)?;
        let Some(name) = path.rsplit(|byte| *byte == b'/').next().filter(|name| !name.is_empty()) else {
            // The root itself, which is ours.
            return Ok(());
        };
        let above = &path[..path.len() - name.len()];
        let above = above.strip_suffix(b"/").unwrap_or(above);
        if is_layer && name.starts_with(WHITEOUT) {
            return self.delete(above, name);
        }
        if matches!(entry.kind, EntryType::Char | EntryType::Block) {
            if path.starts_with(b"dev/") {
                self.done.devices += 1;
                return Ok(());
            }
            return Err(ImageError::Hostile(format!("'{}' is a device", shown(&path))));
        }
        let parent = self.directory(above)?;
        let made = self.make(parent.as_fd(), &text(name)?, entry, data, &path);
        self.recent = Some((above.to_vec(), parent));
        made?;
        let mut known = &path[..];
        while self.brought.insert(known.to_vec()) {
            match known.iter().rposition(|byte| *byte == b'/') {
                Some(slash) => known = &known[..slash],
                None => break,
            }
        }
        Ok(())
    }

    fn make(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &CString,
        entry: &Entry,
        data: &mut dyn Read,
        path: &[u8],
    ) -> Result<(), ImageError> {
        let at = |what: &'static str| move |error| failed(what, path, error);
        let is_directory = |stat: rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let there = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(is_directory);
        if !(there && entry.kind == EntryType::Directory) {
            remove_all(parent, name).map_err(at("replace"))?;
        }
        match entry.kind {
            EntryType::Directory => {
                if !there {
                    mkdirat(parent, name, Mode::from_raw_mode(0o700)).map_err(at("make"))?;
                }
                let made = openat(parent, name, FOLLOW_NOTHING, Mode::empty()).map_err(at("open"))?;
                self.finish(made.as_fd(), entry, path)
            }
            EntryType::Regular | EntryType::Continuous => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let made = openat(parent, name, flags, Mode::from_raw_mode(0o600)).map_err(at("make"))?;
                let mut file = std::fs::File::from(made);
                let copied =
                    std::io::copy(data, &mut file).map_err(ImageError::io(format!("write '{}'", shown(path))))?;
                if copied != entry.size {
                    return Err(ImageError::Malformed(format!("'{}' is cut short", shown(path))));
                }
                self.finish(file.as_fd(), entry, path)?;
                let times = entry.times();
                rustix::fs::futimens(&file, &times).map_err(at("set the times of"))
            }
            EntryType::Symlink => {
                symlinkat(text(&entry.link)?, parent, name).map_err(at("make"))?;
                self.give(parent, name, entry).map_err(at("set the owner of"))
            }
            EntryType::Link => {
                let target = normalized(&entry.link)?;
                let slash = target.iter().rposition(|byte| *byte == b'/');
                let (above, last) =
                    slash.map_or((&b""[..], &target[..]), |slash| (&target[..slash], &target[slash + 1..]));
                let source = self.resolve(above).map_err(at("find the target of"))?;
                linkat(source, text(last)?, parent, name, AtFlags::empty()).map_err(at("link"))
            }
            EntryType::Fifo => {
                let mode = Mode::from_raw_mode(entry.mode & 0o777);
                mknodat(parent, name, FileType::Fifo, mode, 0).map_err(at("make"))?;
                self.give(parent, name, entry).map_err(at("set the owner of"))
            }
            other => Err(ImageError::Malformed(format!("'{}' is of an unknown kind ({other:?})", shown(path)))),
        }
    }

    /// For what cannot be opened.
    fn give(&mut self, parent: BorrowedFd<'_>, name: &CString, entry: &Entry) -> rustix::io::Result<()> {
        let (user, group) = self.owner(entry);
        rustix::fs::chownat(parent, name, user, group, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn owner(&mut self, entry: &Entry) -> (Option<Uid>, Option<Gid>) {
        let mut stranger = false;
        let mut known = |id: u64| match u32::try_from(id) {
            Ok(small) if id < IDS => small,
            _ => {
                stranger = true;
                OVERFLOW_ID
            }
        };
        let (user, group) = (known(entry.user), known(entry.group));
        self.done.strangers += u64::from(stranger);
        self.ids(user, group)
    }

    fn ids(&self, user: u32, group: u32) -> (Option<Uid>, Option<Gid>) {
        match self.owners {
            Owners::From(first) => (Some(Uid::from_raw(first + user)), Some(Gid::from_raw(first + group))),
            Owners::Ours => (None, None),
        }
    }

    /// Owner first: the kernel takes set-user-id and capabilities away when it changes.
    fn finish(&mut self, made: BorrowedFd<'_>, entry: &Entry, path: &[u8]) -> Result<(), ImageError> {
        let (user, group) = self.owner(entry);
        let at = |what: &'static str| move |error| failed(what, path, error);
        fchown(made, user, group).map_err(at("set the owner of"))?;
        fchmod(made, Mode::from_raw_mode(entry.mode & 0o7777)).map_err(at("set the mode of"))?;
        for (name, value) in &entry.attributes {
            match rustix::fs::fsetxattr(made, name.as_str(), value, rustix::fs::XattrFlags::empty()) {
                // A file system without them is a weakness that doctor names.
                Ok(()) | Err(Errno::OPNOTSUPP) => {}
                Err(error) => return Err(failed("set an attribute of", path, error)),
            }
        }
        Ok(())
    }

    /// A directory of the tree, links within it followed.
    fn resolve(&self, path: &[u8]) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let path = if path.is_empty() { b"." } else { path };
        openat2(&self.root, path, flags, Mode::empty(), inside)
    }

    /// The same, made where it is missing.
    fn directory(&mut self, path: &[u8]) -> Result<OwnedFd, ImageError> {
        if let Some((_, directory)) = self.recent.take().filter(|(known, _)| known == path) {
            return Ok(directory);
        }
        match self.resolve(path) {
            Err(Errno::NOENT) => {}
            result => return result.map_err(|error| failed("open", path, error)),
        }
        let mut made = self.resolve(b"").map_err(|error| failed("open", b"", error))?;
        for end in (0..=path.len()).filter(|end| *end == path.len() || path[*end] == b'/') {
            let part = &path[..end];
            made = match self.resolve(part) {
                Err(Errno::NOENT) => {
                    let name = text(part.rsplit(|byte| *byte == b'/').next().unwrap_or(part))?;
                    let (root, group) = self.ids(0, 0);
                    let made = mkdirat(&made, &name, Mode::from_raw_mode(DIRECTORY_MODE))
                        .and_then(|()| openat(&made, &name, FOLLOW_NOTHING, Mode::empty()));
                    made.and_then(|made| fchown(&made, root, group).map(|()| made))
                }
                other => other,
            }
            .map_err(|error| failed("make", part, error))?;
        }
        Ok(made)
    }

    fn delete(&mut self, above: &[u8], name: &[u8]) -> Result<(), ImageError> {
        self.recent = None;
        let at = |what: &'static str| move |error| failed(what, above, error);
        let parent = match self.resolve(above) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            found => found.map_err(at("open"))?,
        };
        if name == OPAQUE {
            return self.clear(parent.as_fd(), above, 0);
        }
        let gone = &name[WHITEOUT.len()..];
        if matches!(gone, b"" | b"." | b"..") {
            return Err(ImageError::Hostile(format!("'{}' deletes nothing that has a name", shown(name))));
        }
        let path = joined(above, gone);
        if self.brought.contains(&path) {
            Ok(())
        } else {
            remove_all(parent.as_fd(), &text(gone)?).map_err(at("delete in"))
        }
    }

    /// Removes what earlier layers brought into a directory.
    fn clear(&self, directory: BorrowedFd<'_>, path: &[u8], depth: usize) -> Result<(), ImageError> {
        let at = |what: &'static str| move |error| failed(what, path, error);
        let readable = openat(directory, ".", FOLLOW_NOTHING, Mode::empty()).map_err(at("open"))?;
        for name in names(readable.as_fd()).map_err(at("list"))? {
            let child = joined(path, name.to_bytes());
            if !self.brought.contains(&child) {
                remove_all(readable.as_fd(), &name).map_err(at("clear"))?;
            } else if depth < 400
                && let Ok(below) = openat(&readable, &name, FOLLOW_NOTHING, Mode::empty())
            {
                self.clear(below.as_fd(), &child, depth + 1)?;
            }
        }
        Ok(())
    }
}

fn joined(above: &[u8], name: &[u8]) -> Vec<u8> {
    if above.is_empty() { name.to_vec() } else { [above, b"/", name].concat() }
}

fn text(name: &[u8]) -> Result<CString, ImageError> {
    CString::new(name).map_err(|_| ImageError::Hostile("a name holds a zero byte".to_owned()))
}

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).escape_debug().take(200).collect()
}

fn failed(what: &str, path: &[u8], error: Errno) -> ImageError {
    ImageError::Io { what: format!("{what} '{}'", shown(path)), source: error.into() }
}
