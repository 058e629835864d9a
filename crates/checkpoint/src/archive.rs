//! Reads an archive as a stream, and lists its entries.
//!
//! ```text
//! compressed chunks ─► Feed ─► gunzip ─► headers ─► entries, one at a time
//!                                           └─ contents ─► SHA-256, values
//! ```
//!
//! The sandbox wrote the archive, so it may be hostile: [`ArchiveLimits`] bounds all that is read.
//! For the whole archive only a hash per name and a digest per file are kept, the latter in a
//! [`Spool`].
//!
//! This module parses the blocks itself. The `tar` crate splits records of extended headers at line
//! breaks, and so misreads a long name or an attribute that contains one.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufReader, Read, Write};

use bytes::{Buf, Bytes};
use flate2::read::MultiGzDecoder;
use secret::{EnvValues, ValueSearch};
use tokio::sync::mpsc;

use crate::digest::{Digest, DigestHasher};
use crate::exposed::ExposedFile;
use crate::git_object::LooseObject;
use crate::limits::{ArchiveLimits, Excess};
use crate::manifest::{FilePath, ManifestEntry, ManifestKind};
use crate::spool::Spool;

const BLOCK: usize = 512;
const BUFFER: usize = 128 * 1024;
/// Chunks in transit from the sandbox to the reader, about 32 KiB each.
const PIECES: usize = 64;
/// Chunks in transit from a store to the reader, at most 4 MiB each.
const STORED_PIECES: usize = 1;
/// The most files that are listed as containing values of variables. An error shows fewer.
const MOST_EXPOSED: usize = 1000;
/// The most bytes of a path in an error.
const SHOWN_PATH: usize = 200;

/// The totals of an archive.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ArchiveContents {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// The first files that contain values which must not be in an archive.
    pub(crate) exposed: Vec<ExposedFile>,
    /// Whether there are more.
    pub(crate) more_exposed: bool,
}

/// Reads a whole archive, passes each entry to `take`, and searches it for values that must not be
/// in it. Blocks. The result is valid only after the whole archive is read.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] for anything but a complete archive as our `tar` writes it, and
/// an [`Excess`] (see [`Excess::of`]) when it exceeds a limit.
pub(crate) fn read(
    compressed: impl Read,
    limits: &ArchiveLimits,
    values: &EnvValues,
    digests: Spool,
    mut take: impl FnMut(&ManifestEntry) -> io::Result<()>,
) -> io::Result<ArchiveContents> {
    let mut blocks = Blocks::new(compressed, *limits);
    let mut contents = ArchiveContents::default();
    let mut known = Known::new(digests);
    let mut search = ContentSearch { values, inflatable: limits.inflated_bytes };
    while let Some(head) = blocks.next_head()? {
        let (entry, variables) = read_entry(head, &mut blocks, &mut known, &mut search)?;
        if !variables.is_empty() {
            match contents.exposed.len() < MOST_EXPOSED {
                true => contents.exposed.push(ExposedFile { path: entry.path.clone(), variables }),
                false => contents.more_exposed = true,
            }
        }
        if let Some((size, _)) = entry.kind.content() {
            contents.files += 1;
            contents.bytes += if matches!(entry.kind, ManifestKind::File { .. }) { size } else { 0 };
        }
        take(&entry)?;
    }
    blocks.finish()?;
    Ok(contents)
}

/// The first `most` bytes of one file and the digest of all of it; [`None`] when the archive has no
/// such file. Blocks.
///
/// # Errors
/// Those of [`read`]; what follows the file is not read.
pub(crate) fn find(
    compressed: impl Read,
    limits: &ArchiveLimits,
    path: &[u8],
    most: usize,
) -> io::Result<Option<(Vec<u8>, Digest)>> {
    let mut blocks = Blocks::new(compressed, *limits);
    while let Some(head) = blocks.next_head()? {
        if !head.has_content() {
            continue;
        }
        let mut hasher = DigestHasher::default();
        let mut begin = Vec::new();
        let wanted = head.path == path;
        blocks.read_content(head.size, |piece| {
            if wanted {
                hasher.update(piece);
                begin.extend_from_slice(&piece[..piece.len().min(most - begin.len())]);
            }
        })?;
        if wanted {
            return Ok(Some((begin, hasher.finish())));
        }
    }
    Ok(None)
}

