//! Moves where the kernel cannot rename: copies with owner, mode, times and attributes, then
//! removes. All functions block.

use std::fs::{self, File, FileTimes, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, lchown};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, XattrFlags, lgetxattr, llistxattr, lsetxattr, mknodat};

/// Preserves what a rename preserves. On failure the copy is removed and the source is unchanged.
pub(super) fn move_by_copy(source: &Path, destination: &Path) -> io::Result<()> {
    if destination.starts_with(source) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    match fs::symlink_metadata(destination) {
        Ok(meta) if meta.is_dir() => fs::remove_dir(destination)?,
        Ok(_) if fs::symlink_metadata(source)?.is_dir() => return Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
        Ok(_) => fs::remove_file(destination)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if let Err(error) = copy(source, destination) {
        // Report the first error.
        let _half = remove(destination);
        return Err(error);
    }
    remove(source)
}

fn remove(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

fn copy(source: &Path, destination: &Path) -> io::Result<()> {
    let meta = fs::symlink_metadata(source)?;
    if meta.is_symlink() {
        std::os::unix::fs::symlink(fs::read_link(source)?, destination)?;
        return lchown(destination, Some(meta.uid()), Some(meta.gid()));
    }
    if meta.is_dir() {
        fs::create_dir(destination)?;
        for entry in fs::read_dir(source)? {
            let entry = entry?;
            copy(&entry.path(), &destination.join(entry.file_name()))?;
        }
    } else if meta.is_file() {
        let mut from = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(source)?;
        let mut to = File::options().write(true).create_new(true).mode(0o600).open(destination)?;
        io::copy(&mut from, &mut to)?;
    } else {
        let kind = FileType::from_raw_mode(meta.mode());
        mknodat(CWD, destination, kind, Mode::from_raw_mode(meta.mode()), meta.rdev())?;
    }
    copy_metadata(source, destination, &meta)
}

/// Copies attributes, owner, mode and times, in the order in which none undoes another.
fn copy_metadata(source: &Path, destination: &Path, meta: &Metadata) -> io::Result<()> {
    let mut names = vec![0; 64 * 1024];
    if let Ok(length) = llistxattr(source, &mut names) {
        for name in names[..length].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")) {
            let mut value = vec![0; 64 * 1024];
            let length = lgetxattr(source, name, &mut value)?;
            lsetxattr(destination, name, &value[..length], XattrFlags::empty())?;
        }
    }
    lchown(destination, Some(meta.uid()), Some(meta.gid()))?;
    if meta.is_file() || meta.is_dir() {
        fs::set_permissions(destination, fs::Permissions::from_mode(meta.mode() & 0o7777))?;
        let times = FileTimes::new().set_modified(meta.modified()?).set_accessed(meta.accessed()?);
        File::open(destination)?.set_times(times)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_moved_completely() {
        let base = tempfile::tempdir().expect("a directory");
        let (source, destination) = (base.path().join("from"), base.path().join("to"));
        fs::create_dir_all(source.join("a/b")).expect("directories");
        fs::write(source.join("a/b/file"), b"content").expect("a file");
        fs::set_permissions(source.join("a/b/file"), fs::Permissions::from_mode(0o640)).expect("a mode");
        std::os::unix::fs::symlink("b/file", source.join("a/link")).expect("a link");
        let before = fs::metadata(source.join("a/b/file")).expect("it exists").modified().expect("a time");

        move_by_copy(&source, &destination).expect("moved");

        let file = destination.join("a/b/file");
        assert_eq!(fs::read(&file).expect("readable"), b"content");
        let meta = fs::metadata(&file).expect("it exists");
        assert_eq!((meta.mode() & 0o7777, meta.modified().expect("a time")), (0o640, before));
        assert_eq!(fs::read_link(destination.join("a/link")).expect("a link"), Path::new("b/file"));
        assert!(!source.exists());
        assert!(move_by_copy(&destination, &destination.join("below")).is_err());
    }
}
