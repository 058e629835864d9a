//! Reads an archive while it passes by, and says what is in it.
//!
//! ```text
//! compressed pieces ─► Feed ─► gunzip ─► headers ─► entries
//!                                           └─ contents ─► SHA-256
//! ```
//!
//! The blocks are taken apart here and not by the `tar` crate, which splits the records of extended headers at line
//! breaks: a long name or an attribute that has one would be misread.

use std::collections::HashMap;
use std::io::{self, Read};

use bytes::{Buf, Bytes};
use flate2::read::MultiGzDecoder;
use tokio::sync::mpsc;

use super::digest::{Digest, Hasher};
use super::manifest::{Entry, FilePath, Kind};
use super::values::{EnvValues, ExposedFile};

const BLOCK: usize = 512;
const BUFFER: usize = 128 * 1024;
/// Of an extended header, which has names and attributes. Far above what a kernel allows.
const LONGEST_EXTENSION: u64 = 16 * 1024 * 1024;
/// Pieces on their way from the sandbox to the reader: about 32 KiB each.
const PIECES: usize = 64;

/// What an archive holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) entries: Vec<Entry>,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Files that contain values which must not be in an archive.
    pub(crate) exposed: Vec<ExposedFile>,
}

/// Reads a whole archive, and searches it for values that must not be in it. Blocks.
///
/// # Errors
/// For anything that is not a whole archive as our `tar` makes them.
pub(crate) fn read(compressed: impl Read, values: &EnvValues) -> io::Result<Contents> {
    let mut archive = io::BufReader::with_capacity(BUFFER, MultiGzDecoder::new(compressed));
    let mut contents = Contents::default();
    // Where a hard link finds what it shares.
    let mut known: HashMap<Vec<u8>, (u64, Digest)> = HashMap::new();
    let mut extensions = Extensions::default();
    loop {
        let mut block = [0; BLOCK];
        archive.read_exact(&mut block).map_err(|error| broken(&format!("it has no end: {error}")))?;
        if block == [0; BLOCK] {
            break;
        }
        let header = tar::Header::from_byte_slice(&block);
        if header.cksum()? != checksum(&block) {
            return Err(broken("a header is damaged"));
        }
        let kind = header.entry_type();
        if kind.is_pax_local_extensions() || kind.is_pax_global_extensions() {
            let body = body(&mut archive, header.entry_size()?)?;
            if kind.is_pax_local_extensions() {
                extensions = Extensions::parse(&body)?;
            }
            continue;
        }
        let (entry, variables) = entry(header, std::mem::take(&mut extensions), &mut archive, &known, values)?;
        if !variables.is_empty() {
            contents.exposed.push(ExposedFile { path: entry.path.clone(), variables });
        }
        if let Some(content) = entry.kind.content() {
            known.insert(entry.path.as_bytes().to_vec(), content);
            contents.files += 1;
            contents.bytes += if matches!(entry.kind, Kind::File { .. }) { content.0 } else { 0 };
        }
        contents.entries.push(entry);
    }
    // The compressed stream ends with its own checksum, which is looked at only there.
    io::copy(&mut archive, &mut io::sink())?;
    Ok(contents)
}

fn entry(
    header: &tar::Header,
    extensions: Extensions,
    archive: &mut impl Read,
    known: &HashMap<Vec<u8>, (u64, Digest)>,
    values: &EnvValues,
) -> io::Result<(Entry, Vec<String>)> {
    let path = relative(extensions.path.unwrap_or_else(|| header.path_bytes().into_owned()));
    let link = extensions.link.or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned));
    let target = || link.clone().ok_or_else(|| broken("a link has no target"));
    let size = match extensions.size {
        Some(size) => size,
        None => header.entry_size()?,
    };
    let mut variables = Vec::new();
    let kind = match header.entry_type() {
        tar::EntryType::Regular | tar::EntryType::Continuous => {
            let (sha256, found) = content(archive, size, values)?;
            variables = found;
            Kind::File { size, sha256 }
        }
        tar::EntryType::Link => {
            let to = relative(target()?);
            let (size, sha256) = *known.get(&to).ok_or_else(|| broken("a hard link comes before its file"))?;
            Kind::HardLink { to: FilePath::new(to), size, sha256 }
        }
        tar::EntryType::Symlink => Kind::Symlink { target: FilePath::new(target()?) },
        tar::EntryType::Directory => Kind::Directory,
        tar::EntryType::Fifo => Kind::Fifo,
        tar::EntryType::Char => Kind::CharDevice,
        tar::EntryType::Block => Kind::BlockDevice,
        other => return Err(broken(&format!("it has an entry of the unknown type {:?}", other.as_byte()))),
    };
    let name = |extended: Option<String>, short: Option<&[u8]>| {
        extended.unwrap_or_else(|| short.map(|name| String::from_utf8_lossy(name).into_owned()).unwrap_or_default())
    };
    let entry = Entry {
        path: FilePath::new(path),
        mode: header.mode()? & 0o7777,
        uid: extensions.uid.map_or_else(|| header.uid(), Ok)?,
        gid: extensions.gid.map_or_else(|| header.gid(), Ok)?,
        user: name(extensions.user, header.username_bytes()),
        group: name(extensions.group, header.groupname_bytes()),
        xattrs: extensions.xattrs,
        kind,
    };
    Ok((entry, variables))
}