/// Names seen so far, and where a hard link finds the content that it shares. Only a keyed hash of
/// each name is kept; the sandbox cannot know the keys.
struct Known {
    keys: RandomState,
    /// The number of the file, or [`NO_CONTENT`].
    names: HashMap<u64, u32>,
    /// Size and digest of each file, by its number.
    digests: Spool,
    files: u32,
}

/// The number of an entry without content.
const NO_CONTENT: u32 = u32::MAX;
/// A size and a digest.
const RECORD: usize = 8 + 32;

impl Known {
    fn new(digests: Spool) -> Self {
        Self { keys: RandomState::new(), names: HashMap::new(), digests, files: 0 }
    }

    fn insert(&mut self, path: &[u8], number: u32) -> io::Result<()> {
        match self.names.insert(self.keys.hash_one(path), number) {
            None => Ok(()),
            Some(_) => Err(broken(&format!("it has {} twice", shown(path)))),
        }
    }

    fn insert_file(&mut self, path: &[u8], size: u64, sha256: Digest) -> io::Result<()> {
        self.digests.write_all(&size.to_le_bytes())?;
        self.digests.write_all(sha256.as_bytes())?;
        let number = self.files;
        self.files += 1;
        self.insert(path, number)
    }

    /// Number, size and digest of the file that a hard link names.
    fn find(&self, path: &[u8]) -> io::Result<(u32, u64, Digest)> {
        let number = self.names.get(&self.keys.hash_one(path)).copied().filter(|number| *number != NO_CONTENT);
        let number = number.ok_or_else(|| broken("a hard link comes before its file"))?;
        let mut record = [0; RECORD];
        self.digests.read_exact_at(&mut record, u64::from(number) * RECORD as u64)?;
        let (size, sha256) = record.split_first_chunk().expect("a record begins with a size");
        Ok((number, u64::from_le_bytes(*size), Digest::from_bytes(sha256.try_into().expect("a digest is the rest"))))
    }
}

fn shown(path: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(&path[..path.len().min(SHOWN_PATH)]))
}

/// The search for values in the files of an archive.
struct ContentSearch<'v> {
    values: &'v EnvValues,
    /// How many bytes of Git objects may still be inflated.
    inflatable: u64,
}

impl<'v> ContentSearch<'v> {
    /// The object that is inflated while the file is read; [`None`] when it is none, or nothing is
    /// searched for.
    fn inflate(&self, path: &[u8]) -> Option<(LooseObject, ValueSearch<'v>)> {
        let object = (!self.values.is_empty()).then(|| LooseObject::for_path(path, self.inflatable)).flatten()?;
        Some((object, self.values.search()))
    }
}

fn read_entry<R: Read>(
    head: Head,
    blocks: &mut Blocks<R>,
    known: &mut Known,
    search: &mut ContentSearch<'_>,
) -> io::Result<(ManifestEntry, Vec<String>)> {
    let Head { header, path, link, size, extensions } = head;
    let target = || link.clone().ok_or_else(|| broken("a link has no target"));
    let mut variables = Vec::new();
    let kind = match header.entry_type() {
        tar::EntryType::Regular | tar::EntryType::Continuous => {
            let mut hasher = DigestHasher::default();
            let mut plain = search.values.search();
            let mut inflated = search.inflate(&path);
            blocks.read_content(size, |piece| {
                hasher.update(piece);
                plain.push(piece);
                if let Some((object, found)) = &mut inflated {
                    object.push(piece, |piece| found.push(piece));
                }
            })?;
            let sha256 = hasher.finish();
            variables = plain.finish();
            if let Some((object, found)) = inflated {
                search.inflatable = search.inflatable.saturating_sub(object.inflated());
                let new: Vec<String> = found.finish().into_iter().filter(|name| !variables.contains(name)).collect();
                variables.extend(new);
            }
            known.insert_file(&path, size, sha256)?;
            ManifestKind::File { size, sha256 }
        }
        tar::EntryType::Link => {
            let to = relative(target()?);
            let (number, size, sha256) = known.find(&to)?;
            known.insert(&path, number)?;
            ManifestKind::HardLink { to: FilePath::new(to), size, sha256 }
        }
        other => {
            known.insert(&path, NO_CONTENT)?;
            match other {
                tar::EntryType::Symlink => ManifestKind::Symlink { target: FilePath::new(target()?) },
                tar::EntryType::Directory => ManifestKind::Directory,
                tar::EntryType::Fifo => ManifestKind::Fifo,
                tar::EntryType::Char => ManifestKind::CharDevice,
                tar::EntryType::Block => ManifestKind::BlockDevice,
                other => return Err(broken(&format!("it has an entry of the unknown type {:?}", other.as_byte()))),
            }
        }
    };
    let Extensions { uid, gid, user, group, xattrs, .. } = extensions;
    let entry = ManifestEntry {
        path: FilePath::new(path),
        mode: header.mode()? & 0o7777,
        uid: uid.map_or_else(|| header.uid(), Ok)?,
        gid: gid.map_or_else(|| header.gid(), Ok)?,
        user: user.unwrap_or_default(),
        group: group.unwrap_or_default(),
        xattrs,
        kind,
    };
    Ok((entry, variables))
}

