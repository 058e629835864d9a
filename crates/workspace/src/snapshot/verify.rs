//! Compares what was unpacked in a sandbox with what a manifest says it must be. The sandbox tells of every file what its
//! content's digest is as soon as it is unpacked, and at the end types, modes, owners and links of everything.

use std::collections::HashMap;
use std::io::{self, Write};

use bytes::{Bytes, BytesMut};
use flate2::Compression;
use flate2::write::GzEncoder;

use super::manifest::{Entry, FilePath, Kind, Manifest};

/// As many files are read back by one program.
const BATCH_FILES: usize = 500;
/// Or as many bytes: the next batch is unpacked meanwhile.
const BATCH_BYTES: u64 = 32 * 1024 * 1024;

/// Something that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mismatch {
    pub(super) path: FilePath,
    pub(super) what: &'static str,
}

/// What the sandbox is asked, before the archive comes.
pub(super) struct Question {
    /// Compressed, as the archive is.
    pub(super) compressed: Bytes,
    /// How long it is when it is not.
    pub(super) bytes: usize,
    pub(super) files: usize,
}

/// Everything that a manifest has, files first: the question has them in this order, and so has the answer.
fn files_first(manifest: &Manifest) -> (Vec<&Entry>, usize) {
    let (mut entries, others): (Vec<&Entry>, Vec<&Entry>) =
        manifest.entries.iter().partition(|entry| entry.kind.content().is_some());
    let files = entries.len();
    entries.extend(others);
    (entries, files)
}

impl Question {
    /// # Errors
    /// None that memory can have.
    pub(super) fn about(manifest: &Manifest) -> io::Result<Self> {
        let (entries, files) = files_first(manifest);
        let mut text = BytesMut::new();
        for entry in entries {
            text.extend_from_slice(entry.path.as_bytes());
            text.extend_from_slice(b"\0");
        }
        text.extend_from_slice(batches(manifest).as_bytes());
        text.extend_from_slice(b"\0");
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&text)?;
        Ok(Self { compressed: encoder.finish()?.into(), bytes: text.len(), files })
    }
}

/// Which files are read back together, and when: `tar` says a line before it unpacks an entry, so the last of a batch is there
/// when it has said one line more.
fn batches(manifest: &Manifest) -> String {
    let mut text = String::new();
    let (mut count, mut bytes) = (0, 0);
    let mut close = |count: &mut usize, lines: usize| {
        if *count > 0 {
            text.push_str(&format!("{count} {lines} "));
        }
        *count = 0;
    };
    for (place, entry) in manifest.entries.iter().enumerate() {
        let Some((size, _)) = entry.kind.content() else { continue };
        count += 1;
        bytes += size;
        if count == BATCH_FILES || bytes >= BATCH_BYTES {
            close(&mut count, place + 2);
            bytes = 0;
        }
    }
    close(&mut count, manifest.entries.len() + 1);
    text
}

/// What is told against what must be, record by record: first the digests of files, then of every entry.
pub(super) struct Comparison<'a> {
    expected: Vec<&'a Entry>,
    files: usize,
    owners: bool,
    seen: usize,
    /// Of the files, to tell hard links from copies.
    inodes: Vec<u64>,
    /// Where a file is among the expected.
    places: HashMap<&'a FilePath, usize>,
    mismatch: Option<Mismatch>,
    records: Records,
}

impl<'a> Comparison<'a> {
    /// Owners are compared if the sandbox let us set them.
    pub(super) fn new(manifest: &'a Manifest, as_root: bool) -> Self {
        let (expected, files) = files_first(manifest);
        Self::of(expected, files, manifest.owners && as_root)
    }

