//! What a root server puts above views of the host, because the sandbox's root may read of them
//! only what every user of the host may read (see `launcher::overlay`):
//!
//! - locks of the package databases are hidden, so that dpkg and apt create their own;
//! - set-user-id programs that not every user may read are copies: the kernel opens a program with
//!   the mounter's rights, and Fedora's sudo has the mode 4111.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::base::PACKAGE_VIEWS;
use super::copies::{self, RUNS_AS_OWNER, is_for_all};
use super::skeleton::{hide, set_mode};
use crate::fingerprint::Fingerprint;

/// Hidden also where the host has none yet: its first use of dpkg or apt creates them.
const LOCKS: [&str; 6] = [
    "var/lib/dpkg/lock",
    "var/lib/dpkg/lock-frontend",
    "var/lib/dpkg/triggers/Lock",
    "var/lib/apt/daily_lock",
    "var/lib/apt/lists/lock",
    "var/lib/apt/lists/partial",
];
/// Thousands of files that every user may read.
const PLAIN: [&str; 2] = ["var/lib/dpkg/info", "var/lib/dpkg/alternatives"];
const PROGRAMS: [&str; 3] = ["usr/bin", "usr/sbin", "usr/libexec"];

/// Adds the inputs of [`build`] to `inputs`.
pub(super) fn describe(host: &Path, inputs: &mut Fingerprint) {
    for path in hidden(host) {
        inputs.add(path.as_os_str().as_encoded_bytes());
    }
    // A package manager replaces programs; a check of each of thousands would take milliseconds.
    for directory in PROGRAMS {
        if let Ok(found) = host.join(directory).symlink_metadata() {
            inputs.add(format!("{} {} {}", found.ctime(), found.ctime_nsec(), found.ino()).as_bytes());
        }
    }
}

/// Adds to the layers in `target`.
pub(super) fn build(host: &Path, target: &Path) -> io::Result<()> {
    for view in PACKAGE_VIEWS {
        let view = host.join(view.trim_start_matches('/'));
        if view.is_dir() {
            let layer = copies::layer_path(target, &view);
            fs::create_dir(&layer)?;
            set_mode(&layer, view.metadata()?.permissions().mode() & 0o7777)?;
            for path in hidden(host).iter().filter(|path| path.starts_with(&view)) {
                hide_below(&view, &layer, path)?;
            }
        }
    }
    for (path, found) in unreadable_programs(host) {
        let place = target.join(path.strip_prefix(host).expect("programs lie on the host"));
        if place.parent().is_some_and(Path::is_dir) {
            fs::copy(&path, &place)?;
            set_mode(&place, found.mode() & 0o7777 | 0o444)?;
        }
    }
    Ok(())
}

/// The parts of the package databases that not every user may read, and the locks.
fn hidden(host: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = LOCKS.iter().map(|lock| host.join(lock)).collect();
    let mut waiting: Vec<PathBuf> = PACKAGE_VIEWS.iter().map(|view| host.join(view.trim_start_matches('/'))).collect();
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let Ok(found) = entry.metadata() else { continue };
            if found.is_symlink() {
                continue;
            }
            if !is_for_all(&found) {
                all.push(entry.path());
            } else if found.is_dir() && !PLAIN.iter().any(|plain| entry.path() == host.join(plain)) {
                waiting.push(entry.path());
            }
        }
    }
    all.sort();
    all.dedup();
    all
}

/// Hides `path`, below `view`, in its layer. Without such a directory on the host there is nothing
/// to hide.
fn hide_below(view: &Path, layer: &Path, path: &Path) -> io::Result<()> {
    let below = path.strip_prefix(view).expect("it was chosen so");
    let (mut source, mut target) = (view.to_owned(), layer.to_owned());
    for part in below.parent().into_iter().flat_map(Path::iter) {
        source.push(part);
        target.push(part);
        if !source.is_dir() {
            return Ok(());
        }
        if !target.is_dir() {
            fs::create_dir(&target)?;
            set_mode(&target, source.metadata()?.permissions().mode() & 0o7777)?;
        }
    }
    hide(&layer.join(below))
}

fn unreadable_programs(host: &Path) -> Vec<(PathBuf, Metadata)> {
    let directories = PROGRAMS.iter().flat_map(|directory| fs::read_dir(host.join(directory)).into_iter().flatten());
    let files = directories.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    let found = files.filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)));
    let mut all: Vec<_> = found.filter(|(_, found)| is_unreadable_program(found)).collect();
    all.sort_by(|(one, _), (other, _)| one.cmp(other));
    all
}

fn is_unreadable_program(found: &Metadata) -> bool {
    found.mode() & RUNS_AS_OWNER != 0 && found.mode() & 0o001 != 0 && !is_for_all(found)
}

#[cfg(test)]
mod tests {
    use super::super::local::is_hidden;
    use super::*;

    #[test]
    fn locks_are_hidden_and_unreadable_programs_copied() {
        let (host, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let write = |path: &str, mode| {
            let path = host.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "x").unwrap();
            set_mode(&path, mode).unwrap();
        };
        write("var/lib/dpkg/status", 0o644);
        write("var/lib/dpkg/triggers/Unincorp", 0o600);
        write("var/lib/apt/lists/some_Release", 0o644);
        write("usr/bin/sudo", 0o4111);
        write("usr/bin/true", 0o755);
        fs::create_dir_all(target.path().join("usr/bin")).unwrap();
        build(host.path(), target.path()).unwrap();
        for path in ["dpkg/lock", "dpkg/triggers/Lock", "dpkg/triggers/Unincorp", "apt/lists/lock", "apt/lists/partial"]
        {
            assert!(is_hidden(&target.path().join(path)), "{path}");
        }
        assert!(!target.path().join("dpkg/status").exists() && !target.path().join("usr/bin/true").exists());
        assert_eq!(target.path().join("usr/bin/sudo").metadata().unwrap().mode() & 0o7777, 0o4555);
    }
}
