//! One watched directory: translates inotify notices into the events that clients expect.
//!
//! A recursive watch has one inotify watch per directory. A new directory is watched as soon as its
//! notice is read; entries created before that are found by a scan and reported once: `found`
//! records scanned entries until the kernel's own notice of them arrives or can no longer arrive.
//! The kernel queues the notice of an entry before it unlocks the directory, so a scan never sees
//! an entry whose notice is still to be queued: what was queued when the scan ended is the horizon.
//!
//! Every watch has its own inotify instance. The kernel grants a sandbox 128 of them, counted per
//! sandbox. A shared instance would have one queue, which a single busy or unread watch fills for
//! all, and one watch descriptor per directory, which would need reference counts.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use protocol::rpc::filesystem::EventType;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use crate::sys::watch_readiness;

/// Buffer for many notices, each as long as its file name.
const NOTICE_BUFFER_BYTES: usize = 16 * 1024;

/// One change, with an absolute path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) kind: EventType,
    pub(super) path: PathBuf,
}

pub(super) struct Watch {
    notices: AsyncFd<OwnedFd>,
    root: PathBuf,
    recursive: bool,
    directories: HashMap<i32, PathBuf>,
    found: HashSet<PathBuf>,
    /// Bytes of notices that were read, and that were translated.
    read: u64,
    translated: u64,
    /// The value of `translated` at which no notice of a found entry can arrive any longer.
    horizon: u64,
}

impl Watch {
    pub(super) fn new(root: &Path, recursive: bool) -> io::Result<Self> {
        let notices = watch_readiness(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?)?;
        let mut watch = Self {
            notices,
            root: root.to_owned(),
            recursive,
            directories: HashMap::new(),
            found: HashSet::new(),
            read: 0,
            translated: 0,
            horizon: 0,
        };
        watch.add(root)?;
        if recursive {
            watch.add_below(root, &mut None);
        }
        Ok(watch)
    }

    pub(super) fn relative<'a>(&self, path: &'a Path) -> &'a Path {
        match path.strip_prefix(&self.root) {
            Ok(relative) if relative.as_os_str().is_empty() => Path::new("."),
            Ok(relative) => relative,
            Err(_) => path,
        }
    }

    /// Waits for changes and returns the available ones, in order. Cancel safe.
    pub(super) async fn next(&mut self) -> io::Result<Vec<Change>> {
        loop {
            let mut ready = self.notices.readable().await?;
            match ready.try_io(|notices| read_notices(notices.get_ref())) {
                Ok(notices) => {
                    let mut changes = Vec::new();
                    self.translate_all(&notices?, &mut changes);
                    // Notices that only concern the watch itself yield no changes.
                    if !changes.is_empty() {
                        return Ok(changes);
                    }
                }
                Err(_would_block) => {}
            }
        }
    }

    fn translate_all(&mut self, notices: &[Notice], changes: &mut Vec<Change>) {
        self.read += notices.iter().map(Notice::size).sum::<u64>();
        for notice in notices {
            self.translate(notice, changes);
            self.translated += notice.size();
            if self.translated >= self.horizon {
                self.found.clear();
            }
        }
    }

    fn translate(&mut self, notice: &Notice, changes: &mut Vec<Change>) {
        let Notice { watch, flags, name } = notice;
        let Some(directory) = self.directories.get(watch).cloned() else { return };
        if flags.contains(ReadFlags::IGNORED) {
            self.directories.remove(watch);
            return;
        }
        let Some(name) = name else {
            // Concerns a watched directory itself. Its parent's watch reports it, except for the
            // root.
            if flags.contains(ReadFlags::DELETE_SELF) && directory == self.root {
                changes.push(Change { kind: EventType::EVENT_TYPE_REMOVE, path: directory });
            }
            return;
        };
        let path = directory.join(OsStr::from_bytes(name));
        let is_directory = flags.contains(ReadFlags::ISDIR);
        if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            if !self.found.remove(&path) {
                changes.push(Change { kind: EventType::EVENT_TYPE_CREATE, path: path.clone() });
            }
            if is_directory && self.recursive {
                // Removed again, or out of watches: its own events are lost, the others are not.
                let _gone = self.add(&path);
                self.add_below(&path, &mut Some(changes));
                let queued = rustix::io::ioctl_fionread(self.notices.get_ref()).unwrap_or(u64::MAX);
                self.horizon = self.read.saturating_add(queued);
            }
        } else if flags.contains(ReadFlags::MODIFY) {
            changes.push(Change { kind: EventType::EVENT_TYPE_WRITE, path });
        } else if flags.contains(ReadFlags::ATTRIB) {
            changes.push(Change { kind: EventType::EVENT_TYPE_CHMOD, path });
        } else if flags.intersects(ReadFlags::MOVED_FROM | ReadFlags::DELETE) {
            self.found.retain(|found| !found.starts_with(&path));
            let kind = if flags.contains(ReadFlags::DELETE) {
                EventType::EVENT_TYPE_REMOVE
            } else {
                if is_directory {
                    self.unwatch_below(&path);
                }
                EventType::EVENT_TYPE_RENAME
            };
            changes.push(Change { kind, path });
        }
    }

    fn add(&mut self, directory: &Path) -> io::Result<()> {
        let flags = WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::ONLYDIR;
        let watch = inotify::add_watch(self.notices.get_ref(), directory, flags)?;
        self.directories.insert(watch, directory.to_owned());
        Ok(())
    }

    /// Watches all directories below one. With `changes`, reports the entries found as new.
    fn add_below(&mut self, directory: &Path, changes: &mut Option<&mut Vec<Change>>) {
        let mut pending = vec![directory.to_owned()];
        while let Some(directory) = pending.pop() {
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                let path = entry.path();
                // The notice of a directory that an earlier scan found leads here again.
                if let Some(changes) = changes
                    && self.found.insert(path.clone())
                {
                    changes.push(Change { kind: EventType::EVENT_TYPE_CREATE, path: path.clone() });
                }
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) && self.add(&path).is_ok() {
                    pending.push(path);
                }
            }
        }
    }

    /// Stops watching below a directory that moved away.
    fn unwatch_below(&mut self, directory: &Path) {
        let gone: Vec<i32> =
            self.directories.iter().filter(|(_, path)| path.starts_with(directory)).map(|(watch, _)| *watch).collect();
        for watch in gone {
            self.directories.remove(&watch);
            let _already_gone = inotify::remove_watch(self.notices.get_ref(), watch);
        }
    }
}

