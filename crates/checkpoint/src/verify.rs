//! Compares unpacked files in a sandbox with their manifest. The sandbox reports the digest of
//! every file as soon as it is unpacked, and at the end types, modes, owners and links of all
//! entries.
//!
//! The entries are read from the manifest as often as needed; only the inode of each file that has
//! a hard link is kept in memory.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::entries::Entries;
use crate::manifest::{FilePath, ManifestEntry, ManifestKind};
use crate::spool::{Spool, Spooled};

/// The most files that one program reads back.
const BATCH_FILES: usize = 500;
/// Or the most bytes: the next batch is unpacked meanwhile.
const BATCH_BYTES: u64 = 32 * 1024 * 1024;
/// A record is a digest or some numbers, and a path with the target of a link.
const LONGEST_RECORD: usize = 64 * 1024;

/// A difference from the manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mismatch {
    pub(crate) path: FilePath,
    pub(crate) what: &'static str,
}

/// The verification request, sent before the archive: all names, files first.
pub(crate) struct VerifyRequest {
    /// Compressed, like the archive.
    pub(crate) compressed: Spooled,
    /// The uncompressed length.
    pub(crate) bytes: u64,
    pub(crate) files: u64,
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

    fn record(&mut self, path: &FilePath, inode: u64) {
        self.inodes.entry(self.keys.hash_one(path)).and_modify(|known| *known = Some(inode));
    }

    fn inode(&self, path: &FilePath) -> Option<u64> {
        self.inodes.get(&self.keys.hash_one(path)).copied().flatten()
    }
}

