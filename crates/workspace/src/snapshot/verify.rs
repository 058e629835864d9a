//! Compares what was unpacked in a sandbox with what a manifest says it must be. The sandbox tells of every file what its
//! content's digest is as soon as it is unpacked, and at the end types, modes, owners and links of everything.
//!
//! The entries are read from the manifest as often as they are due; what is kept of all of them is the inode of each
//! file that has a hard link.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::entries::Entries;
use super::manifest::{Entry, FilePath, Kind};
use super::spool::{Spool, Spooled};

/// As many files are read back by one program.
const BATCH_FILES: usize = 500;
/// Or as many bytes: the next batch is unpacked meanwhile.
const BATCH_BYTES: u64 = 32 * 1024 * 1024;
/// A record is a digest or some numbers, and a path with the target of a link.
const LONGEST_RECORD: usize = 64 * 1024;

/// Something that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mismatch {
    pub(super) path: FilePath,
    pub(super) what: &'static str,
}

/// What the sandbox is asked, before the archive comes: all names, files first.
pub(super) struct Question {
    /// Compressed, as the archive is.
    pub(super) compressed: Spooled,
    /// How long it is when it is not.
    pub(super) bytes: u64,
    pub(super) files: u64,
    linked: Linked,
}

/// Files that have hard links, by a hash of their names, with their inodes once these are known.
#[derive(Default)]
struct Linked {
    keys: RandomState,
    inodes: HashMap<u64, Option<u64>>,
}

impl Linked {
    fn expect(&mut self, path: &FilePath) {
        self.inodes.insert(self.keys.hash_one(path), None);
    }

    fn note(&mut self, path: &FilePath, inode: u64) {
        self.inodes.entry(self.keys.hash_one(path)).and_modify(|known| *known = Some(inode));
    }

    fn inode(&self, path: &FilePath) -> Option<u64> {
        self.inodes.get(&self.keys.hash_one(path)).copied().flatten()
    }
}

impl Question {
    /// Blocks.
    ///
    /// # Errors
    /// When the entries cannot be read, or the disk does not take the question.
    pub(super) fn about(entries: &Entries, directory: Arc<PathBuf>) -> io::Result<Self> {
        let mut text = GzEncoder::new(Spool::new(Arc::clone(&directory)), Compression::fast());
        // Names of what is no file come after those of all files.
        let mut others = Spool::new(directory);
        let mut linked = Linked::default();
        let mut batches = Batches::default();
        let (mut bytes, mut files, mut count) = (0, 0, 0);
        for entry in entries.iter() {
            let entry = entry?;
            bytes += entry.path.as_bytes().len() as u64 + 1;
            if let Some((size, _)) = entry.kind.content() {
                files += 1;
                batches.push(count, size);
                text.write_all(entry.path.as_bytes())?;
                text.write_all(b"\0")?;
            } else {
                others.write_all(entry.path.as_bytes())?;
                others.write_all(b"\0")?;
            }
            if let Kind::HardLink { to, .. } = &entry.kind {
                linked.expect(to);
            }
            count += 1;
        }
        io::copy(&mut others.finish()?.reader(), &mut text)?;
        let batches = batches.finish(count);
        text.write_all(batches.as_bytes())?;
        text.write_all(b"\0")?;
        bytes += batches.len() as u64 + 1;
        Ok(Self { compressed: text.finish()?.finish()?, bytes, files, linked })
    }
}

/// Which files are read back together, and when: `tar` says a line before it unpacks an entry, so the last of a batch is there
/// when it has said one line more.
#[derive(Default)]
struct Batches {
    text: String,
    count: usize,
    bytes: u64,
}

impl Batches {
    fn push(&mut self, place: usize, size: u64) {
        self.count += 1;
        self.bytes += size;
        if self.count == BATCH_FILES || self.bytes >= BATCH_BYTES {
            self.close(place + 2);
        }
    }

    fn close(&mut self, lines: usize) {
        if self.count > 0 {
            self.text.push_str(&format!("{} {lines} ", self.count));
        }
        (self.count, self.bytes) = (0, 0);
    }

    fn finish(mut self, entries: usize) -> String {
        self.close(entries + 1);
        self.text
    }
}

/// What is told against what must be, record by record: first the digests of files, then of every entry.
pub(super) struct Comparison {
    /// What further records must be about.
    expected: Box<dyn Iterator<Item = io::Result<Due>> + Send>,
    due: Option<Due>,
    owners: bool,
    linked: Linked,
    mismatch: Option<Mismatch>,
    /// The entries could not be read.
    failed: Option<io::Error>,
    records: Records,
}

enum Due {
    Digest(Entry),
    Facts(Entry),
}

impl Due {
    fn into_path(self) -> FilePath {
        match self {
            Self::Digest(entry) | Self::Facts(entry) => entry.path,
        }
    }
}

