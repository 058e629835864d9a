//! What is known of a file or directory.

use std::collections::BTreeMap;

use protocol::rpc::filesystem::{EntryInfo, FileType};

/// A file, a directory, or what else a path may lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    pub name: String,
    /// Absolute.
    pub path: String,
    /// Of what a link leads to, when it is one.
    pub kind: EntryKind,
    /// In bytes; a link's own when it is one.
    pub size: u64,
    /// Permission bits; of what a link leads to, when it is one.
    pub mode: u32,
    /// As `ls` shows them: `-rw-r--r--`.
    pub permissions: String,
    pub owner: String,
    pub group: String,
    pub modified: Option<jiff::Timestamp>,
    /// Where a link leads to, fully resolved; absent for what is no link.
    pub symlink_target: Option<String>,
    pub metadata: BTreeMap<String, String>,
}

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EntryKind {
    File,
    Directory,
    /// A link that leads nowhere, a device, a socket, a pipe.
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
