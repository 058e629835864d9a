//! Listing, creating, moving and removing. All functions block.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use connectrpc::ConnectError;
use protocol::rpc::filesystem::EntryInfo;

use super::copy::move_by_copy;
use super::{entry, failure};
use crate::files::make_directories;
use crate::users::{Accounts, User};

pub(super) fn stat(path: &Path, accounts: &Accounts) -> Result<EntryInfo, ConnectError> {
    entry::read(path, accounts).map_err(|error| match error.raw_os_error() {
        // A path below a file does not exist.
        Some(libc::ENOTDIR) => failure(path, &io::Error::from_raw_os_error(libc::ENOENT)),
        _ => failure(path, &error),
    })
}

/// Lists down to `depth`, each directory before its content, sorted by name.
pub(super) fn list(path: &Path, depth: u32, accounts: &Accounts) -> Result<Vec<EntryInfo>, ConnectError> {
    let meta = fs::metadata(path).map_err(|error| failure(path, &error))?;
    if !meta.is_dir() {
        return Err(ConnectError::invalid_argument(format!("path is not a directory: {}", path.display())));
    }
    let mut entries = Vec::new();
    // An explicit stack instead of recursion: the client chooses the depth.
    let mut stack = vec![children(path).map_err(|error| failure(path, &error))?.into_iter()];
    while let Some(level) = stack.last_mut() {
        let Some(child) = level.next() else {
            stack.pop();
            continue;
        };
        // Skips entries that disappear meanwhile.
        let Ok(info) = entry::read(&child, accounts) else { continue };
        let descend = (stack.len() as u64) < u64::from(depth.max(1))
            && fs::symlink_metadata(&child).is_ok_and(|meta| meta.is_dir());
        entries.push(info);
        if descend && let Ok(below) = children(&child) {
            stack.push(below.into_iter());
        }
    }
    Ok(entries)
}

fn children(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut names = fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

pub(super) fn make(path: &Path, user: &User, accounts: &Accounts) -> Result<EntryInfo, ConnectError> {
    match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => {
            Err(ConnectError::already_exists(format!("directory already exists: {}", path.display())))
        }
        Ok(_) => Err(ConnectError::invalid_argument(format!("path exists and is not a directory: {}", path.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_directories(path, user).map_err(|error| failure(path, &error))?;
            stat(path, accounts)
        }
        Err(error) => Err(failure(path, &error)),
    }
}

pub(super) fn relocate(
    source: &Path,
    destination: &Path,
    user: &User,
    accounts: &Accounts,
) -> Result<EntryInfo, ConnectError> {
    fs::symlink_metadata(source).map_err(|error| failure(source, &error))?;
    if let Some(parent) = destination.parent() {
        make_directories(parent, user).map_err(|error| failure(parent, &error))?;
    }
    match fs::rename(source, destination) {
        Ok(()) => {}
        // Another mount, or a directory of a read-only overlay layer.
        Err(error) if error.raw_os_error() == Some(libc::EXDEV) => {
            move_by_copy(source, destination).map_err(|error| failure(destination, &error))?;
        }
        Err(error) => return Err(failure(source, &error)),
    }
    stat(destination, accounts)
}

/// Removes the path recursively. Succeeds when it does not exist.
pub(super) fn remove(path: &Path) -> Result<(), ConnectError> {
    if path.parent().is_none() {
        return Err(ConnectError::invalid_argument("the root directory cannot be removed"));
    }
    let result = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match result {
        Err(error) if !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => Err(failure(path, &error)),
        _ => Ok(()),
    }
}