/// The records of an extended header that say what the next header cannot.
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
    /// Records are `LENGTH KEY=VALUE\n`, where the length counts all of it, and a value may hold anything.
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

/// As the manifest names it: without `./` before and `/` behind; `.` for the root.
fn relative(mut path: Vec<u8>) -> Vec<u8> {
    while path.len() > 1 && path.ends_with(b"/") {
        path.pop();
    }
    if path.starts_with(b"./") {
        path.drain(..2);
    }
    path
}

fn body(archive: &mut impl Read, size: u64) -> io::Result<Vec<u8>> {
    if size > LONGEST_EXTENSION {
        return Err(broken("an extended header is too long"));
    }
    let mut body = Vec::new();
    archive.by_ref().take(size).read_to_end(&mut body)?;
    if body.len() as u64 != size {
        return Err(broken("an extended header is cut off"));
    }
    skip_padding(archive, size)?;
    Ok(body)
}

/// The digest of a file's content, and the variables whose values are in it.
fn content(archive: &mut impl Read, size: u64, values: &EnvValues) -> io::Result<(Digest, Vec<String>)> {
    let mut hasher = Hasher::default();
    let mut search = values.search();
    let mut left = size;
    let mut buffer = [0; 64 * 1024];
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(buffer.len()).min(buffer.len());
        let count = archive.read(&mut buffer[..most])?;
        if count == 0 {
            return Err(broken("a file is cut off"));
        }
        hasher.update(&buffer[..count]);
        search.push(&buffer[..count]);
        left -= count as u64;
    }
    skip_padding(archive, size)?;
    Ok((hasher.finish(), search.finish()))
}

fn skip_padding(archive: &mut impl Read, size: u64) -> io::Result<()> {
    let over = usize::try_from(size % BLOCK as u64).unwrap_or(0);
    if over == 0 { Ok(()) } else { archive.read_exact(&mut [0; BLOCK][over..]) }
}

/// The sum of a header's bytes, with its own field read as spaces.
fn checksum(block: &[u8; BLOCK]) -> u32 {
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    sum(&block[..148]) + 8 * u32::from(b' ') + sum(&block[156..])
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// A reader of pieces that another task sends. Its end is the senders' end.
pub(crate) struct Feed {
    pieces: mpsc::Receiver<Bytes>,
    current: Bytes,
}

/// A way to a reader on a thread of its own, which holds the sender back when it is slower.
pub(crate) fn feed() -> (mpsc::Sender<Bytes>, Feed) {
    let (sender, pieces) = mpsc::channel(PIECES);
    (sender, Feed { pieces, current: Bytes::new() })
}

impl Read for Feed {
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
    fn an_archive_says_what_is_in_it() {
        let contents = read(&compressed(&archive())[..], &EnvValues::default()).expect("an archive");
        assert_eq!((contents.files, contents.bytes), (2, 5));
        let sha256 = Digest::of(b"hello");
        let seen: Vec<_> = contents.entries.iter().map(|entry| (entry.path.text().into_owned(), &entry.kind)).collect();
        assert_eq!(
            seen,
            [
                (".".to_owned(), &Kind::Directory),
                ("a".to_owned(), &Kind::File { size: 5, sha256 }),
                ("b".to_owned(), &Kind::HardLink { to: "a".into(), size: 5, sha256 }),
                ("c".to_owned(), &Kind::Symlink { target: "../a".into() }),
            ]
        );
    }

    #[test]
    fn damage_is_seen_wherever_it_is() {
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
        assert!(read(&compressed(&damaged)[..], &EnvValues::default()).is_err(), "a header's checksum is looked at");
    }

    #[test]
    fn values_of_extended_headers_may_hold_line_breaks() {
        let records = b"15 path=a\nb\n=c\n30 SCHILY.xattr.user.x=\n1 y=z\n10 size=7\n";
        let extensions = Extensions::parse(records).expect("records");
        assert_eq!(extensions.path.as_deref(), Some(&b"a\nb\n=c"[..]));
        assert_eq!((extensions.size, extensions.xattrs), (Some(7), vec!["user.x".to_owned()]));
        for bad in [&b"5 ab\n"[..], b"x path=a\n", b"9 path=a", b"99 path=a\n", b"6 path\n"] {
            assert!(Extensions::parse(bad).is_err(), "{bad:?}");
        }
    }
}
