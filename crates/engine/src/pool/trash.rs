//! Volumes that no record names are not deleted: they are renamed into a trash, from where they can
//! be restored.
//!
//! ```text
//!   ROOT/NAME               a volume
//!   ROOT/.notes/NAME.json   its description by the owner, from which a lost record can be restored
//!   ROOT/.trash/NAME        a volume that no record named
//!   ROOT/.trash/NAME.json   since when, for how long it was observed, and its note
//! ```
//! Names of volumes have no dot, so neither directory is ever taken for a volume. A crash between
//! two renames leaves a note without a volume, which is ignored.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Pool, PoolError, check_name};
use crate::port::Trashed;

const NOTES: &str = ".notes";
/// Beside the volumes.
pub(super) const DIRECTORY: &str = ".trash";

/// The file beside a volume in the trash.
#[derive(Serialize, Deserialize)]
struct TrashNote {
    /// By the wall clock of that moment.
    since_unix_ms: u64,
    /// By the monotonic clocks of the processes that observed it. Older versions wrote none.
    #[serde(default)]
    watched_ms: u64,
    note: Option<Value>,
}

impl Pool {
    /// Writes `note` beside volume `name`, instead of an earlier one. Not charged to the volume.
    pub fn write_note(&self, name: &str, note: &Value) -> Result<(), PoolError> {
        check_name(name)?;
        self.check_present(name)?;
        let directory = self.side_directory(NOTES)?;
        write_json(&directory, name, note).map_err(PoolError::io(format!("describe volume {name}")))
    }

    /// The note of volume `name`; one that cannot be read counts as none.
    pub fn note(&self, name: &str) -> Option<Value> {
        read_json(&self.root.join(NOTES), name)
    }

    pub(super) fn remove_note(&self, name: &str) -> Result<(), PoolError> {
        absent_is_fine(fs::remove_file(self.root.join(NOTES).join(json_of(name))))
            .map_err(PoolError::io(format!("remove the description of volume {name}")))
    }

    /// Moves volume `name` to the trash.
    /// # Errors
    /// [`PoolError::Missing`] when there is none.
    pub fn move_to_trash(&self, name: &str) -> Result<(), PoolError> {
        check_name(name)?;
        self.check_present(name)?;
        let trash = self.side_directory(DIRECTORY)?;
        let failed = || PoolError::io(format!("move volume {name} to the trash"));
        let since_unix_ms = unix_ms(SystemTime::now());
        let note = TrashNote { since_unix_ms, watched_ms: 0, note: self.note(name) };
        rename_older(&trash, name).map_err(failed())?;
        write_json(&trash, name, &note).map_err(failed())?;
        fs::rename(self.root.join(name), trash.join(name)).map_err(failed())?;
        self.remove_note(name)
    }

    /// Makes `name` in the trash a volume again.
    /// # Errors
    /// [`PoolError::Missing`] when the trash does not have it, [`PoolError::Io`] when there is a
    /// volume of that name.
    pub fn take_from_trash(&self, name: &str) -> Result<(), PoolError> {
        check_name(name)?;
        let trash = self.root.join(DIRECTORY);
        let (from, to) = (trash.join(name), self.root.join(name));
        if !from.is_dir() {
            return Err(PoolError::Missing { name: name.to_owned(), path: from });
        }
        let failed = || PoolError::io(format!("take volume {name} from the trash"));
        if to.symlink_metadata().is_ok() {
            return Err(failed()(io::ErrorKind::AlreadyExists.into()));
        }
        let note = trash_note(&trash, name).and_then(|note| note.note);
        fs::rename(&from, &to).map_err(failed())?;
        if let Some(note) = note {
            self.write_note(name, &note)?;
        }
        absent_is_fine(fs::remove_file(trash.join(json_of(name)))).map_err(failed())
    }