impl Comparison {
    /// `question` is what the sandbox was asked. Owners are compared if the manifest has them and the sandbox let us set
    /// them.
    pub(super) fn new(entries: &Entries, question: Question, owners: bool) -> Self {
        let has_content =
            |entry: &io::Result<Entry>| entry.as_ref().map_or(true, |entry| entry.kind.content().is_some());
        let files = || entries.iter().filter(has_content);
        let others = entries.iter().filter(move |entry| !has_content(entry));
        let digests = files().map(|entry| entry.map(Due::Digest));
        let facts = files().chain(others).map(|entry| entry.map(Due::Facts));
        let expected = Box::new(digests.chain(facts));
        let (linked, records) = (question.linked, Records::default());
        let mut new = Self { expected, due: None, owners, linked, mismatch: None, failed: None, records };
        new.advance();
        new
    }

    fn advance(&mut self) {
        match self.expected.next().transpose() {
            Ok(due) => self.due = due,
            Err(error) => {
                self.due = None;
                self.failed = Some(error);
            }
        }
    }

    /// More of what the sandbox says.
    pub(super) fn push(&mut self, bytes: &Bytes) {
        let mut records = std::mem::take(&mut self.records);
        records.push(bytes, |record| self.take(record));
        self.records = records;
    }

    fn take(&mut self, record: &[u8]) {
        if self.mismatch.is_some() {
            return;
        }
        let Some(due) = self.due.take() else { return };
        let wrong = match &due {
            Due::Digest(entry) => take_digest(entry, record),
            Due::Facts(entry) => self.take_facts(entry, record),
        };
        match wrong {
            None => self.advance(),
            Some(what) => self.mismatch = Some(Mismatch { path: due.into_path(), what }),
        }
    }

    fn take_facts(&mut self, entry: &Entry, record: &[u8]) -> Option<&'static str> {
        let fields: Vec<&[u8]> = record.splitn(8, |byte| *byte == b' ').collect();
        let &[mode, uid, gid, inode, size, user, group, name] = &fields[..] else { return Some("it is missing") };
        let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse::<u64>().ok();
        let mode = std::str::from_utf8(mode).ok().and_then(|mode| u32::from_str_radix(mode, 16).ok()).unwrap_or(0);

        let mut wanted = entry.path.as_bytes().to_vec();
        if let Kind::Symlink { target } = &entry.kind {
            if !name.starts_with(&[&wanted[..], b" -> "].concat()) {
                return Some("it is missing or no link");
            }
            wanted = [&wanted[..], b" -> ", target.as_bytes()].concat();
            if name != wanted {
                return Some("its target differs");
            }
        } else if name != wanted {
            return Some("it is missing");
        }
        if mode & 0o170_000 != entry.kind.type_bits() {
            return Some("its type differs");
        }
        // A link has no mode of its own.
        if !matches!(entry.kind, Kind::Symlink { .. }) && mode & 0o7777 != entry.mode {
            return Some("its mode differs");
        }
        let same = |id: &[u8], name: &[u8], wanted_id: u64, wanted_name: &str| {
            number(id) == Some(wanted_id) || (!wanted_name.is_empty() && name == wanted_name.as_bytes())
        };
        if self.owners && !(same(uid, user, entry.uid, &entry.user) && same(gid, group, entry.gid, &entry.group)) {
            return Some("its owner differs");
        }
        let (wanted_size, _) = entry.kind.content()?;
        if number(size) != Some(wanted_size) {
            return Some("its size differs");
        }
        let inode = number(inode).unwrap_or(0);
        // A link may be named by another one.
        self.linked.note(&entry.path, inode);
        match &entry.kind {
            Kind::HardLink { to, .. } if self.linked.inode(to) != Some(inode) => Some("it is a copy instead of a link"),
            _ => None,
        }
    }

    /// Nothing more comes: what is not as it must be.
    ///
    /// # Errors
    /// When the entries could not be read, which says nothing about the files.
    pub(super) fn finish(self) -> io::Result<Option<Mismatch>> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let missing = |due: Due| Mismatch { path: due.into_path(), what: "it is missing or cannot be read" };
        Ok(self.mismatch.or_else(|| self.due.map(missing)))
    }
}

/// A digest and its file's name, in one of two ways.
fn take_digest(entry: &Entry, record: &[u8]) -> Option<&'static str> {
    let (_, wanted) = entry.kind.content()?;
    let Some((digest, name)) = record.split_at_checked(64) else { return Some("it cannot be read") };
    let name = name.strip_prefix(b"  ./").or_else(|| name.strip_prefix(b" *./"));
    if name != Some(entry.path.as_bytes()) {
        return Some("it cannot be read");
    }
    let digest = std::str::from_utf8(digest).ok().and_then(|digest| digest.parse().ok());
    if digest == Some(wanted) { None } else { Some("its content differs") }
}

/// Puts pieces together to records that end with a NUL.
#[derive(Default)]
struct Records {
    begun: Vec<u8>,
}