/// The header of an entry, with the overrides of extended headers.
struct Head {
    header: tar::Header,
    path: Vec<u8>,
    link: Option<Vec<u8>>,
    size: u64,
    extensions: Extensions,
}

impl Head {
    fn has_content(&self) -> bool {
        matches!(self.header.entry_type(), tar::EntryType::Regular | tar::EntryType::Continuous)
    }
}

/// The blocks of an archive, within limits.
struct Blocks<R> {
    archive: BufReader<Bounded<MultiGzDecoder<R>>>,
    limits: ArchiveLimits,
    entries: u64,
    name_bytes: u64,
}

impl<R: Read> Blocks<R> {
    fn new(compressed: R, limits: ArchiveLimits) -> Self {
        let inflated = Bounded { inner: MultiGzDecoder::new(compressed), taken: 0, most: limits.inflated_bytes };
        Self { archive: BufReader::with_capacity(BUFFER, inflated), limits, entries: 0, name_bytes: 0 }
    }

    /// The next entry; [`None`] at the end of the archive.
    fn next_head(&mut self) -> io::Result<Option<Head>> {
        let mut extensions = Extensions::default();
        loop {
            let mut block = [0; BLOCK];
            self.archive.read_exact(&mut block).map_err(|error| match Excess::from_io(&error) {
                Some(_) => error,
                None => broken(&format!("it has no end: {error}")),
            })?;
            if block == [0; BLOCK] {
                return Ok(None);
            }
            let header = tar::Header::from_byte_slice(&block);
            if header.cksum()? != checksum(&block) {
                return Err(broken("a header is damaged"));
            }
            let kind = header.entry_type();
            if kind.is_pax_local_extensions() || kind.is_pax_global_extensions() {
                let body = self.read_extension(header.entry_size()?)?;
                if kind.is_pax_local_extensions() {
                    extensions = Extensions::parse(&body)?;
                }
                continue;
            }
            return self.bound(header.clone(), extensions).map(Some);
        }
    }

    fn bound(&mut self, header: tar::Header, mut extensions: Extensions) -> io::Result<Head> {
        let ArchiveLimits { entries, name_bytes, path_bytes, inflated_bytes, .. } = self.limits;
        self.entries += 1;
        if self.entries > entries {
            return Err(Excess::Entries(entries).into());
        }
        let path = relative(extensions.path.take().unwrap_or_else(|| header.path_bytes().into_owned()));
        let link = extensions.link.take().or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned));
        if path.len() > path_bytes || link.as_ref().is_some_and(|link| link.len() > path_bytes) {
            return Err(Excess::Path(path_bytes).into());
        }
        let name = |short: Option<&[u8]>| short.map(|name| String::from_utf8_lossy(name).into_owned());
        extensions.user = extensions.user.or_else(|| name(header.username_bytes()));
        extensions.group = extensions.group.or_else(|| name(header.groupname_bytes()));
        let texts = [&extensions.user, &extensions.group].into_iter().flatten().chain(&extensions.xattrs);
        let others: usize = texts.map(String::len).sum();
        self.name_bytes += (path.len() + link.as_ref().map_or(0, Vec::len) + others) as u64;
        if self.name_bytes > name_bytes {
            return Err(Excess::Names(name_bytes).into());
        }
        let size = match extensions.size {
            Some(size) => size,
            None => header.entry_size()?,
        };
        let head = Head { header, path, link, size, extensions };
        // Rejected before it is read.
        if head.has_content() && size > inflated_bytes {
            return Err(Excess::Inflated(inflated_bytes).into());
        }
        Ok(head)
    }

    fn read_extension(&mut self, size: u64) -> io::Result<Vec<u8>> {
        if size > self.limits.header_bytes {
            return Err(Excess::Header(self.limits.header_bytes).into());
        }
        let mut body = Vec::new();
        self.archive.by_ref().take(size).read_to_end(&mut body)?;
        if body.len() as u64 != size {
            return Err(broken("an extended header is cut off"));
        }
        self.skip_padding(size)?;
        Ok(body)
    }

    /// Passes the content of a file to `take`, chunk by chunk.
    fn read_content(&mut self, size: u64, mut take: impl FnMut(&[u8])) -> io::Result<()> {
        let mut left = size;
        let mut buffer = [0; 64 * 1024];
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(buffer.len()).min(buffer.len());
            let count = self.archive.read(&mut buffer[..most])?;
            if count == 0 {
                return Err(broken("a file is cut off"));
            }
            take(&buffer[..count]);
            left -= count as u64;
        }
        self.skip_padding(size)
    }

    fn skip_padding(&mut self, size: u64) -> io::Result<()> {
        let over = usize::try_from(size % BLOCK as u64).unwrap_or(0);
        if over == 0 { Ok(()) } else { self.archive.read_exact(&mut [0; BLOCK][over..]) }
    }

    /// Reads to the end of the compressed stream, which verifies its checksum.
    fn finish(mut self) -> io::Result<()> {
        io::copy(&mut self.archive, &mut io::sink()).map(drop)
    }
}

