//! The data directory: its lock, its API key, and the note by which other commands find the server.
//!
//! Invariant: only the process that holds the lock changes the directory's contents.

mod database_note;
mod error;

pub use database_note::{DATABASE_NOTES, DatabaseNote, forget_databases, noted_databases};
pub use error::{DataDirectoryError, write_error};

use crate::error::failed;
use rustix::fs::{FlockOperation, flock};
use secret::Secret;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// File that marks a directory where a server is expected.
const EXPECTED: &str = "expected-server.json";
const NOTE: &str = "server.json";
/// Locked by the process that uses the directory. Its presence marks a directory of Sandbar.
const LOCK: &str = "lock";
/// Directory of the records and checkpoints of workspaces, where it is in a data directory.
pub const WORKSPACES: &str = "workspaces";
/// Directory of the authorities. `sandbar trust` may create it before the first server.
pub const AUTHORITY: &str = "authority";
/// Directory of the records of the studio's users and builds.
pub const STUDIO: &str = "studio";
/// Directory of screenshots when no other store is configured.
pub const MEDIA: &str = "media";
/// Entries that other commands may create before the first server.
const MADE_BY_OTHERS: [&str; 6] = [WORKSPACES, AUTHORITY, STUDIO, DATABASE_NOTES, MEDIA, EXPECTED];

/// The server of a directory; written when the server is ready. Not `Debug`, since it has the key.
#[derive(Serialize, Deserialize)]
pub struct ServerNote {
    pub pid: u32,
    pub url: String,
    /// The key that clients must send: the directory's own, or the one given to this server.
    pub api_key: String,
    /// Started with `--ephemeral`: its sandboxes end with it.
    #[serde(default)]
    pub ephemeral: bool,
    /// The domain of its sandboxes' host names.
    #[serde(default)]
    pub domain: Option<String>,
    /// It listens on all addresses of this machine.
    #[serde(default)]
    pub everywhere: bool,
    /// A command started it because none was running. It stops when a user or a supervisor starts
    /// a server.
    #[serde(default)]
    pub on_demand: bool,
    /// The studio's database, if one was given to the server. It may have a password; the note has
    /// the key as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    /// False from when a server locks the directory until it is ready, and after it has ended.
    #[serde(default = "yes")]
    pub serving: bool,
}

fn yes() -> bool {
    true
}

/// A user or a supervisor ran `sandbar up` in this directory. No other command starts a server here
/// until `sandbar down`.
#[derive(Serialize, Deserialize)]
pub struct Expected {
    /// The command that starts it, without keys and passwords.
    pub command: String,
}

/// The note of the running or the last server of a directory.
pub fn last_server(path: &Path) -> Option<ServerNote> {
    read_note(path)
}

/// The state of the server of a data directory.
pub enum FoundServer {
    /// The directory does not exist, never had a server, or its last server has stopped.
    Absent,
    /// The last server did not withdraw its note: it was killed, or the machine lost power.
    Dead {
        pid: u32,
    },
    /// A server has the lock and is starting or stopping.
    Busy,
    Serving(ServerNote),
}

/// Finds the server of a directory, without side effects.
pub fn find_server(path: &Path) -> std::io::Result<FoundServer> {
    let lock = match File::open(path.join(LOCK)) {
        Ok(lock) => lock,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(FoundServer::Absent),
        Err(error) => return Err(error),
    };
    // A server holds the lock exclusively. The shared lock is released at once, so that it blocks a
    // starting server for a moment only.
    match flock(&lock, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(read_serving(path).map_or(FoundServer::Absent, |note| FoundServer::Dead { pid: note.pid })),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(read_serving(path).map_or(FoundServer::Busy, FoundServer::Serving)),
        Err(error) => Err(error.into()),
    }
}

/// A data directory whose lock this process holds.
pub struct DataDirectory {
    path: PathBuf,
    /// Never read: the kernel releases the lock when the process ends, also after a kill.
    _lock: File,
}

/// Another server holds the lock. Has its note unless that server is starting or stopping.
pub struct Busy(pub Option<ServerNote>);

