//! The entries of a tar archive with their extensions, none of which may be large: a header is held
//! in memory.

use std::io::Read;

use rustix::fs::{Timespec, Timestamps};
use tar::{Archive, EntryType};

use super::pax;
use crate::error::ImageError;

/// Largest extension header.
const MOST_HEADER: u64 = 1 << 20;
const LONGEST_PATH: usize = 4096;
const LONGEST_NAME: usize = 255;
const DEEPEST: usize = 256;

pub(super) struct Entry {
    pub(super) kind: EntryType,
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) mode: u32,
    pub(super) user: u64,
    pub(super) group: u64,
    pub(super) size: u64,
    modified: i64,
    pub(super) attributes: Vec<(String, Vec<u8>)>,
}

impl Entry {
    pub(super) fn times(&self) -> Timestamps {
        let at = Timespec { tv_sec: self.modified, tv_nsec: 0 };
        Timestamps { last_access: at, last_modification: at }
    }
}

/// What the headers before an entry say about it.
#[derive(Default)]
struct Extensions {
    pax: Vec<u8>,
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

/// Calls `act` with every entry and its content.
pub(super) fn each(
    content: &mut impl Read,
    mut act: impl FnMut(Entry, &mut dyn Read) -> Result<(), ImageError>,
) -> Result<(), ImageError> {
    let mut archive = Archive::new(content);
    let unreadable = || ImageError::io("read the archive");
    // Raw, since the reader would take extensions of any size into memory.
    let entries = archive.entries().map_err(unreadable())?.raw(true);
    let mut extensions = Extensions::default();
    for entry in entries {
        let mut entry = entry.map_err(unreadable())?;
        let kind = entry.header().entry_type();
        match kind {
            EntryType::XHeader => extensions.pax = header(&mut entry)?,
            EntryType::XGlobalHeader => drop(header(&mut entry)?),
            EntryType::GNULongName => extensions.path = Some(without_end(header(&mut entry)?)),
            EntryType::GNULongLink => extensions.link = Some(without_end(header(&mut entry)?)),
            EntryType::GNUSparse => {
                return Err(ImageError::Malformed("sparse files of GNU tar are not supported".to_owned()));
            }
            _ => act(described(&entry, std::mem::take(&mut extensions))?, &mut entry)?,
        }
    }
    Ok(())
}

fn header(entry: &mut tar::Entry<'_, impl Read>) -> Result<Vec<u8>, ImageError> {
    if entry.size() > MOST_HEADER {
        return Err(ImageError::Hostile(format!("a header of {} bytes", entry.size())));
    }
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes).map_err(ImageError::io("read the archive"))?;
    Ok(bytes)
}

fn without_end(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    bytes
}

fn described(entry: &tar::Entry<'_, impl Read>, extensions: Extensions) -> Result<Entry, ImageError> {
    let header = entry.header();
    let malformed = |error: std::io::Error| ImageError::Malformed(error.to_string());
    let mut described = Entry {
        kind: header.entry_type(),
        path: extensions.path.unwrap_or_else(|| header.path_bytes().into_owned()),
        link: extensions
            .link
            .or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned))
            .unwrap_or_default(),
        mode: header.mode().map_err(malformed)?,
        user: owner(&header.as_old().uid, header.uid()).map_err(malformed)?,
        group: owner(&header.as_old().gid, header.gid()).map_err(malformed)?,
        size: entry.size(),
        modified: header.mtime().map_or(0, |seconds| i64::try_from(seconds).unwrap_or(0)),
        attributes: Vec::new(),
    };
    for record in pax::records(&extensions.pax) {
        let (key, value) = record?;
        let number = || std::str::from_utf8(value).ok()?.split('.').next()?.parse::<i64>().ok();
        match key {
            b"path" => described.path = value.to_vec(),
            b"linkpath" => described.link = value.to_vec(),
            b"uid" => described.user = number().and_then(|id| id.try_into().ok()).unwrap_or(u64::MAX),
            b"gid" => described.group = number().and_then(|id| id.try_into().ok()).unwrap_or(u64::MAX),
            b"mtime" => described.modified = number().unwrap_or(0),
            b"size" if number().and_then(|size| u64::try_from(size).ok()) != Some(described.size) => {
                // The reader has taken the header's own, so that all after it would be misread.
                return Err(ImageError::Malformed("a file of more than 8 GiB".to_owned()));
            }
            _ if key.starts_with(b"GNU.sparse") => {
                return Err(ImageError::Malformed("sparse files of GNU tar are not supported".to_owned()));
            }
            _ => {
                let name = key.strip_prefix(b"SCHILY.xattr.").and_then(|name| std::str::from_utf8(name).ok());
                if let Some(name) = name.filter(|name| is_kept(name)) {
                    described.attributes.push((name.to_owned(), value.to_vec()));
                }
            }
        }
    }
    Ok(described)
}

/// A field that was left empty is root's: tools that know no owners leave it so.
fn owner(field: &[u8], id: std::io::Result<u64>) -> std::io::Result<u64> {
    if field.iter().all(|byte| matches!(byte, 0 | b' ')) { Ok(0) } else { id }
}

/// Attributes that mean something to programs, and nothing to an overlay.
fn is_kept(name: &str) -> bool {
    name == "security.capability" || (name.starts_with("user.") && !name.starts_with("user.overlay."))
}

/// Relative to the tree's root, without empty parts. One that climbs is refused: no honest tool
/// writes it.
pub(super) fn normalized(path: &[u8]) -> Result<Vec<u8>, ImageError> {
    let refused = |why: &str| Err(ImageError::Hostile(format!("the path '{}' {why}", super::shown(path))));
    let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
    if parts.contains(&&b".."[..]) {
        return refused("leads out of the image");
    }
    if path.len() > LONGEST_PATH || parts.len() > DEEPEST || parts.iter().any(|part| part.len() > LONGEST_NAME) {
        return refused("is too long");
    }
    if path.contains(&0) {
        return refused("holds a zero byte");
    }
    Ok(parts.join(&b'/'))
}
