//! What is in an archive. It is made of the archive itself, so that it cannot speak of anything else.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::key::{ProjectId, Stamp};
use super::occasion::Occasion;

/// The only form there is; a reader refuses others.
pub(crate) const FORMAT: u32 = 1;

/// What a snapshot's files must be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    pub project: ProjectId,
    pub stamp: Stamp,
    /// The directory that was archived.
    pub root: String,
    pub archive: ArchiveFacts,
    /// How many regular files there are, and how many bytes are in them.
    pub files: u64,
    pub bytes: u64,
    /// Whose files they are was read, and must be so again. Only root can do either.
    pub owners: bool,
    /// Generated folders that are not in the archive.
    pub left_out: Vec<FilePath>,
    /// Files that were written to while they were read: the archive has some state of them, and the entries say which.
    pub changed: Vec<FilePath>,
    /// Why it was taken. It may have got a weightier reason since.
    #[serde(default)]
    pub occasion: Occasion,
    /// The archive was searched for values of the workspace's variables and has none, unless the workspace allows it.
    #[serde(default)]
    pub searched: bool,
    pub entries: Vec<Entry>,
}

impl Manifest {
    /// Session files of an older program, which have the workspace's variables in plain text.
    pub fn environment_files(&self) -> impl Iterator<Item = &FilePath> {
        let is_one = |path: &&FilePath| {
            let path = path.as_bytes();
            path.starts_with(b".sandbar/") && (path.ends_with(b"/env") || path.ends_with(b".env"))
        };
        self.entries.iter().map(|entry| &entry.path).filter(|_| !self.searched).filter(is_one)
    }

    /// Whether this snapshot brings back the tree of another, and knows of all folders that are not in it. Times of modification
    /// are not compared.
    pub(super) fn has_same_tree(&self, other: &Self) -> bool {
        let sorted = |manifest: &Self| {
            let mut entries: Vec<Entry> = manifest.entries.clone();
            entries.sort_by(|one, other| one.path.cmp(&other.path));
            entries
        };
        // Of extended attributes only the names are known.
        let unsure = self.entries.iter().any(|entry| !entry.xattrs.is_empty());
        (self.root == other.root && self.owners == other.owners && self.files == other.files)
            && self.bytes == other.bytes
            && (!unsure || self.archive == other.archive)
            && other.left_out.iter().all(|path| self.left_out.contains(path))
            && sorted(self) == sorted(other)
    }
}

/// The archive as an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveFacts {
    pub bytes: u64,
    pub sha256: Digest,
}

/// One file, folder or link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// From the root on, which itself is `.`.
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
    pub kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Kind {
    File {
        size: u64,
        sha256: Digest,
    },
    /// Another name of a file that comes earlier.
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

impl Kind {
    /// The content's size and digest.
    pub(crate) fn content(&self) -> Option<(u64, Digest)> {
        match self {
            Self::File { size, sha256 } | Self::HardLink { size, sha256, .. } => Some((*size, *sha256)),
            Self::Directory | Self::Symlink { .. } | Self::Fifo | Self::CharDevice | Self::BlockDevice => None,
        }
    }

    /// The type's bits of a mode.
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

/// A name as the kernel has it: any bytes. Text in JSON where it is text, else its bytes in hexadecimal.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "PathText", into = "PathText")]
pub struct FilePath(Vec<u8>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum PathText {
    Text(String),
    Bytes { hex: HexBytes },
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct HexBytes(Vec<u8>);

impl FilePath {
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// As text; what is not UTF-8 is replaced.
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

impl From<PathText> for FilePath {
    fn from(text: PathText) -> Self {
        match text {
            PathText::Text(text) => Self(text.into_bytes()),
            PathText::Bytes { hex } => Self(hex.0),
        }
    }
}

impl From<FilePath> for PathText {
    fn from(path: FilePath) -> Self {
        match String::from_utf8(path.0) {
            Ok(text) => Self::Text(text),
            Err(error) => Self::Bytes { hex: HexBytes(error.into_bytes()) },
        }
    }
}

impl TryFrom<String> for HexBytes {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let whole = text.len().is_multiple_of(2) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(pair).collect();
        match bytes {
            Some(bytes) if whole => Ok(Self(bytes)),
            _ => Err("these are not bytes in hexadecimal"),
        }
    }
}

impl From<HexBytes> for String {
    fn from(bytes: HexBytes) -> Self {
        bytes.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Modes are read by people, who know them in octal.
mod octal {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(mode: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{mode:04o}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
        let text = String::deserialize(deserializer)?;
        u32::from_str_radix(&text, 8).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_and_every_type_comes_back() {
        let sha256 = Digest::of(b"x");
        let kinds = [
            Kind::File { size: 1, sha256 },
            Kind::HardLink { to: "a".into(), size: 1, sha256 },
            Kind::Directory,
            Kind::Symlink { target: FilePath::new(*b"\xff") },
            Kind::Fifo,
            Kind::CharDevice,
            Kind::BlockDevice,
        ];
        let names: [&[u8]; 7] =
            [b"a", b"line\nbreak", "\u{fc}n\u{ee}".as_bytes(), b"\xff\xfe", b"-x", b"{\"hex\"}", b"."];
        for (kind, name) in kinds.into_iter().zip(names) {
            let (user, group) = ("user".to_owned(), String::new());
            let xattrs = vec!["user.note".to_owned()];
            let entry = Entry { path: FilePath::new(name), mode: 0o4755, uid: 1000, gid: 0, user, group, xattrs, kind };
            let text = serde_json::to_string(&entry).expect("it can be written");
            assert_eq!(serde_json::from_str::<Entry>(&text).expect("it can be read"), entry, "{text}");
        }
    }
}
