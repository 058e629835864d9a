//! What a server that is not root of the machine must copy of the host, because no user in its
//! sandboxes owns what the host's root owns.
//!
//! Such files can be read and executed, and be deleted or replaced where their directory is owned.
//! So above the host's `/usr` is a layer with
//!
//! - every directory of it, empty: packages can be installed, also beside those of the host;
//! - the set-user-id programs, among them sudo, with the parts that sudo trusts only if root owns
//!   them.
//!
//! Above the package databases is such a layer too, with the files that dpkg changes in place.
//! Files that not every user may read are hidden there, since they would only be obstacles, such as
//! a lock. Changing a file of the host in place stays impossible inside, so packages of the host
//! cannot be upgraded; images and other templates own all their files.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::base::PACKAGE_VIEWS;
use super::skeleton::hide;
use super::{etc, local, texts};
use crate::fingerprint::Fingerprint;
use crate::privilege::Privilege;

/// Where sudo's own parts are, by distribution.
const SUDO_PARTS: &[&str] = &["libexec/sudo", "lib/sudo"];
/// Parts of `/usr` with many files and no programs.
const PLAIN: [&str; 3] = ["usr/share", "usr/include", "usr/src"];
/// Limit of the directories that are created per branch, such as `/usr/lib/python3`. Packages are
/// not installed into the depth of a program with more.
const MOST_IN_BRANCH: usize = 1000;
/// Set-user-id, set-group-id.
pub(super) const RUNS_AS_OWNER: u32 = 0o6000;
/// Where dpkg keeps the files about each package.
const PACKAGE_FILES: &str = "var/lib/dpkg/info";
/// Changes with every package that is installed or removed.
const PACKAGES: &str = "var/lib/dpkg/status";

/// Adds the inputs of [`build`] to `inputs`.
pub(super) fn describe(host: &Path, inputs: &mut Fingerprint) {
    inputs.add(texts::SUDO_OF_ONE.as_bytes());
    for path in ["usr", "usr/bin", "usr/sbin", "usr/local", "usr/local/bin", "usr/local/lib", PACKAGES] {
        if let Ok(found) = host.join(path).symlink_metadata() {
            inputs.add(format!("{} {} {}", found.ctime(), found.ctime_nsec(), found.ino()).as_bytes());
        }
    }
    etc::describe_entry(&host.join("var/lib/apt/lists"), inputs);
}

/// The copy of a package database in a layer.
pub(super) fn layer_path(layer: &Path, at: &Path) -> PathBuf {
    layer.join(at.file_name().unwrap_or_default())
}

/// Adds to the layers in `target`.
pub(super) fn build(host: &Path, target: &Path, privilege: Privilege) -> io::Result<()> {
    let usr = target.join("usr");
    let plain = PLAIN.map(|directory| host.join(directory));
    let has_programs = |directory: &Path| !plain.iter().any(|plain| directory.starts_with(plain));
    outline(&host.join("usr"), &usr, has_programs, |found| found.mode() & RUNS_AS_OWNER != 0)?;
    for parts in SUDO_PARTS {
        let (from, to) = (host.join("usr").join(parts), usr.join(parts));
        if to.is_dir() {
            outline(&from, &to, |_| true, |_| true)?;
        }
    }
    for at in PACKAGE_VIEWS {
        let from = host.join(at.trim_start_matches('/'));
        if from.is_dir() {
            let to = layer_path(target, &from);
            fs::create_dir_all(&to)?;
            // Thousands of small files, which are replaced and not changed in place.
            outline(&from, &to, |directory| !directory.starts_with(host.join(PACKAGE_FILES)), |_| true)?;
        }
    }
    if privilege == Privilege::Single {
        write_for_one(target)?;
    }
    Ok(())
}

/// Where every user is root under one id: sudo, which would fail to change groups, is a script, and
/// apt keeps its id.
fn write_for_one(target: &Path) -> io::Result<()> {
    let sudo = target.join("usr/bin/sudo");
    match fs::remove_file(&sudo) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::write(&sudo, texts::SUDO_OF_ONE)?;
    fs::set_permissions(&sudo, fs::Permissions::from_mode(0o755))?;
    let settings = target.join("root/etc/apt/apt.conf.d");
    fs::create_dir_all(&settings)?;
    fs::write(settings.join("99-one-user"), texts::APT_OF_ONE)
}

/// Whether every user of the host may read it.
pub(super) fn is_for_all(found: &Metadata) -> bool {
    let everybody = if found.is_dir() { 0o005 } else { 0o004 };
    found.mode() & everybody == everybody
}

/// Creates every directory of `from` in `to`, where some may exist. In directories that are
/// `searched`, copies the files that are `wanted` and hides those that not every user may read.
fn outline(
    from: &Path,
    to: &Path,
    searched: impl Fn(&Path) -> bool,
    wanted: impl Fn(&Metadata) -> bool,
) -> io::Result<()> {
    let (root, mut branches) = (from, HashMap::<PathBuf, usize>::new());
    let mut waiting = VecDeque::from([(from.to_owned(), to.to_owned())]);
    // Breadth first.
    while let Some((from, to)) = waiting.pop_front() {
        let is_searched = searched(&from);
        let branch = from.strip_prefix(root).map(|path| path.iter().take(2).collect()).unwrap_or_default();
        let made = branches.entry(branch).or_default();
        // Files that vanish meanwhile belong to a package being changed: the next check of the
        // inputs notices.
        for entry in fs::read_dir(&from).into_iter().flatten().flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            if !(kind.is_dir() || is_searched && kind.is_file()) {
                continue;
            }
            let Ok(found) = entry.metadata() else { continue };
            let place = to.join(entry.file_name());
            if local::is_hidden(&place) {
                continue;
            }
            if !is_for_all(&found) {
                hide(&place)?;
            } else if found.is_dir() {
                *made += 1;
                if *made > MOST_IN_BRANCH {
                    continue;
                }
                if let Err(error) = fs::create_dir(&place)
                    && error.kind() != io::ErrorKind::AlreadyExists
                {
                    return Err(error);
                }
                fs::set_permissions(&place, fs::Permissions::from_mode(found.mode() & 0o7777))?;
                if !local::CLOSED.iter().any(|closed| entry.path().ends_with(closed)) {
                    waiting.push_back((entry.path(), place));
                }
            } else if wanted(&found) {
                fs::copy(entry.path(), &place)?;
                // Writing clears the set-user-id bit.
                fs::set_permissions(&place, fs::Permissions::from_mode(found.mode() & 0o7777))?;
            }
        }
    }
    Ok(())
}

/// Makes the root of sandboxes the owner of everything below `path`.
pub(super) fn give_to_root(path: &Path, privilege: Privilege) -> io::Result<()> {
    let mut waiting = vec![path.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let (path, found) = (entry.path(), entry.metadata()?);
            privilege.give(&path, 0, 0)?;
            if found.is_file() && found.mode() & RUNS_AS_OWNER != 0 {
                // The change of owner has cleared these bits.
                fs::set_permissions(&path, fs::Permissions::from_mode(found.mode() & 0o7777))?;
            }
            if found.is_dir() {
                waiting.push(path);
            }
        }
    }
    Ok(())
}
