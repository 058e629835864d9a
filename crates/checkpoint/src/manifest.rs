//! The listing of an archive. It is derived from the archive itself, so the two always agree.
//!
//! ```text
//! {"format":2,"project":…,"listing":{"entries":2,…}}  the head, one line
//! {"path":".","mode":"0755",…,"type":"directory"}     one line per entry, in the archive's order
//! {"path":"a","mode":"0644",…,"type":"file",…}
//! ```
//!
//! The first format was one JSON value with the entries in an array at its end. The module
//! `entries` reads both, one entry at a time.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::digest::Digest;
use crate::key::{ProjectId, Stamp};
use crate::occasion::SaveOccasion;

/// The format that is written.
pub(crate) const FORMAT: u32 = 2;
/// One JSON value, as older programs wrote it.
pub(crate) const WHOLE_FORMAT: u32 = 1;

/// The head of a checkpoint's manifest: everything except its entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointManifest {
    pub format: u32,
    pub project: ProjectId,
    pub stamp: Stamp,
    /// The archived directory.
    pub root: String,
    pub archive: ArchiveFacts,
    /// The number of regular files, and their bytes.
    pub files: u64,
    pub bytes: u64,
    /// Whether owners were recorded and must be restored. Both need root.
    pub owners: bool,
    /// Generated folders that are not in the archive.
    #[serde(rename = "left_out")]
    pub excluded: Vec<FilePath>,
    /// Files that changed while they were read: the archive has some state of them, which the
    /// entries describe.
    pub changed: Vec<FilePath>,
    /// The occasion of the save. The verification result may hold a higher-ranking one since.
    #[serde(default)]
    pub occasion: SaveOccasion,
    /// Whether the archive was searched for values of the workspace's variables. It contains none,
    /// unless the workspace allows it.
    #[serde(default)]
    pub searched: bool,
    /// Describes the lines after the head. For an older manifest it is computed while reading.
    #[serde(default)]
    pub listing: ListingFacts,
}

/// The totals of the entries of a manifest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListingFacts {
    pub entries: u64,
    /// Order-independent digest of their lines.
    #[serde(default)]
    pub sha256: Digest,
    /// Whether some have extended attributes, of which only the names are recorded.
    pub attributes: bool,
}

impl CheckpointManifest {
    /// Whether this checkpoint restores the tree of another, and lists all folders that the other
    /// excludes. Modification times are not compared.
    pub(crate) fn has_same_tree(&self, other: &Self) -> bool {
        let known: std::collections::HashSet<&FilePath> = self.excluded.iter().collect();
        (self.root == other.root && self.owners == other.owners && self.files == other.files)
            && self.bytes == other.bytes
            && (!self.listing.attributes || self.archive == other.archive)
            && self.listing == other.listing
            && other.excluded.iter().all(|path| known.contains(path))
    }
}

/// Whether this is a session file of an older program, with the workspace's variables in plain
/// text.
pub(crate) fn is_environment_file(path: &FilePath) -> bool {
    let path = path.as_bytes();
    path.starts_with(b".sandbar/") && (path.ends_with(b"/env") || path.ends_with(b".env"))
}

/// The archive as an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveFacts {
    pub bytes: u64,
    pub sha256: Digest,
}

/// A file, folder or link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Line")]
pub struct ManifestEntry {
    /// Relative to the root, which itself is `.`.
    pub path: FilePath,
    #[serde(with = "octal")]
    pub mode: u32,
    pub uid: u64,
    pub gid: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Names of the extended attributes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xattrs: Vec<String>,
    #[serde(flatten)]
    pub kind: ManifestKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ManifestKind {
    File {
        size: u64,
        sha256: Digest,
    },
    /// Another name of an earlier file.
    HardLink {
        to: FilePath,
        size: u64,
        sha256: Digest,
    },
    Directory,
    Symlink {
        target: FilePath,
    },
    Fifo,
    CharDevice,
    BlockDevice,
}

/// An entry as deserialized: flat, which takes a third of the time of a tagged enum.
#[derive(Deserialize)]
struct Line {
    path: FilePath,
    #[serde(with = "octal")]
    mode: u32,
    uid: u64,
    gid: u64,
    #[serde(default)]
    user: String,
    #[serde(default)]
    group: String,
    #[serde(default)]
    xattrs: Vec<String>,
    r#type: KindName,
    size: Option<u64>,
    sha256: Option<Digest>,
    to: Option<FilePath>,
    target: Option<FilePath>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum KindName {
    File,
    HardLink,
    Directory,
    Symlink,
    Fifo,
    CharDevice,
    BlockDevice,
}

impl TryFrom<Line> for ManifestEntry {
    type Error = String;