/// An inotify notice, copied out of its buffer.
struct Notice {
    watch: i32,
    flags: ReadFlags,
    name: Option<Vec<u8>>,
}

impl Notice {
    /// The bytes of this notice in the kernel's queue: a header, and the name with a NUL, padded to
    /// whole headers.
    fn size(&self) -> u64 {
        const HEADER: usize = 16;
        let name = self.name.as_ref().map_or(0, |name| (name.len() + 1).next_multiple_of(HEADER));
        (HEADER + name) as u64
    }
}

fn read_notices(from: &OwnedFd) -> io::Result<Vec<Notice>> {
    let mut buffer = [MaybeUninit::uninit(); NOTICE_BUFFER_BYTES];
    let mut reader = inotify::Reader::new(from, &mut buffer);
    let mut notices = Vec::new();
    loop {
        match reader.next() {
            Ok(event) => notices.push(Notice {
                watch: event.wd(),
                flags: event.events(),
                name: event.file_name().map(|name| name.to_bytes().to_vec()),
            }),
            Err(Errno::INTR) => continue,
            Err(errno) if notices.is_empty() => return Err(errno.into()),
            Err(_) => return Ok(notices),
        }
        // One buffer at a time, so that a busy directory cannot fill the memory.
        if reader.is_buffer_empty() {
            return Ok(notices);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn created(changes: &[Change], root: &Path) -> Vec<String> {
        let of_kind = changes.iter().filter(|change| change.kind == EventType::EVENT_TYPE_CREATE);
        of_kind.map(|change| change.path.strip_prefix(root).expect("below").display().to_string()).collect()
    }

    #[tokio::test]
    async fn directories_made_during_a_scan_are_reported_once() {
        let root = tempfile::tempdir().expect("a directory");
        let mut watch = Watch::new(root.path(), true).expect("a watch");
        fs::create_dir(root.path().join("n1")).expect("made");
        let notices = read_notices(watch.notices.get_ref()).expect("a notice");
        // What `translate` does first. The kernel then queues a notice of what the scan finds, too.
        watch.add(&root.path().join("n1")).expect("watched");
        fs::create_dir_all(root.path().join("n1/n2/n3")).expect("made");
        let mut changes = Vec::new();
        watch.translate_all(&notices, &mut changes);
        fs::write(root.path().join("last"), "").expect("made");
        while !created(&changes, root.path()).contains(&"last".to_owned()) {
            changes.extend(watch.next().await.expect("changes"));
        }
        assert_eq!(created(&changes, root.path()), ["n1", "n1/n2", "n1/n2/n3", "last"]);
        assert!(watch.found.is_empty(), "{:?}", watch.found);
    }

    #[tokio::test]
    async fn a_scanned_file_is_reported_when_another_replaces_it() {
        let root = tempfile::tempdir().expect("a directory");
        let (file, draft) = (root.path().join("n1/file"), root.path().join("draft"));
        let mut watch = Watch::new(root.path(), true).expect("a watch");
        fs::create_dir(root.path().join("n1")).expect("made");
        fs::write(&file, "old").expect("made");
        let changes = watch.next().await.expect("changes");
        assert_eq!(created(&changes, root.path()), ["n1", "n1/file"]);
        fs::write(&draft, "new").expect("made");
        fs::rename(&draft, &file).expect("renamed");
        let mut changes = Vec::new();
        while !changes.iter().any(|change: &Change| change.kind == EventType::EVENT_TYPE_RENAME) {
            changes.extend(watch.next().await.expect("changes"));
        }
        fs::write(root.path().join("last"), "").expect("made");
        while !created(&changes, root.path()).contains(&"last".to_owned()) {
            changes.extend(watch.next().await.expect("changes"));
        }
        assert_eq!(created(&changes, root.path()), ["draft", "n1/file", "last"]);
    }
}