    fn of(expected: Vec<&'a Entry>, files: usize, owners: bool) -> Self {
        let linked = expected[..files].iter().filter_map(|entry| match &entry.kind {
            Kind::HardLink { to, .. } => Some(to),
            _ => None,
        });
        let mut places: HashMap<&FilePath, usize> = linked.map(|path| (path, usize::MAX)).collect();
        for (place, entry) in expected[..files].iter().enumerate() {
            places.entry(&entry.path).and_modify(|known| *known = place);
        }
        let inodes = Vec::with_capacity(files);
        Self { expected, files, owners, seen: 0, inodes, places, mismatch: None, records: Records::default() }
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
        let (entry, wrong) = match self.due() {
            Some((entry, Due::Digest)) => (entry, take_digest(entry, record)),
            Some((entry, Due::Facts)) => (entry, self.take_facts(entry, record)),
            None => return,
        };
        match wrong {
            None => self.seen += 1,
            Some(what) => self.mismatch = Some(Mismatch { path: entry.path.clone(), what }),
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
        self.inodes.push(inode);
        match &entry.kind {
            Kind::HardLink { to, .. } => {
                let place = self.places.get(to).copied().unwrap_or(usize::MAX);
                if self.inodes.get(place) == Some(&inode) { None } else { Some("it is a copy instead of a link") }
            }
            _ => None,
        }
    }

    /// What the next record must be about.
    fn due(&self) -> Option<(&'a Entry, Due)> {
        match self.seen.checked_sub(self.files) {
            None => Some((self.expected[self.seen], Due::Digest)),
            Some(place) => self.expected.get(place).map(|entry| (*entry, Due::Facts)),
        }
    }

    /// Nothing more comes.
    pub(super) fn finish(self) -> Result<(), Mismatch> {
        let due = self.due();
        match (self.mismatch, due) {
            (Some(mismatch), _) => Err(mismatch),
            (None, None) => Ok(()),
            (None, Some((entry, _))) => {
                Err(Mismatch { path: entry.path.clone(), what: "it is missing or cannot be read" })
            }
        }
    }
}

enum Due {
    Digest,
    Facts,
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
                self.begun.extend_from_slice(&rest[..end]);
                each(&self.begun);
                self.begun.clear();
            }
            rest = &rest[end + 1..];
        }
        self.begun.extend_from_slice(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::super::digest::Digest;
    use super::*;

    fn entry(path: &str, kind: Kind) -> Entry {
        let (user, group) = ("user".to_owned(), "user".to_owned());
        Entry { path: path.into(), mode: 0o644, uid: 1000, gid: 1000, user, group, xattrs: Vec::new(), kind }
    }

    fn check(records: &[&str], wanted: Result<(), (&str, &'static str)>) {
        let sha256 = Digest::of(b"x");
        let file = entry("a b", Kind::File { size: 1, sha256 });
        let hard = entry("h", Kind::HardLink { to: "a b".into(), size: 1, sha256 });
        let link = entry("l", Kind::Symlink { target: "a -> b".into() });
        let mut comparison = Comparison::of(vec![&file, &hard, &link], 2, true);
        let text: Vec<String> = records.iter().map(|record| record.replace('D', &sha256.to_string())).collect();
        // In pieces of three bytes, to be put together.
        for piece in text.join("\0").into_bytes().into_iter().chain([0]).collect::<Vec<_>>().chunks(3) {
            comparison.push(&Bytes::copy_from_slice(piece));
        }
        let wanted = wanted.map_err(|(path, what)| Mismatch { path: path.into(), what });
        assert_eq!(comparison.finish(), wanted, "{records:?}");
    }

    #[test]
    fn files_are_read_back_when_the_next_entry_is_begun() {
        let file = |path: &str, size| entry(path, Kind::File { size, sha256: Digest::of(b"x") });
        let check = |entries: Vec<Entry>, wanted: &str| {
            let text = serde_json::json!({
                "format": 1, "project": "p", "stamp": "20261116T000937Z", "root": "/", "files": 0, "bytes": 0,
                "archive": { "bytes": 0, "sha256": Digest::of(b"x") }, "owners": true, "left_out": [], "changed": [],
                "entries": entries,
            });
            let manifest = serde_json::from_value(text).expect("a manifest");
            assert_eq!(batches(&manifest), wanted);
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
