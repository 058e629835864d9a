//! The data directory: who uses it, its key, and the note that tells `sandbar down` and `sandbar sandbox` where the
//! server is.
//!
//! Invariant: whoever holds the lock is the only process that touches the directory's contents.

use crate::config::WORKSPACES;
use anyhow::{Context, anyhow, bail};
use rustix::fs::{FlockOperation, flock};
use sdk::Secret;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use workspace::config::OwnServer;

/// Says that a server is expected here.
const EXPECTED: &str = "expected-server.json";
const NOTE: &str = "server.json";
/// Held by the process that uses the directory; its presence says that the directory is Sandbar's.
const LOCK: &str = "lock";
/// Where authorities are. `sandbar trust` may be there before the first server.
pub(crate) const AUTHORITY: &str = "authority";
/// Has the records of the studio's users and builds.
pub(crate) const STUDIO: &str = "studio";
/// Has screenshots, where no other store is configured.
pub(crate) const MEDIA: &str = "media";
/// What commands other than `up` make, which may be run before the first server.
const MADE_BY_OTHERS: [&str; 5] = [WORKSPACES, AUTHORITY, STUDIO, MEDIA, EXPECTED];

/// Who serves from this directory; written once the server is ready. Not `Debug`: it has the key.
#[derive(Serialize, Deserialize)]
pub(crate) struct ServerNote {
    pub pid: u32,
    pub url: String,
    /// What clients must send: the directory's own key, or the one that this server was started with.
    pub api_key: String,
    /// Its sandboxes end with it, and everybody knew that from the start.
    #[serde(default)]
    pub ephemeral: bool,
    /// What it appends to the names of sandboxes.
    #[serde(default)]
    pub domain: Option<String>,
    /// It listens on all addresses of this machine.
    #[serde(default)]
    pub everywhere: bool,
    /// A command started it because none ran: it makes room for a server that a person or a
    /// supervisor starts.
    #[serde(default)]
    pub on_demand: bool,
    /// The studio's database, where the server was given one. It may have a password, as the note
    /// has the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    /// False from when a server takes the directory until it is ready, and after it has ended.
    #[serde(default = "yes")]
    pub serving: bool,
}

fn yes() -> bool {
    true
}

/// Where a server is expected: `sandbar up` was run here, by a person or a supervisor. Nothing else
/// starts one then, until `sandbar down`.
#[derive(Serialize, Deserialize)]
pub(crate) struct Expected {
    /// What starts it, without keys and passwords.
    pub command: String,
}

impl ServerNote {
    /// Where it is reached, to tell it from other providers.
    pub(crate) fn own_server(&self) -> OwnServer {
        OwnServer { url: self.url.clone(), domain: self.domain.clone(), everywhere: self.everywhere }
    }
}

/// The server that serves from a directory, or that served from it last.
pub(crate) fn known_server(path: &Path) -> Option<OwnServer> {
    read_note(path).map(|note| note.own_server())
}

/// What a client finds in a data directory.
pub(crate) enum Found {
    /// No directory, or no server has ever run in it, or the last one has ended.
    Nobody,
    /// The last server ended without a word: it was killed, or the machine was.
    Dead {
        pid: u32,
    },
    /// A server has the directory and is not ready yet, or not any more.
    Busy,
    Serving(ServerNote),
}

/// Looks who serves from a directory. Takes nothing, and changes nothing.
pub(crate) fn find_server(path: &Path) -> std::io::Result<Found> {
    let lock = match File::open(path.join(LOCK)) {
        Ok(lock) => lock,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Found::Nobody),
        Err(error) => return Err(error),
    };
    // A server holds the lock alone; the question is over before it could be in anybody's way for long.
    match flock(&lock, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(read_serving(path).map_or(Found::Nobody, |note| Found::Dead { pid: note.pid })),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(read_serving(path).map_or(Found::Busy, Found::Serving)),
        Err(error) => Err(error.into()),
    }
}

/// A data directory that this process alone may use.
pub(crate) struct DataDirectory {
    path: PathBuf,
    /// Held, not read: the kernel releases the lock when the process ends, however it ends.
    _lock: File,
}

