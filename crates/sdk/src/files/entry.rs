//! Metadata of a file or directory.

use std::collections::BTreeMap;

use protocol::rpc::filesystem::{EntryInfo, FileType};

/// A file, directory or other entry.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    pub name: String,
    /// Absolute path.
    pub path: String,
    /// Of the target, for a symlink.
    pub kind: EntryKind,
    /// In bytes; of the symlink itself, for a symlink.
    pub size: u64,
    /// Permission bits; of the target, for a symlink.
    pub mode: u32,
    /// In the format of `ls`: `-rw-r--r--`.
    pub permissions: String,
    pub owner: String,
    pub group: String,
    pub modified: Option<jiff::Timestamp>,
    /// The fully resolved target; absent when it is not a symlink.
    pub symlink_target: Option<String>,
    pub metadata: BTreeMap<String, String>,
}

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EntryKind {
    File,
    Directory,
    /// A dangling symlink, a device, a socket or a pipe.
    Other,
}

impl Entry {
    pub fn is_file(&self) -> bool {
        self.kind == EntryKind::File
    }

    pub fn is_directory(&self) -> bool {
        self.kind == EntryKind::Directory
    }

    pub fn is_symlink(&self) -> bool {
        self.symlink_target.is_some()
    }
}

impl From<EntryInfo> for Entry {
    fn from(info: EntryInfo) -> Self {
        let EntryInfo { name, r#type, path, size, mode, permissions, owner, group, symlink_target, metadata, .. } =
            info;
        let time = info.modified_time.as_option();
        Self {
            kind: match r#type.as_known() {
                Some(FileType::FILE_TYPE_FILE) => EntryKind::File,
                Some(FileType::FILE_TYPE_DIRECTORY) => EntryKind::Directory,
                Some(FileType::FILE_TYPE_SYMLINK | FileType::FILE_TYPE_UNSPECIFIED) | None => EntryKind::Other,
            },
            size: u64::try_from(size).unwrap_or(0),
            modified: time.and_then(|time| jiff::Timestamp::new(time.seconds, time.nanos).ok()),
            symlink_target: symlink_target.or_else(|| info.is_symlink.then(|| path.clone())),
            metadata: metadata.into_iter().collect(),
            name,
            path,
            mode,
            permissions,
            owner,
            group,
        }
    }
}
