//! The sandbox's view of `/usr/local`, where it differs from the host's. Programs and libraries are
//! a live view like the rest of `/usr`; the directories where administrators keep their own files
//! are not:
//!
//! - `etc`: a copy of what passes the filters of [`etc`](super::etc), npm's global settings without
//!   their tokens for example;
//! - `src`: empty;
//! - `share`: the entries that packages and language tools put there.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{XattrFlags, setxattr};
use rustix::io::Errno;

use super::etc;
use super::skeleton::{hide, set_mode};
use crate::fingerprint::Fingerprint;
use crate::privilege::Privilege;

/// Directories of which nothing of the host is visible.
pub(super) const CLOSED: [&str; 2] = ["usr/local/etc", "usr/local/src"];
const ETC: &str = "usr/local/etc";
const SHARE: &str = "usr/local/share";
/// What packages, `make install`, pip and npm put into `share`.
const SHARED: &[&str] = &[
    "aclocal",
    "applications",
    "bash-completion",
    "ca-certificates",
    "cmake",
    "dict",
    "doc",
    "emacs",
    "fish",
    "fonts",
    "gdb",
    "gir-1.0",
    "glib-2.0",
    "gtk-doc",
    "icons",
    "info",
    "java",
    "jupyter",
    "locale",
    "man",
    "mime",
    "nltk_data",
    "perl",
    "php",
    "pixmaps",
    "pkgconfig",
    "postgresql",
    "ruby",
    "sgml",
    "texmf",
    "vim",
    "xml",
    "zsh",
];

/// Adds the inputs of [`build`] to `inputs`.
pub(super) fn describe(host: &Path, inputs: &mut Fingerprint) {
    inputs.add(format!("{CLOSED:?}{SHARED:?}").as_bytes());
    etc::describe_entry(&host.join(ETC), inputs);
    for name in unlisted(host) {
        inputs.add(name.as_encoded_bytes());
    }
}

/// Adds to the layer `usr`, which is above the host's `/usr`.
pub(super) fn build(host: &Path, usr: &Path, privilege: Privilege) -> io::Result<()> {
    for path in CLOSED {
        if is_directory(&host.join(path)) {
            let target = place(host, usr, path)?;
            if path == ETC {
                for entry in etc::sorted_entries(&host.join(path)) {
                    etc::copy_entry(&host.join(path).join(&entry), &target.join(&entry))?;
                }
            }
            close(&host.join(path), &target, privilege)?;
        }
    }
    for name in unlisted(host) {
        hide(&place(host, usr, SHARE)?.join(name))?;
    }
    Ok(())
}

/// Whether `path` in a layer is a whiteout, which marks that the file beneath is deleted.
pub(super) fn is_hidden(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.file_type().is_char_device() && found.rdev() == 0)
}

fn is_directory(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_dir())
}

fn unlisted(host: &Path) -> Vec<std::ffi::OsString> {
    let names = etc::sorted_entries(&host.join(SHARE)).into_iter();
    names.filter(|name| !SHARED.iter().any(|shared| name == *shared)).collect()
}

/// Creates the directory `path` of the host in the layer, with the modes of the host's.
fn place(host: &Path, usr: &Path, path: &str) -> io::Result<std::path::PathBuf> {
    let mut target = usr.to_owned();
    let mut source = host.join("usr");
    for part in Path::new(path).iter().skip(1) {
        target.push(part);
        source.push(part);
        if !target.is_dir() {
            fs::create_dir(&target)?;
            set_mode(&target, source.metadata()?.permissions().mode() & 0o7777)?;
        }
    }
    Ok(target)
}

/// Makes `directory` hide everything beneath it, including entries that appear later.
fn close(beneath: &Path, directory: &Path, privilege: Privilege) -> io::Result<()> {
    let attribute = if privilege.is_root() { c"trusted.overlay.opaque" } else { c"user.overlay.opaque" };
    match setxattr(directory, attribute, b"y", XattrFlags::empty()) {
        // Without such attributes the current entries are hidden one by one.
        Err(Errno::NOTSUP) => {
            let entries = etc::sorted_entries(beneath).into_iter().map(|entry| directory.join(entry));
            entries.filter(|entry| entry.symlink_metadata().is_err()).try_for_each(|entry| hide(&entry))
        }
        result => Ok(result?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_administrators_keep_is_filtered() {
        let (host, layer) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for directory in ["etc", "src/private", "share/man", "share/backups"] {
            fs::create_dir_all(host.path().join("usr/local").join(directory)).unwrap();
        }
        let etc = host.path().join(ETC);
        fs::write(etc.join("npmrc"), "registry=https://r/\n//r/:_authToken=abc\n").unwrap();
        fs::write(etc.join("key"), "secret").unwrap();
        set_mode(&etc.join("key"), 0o600).unwrap();
        build(host.path(), layer.path(), Privilege::Single).unwrap();
        let local = layer.path().join("local");
        assert_eq!(fs::read_to_string(local.join("etc/npmrc")).unwrap(), "registry=https://r/\n");
        assert_eq!(etc::sorted_entries(&local.join("etc")), ["npmrc"]);
        assert!(local.join("src").is_dir() && etc::sorted_entries(&local.join("src")).is_empty());
        assert!(is_hidden(&local.join("share/backups")) && !local.join("share/man").exists());
    }

    #[test]
    fn a_new_entry_changes_the_description() {
        let host = tempfile::tempdir().unwrap();
        fs::create_dir_all(host.path().join(SHARE).join("man")).unwrap();
        let described = || {
            let mut inputs = Fingerprint::new();
            describe(host.path(), &mut inputs);
            inputs
        };
        let before = described();
        fs::create_dir(host.path().join(SHARE).join("man/man1")).unwrap();
        assert_eq!(described(), before);
        fs::create_dir(host.path().join(SHARE).join("new")).unwrap();
        assert_ne!(described(), before);
    }
}