impl Records {
    fn push(&mut self, bytes: &Bytes, mut each: impl FnMut(&[u8])) {
        let mut rest = &bytes[..];
        while let Some(end) = rest.iter().position(|byte| *byte == 0) {
            if self.begun.is_empty() {
                each(&rest[..end]);
            } else {
                let room = LONGEST_RECORD.saturating_sub(self.begun.len());
                self.begun.extend_from_slice(&rest[..end.min(room)]);
                each(&self.begun);
                self.begun.clear();
            }
            rest = &rest[end + 1..];
        }
        // Of one that is longer than any can be, what is left differs from what is due.
        let room = LONGEST_RECORD.saturating_sub(self.begun.len());
        self.begun.extend_from_slice(&rest[..rest.len().min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::super::digest::Digest;
    use super::super::entries::EntryWriter;
    use super::*;

    fn directory() -> Arc<PathBuf> {
        Arc::new(std::env::temp_dir())
    }

    fn entries(all: &[Entry]) -> Entries {
        let mut writer = EntryWriter::new(directory());
        all.iter().for_each(|entry| writer.push(entry).expect("memory"));
        writer.finish().expect("memory")
    }

    /// What a sandbox is asked, inflated.
    fn asked(all: &[Entry]) -> String {
        let question = Question::about(&entries(all), directory()).expect("a question");
        let mut text = String::new();
        let mut inflated = flate2::read::GzDecoder::new(question.compressed.reader());
        inflated.read_to_string(&mut text).expect("gzip");
        assert_eq!(text.len() as u64, question.bytes);
        text
    }

    fn entry(path: &str, kind: Kind) -> Entry {
        let (user, group) = ("user".to_owned(), "user".to_owned());
        Entry { path: path.into(), mode: 0o644, uid: 1000, gid: 1000, user, group, xattrs: Vec::new(), kind }
    }

    fn check(records: &[&str], wanted: Result<(), (&str, &'static str)>) {
        let sha256 = Digest::of(b"x");
        let file = entry("a b", Kind::File { size: 1, sha256 });
        let hard = entry("h", Kind::HardLink { to: "a b".into(), size: 1, sha256 });
        let link = entry("l", Kind::Symlink { target: "a -> b".into() });
        // In the archive's order, which is not that of the question.
        let entries = entries(&[link, file, hard]);
        let question = Question::about(&entries, directory()).expect("a question");
        let mut comparison = Comparison::new(&entries, question, true);
        let text: Vec<String> = records.iter().map(|record| record.replace('D', &sha256.to_string())).collect();
        // In pieces of three bytes, to be put together.
        for piece in text.join("\0").into_bytes().into_iter().chain([0]).collect::<Vec<_>>().chunks(3) {
            comparison.push(&Bytes::copy_from_slice(piece));
        }
        let wanted = wanted.err().map(|(path, what)| Mismatch { path: path.into(), what });
        assert_eq!(comparison.finish().expect("memory"), wanted, "{records:?}");
    }

    #[test]
    fn files_are_read_back_when_the_next_entry_is_begun() {
        let file = |path: &str, size| entry(path, Kind::File { size, sha256: Digest::of(b"x") });
        let check = |entries: Vec<Entry>, wanted: &str| {
            let text = asked(&entries);
            assert!(text.ends_with(&format!("\0{wanted}\0")), "{text:?}");
        };
        let folder = || entry(".", Kind::Directory);
        check(vec![folder()], "");
        check(vec![folder(), file("a", 1), folder()], "1 4 ");
        check(vec![folder(), file("a", BATCH_BYTES), folder(), file("b", 1)], "1 3 1 5 ");
        let many = (0..=BATCH_FILES).map(|number| file(&number.to_string(), 1)).collect();
        check(many, &format!("{BATCH_FILES} {} 1 {} ", BATCH_FILES + 1, BATCH_FILES + 2));
    }

    #[test]
    fn everything_that_differs_is_seen() {
        let good = [
            "D  ./a b",
            "D *./h",
            "81a4 1000 1000 7 1 user user a b",
            "81a4 1001 1001 7 1 user user h",
            "a1ff 1000 1000 8 6 user user l -> a -> b",
        ];
        check(&good, Ok(()));
        let with = |place: usize, record: &'static str| {
            let mut records = good;
            records[place] = record;
            records
        };
        check(&good[..4], Err(("l", "it is missing or cannot be read")));
        check(&good[..1], Err(("h", "it is missing or cannot be read")));
        check(&good[1..], Err(("a b", "it cannot be read")));
        check(&[good[0], good[1], good[3], good[4]], Err(("a b", "it is missing")));
        check(&with(2, "41a4 1000 1000 7 1 user user a b"), Err(("a b", "its type differs")));
        check(&with(2, "81ed 1000 1000 7 1 user user a b"), Err(("a b", "its mode differs")));
        check(&with(2, "81a4 0 0 7 1 root root a b"), Err(("a b", "its owner differs")));
        check(&with(2, "81a4 1000 1000 7 2 user user a b"), Err(("a b", "its size differs")));
        check(&with(3, "81a4 1000 1000 9 1 user user h"), Err(("h", "it is a copy instead of a link")));
        check(&with(4, "a1ff 1000 1000 8 6 user user l -> a -> c"), Err(("l", "its target differs")));
        check(
            &with(0, "0000000000000000000000000000000000000000000000000000000000000000  ./a b"),
            Err(("a b", "its content differs")),
        );
        check(&with(0, "short"), Err(("a b", "it cannot be read")));
    }
}