/// Fails when the limit is exceeded.
struct Bounded<R> {
    inner: R,
    taken: u64,
    most: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.taken += count as u64;
        if self.taken > self.most { Err(Excess::Inflated(self.most).into()) } else { Ok(count) }
    }
}

/// The records of an extended header that override the next header.
#[derive(Debug, Default, PartialEq, Eq)]
struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    user: Option<String>,
    group: Option<String>,
    xattrs: Vec<String>,
}

impl Extensions {
    /// Records are `LENGTH KEY=VALUE\n`. The length counts the whole record, and a value may
    /// contain any byte.
    fn parse(mut records: &[u8]) -> io::Result<Self> {
        let mut extensions = Self::default();
        while !records.is_empty() {
            let (length, key, value) = record(records).ok_or_else(|| broken("an extended header is damaged"))?;
            records = &records[length..];
            let text = || String::from_utf8_lossy(value).into_owned();
            let number = || text().parse().map_err(|_| broken("a number in an extended header is damaged"));
            match key {
                b"path" => extensions.path = Some(value.to_vec()),
                b"linkpath" => extensions.link = Some(value.to_vec()),
                b"size" => extensions.size = Some(number()?),
                b"uid" => extensions.uid = Some(number()?),
                b"gid" => extensions.gid = Some(number()?),
                b"uname" => extensions.user = Some(text()),
                b"gname" => extensions.group = Some(text()),
                _ => {
                    if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                        extensions.xattrs.push(String::from_utf8_lossy(name).into_owned());
                    }
                }
            }
        }
        Ok(extensions)
    }
}

/// The first record: its whole length, key and value.
fn record(records: &[u8]) -> Option<(usize, &[u8], &[u8])> {
    let space = records.iter().position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&records[..space]).ok()?.parse().ok()?;
    let pair = records.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = pair.iter().position(|byte| *byte == b'=')?;
    Some((length, &pair[..equals], &pair[equals + 1..]))
}

/// Normalizes a path for the manifest: without leading `./` and trailing `/`; `.` for the root.
fn relative(mut path: Vec<u8>) -> Vec<u8> {
    while path.len() > 1 && path.ends_with(b"/") {
        path.pop();
    }
    if path.starts_with(b"./") {
        path.drain(..2);
    }
    path
}