    /// The volumes in the trash, by name.
    pub fn trash(&self) -> Result<Vec<Trashed>, PoolError> {
        let trash = self.root.join(DIRECTORY);
        let mut found = Vec::new();
        for path in self.trashed_paths()? {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            // Directories whose names are no ids do not belong to the server.
            let Ok(files) = name.parse() else { continue };
            let note = trash_note(&trash, name);
            let since = match &note {
                Some(note) => UNIX_EPOCH + Duration::from_millis(note.since_unix_ms),
                // Young rather than old: it stays for its whole time.
                None => SystemTime::now(),
            };
            let watched = Duration::from_millis(note.as_ref().map_or(0, |note| note.watched_ms));
            let used = self.existing_at(&path, 0).and_then(|volume| volume.used_bytes());
            let note = note.and_then(|note| note.note);
            found.push(Trashed { files, since, watched, bytes: used.ok(), note });
        }
        found.sort_by(|one, other| one.files.cmp(&other.files));
        Ok(found)
    }

    /// Records for how long `name` was observed in the trash. The wall clock may jump, so its owner
    /// counts the time by a monotonic clock, and keeps it here over restarts.
    /// # Errors
    /// [`PoolError::Missing`] when the trash does not have it.
    pub fn record_watched(&self, name: &str, watched: Duration) -> Result<(), PoolError> {
        check_name(name)?;
        let trash = self.root.join(DIRECTORY);
        let path = trash.join(name);
        if !path.is_dir() {
            return Err(PoolError::Missing { name: name.to_owned(), path });
        }
        let fresh = || TrashNote { since_unix_ms: unix_ms(SystemTime::now()), watched_ms: 0, note: None };
        let watched_ms = u64::try_from(watched.as_millis()).unwrap_or(u64::MAX);
        let note = TrashNote { watched_ms, ..trash_note(&trash, name).unwrap_or_else(fresh) };
        write_json(&trash, name, &note)
            .map_err(PoolError::io(format!("write how long volume {name} has been in the trash")))
    }

    /// Deletes `name` from the trash; absent is success.
    pub fn delete_from_trash(&self, name: &str) -> Result<(), PoolError> {
        check_name(name)?;
        let trash = self.root.join(DIRECTORY);
        let failed = || PoolError::io(format!("delete volume {name} from the trash"));
        self.destroy(&trash, name).map_err(failed())?;
        absent_is_fine(fs::remove_file(trash.join(json_of(name)))).map_err(failed())
    }

    pub(super) fn trashed_paths(&self) -> Result<Vec<PathBuf>, PoolError> {
        let trash = self.root.join(DIRECTORY);
        let failed = || PoolError::io(format!("list {}", trash.display()));
        let entries = match fs::read_dir(&trash) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(failed())?,
        };
        let mut paths = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed())?;
            if entry.file_type().map_err(failed())?.is_dir() {
                paths.push(entry.path());
            }
        }
        Ok(paths)
    }

    pub(super) fn side_directory(&self, name: &str) -> Result<PathBuf, PoolError> {
        let path = self.root.join(name);
        fs::create_dir_all(&path).map_err(PoolError::io(format!("make {}", path.display())))?;
        Ok(path)
    }
}

/// Renames the volume `name` in the trash to another valid name of a volume: the newest has the
/// name itself.
fn rename_older(trash: &Path, name: &str) -> io::Result<()> {
    if !trash.join(name).exists() {
        return Ok(());
    }
    let free = |candidate: &String| !trash.join(candidate).exists();
    let other = (2..).map(|number| format!("{name}x{number}")).find(free).expect("numbers do not end");
    absent_is_fine(fs::rename(trash.join(json_of(name)), trash.join(json_of(&other))))?;
    fs::rename(trash.join(name), trash.join(other))
}

fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn json_of(name: &str) -> String {
    format!("{name}.json")
}

fn trash_note(trash: &Path, name: &str) -> Option<TrashNote> {
    read_json(trash, name)
}

fn read_json<T: for<'a> Deserialize<'a>>(directory: &Path, name: &str) -> Option<T> {
    serde_json::from_slice(&fs::read(directory.join(json_of(name))).ok()?).ok()
}

/// Replaces the file by an atomic rename, so that a crash leaves the old text or the new one.
fn write_json(directory: &Path, name: &str, value: &impl Serialize) -> io::Result<()> {
    let (target, draft) = (directory.join(json_of(name)), directory.join(format!(".{name}.new")));
    let mut file = fs::File::create(&draft)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    fs::rename(draft, target)
}

fn absent_is_fine(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