/// A server has the directory; its note, unless it is just starting or stopping.
pub(crate) struct Busy(pub Option<ServerNote>);

impl DataDirectory {
    /// Makes the directory (mode 0700) if needed and takes it.
    pub(crate) fn take(path: &Path) -> anyhow::Result<Result<Self, Busy>> {
        check_usable(path)?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(refused(path))
            .context("cannot make the data directory")?;
        // Layers keep set-user-id files of untrusted code: nobody else on the host may reach them.
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))
            .map_err(refused(path))
            .context("cannot protect the data directory")?;
        let path = path.canonicalize().with_context(|| format!("cannot resolve {}", path.display()))?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(path.join(LOCK))
            .map_err(refused(&path.join(LOCK)))
            .context("cannot take the data directory")?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Ok(Self { path, _lock: lock })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(Err(Busy(read_serving(&path)))),
            Err(error) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where sockets go: short, and gone after a reboot as they should be. Root has `/run`, another user their own directory there
    /// (`XDG_RUNTIME_DIR`), or for want of one the data directory or `/tmp`. It is noted, because the next server may be started from a
    /// session that knows of another.
    pub(crate) fn runtime(&self) -> anyhow::Result<PathBuf> {
        /// What a socket's path has room for, with a sandbox's name behind it.
        const LONGEST: usize = 70;
        const NOTE: &str = "runtime";
        let digest = Sha256::digest(self.path.as_os_str().as_encoded_bytes());
        let name = format!("sandbar-{}", digest[..4].iter().map(|byte| format!("{byte:02x}")).collect::<String>());
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

    /// Apparent size of the sparse image that holds the sandboxes' files where the directory is not on btrfs: most of the
    /// file system, since the image takes only what is written, and the engine guards the host's last free space.
    pub(crate) fn pool_bytes(&self) -> anyhow::Result<u64> {
        pool_bytes(&self.path)
    }

    /// The key kept in the directory, made at the first call: `e2b_` and 40 hex digits, the form every SDK accepts.
    pub(crate) fn api_key(&self) -> anyhow::Result<String> {
        let file = self.path.join("api-key");
        match fs::read_to_string(&file) {
            Ok(key) => return Ok(key.trim().to_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
        }
        let key = format!("e2b_{}", rand::random::<[u8; 20]>().map(|byte| format!("{byte:02x}")).concat());
        self.write_whole("api-key", key.as_bytes())?;
        Ok(key)
    }

    pub(crate) fn write_note(&self, note: &ServerNote) -> anyhow::Result<()> {
        self.write_whole(NOTE, &serde_json::to_vec(note)?)
    }

    /// What an earlier server wrote stays known, but it does not serve.
    pub(crate) fn withdraw_note(&self) -> anyhow::Result<()> {
        match read_serving(&self.path) {
            Some(note) => self.write_note(&ServerNote { serving: false, ..note }),
            None => Ok(()),
        }
    }

    /// No server is known here any more, and none is expected.
    pub(crate) fn forget_server(&self) {
        for name in [NOTE, EXPECTED] {
            // If one stays, a command waits for a server in vain, and says which file says so.
            let _ = fs::remove_file(self.path.join(name));
        }
    }

    /// Tells `sandbar down`, which asked for it, how many sandboxes this server ended.
    pub(crate) fn write_ended(&self, count: usize) -> anyhow::Result<()> {
        self.write_whole("ended", count.to_string().as_bytes())
    }

    /// What the last server said with [`DataDirectory::write_ended`]; forgotten thereby.
    pub(crate) fn take_ended(&self) -> usize {
        let file = self.path.join("ended");
        let count = fs::read_to_string(&file).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        // Overwritten by the next server that ends sandboxes.
        let _ = fs::remove_file(file);
        count
    }

    fn write_whole(&self, name: &str, content: &[u8]) -> anyhow::Result<()> {
        write_whole(&self.path, name, content)
    }
}

/// Replaces a file of the directory; a reader never sees a part of it, and a power cut does not undo it.
fn write_whole(directory: &Path, name: &str, content: &[u8]) -> anyhow::Result<()> {
    let path = directory.join(name);
    durable::write(&path, content, 0o600).map_err(refused(&path))
}

impl Drop for DataDirectory {
    fn drop(&mut self) {
        // Without a server the note would name a process that is gone; if it stays so, the lock
        // still tells the truth.
        let _ = self.withdraw_note();
    }
}

/// Whether a server can be in a directory: nothing is written to it before.
pub(crate) fn check_usable(path: &Path) -> anyhow::Result<()> {
    if path.exists() { check_ours(path) } else { Ok(()) }
}

/// Makes a directory Sandbar's own before a server has used it.
pub(crate) fn mark(path: &Path) -> anyhow::Result<()> {
    let lock = path.join(LOCK);
    let made = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&lock);
    made.map(drop).map_err(refused(&lock))
}

