//! Names that led a sandbox to addresses, as its name server answered them. They outlive the server
//! in a file, since a sandbox continues to use what it resolved before a restart.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Limits of the addresses whose names are remembered, and of the names of each: a sandbox may
/// query anything.
const MOST_NAMED: usize = 1024;
const MOST_NAMES: usize = 8;
/// Lines after which the file is rewritten without expired names.
const MOST_LINES: usize = 4 * MOST_NAMED;
/// A longer file was not written by this module.
const MOST_BYTES: u64 = 4 << 20;

/// The name that was queried last comes last.
type Known = HashMap<IpAddr, Vec<(String, SystemTime)>>;

#[derive(Default)]
pub(crate) struct Names {
    known: Known,
    file: Option<NamesFile>,
}

impl Names {
    /// Loads the names of an earlier server from the file that new names are appended to.
    pub(crate) fn load(path: &Path) -> Self {
        let mut names = Self::default();
        let now = SystemTime::now();
        for line in read(path).lines() {
            if let Some((address, name, until)) = parse(line).filter(|(_, _, until)| *until > now) {
                names.insert(address, name, until);
            }
        }
        names.file = Some(NamesFile { path: path.to_owned(), open: None, lines: MOST_LINES });
        names
    }

    pub(crate) fn of(&self, address: IpAddr) -> impl DoubleEndedIterator<Item = &str> + Clone {
        let now = SystemTime::now();
        let known = self.known.get(&address).into_iter().flatten();
        known.filter(move |(_, until)| *until > now).map(|(name, _)| name.as_str())
    }

    pub(crate) fn remember(&mut self, address: IpAddr, name: &str, lives: Duration) {
        let until = SystemTime::now() + lives;
        self.insert(address, name, until);
        if let Some(file) = &mut self.file
            && let Err(error) = file.append(&self.known, (address, name, until))
        {
            tracing::debug!(%error, "names that a sandbox resolved will be forgotten at a restart");
        }
    }

    fn insert(&mut self, address: IpAddr, name: &str, until: SystemTime) {
        if self.known.len() >= MOST_NAMED && !self.known.contains_key(&address) {
            let last = |names: &[(String, SystemTime)]| names.iter().map(|(_, until)| *until).max();
            let first_to_end = self.known.iter().min_by_key(|(_, names)| last(names)).map(|(address, _)| *address);
            first_to_end.and_then(|address| self.known.remove(&address));
        }
        let names = self.known.entry(address).or_default();
        let known = names.iter().position(|(known, _)| known == name).map(|place| names.remove(place));
        if names.len() >= MOST_NAMES {
            names.remove(0);
        }
        names.push((name.to_owned(), known.map_or(until, |(_, known)| until.max(known))));
    }
}

/// The file: one line per name, appended when it is learned.
struct NamesFile {
    path: PathBuf,
    open: Option<File>,
    lines: usize,
}

impl NamesFile {
    fn append(&mut self, known: &Known, learned: (IpAddr, &str, SystemTime)) -> io::Result<()> {
        match &mut self.open {
            Some(file) if self.lines < MOST_LINES => {
                file.write_all(line(learned).as_bytes())?;
                self.lines += 1;
            }
            _ => {
                self.open = None;
                let names = known.iter().flat_map(|(address, names)| names.iter().map(move |name| (*address, name)));
                let text: String = names.map(|(address, (name, until))| line((address, name, *until))).collect();
                // An atomic rename: the server may be killed meanwhile.
                let unfinished = self.path.with_extension("names-new");
                let mut options = OpenOptions::new();
                options
                    .create(true)
                    .truncate(true)
                    .write(true)
                    .mode(0o600)
                    .open(&unfinished)?
                    .write_all(text.as_bytes())?;
                fs::rename(&unfinished, &self.path)?;
                self.open = Some(OpenOptions::new().append(true).open(&self.path)?);
                self.lines = text.lines().count();
            }
        }
        Ok(())
    }
}

fn line((address, name, until): (IpAddr, &str, SystemTime)) -> String {
    let seconds = until.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    format!("{seconds} {address} {name}\n")
}

fn parse(line: &str) -> Option<(IpAddr, &str, SystemTime)> {
    let mut words = line.split(' ');
    let (seconds, address, name) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?);
    let until = UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?;
    (words.next().is_none() && !name.is_empty()).then_some((address, name, until))
}

fn read(path: &Path) -> String {
    let short = fs::metadata(path).is_ok_and(|file| file.len() <= MOST_BYTES);
    if short { fs::read_to_string(path).unwrap_or_default() } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVES: Duration = Duration::from_secs(60);

    fn of(names: &Names, address: [u8; 4]) -> Vec<&str> {
        names.of(address.into()).collect()
    }

    #[test]
    fn names_are_known_again_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sandbox.names");
        let mut names = Names::load(&path);
        names.remember([1, 1, 1, 1].into(), "a.example", LIVES);
        names.remember([1, 1, 1, 1].into(), "b.example", LIVES);
        names.remember([1, 1, 1, 1].into(), "a.example", LIVES);
        names.remember([2, 2, 2, 2].into(), "gone.example", Duration::ZERO);
        assert_eq!(of(&names, [1, 1, 1, 1]), ["b.example", "a.example"], "asked for last comes last");
        // What kill -9 may leave.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"17 1.1.1").unwrap();
        let mut names = Names::load(&path);
        assert_eq!(of(&names, [1, 1, 1, 1]), ["b.example", "a.example"]);
        assert!(of(&names, [2, 2, 2, 2]).is_empty());
        names.remember([3, 3, 3, 3].into(), "c.example", LIVES);
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 3, "what counts no more is left out");
    }

    #[test]
    fn neither_memory_nor_file_grows_without_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sandbox.names");
        let mut names = Names::load(&path);
        for number in 0..3 * MOST_LINES {
            let address = IpAddr::from((number as u32 % 5000).to_be_bytes());
            names.remember(address, &format!("n{}.example", number % 11), LIVES);
        }
        assert!(names.known.len() <= MOST_NAMED && names.known.values().all(|names| names.len() <= MOST_NAMES));
        assert!(fs::read_to_string(&path).unwrap().lines().count() <= MOST_LINES + MOST_NAMED * MOST_NAMES);
    }
}