impl DataDirectory {
    /// Creates the directory (mode 0700) if needed and locks it.
    pub fn take(path: &Path) -> Result<Result<Self, Busy>, DataDirectoryError> {
        check_usable(path)?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(write_error(path))
            .map_err(failed(|| "cannot make the data directory".to_owned()))?;
        // Layers have set-user-id files of untrusted code, which no other user of the host may
        // reach.
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))
            .map_err(write_error(path))
            .map_err(failed(|| "cannot protect the data directory".to_owned()))?;
        let path = path.canonicalize().map_err(failed(|| format!("cannot resolve {}", path.display())))?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(path.join(LOCK))
            .map_err(write_error(&path.join(LOCK)))
            .map_err(failed(|| "cannot take the data directory".to_owned()))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Ok(Self { path, _lock: lock })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(Err(Busy(read_serving(&path)))),
            Err(error) => Err(error).map_err(failed(|| format!("cannot lock {}", path.display()))),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Directory of sockets: a short path, preferably one that a reboot clears. Root uses `/run`,
    /// another user `XDG_RUNTIME_DIR`, else the data directory or `/tmp`. The choice is recorded in
    /// a file, because the next server may be started from a session with another variable.
    pub fn runtime(&self) -> Result<PathBuf, DataDirectoryError> {
        /// Limit of the directory's path, so that a socket's path with a sandbox's name fits.
        const LONGEST: usize = 70;
        const NOTE: &str = "runtime";
        let digest = Sha256::digest(self.path.as_os_str().as_encoded_bytes());
        let name = format!("sandbar-{}", hex::encode(&digest[..4]));
        if is_own(Path::new("/run")) {
            return Ok(Path::new("/run").join(name));
        }
        let noted = fs::read_to_string(self.path.join(NOTE)).ok().map(PathBuf::from);
        if let Some(noted) = noted.filter(|path| is_own(path)) {
            return Ok(noted);
        }
        let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| is_own(path));
        let fits = |path: &PathBuf| path.as_os_str().len() <= LONGEST;
        let places = [session.map(|session| session.join(&name)), Some(self.path.join("run"))];
        let place = places.into_iter().flatten().find(fits).unwrap_or_else(|| Path::new("/tmp").join(name));
        self.write_whole(NOTE, place.as_os_str().as_encoded_bytes())?;
        Ok(place)
    }

    /// Apparent size of the sparse image that holds the sandboxes' files where the directory is not
    /// on btrfs: most of the file system, since the image allocates only written blocks, and the
    /// engine guards the host's last free space.
    pub fn pool_bytes(&self) -> Result<u64, DataDirectoryError> {
        pool_bytes(&self.path)
    }

    /// The key of the directory, generated at the first call: `e2b_` and 40 hex digits, which every
    /// SDK accepts.
    pub fn api_key(&self) -> Result<String, DataDirectoryError> {
        let file = self.path.join("api-key");
        match fs::read_to_string(&file) {
            Ok(key) => return Ok(key.trim().to_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).map_err(failed(|| format!("cannot read {}", file.display()))),
        }
        let key = format!("e2b_{}", hex::encode(rand::random::<[u8; 20]>()));
        self.write_whole("api-key", key.as_bytes())?;
        Ok(key)
    }

    pub fn write_note(&self, note: &ServerNote) -> Result<(), DataDirectoryError> {
        self.write_whole(NOTE, &serde_json::to_vec(note).expect("a note is plain data"))
    }

    /// Marks the note of an earlier server as not serving; its addresses stay known.
    pub fn withdraw_note(&self) -> Result<(), DataDirectoryError> {
        match read_serving(&self.path) {
            Some(note) => self.write_note(&ServerNote { serving: false, ..note }),
            None => Ok(()),
        }
    }

    /// Removes the note and the expectation of a server.
    pub fn forget_server(&self) {
        for name in [NOTE, EXPECTED] {
            // If a file stays, commands wait for a server until a timeout whose error says what to
            // do.
            let _ = fs::remove_file(self.path.join(name));
        }
    }

    /// Records for `sandbar down` how many sandboxes this server ended.
    pub fn write_ended(&self, count: usize) -> Result<(), DataDirectoryError> {
        self.write_whole("ended", count.to_string().as_bytes())
    }

    /// Reads and removes the count of [`DataDirectory::write_ended`].
    pub fn take_ended(&self) -> usize {
        let file = self.path.join("ended");
        let count = fs::read_to_string(&file).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        // A file that stays is overwritten by the next server that ends sandboxes.
        let _ = fs::remove_file(file);
        count
    }

    fn write_whole(&self, name: &str, content: &[u8]) -> Result<(), DataDirectoryError> {
        write_whole(&self.path, name, content)
    }
}

