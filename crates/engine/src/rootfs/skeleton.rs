//! The sandbox's own files beneath the views: built once per state of the host, shared by all
//! sandboxes, never changed.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::io::Errno;

use super::accounts::{self, USER_ID};
use super::{closed, copies, etc, local, texts};
use crate::fingerprint::Fingerprint;
use crate::privilege::Privilege;

/// Directories with owner root and this mode; parents come first.
const DIRECTORIES: &[(&str, u32)] = &[
    ("dev", 0o755),
    ("etc", 0o755),
    ("etc/opt", 0o755),
    ("etc/profile.d", 0o755),
    ("etc/skel", 0o755),
    ("etc/ssl", 0o755),
    ("etc/sudoers.d", 0o750),
    ("home", 0o755),
    ("media", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/backups", 0o755),
    ("var/cache", 0o755),
    ("var/cache/apt", 0o755),
    ("var/cache/apt/archives", 0o755),
    ("var/cache/apt/archives/partial", 0o700),
    ("var/cache/debconf", 0o755),
    ("var/cache/ldconfig", 0o700),
    ("var/cache/man", 0o755),
    ("var/lib", 0o755),
    ("var/lib/apt", 0o755),
    ("var/lib/dpkg", 0o755),
    ("var/lib/misc", 0o755),
    ("var/local", 0o755),
    ("var/log", 0o755),
    ("var/log/apt", 0o755),
    ("var/mail", 0o755),
    ("var/opt", 0o755),
    ("var/spool", 0o755),
    ("var/tmp", 0o1777),
];
const LINKS: &[(&str, &str)] = &[("var/run", "/run"), ("var/lock", "/run/lock"), ("etc/mtab", "/proc/self/mounts")];
/// Where a distribution keeps programs and libraries: links into `/usr` on all current ones,
/// directories on old ones.
pub(super) const SYSTEM_DIRECTORIES: &[&str] = &["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// State of the tools that maintain other packages' files, next to dpkg's own database.
const PACKAGE_STATE: &[&str] = &["pam", "python", "sgml-base", "ucf", "xml-core"];

/// The digest of exactly the inputs of [`build`] for the host at `host`.
pub(super) fn fingerprint(host: &Path, privilege: Privilege) -> Fingerprint {
    let mut inputs = Fingerprint::new();
    // Another version of the server may build differently.
    inputs.add(env!("CARGO_PKG_VERSION").as_bytes());
    inputs.add(format!("{privilege:?}").as_bytes());
    if privilege.is_root() {
        closed::describe(host, &mut inputs);
    } else {
        copies::describe(host, &mut inputs);
    }
    local::describe(host, &mut inputs);
    for text in [
        texts::SUDOERS,
        texts::PROFILE,
        texts::BASHRC,
        texts::HOME_PROFILE,
        texts::HOME_BASHRC,
        texts::ENVIRONMENT,
        texts::NPM_PREFERENCE,
    ] {
        inputs.add(text.as_bytes());
    }
    inputs.add(format!("{DIRECTORIES:?}{LINKS:?}{PACKAGE_STATE:?}").as_bytes());
    etc::describe(&host.join("etc"), &mut inputs);
    for file in ["etc/passwd", "etc/group"] {
        inputs.add(&fs::read(host.join(file)).unwrap_or_default());
    }
    for directory in PACKAGE_STATE {
        etc::describe_entry(&host.join("var/lib").join(directory), &mut inputs);
    }
    for name in SYSTEM_DIRECTORIES {
        let target = fs::read_link(host.join(name)).unwrap_or_default();
        inputs.add(target.as_os_str().as_encoded_bytes());
    }
    etc::describe_entry(&host.join(NODE_FILES), &mut inputs);
    for program in [PYTHON, POLICY_RC_D] {
        inputs.add(&[u8::from(host.join(program).symlink_metadata().is_ok())]);
    }
    for marker in python_markers(host) {
        inputs.add(marker.as_os_str().as_encoded_bytes());
    }
    inputs
}

const PYTHON: &str = "usr/bin/python";
const POLICY_RC_D: &str = "usr/sbin/policy-rc.d";
/// The files of the Node package, as dpkg lists them.
const NODE_FILES: &str = "var/lib/dpkg/info/nodejs.list";

/// The files by which a distribution forbids `pip install` outside virtual environments, relative
/// to the host's root. They are hidden, because the sandbox's user may change its Python.
fn python_markers(host: &Path) -> Vec<PathBuf> {
    let libraries = fs::read_dir(host.join("usr/lib")).into_iter().flatten().flatten();
    let mut markers: Vec<PathBuf> = libraries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
        .map(|entry| Path::new("usr/lib").join(entry.file_name()).join("EXTERNALLY-MANAGED"))
        .filter(|marker| host.join(marker).is_file())
        .collect();
    markers.sort();
    markers
}

/// Whether the host's Node package contains npm, as that of NodeSource does, and Debian's does not.
fn brings_npm(host: &Path) -> bool {
    fs::read_to_string(host.join(NODE_FILES)).is_ok_and(|files| files.lines().any(|file| file == "/usr/bin/npm"))
}

/// Builds the layers in `target`, which exists and is empty: `root`, `usr` for above the host's
/// `/usr`, and one for above each package database.
pub(super) fn build(host: &Path, target: &Path, privilege: Privilege) -> io::Result<()> {
    let root = target.join("root");
    fs::create_dir(&root)?;
    set_mode(&root, 0o755)?;
    for (path, mode) in DIRECTORIES {
        let path = root.join(path);
        fs::create_dir(&path)?;
        set_mode(&path, *mode)?;
    }
    for (path, to) in LINKS {
        symlink(to, root.join(path))?;
    }
    for name in SYSTEM_DIRECTORIES {
        let on_host = host.join(name);
        match fs::read_link(&on_host) {
            Ok(to) => symlink(to, root.join(name))?,
            Err(_) if on_host.is_dir() => fs::create_dir(root.join(name))?,
            Err(_) => {}
        }
    }
    etc::copy(&host.join("etc"), &root.join("etc"))?;
    for directory in PACKAGE_STATE {
        let from = host.join("var/lib").join(directory);
        if from.is_dir() {
            etc::copy_entry(&from, &root.join("var/lib").join(directory))?;
        }
    }
    write_texts(&root)?;
    if brings_npm(host) {
        fs::create_dir_all(root.join("etc/apt/preferences.d"))?;
        write(&root, "etc/apt/preferences.d/sandbar", texts::NPM_PREFERENCE, 0o644)?;
    }
    build_usr(host, &target.join("usr"))?;
    local::build(host, &target.join("usr"), privilege)?;
    if privilege.is_root() {
        closed::build(host, target)?;
    } else {
        copies::build(host, target, privilege)?;
        // Before the files that have other owners are written.
        copies::give_to_root(target, privilege)?;
    }
    write_accounts(host, &root, privilege)?;
    write_homes(&root, privilege)
}

fn write_accounts(host: &Path, root: &Path, privilege: Privilege) -> io::Result<()> {
    let read = |file| fs::read_to_string(host.join(file)).unwrap_or_default();
    let (passwd, group) = (read("etc/passwd"), read("etc/group"));
    let accounts = accounts::from_host(&passwd, &group, accounts::User::for_privilege(privilege));
    write(root, "etc/passwd", &accounts.passwd, 0o644)?;
    write(root, "etc/group", &accounts.group, 0o644)?;
    for (path, text) in [("etc/shadow", &accounts.shadow), ("etc/gshadow", &accounts.gshadow)] {
        write(root, path, text, 0o640)?;
        privilege.give(&root.join(path), 0, accounts.shadow_group)?;
    }
    for path in ["etc/passwd", "etc/group"] {
        privilege.give(&root.join(path), 0, 0)?;
    }
    privilege.give(&root.join("var/cache/apt/archives/partial"), accounts.apt_user, 0)
}

fn write_texts(root: &Path) -> io::Result<()> {
    for (path, text, mode) in [
        ("etc/sudoers", texts::SUDOERS, 0o440),
        ("etc/profile", texts::PROFILE, 0o644),
        ("etc/bash.bashrc", texts::BASHRC, 0o644),
        ("etc/environment", texts::ENVIRONMENT, 0o644),
        ("etc/fstab", "", 0o644),
        // Empty: programs that need a machine id generate one.
        ("etc/machine-id", "", 0o444),
    ] {
        write(root, path, text, mode)?;
    }
    Ok(())
}

fn write_homes(root: &Path, privilege: Privilege) -> io::Result<()> {
    let home = root.join("home/user");
    fs::create_dir(&home)?;
    set_mode(&home, 0o755)?;
    privilege.give(&home, USER_ID, USER_ID)?;
    for (name, text) in
        [(".profile", texts::HOME_PROFILE), (".bashrc", texts::HOME_BASHRC), (".bash_logout", texts::HOME_BASH_LOGOUT)]
    {
        for (home, owner) in [("root", 0), ("home/user", USER_ID), ("etc/skel", 0)] {
            let path = format!("{home}/{name}");
            write(root, &path, text, 0o644)?;
            privilege.give(&root.join(path), owner, owner)?;
        }
    }
    Ok(())
}

/// Creates what the host's `/usr` lacks. Directories must repeat the host's modes: those of the
/// upper layer are visible.
fn build_usr(host: &Path, usr: &Path) -> io::Result<()> {
    fs::create_dir(usr)?;
    set_mode(usr, 0o755)?;
    for directory in ["bin", "sbin"] {
        if host.join("usr").join(directory).symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
            fs::create_dir(usr.join(directory))?;
            set_mode(&usr.join(directory), 0o755)?;
        }
    }
    if host.join(PYTHON).symlink_metadata().is_err() && host.join("usr/bin/python3").exists() {
        symlink("python3", usr.join("bin/python"))?;
    }
    if host.join(POLICY_RC_D).symlink_metadata().is_err() && usr.join("sbin").is_dir() {
        write(usr, "sbin/policy-rc.d", texts::POLICY_RC_D, 0o755)?;
    }
    for marker in python_markers(host) {
        let hidden = usr.join(marker.strip_prefix("usr").expect("markers lie in /usr"));
        for directory in [usr.join("lib"), hidden.parent().expect("a file has a directory").to_owned()] {
            fs::create_dir_all(&directory)?;
            set_mode(&directory, 0o755)?;
        }
        hide(&hidden)?;
    }
    Ok(())
}

/// Creates a whiteout: an overlay takes such a device for a deleted file.
pub(super) fn hide(path: &Path) -> io::Result<()> {
    match mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), makedev(0, 0)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn write(root: &Path, path: &str, text: &str, mode: u32) -> io::Result<()> {
    let path = root.join(path);
    fs::write(&path, text)?;
    set_mode(&path, mode)
}

/// Sets the mode, independent of the umask that the server was started with.
pub(super) fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}