/// As [`DataDirectory::pool_bytes`], of a directory that is being made.
pub(crate) fn pool_bytes(path: &Path) -> anyhow::Result<u64> {
    const LEAST: u64 = 8 << 30;
    let found = rustix::fs::statvfs(path).with_context(|| format!("cannot measure {}", path.display()))?;
    Ok((found.f_blocks * found.f_frsize / 10 * 8).max(LEAST))
}

/// Says why `path` was not written, which file system that is, and what to do.
pub(crate) fn refused(path: &Path) -> impl FnOnce(std::io::Error) -> anyhow::Error {
    let path = path.to_owned();
    move |error| anyhow!(database::explain(&path, &error))
}

/// The directory will be closed to others and its content mounted by root: it must not be somebody's, nor serve another
/// purpose.
fn check_ours(path: &Path) -> anyhow::Result<()> {
    let found = fs::metadata(path).with_context(|| format!("cannot look at {}", path.display()))?;
    if !found.is_dir() {
        bail!("the data directory {} is not a directory", path.display());
    }
    check_owner(path)?;
    check_purpose(path)
}

/// Refuses a directory that no command of this program has used and that is not empty.
pub(crate) fn check_purpose(path: &Path) -> anyhow::Result<()> {
    let used_before = path.join(LOCK).exists();
    let mut found = fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?;
    let foreign = |entry: std::io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| !MADE_BY_OTHERS.iter().any(|ours| entry.file_name() == *ours))
    };
    if !used_before && found.any(foreign) {
        bail!("{} holds other things already; name an empty or a new directory with --data", path.display());
    }
    Ok(())
}

fn is_own(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == rustix::process::geteuid().as_raw())
}

/// Sandboxes belong to whoever started their server: root, or an ordinary user.
pub(crate) fn check_owner(path: &Path) -> anyhow::Result<()> {
    let owner = fs::metadata(path).with_context(|| format!("cannot look at {}", path.display()))?.uid();
    if owner == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let hint = if owner == 0 { "; use sudo" } else { "" };
    bail!("the data directory {} belongs to another user (uid {owner}){hint}", path.display())
}

/// Whether a server is expected in a directory, and what starts it.
pub(crate) fn expected_server(path: &Path) -> Option<Expected> {
    serde_json::from_slice(&fs::read(path.join(EXPECTED)).ok()?).ok()
}

/// Notes that one is, before it has the directory: no command may start another meanwhile.
pub(crate) fn expect_server(path: &Path, expected: &Expected) -> anyhow::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(refused(path))?;
    write_whole(path, EXPECTED, &serde_json::to_vec(expected)?)
}

/// None is.
pub(crate) fn expect_none(path: &Path) {
    // If it stays, a command waits for a server in vain, and says which file says so.
    let _ = fs::remove_file(path.join(EXPECTED));
}

/// The studio's database that the last server of a directory was given.
pub(crate) fn known_database(path: &Path) -> Option<Secret> {
    read_note(path)?.database.map(Secret::from)
}

/// What the server wrote that serves, or that was killed while it did.
fn read_serving(path: &Path) -> Option<ServerNote> {
    read_note(path).filter(|note| note.serving)
}

fn read_note(path: &Path) -> Option<ServerNote> {
    let mut text = String::new();
    File::open(path.join(NOTE)).ok()?.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}
