//! The file tree and its changes, for the `filesystem.Filesystem` service.

mod copy;
mod entry;
mod service;
mod tree;
mod watch;
mod watchers;

use std::io;
use std::path::Path;

use connectrpc::ConnectError;

pub(crate) use self::service::FilesystemService;
pub(crate) use self::watchers::Watchers;

/// Maps an I/O error on `path` to the Connect code that clients expect.
fn failure(path: &Path, error: &io::Error) -> ConnectError {
    let message = format!("{}: {error}", path.display());
    match error.raw_os_error() {
        Some(libc::ENOENT) => ConnectError::not_found(format!("path '{}' does not exist", path.display())),
        Some(libc::ENOTDIR | libc::EISDIR | libc::ENAMETOOLONG | libc::EINVAL | libc::ENOTEMPTY) => {
            ConnectError::invalid_argument(message)
        }
        Some(libc::EEXIST) => ConnectError::already_exists(message),
        Some(libc::ELOOP) => ConnectError::failed_precondition(message),
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => ConnectError::permission_denied(message),
        Some(libc::ENOSPC | libc::EDQUOT | libc::EMFILE | libc::ENFILE) => ConnectError::resource_exhausted(message),
        _ => ConnectError::internal(message),
    }
}