impl VerifyRequest {
    /// Builds the request. Blocks.
    ///
    /// # Errors
    /// [`io::Error`] when the entries cannot be read or the spool cannot be written.
    pub(crate) fn new(entries: &Entries, directory: Arc<PathBuf>) -> io::Result<Self> {
        let mut text = GzEncoder::new(Spool::new(Arc::clone(&directory)), Compression::fast());
        // Names of other entries follow those of all files.
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
            if let ManifestKind::HardLink { to, .. } = &entry.kind {
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

/// Which files are read back together, and when. `tar` prints a line before it unpacks an entry, so
/// the last file of a batch is complete when it has printed one line more.
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

/// Compares records with the manifest: first the digests of files, then the metadata of all
/// entries.
pub(crate) struct Comparison {
    /// What the next records must describe.
    expected: Box<dyn Iterator<Item = io::Result<Due>> + Send>,
    due: Option<Due>,
    owners: bool,
    linked: Linked,
    mismatch: Option<Mismatch>,
    /// Reading the entries failed.
    failed: Option<io::Error>,
    records: Records,
}

enum Due {
    Digest(ManifestEntry),
    Facts(ManifestEntry),
}

impl Due {
    fn into_path(self) -> FilePath {
        match self {
            Self::Digest(entry) | Self::Facts(entry) => entry.path,
        }
    }
}

impl Comparison {
    /// `request` is the request that was sent. Owners are compared if the manifest records them
    /// and the script ran as root.
    pub(crate) fn new(entries: &Entries, request: VerifyRequest, owners: bool) -> Self {
        let has_content =
            |entry: &io::Result<ManifestEntry>| entry.as_ref().map_or(true, |entry| entry.kind.content().is_some());
        let files = || entries.iter().filter(has_content);
        let others = entries.iter().filter(move |entry| !has_content(entry));
        let digests = files().map(|entry| entry.map(Due::Digest));
        let facts = files().chain(others).map(|entry| entry.map(Due::Facts));
        let expected = Box::new(digests.chain(facts));
        let (linked, records) = (request.linked, Records::default());
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

    /// Takes more output of the sandbox.
    pub(crate) fn push(&mut self, bytes: &Bytes) {
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

    fn take_facts(&mut self, entry: &ManifestEntry, record: &[u8]) -> Option<&'static str> {
        let fields: Vec<&[u8]> = record.splitn(8, |byte| *byte == b' ').collect();
        let &[mode, uid, gid, inode, size, user, group, name] = &fields[..] else { return Some("it is missing") };
        let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse::<u64>().ok();
        let mode = std::str::from_utf8(mode).ok().and_then(|mode| u32::from_str_radix(mode, 16).ok()).unwrap_or(0);

        let mut wanted = entry.path.as_bytes().to_vec();
        if let ManifestKind::Symlink { target } = &entry.kind {
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
        // A symbolic link has no mode of its own.
        if !matches!(entry.kind, ManifestKind::Symlink { .. }) && mode & 0o7777 != entry.mode {
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
        // Another link may refer to this one.
        self.linked.record(&entry.path, inode);
        match &entry.kind {
            ManifestKind::HardLink { to, .. } if self.linked.inode(to) != Some(inode) => {
                Some("it is a copy instead of a link")
            }
            _ => None,
        }
    }

    /// Ends the comparison, and returns the first difference.
    ///
    /// # Errors
    /// [`io::Error`] when the entries could not be read, which says nothing about the files.
    pub(crate) fn finish(self) -> io::Result<Option<Mismatch>> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let missing = |due: Due| Mismatch { path: due.into_path(), what: "it is missing or cannot be read" };
        Ok(self.mismatch.or_else(|| self.due.map(missing)))
    }
}

/// Compares the digest of a file, in the format of sha256sum or openssl.
fn take_digest(entry: &ManifestEntry, record: &[u8]) -> Option<&'static str> {
    let (_, wanted) = entry.kind.content()?;
    let Some((digest, name)) = record.split_at_checked(64) else { return Some("it cannot be read") };
    let name = name.strip_prefix(b"  ./").or_else(|| name.strip_prefix(b" *./"));
    if name != Some(entry.path.as_bytes()) {
        return Some("it cannot be read");
    }
    let digest = std::str::from_utf8(digest).ok().and_then(|digest| digest.parse().ok());
    if digest == Some(wanted) { None } else { Some("its content differs") }
}

/// Reassembles chunks to records that end with a NUL.
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
                let left = LONGEST_RECORD.saturating_sub(self.begun.len());
                self.begun.extend_from_slice(&rest[..end.min(left)]);
                each(&self.begun);
                self.begun.clear();
            }
            rest = &rest[end + 1..];
        }
        // A record beyond the limit is truncated, and so differs from what is expected.
        let left = LONGEST_RECORD.saturating_sub(self.begun.len());
        self.begun.extend_from_slice(&rest[..rest.len().min(left)]);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use crate::digest::Digest;
    use crate::entries::EntryWriter;

    fn directory() -> Arc<PathBuf> {
        Arc::new(std::env::temp_dir())
    }

    fn entries(all: &[ManifestEntry]) -> Entries {
        let mut writer = EntryWriter::new(directory());
        all.iter().for_each(|entry| writer.push(entry).expect("memory"));
        writer.finish().expect("memory")
    }

    /// The request for these entries, inflated.
    fn request_text(all: &[ManifestEntry]) -> String {
        let request = VerifyRequest::new(&entries(all), directory()).expect("a question");
        let mut text = String::new();
        let mut inflated = flate2::read::GzDecoder::new(request.compressed.reader());
        inflated.read_to_string(&mut text).expect("gzip");
        assert_eq!(text.len() as u64, request.bytes);
        text
    }

    fn entry(path: &str, kind: ManifestKind) -> ManifestEntry {
        let (user, group) = ("user".to_owned(), "user".to_owned());
        ManifestEntry { path: path.into(), mode: 0o644, uid: 1000, gid: 1000, user, group, xattrs: Vec::new(), kind }
    }

    fn check(records: &[&str], wanted: Result<(), (&str, &'static str)>) {
        let sha256 = Digest::hash(b"x");
        let file = entry("a b", ManifestKind::File { size: 1, sha256 });
        let hard = entry("h", ManifestKind::HardLink { to: "a b".into(), size: 1, sha256 });
        let link = entry("l", ManifestKind::Symlink { target: "a -> b".into() });
        // In the archive's order, which differs from that of the request.
        let entries = entries(&[link, file, hard]);
        let request = VerifyRequest::new(&entries, directory()).expect("a question");
        let mut comparison = Comparison::new(&entries, request, true);
        let text: Vec<String> = records.iter().map(|record| record.replace('D', &sha256.to_string())).collect();
        // In chunks of three bytes, to be reassembled.
        for piece in text.join("\0").into_bytes().into_iter().chain([0]).collect::<Vec<_>>().chunks(3) {
            comparison.push(&Bytes::copy_from_slice(piece));
        }
        let wanted = wanted.err().map(|(path, what)| Mismatch { path: path.into(), what });
        assert_eq!(comparison.finish().expect("memory"), wanted, "{records:?}");
    }

    #[test]
    fn batches_are_read_back_once_unpacked() {
        let file = |path: &str, size| entry(path, ManifestKind::File { size, sha256: Digest::hash(b"x") });
        let check = |entries: Vec<ManifestEntry>, wanted: &str| {
            let text = request_text(&entries);
            assert!(text.ends_with(&format!("\0{wanted}\0")), "{text:?}");
        };
        let folder = || entry(".", ManifestKind::Directory);
        check(vec![folder()], "");
        check(vec![folder(), file("a", 1), folder()], "1 4 ");
        check(vec![folder(), file("a", BATCH_BYTES), folder(), file("b", 1)], "1 3 1 5 ");
        let many = (0..=BATCH_FILES).map(|number| file(&number.to_string(), 1)).collect();
        check(many, &format!("{BATCH_FILES} {} 1 {} ", BATCH_FILES + 1, BATCH_FILES + 2));
    }

    #[test]
    fn every_difference_is_detected() {
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