    fn try_from(line: Line) -> Result<Self, Self::Error> {
        let Line { path, mode, uid, gid, user, group, xattrs, r#type, size, sha256, to, target } = line;
        let kind = match (r#type, size, sha256, to, target) {
            (KindName::File, Some(size), Some(sha256), _, _) => ManifestKind::File { size, sha256 },
            (KindName::HardLink, Some(size), Some(sha256), Some(to), _) => ManifestKind::HardLink { to, size, sha256 },
            (KindName::Symlink, _, _, _, Some(target)) => ManifestKind::Symlink { target },
            (KindName::Directory, ..) => ManifestKind::Directory,
            (KindName::Fifo, ..) => ManifestKind::Fifo,
            (KindName::CharDevice, ..) => ManifestKind::CharDevice,
            (KindName::BlockDevice, ..) => ManifestKind::BlockDevice,
            (KindName::File | KindName::HardLink | KindName::Symlink, ..) => {
                return Err(format!("the entry {path:?} says too little"));
            }
        };
        Ok(Self { path, mode, uid, gid, user, group, xattrs, kind })
    }
}

impl ManifestKind {
    /// The size and digest of the content.
    pub(crate) fn content(&self) -> Option<(u64, Digest)> {
        match self {
            Self::File { size, sha256 } | Self::HardLink { size, sha256, .. } => Some((*size, *sha256)),
            Self::Directory | Self::Symlink { .. } | Self::Fifo | Self::CharDevice | Self::BlockDevice => None,
        }
    }

    /// The file type bits of a mode.
    pub(crate) fn type_bits(&self) -> u32 {
        match self {
            Self::File { .. } | Self::HardLink { .. } => 0o100_000,
            Self::Directory => 0o040_000,
            Self::Symlink { .. } => 0o120_000,
            Self::Fifo => 0o010_000,
            Self::CharDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
        }
    }
}

/// A path of arbitrary bytes, as in the kernel. In JSON it is a text if it is UTF-8, else
/// hexadecimal.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FilePath(Vec<u8>);

impl FilePath {
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// As text; invalid UTF-8 is replaced.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

impl fmt::Debug for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text(), f)
    }
}

impl From<&str> for FilePath {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl Serialize for FilePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => serializer.collect_map([("hex", hex::encode(&self.0))]),
        }
    }
}

impl<'de> Deserialize<'de> for FilePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PathVisitor)
    }
}

struct PathVisitor;

impl<'de> Visitor<'de> for PathVisitor {
    type Value = FilePath;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a path: a text, or {\"hex\": its bytes}")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<FilePath, E> {
        Ok(text.into())
    }

    fn visit_string<E: serde::de::Error>(self, text: String) -> Result<FilePath, E> {
        Ok(FilePath(text.into_bytes()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FilePath, A::Error> {
        let mut bytes = None;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "hex" => bytes = hex::decode(map.next_value::<String>()?).ok(),
                _ => return Err(A::Error::unknown_field(&key, &["hex"])),
            }
        }
        bytes.map(FilePath).ok_or_else(|| A::Error::custom("these are not bytes in hexadecimal"))
    }
}

/// Serializes modes in octal, for readers.
mod octal {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(mode: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{mode:04o}"))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
        let text = String::deserialize(deserializer)?;
        u32::from_str_radix(&text, 8).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_path_and_kind_survives_a_round_trip() {
        let sha256 = Digest::hash(b"x");
        let kinds = [
            ManifestKind::File { size: 1, sha256 },
            ManifestKind::HardLink { to: "a".into(), size: 1, sha256 },
            ManifestKind::Directory,
            ManifestKind::Symlink { target: FilePath::new(*b"\xff") },
            ManifestKind::Fifo,
            ManifestKind::CharDevice,
            ManifestKind::BlockDevice,
        ];
        let names: [&[u8]; 7] =
            [b"a", b"line\nbreak", "\u{fc}n\u{ee}".as_bytes(), b"\xff\xfe", b"-x", b"{\"hex\"}", b"."];
        for (kind, name) in kinds.into_iter().zip(names) {
            let (user, group) = ("user".to_owned(), String::new());
            let xattrs = vec!["user.note".to_owned()];
            let entry =
                ManifestEntry { path: FilePath::new(name), mode: 0o4755, uid: 1000, gid: 0, user, group, xattrs, kind };
            let text = serde_json::to_string(&entry).expect("it can be written");
            assert_eq!(serde_json::from_str::<ManifestEntry>(&text).expect("it can be read"), entry, "{text}");
        }
    }
}
