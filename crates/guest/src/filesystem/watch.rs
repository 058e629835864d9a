//! One watched directory: the kernel's notices, made into the events clients count on.
//!
//! A recursive watch is one kernel watch per directory. A directory that appears is watched as soon as its notice is
//! read; what was put into it before that is found by looking, and reported once: `found` remembers what was seen by
//! looking until the kernel's own notice of it either comes or can no longer come.
//!
//! Every watch is an inotify instance of its own. The kernel grants a sandbox 128 of them, counted apart from every other
//! sandbox's; one shared by all would have one queue, which a single busy or unread watch fills for all, and one watch
//! descriptor a directory, for which the owners would have to be counted.

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

/// Room for many notices, each as long as its file name.
const NOTICES: usize = 16 * 1024;

/// One change. The path is absolute; the watch knows what it is relative to.
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
}

impl Watch {
    pub(super) fn new(root: &Path, recursive: bool) -> io::Result<Self> {
        let notices = watch_readiness(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?)?;
        let mut watch =
            Self { notices, root: root.to_owned(), recursive, directories: HashMap::new(), found: HashSet::new() };
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

    /// Waits for changes and returns those that are there, in order. Cancelling loses nothing.
    pub(super) async fn next(&mut self) -> io::Result<Vec<Change>> {
        loop {
            let mut ready = self.notices.readable().await?;
            match ready.try_io(|notices| read_notices(notices.get_ref())) {
                Ok(notices) => {
                    let mut changes = Vec::new();
                    for notice in notices? {
                        self.translate(&notice, &mut changes);
                    }
                    // Notices of the watch's own housekeeping are no changes.
                    if !changes.is_empty() {
                        return Ok(changes);
                    }
                }
                Err(_would_block) => {}
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
            // About a watched directory itself. Its parent tells, except for the root's.
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
                // Gone again, or out of watches: its own events are lost, the others are not.
                let _gone = self.add(&path);
                self.add_below(&path, &mut Some(changes));
            }
        } else if flags.contains(ReadFlags::MODIFY) {
            changes.push(Change { kind: EventType::EVENT_TYPE_WRITE, path });
        } else if flags.contains(ReadFlags::ATTRIB) {
            changes.push(Change { kind: EventType::EVENT_TYPE_CHMOD, path });
        } else if flags.intersects(ReadFlags::MOVED_FROM | ReadFlags::DELETE) {
            self.found.remove(&path);
            let kind = if flags.contains(ReadFlags::DELETE) {
                EventType::EVENT_TYPE_REMOVE
            } else {
                if is_directory {
                    self.forget_below(&path);
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

    /// Watches all directories below one. With `changes`, what is found there is reported as new.
    fn add_below(&mut self, directory: &Path, changes: &mut Option<&mut Vec<Change>>) {
        let mut pending = vec![directory.to_owned()];
        while let Some(directory) = pending.pop() {
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                let path = entry.path();
                if let Some(changes) = changes {
                    self.found.insert(path.clone());
                    changes.push(Change { kind: EventType::EVENT_TYPE_CREATE, path: path.clone() });
                }
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) && self.add(&path).is_ok() {
                    pending.push(path);
                }
            }
        }
    }

    /// A directory that moved away is no longer watched under its old name.
    fn forget_below(&mut self, directory: &Path) {
        let gone: Vec<i32> =
            self.directories.iter().filter(|(_, path)| path.starts_with(directory)).map(|(watch, _)| *watch).collect();
        for watch in gone {
            self.directories.remove(&watch);
            let _already_gone = inotify::remove_watch(self.notices.get_ref(), watch);
        }
        self.found.retain(|path| !path.starts_with(directory));
    }
}

/// A notice of the kernel, taken out of its buffer.
struct Notice {
    watch: i32,
    flags: ReadFlags,
    name: Option<Vec<u8>>,
}

fn read_notices(from: &OwnedFd) -> io::Result<Vec<Notice>> {
    let mut buffer = [MaybeUninit::uninit(); NOTICES];
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
        // One buffer at a time, so that a busy directory cannot fill memory.
        if reader.is_buffer_empty() {
            return Ok(notices);
        }
    }
}