/// Replaces a file by an atomic rename and syncs it: a reader never sees a part of it, and it
/// survives a power cut.
fn write_whole(directory: &Path, name: &str, content: &[u8]) -> Result<(), DataDirectoryError> {
    let path = directory.join(name);
    durable::write(&path, content, 0o600).map_err(write_error(&path))
}

impl Drop for DataDirectory {
    fn drop(&mut self) {
        // If this fails, the note names a dead process, and `find_server` sees by the free lock
        // that it is dead.
        let _ = self.withdraw_note();
    }
}

/// Checks, before anything is written, that a server may use a directory.
pub fn check_usable(path: &Path) -> Result<(), DataDirectoryError> {
    if path.exists() { check_ours(path) } else { Ok(()) }
}

/// Creates the lock file, which marks a directory of Sandbar, before a server has used it.
pub fn mark(path: &Path) -> Result<(), DataDirectoryError> {
    let lock = path.join(LOCK);
    let made = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&lock);
    made.map(drop).map_err(write_error(&lock))
}

/// As [`DataDirectory::pool_bytes`], for a directory that is not locked yet.
pub fn pool_bytes(path: &Path) -> Result<u64, DataDirectoryError> {
    const LEAST: u64 = 8 << 30;
    let found = rustix::fs::statvfs(path).map_err(failed(|| format!("cannot measure {}", path.display())))?;
    Ok((found.f_blocks * found.f_frsize / 10 * 8).max(LEAST))
}

/// Refuses a directory of another user or with other content: it will be closed to other users, and
/// root mounts its content.
fn check_ours(path: &Path) -> Result<(), DataDirectoryError> {
    let found = fs::metadata(path).map_err(failed(|| format!("cannot look at {}", path.display())))?;
    if !found.is_dir() {
        return Err(DataDirectoryError::Refused(format!("the data directory {} is not a directory", path.display())));
    }
    check_owner(path)?;
    check_purpose(path)
}

/// Refuses a directory that is not empty and that no command of this program has used.
pub fn check_purpose(path: &Path) -> Result<(), DataDirectoryError> {
    let used_before = path.join(LOCK).exists();
    let mut found = fs::read_dir(path).map_err(failed(|| format!("cannot read {}", path.display())))?;
    let foreign = |entry: std::io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| !MADE_BY_OTHERS.iter().any(|ours| entry.file_name() == *ours))
    };
    if !used_before && found.any(foreign) {
        return Err(DataDirectoryError::Refused(format!(
            "{} holds other things already; name an empty or a new directory with --data",
            path.display()
        )));
    }
    Ok(())
}

fn is_own(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == rustix::process::geteuid().as_raw())
}

/// Refuses the directory of another user: sandboxes belong to the user who started their server.
pub fn check_owner(path: &Path) -> Result<(), DataDirectoryError> {
    let owner = fs::metadata(path).map_err(failed(|| format!("cannot look at {}", path.display())))?.uid();
    if owner == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let hint = if owner == 0 { "; use sudo" } else { "" };
    Err(DataDirectoryError::Refused(format!(
        "the data directory {} belongs to another user (uid {owner}){hint}",
        path.display()
    )))
}

/// The expected server of a directory, with the command that starts it.
pub fn expected_server(path: &Path) -> Option<Expected> {
    serde_json::from_slice(&fs::read(path.join(EXPECTED)).ok()?).ok()
}

/// Records that a server is expected, before it has the lock: no command starts another meanwhile.
pub fn expect_server(path: &Path, expected: &Expected) -> Result<(), DataDirectoryError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(write_error(path))?;
    write_whole(path, EXPECTED, &serde_json::to_vec(expected).expect("it is plain data"))
}

/// Removes the record that a server is expected.
pub fn expect_none(path: &Path) {
    // If the file stays, commands wait for a server until a timeout whose error says what to do.
    let _ = fs::remove_file(path.join(EXPECTED));
}

/// The databases that were given to the last server of a directory and to studios without a
/// server.
pub fn known_databases(path: &Path) -> Vec<Secret> {
    let of_server = read_note(path).and_then(|note| note.database).map(Secret::from);
    of_server.into_iter().chain(noted_databases(path)).collect()
}

/// The note of a server that is serving, or that was killed while it served.
fn read_serving(path: &Path) -> Option<ServerNote> {
    read_note(path).filter(|note| note.serving)
}

fn read_note(path: &Path) -> Option<ServerNote> {
    let mut text = String::new();
    File::open(path.join(NOTE)).ok()?.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}
