//! Metadata of one path as the wire type.

use std::fs::{self, FileType as Kind, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use buffa_types::google::protobuf::Timestamp;
use protocol::rpc::filesystem::{EntryInfo, FileType};

use crate::files::metadata;
use crate::users::Accounts;

/// Does not follow a final symlink; reports the type and mode of its target.
pub(super) fn read(path: &Path, accounts: &Accounts) -> io::Result<EntryInfo> {
    let own = fs::symlink_metadata(path)?;
    let is_link = own.is_symlink();
    let target = if is_link { fs::metadata(path).ok() } else { None };
    let symlink_target = is_link.then(|| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()));
    let seen = if is_link { target.as_ref() } else { Some(&own) };
    let has_notes = seen.is_some_and(|seen| seen.is_file() || seen.is_dir());
    Ok(EntryInfo {
        name: path.file_name().map_or_else(|| "/".into(), |name| name.to_string_lossy().into_owned()),
        r#type: seen.map_or(FileType::FILE_TYPE_UNSPECIFIED, kind).into(),
        path: path.to_string_lossy().into_owned(),
        size: i64::try_from(size(&own)).unwrap_or(i64::MAX),
        mode: seen.unwrap_or(&own).mode() & 0o777,
        permissions: permissions(own.file_type(), own.mode()),
        owner: accounts.user_name(own.uid()),
        group: accounts.group_name(own.gid()),
        modified_time: Timestamp {
            seconds: own.mtime(),
            nanos: i32::try_from(own.mtime_nsec()).unwrap_or_default(),
            ..Timestamp::default()
        }
        .into(),
        symlink_target: symlink_target.map(|target| target.to_string_lossy().into_owned()),
        metadata: if has_notes { metadata::read(path).into_iter().collect() } else { Default::default() },
        is_symlink: is_link,
        ..EntryInfo::default()
    })
}

/// Some file systems (btrfs) report 0 for an empty directory, where clients expect the size of a
/// block.
fn size(meta: &Metadata) -> u64 {
    if meta.is_dir() && meta.len() == 0 { meta.blksize() } else { meta.len() }
}

fn kind(meta: &Metadata) -> FileType {
    match meta.file_type() {
        kind if kind.is_file() => FileType::FILE_TYPE_FILE,
        kind if kind.is_dir() => FileType::FILE_TYPE_DIRECTORY,
        _ => FileType::FILE_TYPE_UNSPECIFIED,
    }
}

/// Formats the type, special bits and nine permission letters.
fn permissions(kind: Kind, mode: u32) -> String {
    let letters = [
        (kind.is_dir(), 'd'),
        (kind.is_symlink(), 'L'),
        (kind.is_block_device() || kind.is_char_device(), 'D'),
        (kind.is_fifo(), 'p'),
        (kind.is_socket(), 'S'),
        (mode & libc::S_ISUID != 0, 'u'),
        (mode & libc::S_ISGID != 0, 'g'),
        (kind.is_char_device(), 'c'),
        (mode & libc::S_ISVTX != 0, 't'),
    ];
    let mut text: String = letters.iter().filter(|(holds, _)| *holds).map(|(_, letter)| letter).collect();
    if text.is_empty() {
        text.push('-');
    }
    for (bit, letter) in "rwxrwxrwx".chars().enumerate() {
        text.push(if mode & (0o400 >> bit) != 0 { letter } else { '-' });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_match_the_client_format() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("link");
        std::os::unix::fs::symlink("nowhere", &path).expect("a link");
        let kind = |path: &str| fs::symlink_metadata(path).expect("it exists").file_type();
        let link = fs::symlink_metadata(&path).expect("it exists").file_type();
        assert_eq!(permissions(kind("/proc/self/status"), 0o100644), "-rw-r--r--");
        assert_eq!(permissions(kind("/"), 0o40755), "drwxr-xr-x");
        assert_eq!(permissions(kind("/"), 0o41777), "dtrwxrwxrwx");
        assert_eq!(permissions(link, 0o120777), "Lrwxrwxrwx");
        assert_eq!(permissions(kind("/dev/null"), 0o20666), "Dcrw-rw-rw-");
    }
}