/// The sum of a header's bytes, with the checksum field read as spaces.
fn checksum(block: &[u8; BLOCK]) -> u32 {
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    sum(&block[..148]) + 8 * u32::from(b' ') + sum(&block[156..])
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Reads chunks that another task sends, until all senders are dropped.
pub(crate) struct ArchiveFeed {
    pieces: mpsc::Receiver<Bytes>,
    current: Bytes,
}

/// A channel to a reader on another thread, with backpressure.
pub(crate) fn feed() -> (mpsc::Sender<Bytes>, ArchiveFeed) {
    feed_with_capacity(PIECES)
}

/// The same for chunks of a store, which are larger.
pub(crate) fn feed_stored() -> (mpsc::Sender<Bytes>, ArchiveFeed) {
    feed_with_capacity(STORED_PIECES)
}

fn feed_with_capacity(pieces: usize) -> (mpsc::Sender<Bytes>, ArchiveFeed) {
    let (sender, pieces) = mpsc::channel(pieces);
    (sender, ArchiveFeed { pieces, current: Bytes::new() })
}

impl Read for ArchiveFeed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.current = piece,
                None => return Ok(0),
            }
        }
        let count = buffer.len().min(self.current.len());
        self.current.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    const LIMITS: ArchiveLimits = ArchiveLimits {
        entries: 10,
        name_bytes: 1000,
        path_bytes: 300,
        header_bytes: 2000,
        inflated_bytes: 1_000_000,
        archive_bytes: 100_000,
        reported_paths: 10,
    };

    /// Reads an archive into memory.
    fn read(compressed: impl Read, values: &EnvValues) -> io::Result<(ArchiveContents, Vec<ManifestEntry>)> {
        let mut entries = Vec::new();
        let contents = super::read(compressed, &LIMITS, values, memory(), |entry| {
            entries.push(entry.clone());
            Ok(())
        })?;
        Ok((contents, entries))
    }

    fn memory() -> Spool {
        Spool::new(std::sync::Arc::new(std::env::temp_dir()))
    }

    fn compressed(archive: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(archive).expect("memory");
        encoder.finish().expect("memory")
    }

    fn archive() -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let mut add = |kind: tar::EntryType, path: &str, link: &str, content: &[u8]| {
            let mut header = tar::Header::new_ustar();
            header.set_entry_type(kind);
            header.set_mode(0o640);
            header.set_uid(1000);
            header.set_gid(1000);
            header.set_size(content.len() as u64);
            header.set_path(path).expect("a path");
            if !link.is_empty() {
                header.set_link_name(link).expect("a link");
            }
            header.set_cksum();
            builder.append(&header, content).expect("memory");
        };
        add(tar::EntryType::Directory, "./", "", b"");
        add(tar::EntryType::Regular, "./a", "", b"hello");
        add(tar::EntryType::Link, "./b", "./a", b"");
        add(tar::EntryType::Symlink, "./c", "../a", b"");
        builder.into_inner().expect("memory")
    }

    #[test]
    fn entries_of_an_archive_are_listed() {
        let (contents, entries) = read(&compressed(&archive())[..], &EnvValues::default()).expect("an archive");
        assert_eq!((contents.files, contents.bytes), (2, 5));
        let sha256 = Digest::hash(b"hello");
        let seen: Vec<_> = entries.iter().map(|entry| (entry.path.text().into_owned(), &entry.kind)).collect();
        assert_eq!(
            seen,
            [
                (".".to_owned(), &ManifestKind::Directory),
                ("a".to_owned(), &ManifestKind::File { size: 5, sha256 }),
                ("b".to_owned(), &ManifestKind::HardLink { to: "a".into(), size: 5, sha256 }),
                ("c".to_owned(), &ManifestKind::Symlink { target: "../a".into() }),
            ]
        );
    }

    #[test]
    fn damage_is_detected_at_every_offset() {
        let whole = compressed(&archive());
        for end in 0..whole.len() {
            assert!(
                read(&whole[..end], &EnvValues::default()).is_err(),
                "cut off after {end} of {} bytes",
                whole.len()
            );
        }
        let blocks = archive();
        for end in (0..4 * BLOCK).step_by(BLOCK) {
            assert!(
                read(&compressed(&blocks[..end])[..], &EnvValues::default()).is_err(),
                "cut off after {end} bytes of blocks"
            );
        }
        let mut damaged = blocks;
        damaged[3] ^= 1;
        assert!(read(&compressed(&damaged)[..], &EnvValues::default()).is_err(), "a header's checksum is verified");
    }

    #[test]
    fn values_of_extended_headers_may_contain_line_breaks() {
        let records = b"15 path=a\nb\n=c\n30 SCHILY.xattr.user.x=\n1 y=z\n10 size=7\n";
        let extensions = Extensions::parse(records).expect("records");
        assert_eq!(extensions.path.as_deref(), Some(&b"a\nb\n=c"[..]));
        assert_eq!((extensions.size, extensions.xattrs), (Some(7), vec!["user.x".to_owned()]));
        for bad in [&b"5 ab\n"[..], b"x path=a\n", b"9 path=a", b"99 path=a\n", b"6 path\n"] {
            assert!(Extensions::parse(bad).is_err(), "{bad:?}");
        }
    }

    /// An entry preceded by an extended header.
    fn extended(records: &[(&str, &[u8])], kind: u8, size: u64) -> Vec<u8> {
        let block = |kind: u8, size: u64| {
            let mut header = tar::Header::new_ustar();
            header.set_entry_type(tar::EntryType::new(kind));
            header.set_mode(0o644);
            header.set_uid(0);
            header.set_gid(0);
            header.set_size(size);
            header.set_cksum();
            header.as_bytes().to_vec()
        };
        let mut body = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let length = (rest..).find(|length| length.to_string().len() + rest == *length).expect("a length");
            body.extend_from_slice(format!("{length} {key}=").as_bytes());
            body.extend_from_slice(value);
            body.push(b'\n');
        }
        let mut blocks = block(b'x', body.len() as u64);
        body.resize(body.len().next_multiple_of(BLOCK), 0);
        blocks.extend(body);
        blocks.extend(block(kind, size));
        blocks
    }

    fn named(path: &str) -> Vec<u8> {
        extended(&[("path", path.as_bytes())], b'5', 0)
    }

    #[track_caller]
    fn exceeds(blocks: &[u8], wanted: &Excess) {
        let error = read(&compressed(blocks)[..], &EnvValues::default()).expect_err("it is too much");
        assert_eq!(Excess::from_io(&error), Some(wanted), "{error}");
    }

    #[test]
    fn limits_are_enforced_and_inclusive() {
        let end = vec![0; 2 * BLOCK];
        let ends = |blocks: &[u8]| [blocks, &end].concat();
        let entries = |count: usize| (0..count).flat_map(|number| named(&number.to_string())).collect::<Vec<u8>>();
        read(&compressed(&ends(&entries(10)))[..], &EnvValues::default()).expect("ten are allowed");
        exceeds(&ends(&entries(11)), &Excess::Entries(10));

        let long = |length: usize| named(&"x".repeat(length));
        read(&compressed(&ends(&long(300)))[..], &EnvValues::default()).expect("so long is allowed");
        exceeds(&ends(&long(301)), &Excess::Path(300));
        let link = extended(&[("path", b"l"), ("linkpath", &[b'x'; 301])], b'2', 0);
        exceeds(&ends(&link), &Excess::Path(300));
        exceeds(&ends(&long(15_000_000)), &Excess::Header(2000));
        let names: Vec<u8> = (0..4).flat_map(|number| named(&format!("{number}{}", "x".repeat(280)))).collect();
        exceeds(&ends(&names), &Excess::Names(1000));
        let attribute = format!("SCHILY.xattr.user.{}", "x".repeat(600));
        let attributes = |path: &str| extended(&[("path", path.as_bytes()), (&attribute, b"")], b'5', 0);
        exceeds(&ends(&[attributes("a"), attributes("b")].concat()), &Excess::Names(1000));

        exceeds(&extended(&[("path", b"a"), ("size", b"1000001")], b'0', 0), &Excess::Inflated(1_000_000));
        exceeds(
            &[extended(&[("path", b"a"), ("size", b"990000")], b'0', 0), vec![7; 2_000_000]].concat(),
            &Excess::Inflated(1_000_000),
        );
        // Beyond the end of the archive, where no entries are read.
        exceeds(&[entries(1), vec![0; 10_000_000]].concat(), &Excess::Inflated(1_000_000));
    }

    #[test]
    fn an_endless_stream_is_read_only_to_its_limit() {
        struct Endless(u64);
        impl Read for Endless {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                // Empty gzip members inflate to nothing.
                let member = compressed(&[]);
                let count = member.len().min(buffer.len());
                buffer[..count].copy_from_slice(&member[..count]);
                self.0 += count as u64;
                if self.0 > 10_000_000 { Err(io::Error::other("the sender has ended")) } else { Ok(count) }
            }
        }
        read(Endless(0), &EnvValues::default()).expect_err("it is no archive");
    }

    #[test]
    fn duplicate_names_are_rejected() {
        let twice = [named("a"), named("b"), named("a"), vec![0; 2 * BLOCK]].concat();
        let error = read(&compressed(&twice)[..], &EnvValues::default()).expect_err("tar makes no such archive");
        assert!(error.to_string().contains("\"a\" twice"), "{error}");
    }

    #[test]
    fn one_file_is_found_without_reading_the_others() {
        let whole = compressed(&archive());
        let find = |path: &str, most| find(&whole[..], &LIMITS, path.as_bytes(), most).expect("an archive");
        assert_eq!(find("a", 100), Some((b"hello".to_vec(), Digest::hash(b"hello"))));
        assert_eq!(find("a", 2), Some((b"he".to_vec(), Digest::hash(b"hello"))), "the digest is of all of it");
        assert_eq!(find("c", 2), None, "a link has no content");
    }
}
