//! Consumers of watched directories: streams, and clients that poll.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use connectrpc::ConnectError;
use parking_lot::Mutex;
use protocol::guest::LogLevel;
use protocol::rpc::filesystem::{EventType, FilesystemEvent};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::watch::{Change, Watch};
use super::{entry, failure};
use crate::state::Guest;

/// Pending events of a client that does not poll; beyond it the newest are dropped.
const MAX_PENDING: usize = 16 * 1024;
/// Batches that a stream may lag behind; then the kernel's queue provides backpressure.
const MAX_LAG_BATCHES: usize = 16;

/// Options of a watch.
pub(super) struct WatchOptions {
    pub(super) path: PathBuf,
    pub(super) recursive: bool,
    pub(super) include_entry: bool,
    pub(super) allow_network_mounts: bool,
}

impl WatchOptions {
    /// Starts watching. A recursive watch walks the tree, so this blocks.
    pub(super) fn begin(&self) -> Result<Watch, ConnectError> {
        let path = &self.path;
        let meta = fs::metadata(path).map_err(|error| failure(path, &error))?;
        if !meta.is_dir() {
            return Err(ConnectError::invalid_argument(format!("path is not a directory: {}", path.display())));
        }
        if !self.allow_network_mounts && is_network_mount(path) {
            let message = format!("path is on a network file system, which cannot be watched: {}", path.display());
            return Err(ConnectError::invalid_argument(message));
        }
        Watch::new(path, self.recursive).map_err(|error| failure(path, &error))
    }
}

/// File systems that other machines change without inotify events.
fn is_network_mount(path: &Path) -> bool {
    const NFS: i64 = 0x6969;
    const SMB: i64 = 0x517B;
    const SMB2: i64 = 0xFE53_4D42;
    const CIFS: i64 = 0xFF53_4D42;
    const FUSE: i64 = 0x6573_5546;
    rustix::fs::statfs(path).is_ok_and(|found| [NFS, SMB, SMB2, CIFS, FUSE].contains(&(found.f_type & 0xFFFF_FFFF)))
}

/// Converts changes to wire events. With entries it stats each file, so it blocks.
fn events(watch: &Watch, changes: &[Change], include_entry: bool, guest: &Guest) -> Vec<FilesystemEvent> {
    let accounts = include_entry.then(|| guest.users.accounts());
    let described = [EventType::EVENT_TYPE_CREATE, EventType::EVENT_TYPE_WRITE, EventType::EVENT_TYPE_CHMOD];
    changes
        .iter()
        .map(|change| FilesystemEvent {
            name: watch.relative(&change.path).to_string_lossy().into_owned(),
            r#type: change.kind.into(),
            entry: accounts
                .as_ref()
                .filter(|_| described.contains(&change.kind))
                .and_then(|accounts| entry::read(&change.path, accounts).ok())
                .into(),
            ..FilesystemEvent::default()
        })
        .collect()
}

/// Sends every change to the receiver until it is dropped.
pub(super) fn stream(guest: Arc<Guest>, mut watch: Watch, include_entry: bool) -> mpsc::Receiver<FilesystemEvent> {
    let (sender, receiver) = mpsc::channel(MAX_LAG_BATCHES);
    tokio::spawn(async move {
        loop {
            let changes = tokio::select! {
                changes = watch.next() => changes,
                () = sender.closed() => return,
            };
            let Ok(changes) = changes else { return };
            for event in events(&watch, &changes, include_entry, &guest) {
                if sender.send(event).await.is_err() {
                    return;
                }
            }
        }
    });
    receiver
}

/// Polled watches, by id.
#[derive(Default)]
pub(crate) struct Watchers(Mutex<Table>);

#[derive(Default)]
struct Table {
    last: u64,
    watchers: HashMap<String, Watcher>,
}

struct Watcher {
    waiting: Arc<Mutex<VecDeque<FilesystemEvent>>>,
    task: JoinHandle<()>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watchers {
    fn table<T>(&self, with: impl FnOnce(&mut Table) -> T) -> T {
        with(&mut self.0.lock())
    }

    /// Collects changes from now on and returns the watcher id.
    pub(super) fn add(&self, guest: Arc<Guest>, watch: Watch, include_entry: bool) -> String {
        let waiting = Arc::new(Mutex::new(VecDeque::new()));
        let task = tokio::spawn(collect(guest, watch, include_entry, Arc::clone(&waiting)));
        self.table(|table| {
            table.last += 1;
            let id = format!("w{}", table.last);
            table.watchers.insert(id.clone(), Watcher { waiting, task });
            id
        })
    }

    /// The events since the last call.
    pub(super) fn drain(&self, id: &str) -> Option<Vec<FilesystemEvent>> {
        let waiting = self.table(|table| table.watchers.get(id).map(|watcher| Arc::clone(&watcher.waiting)))?;
        let mut waiting = waiting.lock();
        Some(std::mem::take(&mut *waiting).into())
    }

    pub(super) fn remove(&self, id: &str) -> bool {
        self.table(|table| table.watchers.remove(id)).is_some()
    }
}

async fn collect(
    guest: Arc<Guest>,
    mut watch: Watch,
    include_entry: bool,
    waiting: Arc<Mutex<VecDeque<FilesystemEvent>>>,
) {
    let mut reported = false;
    while let Ok(changes) = watch.next().await {
        let new = events(&watch, &changes, include_entry, &guest);
        let mut waiting = waiting.lock();
        let capacity = MAX_PENDING - waiting.len();
        if new.len() > capacity && !reported {
            reported = true;
            guest.log.add(LogLevel::Warn, "a watcher is not polled; its events are dropped", []);
        }
        waiting.extend(new.into_iter().take(capacity));
    }
}
