//! Adds to a foreign root file system what a sandbox needs: the mount points, `user`, and the login
//! environment. The kernel resolves paths with the tree as their root, since a link in it may point
//! anywhere.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, fchmod, fchown, mkdirat, open, openat2, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

use super::accounts::{USER, USER_ID, User};
use super::texts;
use crate::privilege::Privilege;

/// Larger account files are not read.
const MOST_TEXT: u64 = 1 << 20;
/// Directories that the engine mounts over, or writes into; parents first.
const DIRECTORIES: [(&str, u32); 14] = [
    ("dev", 0o755),
    ("etc", 0o755),
    ("etc/profile.d", 0o755),
    ("etc/sudoers.d", 0o750),
    ("home", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("usr/local", 0o755),
    ("var", 0o755),
    ("var/tmp", 0o1777),
];
/// The SDKs run every command with bash. A program and not a link, since busybox acts by the name
/// it is called with.
const STAND_IN: &str = "#!/bin/sh\nexec /bin/sh \"$@\"\n";
/// Programs whose absence is reported, and the consequence.
const WANTED: [(&[&str], &str); 2] = [
    (&["bin/sh", "usr/bin/sh"], "sh: no command can be run without a shell"),
    (&["usr/bin/sudo", "bin/sudo"], "sudo: 'user' cannot become root"),
];

/// Furnishes the tree at `root`; returns what it lacks that cannot be added.
pub(crate) fn furnish(root: &Path, privilege: Privilege) -> io::Result<Vec<String>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let tree = Tree { root: open(root, flags, Mode::empty())?, privilege };
    let user = User::for_privilege(privilege);
    for (path, mode) in DIRECTORIES {
        tree.directory(path, mode)?;
    }
    let (passwd, group) = (tree.text("etc/passwd")?, tree.text("etc/group")?);
    let (passwd, group) = (with_user(&passwd, user), with_group(&group, user));
    tree.write("etc/passwd", &passwd, 0o644)?;
    tree.write("etc/group", &group, 0o644)?;
    let shadow = tree.text("etc/shadow")?;
    if !shadow.is_empty() && !shadow.lines().any(|line| line.split(':').next() == Some(USER)) {
        tree.write("etc/shadow", &format!("{}{USER}:*:20000:0:99999:7:::\n", with_newline(&shadow)), 0o640)?;
    }
    for (path, text, mode) in [
        ("etc/profile", texts::PROFILE, 0o644),
        ("etc/sudoers.d/sandbar", "user ALL=(ALL:ALL) NOPASSWD: ALL\n", 0o440),
        ("etc/machine-id", "", 0o444),
    ] {
        tree.write(path, text, mode)?;
    }
    if !tree.has("etc/sudoers") {
        tree.write("etc/sudoers", texts::SUDOERS, 0o440)?;
    }
    if user == User::Root {
        for directory in ["usr/bin", "etc/apt", "etc/apt/apt.conf.d"] {
            tree.directory(directory, 0o755)?;
        }
        tree.write("usr/bin/sudo", texts::SUDO_OF_ONE, 0o755)?;
        tree.write("etc/apt/apt.conf.d/99-one-user", texts::APT_OF_ONE, 0o644)?;
    }
    tree.home()?;
    let lacks = |programs: &[&str]| !programs.iter().any(|program| tree.has(program));
    let mut missing: Vec<String> =
        WANTED.iter().filter(|(programs, _)| lacks(programs)).map(|(_, what)| (*what).to_owned()).collect();
    if !tree.has("bin/bash") && tree.has("bin/sh") {
        tree.write("bin/bash", STAND_IN, 0o755)?;
        missing.push("bash: its sh stands in for it".to_owned());
    }
    Ok(missing)
}

struct Tree {
    root: OwnedFd,
    privilege: Privilege,
}

impl Tree {
    fn open(&self, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        openat2(&self.root, path, flags | OFlags::CLOEXEC, Mode::empty(), inside)
    }

    fn has(&self, path: &str) -> bool {
        self.open(path, OFlags::PATH).is_ok()
    }

    /// The directory above the last part of `path`, and that part.
    fn above<'a>(&self, path: &'a str) -> io::Result<(OwnedFd, &'a OsStr)> {
        let (above, name) = path.rsplit_once('/').unwrap_or((".", path));
        Ok((self.open(above, OFlags::PATH | OFlags::DIRECTORY)?, OsStr::new(name)))
    }

    /// Creates a directory where there is none; a link to one inside the tree is one.
    fn directory(&self, path: &str, mode: u32) -> io::Result<()> {
        if self.open(path, OFlags::PATH | OFlags::DIRECTORY).is_ok() {
            return Ok(());
        }
        let (above, name) = self.above(path)?;
        match statat(&above, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => unlinkat(&above, name, AtFlags::empty())?,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        mkdirat(&above, name, Mode::from_raw_mode(mode))?;
        let made = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        self.give(made.as_fd(), 0)?;
        Ok(fchmod(made, Mode::from_raw_mode(mode))?)
    }

    /// Makes a user of the sandbox and its group of the same number the owners. With a single id
    /// there is no other owner.
    fn give(&self, file: BorrowedFd<'_>, id: u32) -> io::Result<()> {
        if self.privilege == Privilege::Single {
            return Ok(());
        }
        let id = self.privilege.id_on_disk(id);
        Ok(fchown(file, Some(Uid::from_raw(id)), Some(Gid::from_raw(id)))?)
    }

    /// The text of a small file; empty when it is absent.
    fn text(&self, path: &str) -> io::Result<String> {
        let file = match self.open(path, OFlags::RDONLY | OFlags::NONBLOCK) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(String::new()),
            Err(error) => return Err(error.into()),
        };
        let mut bytes = Vec::new();
        if file.metadata()?.is_file() {
            file.take(MOST_TEXT).read_to_end(&mut bytes)?;
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Creates a file that root owns, instead of whatever exists at `path`.
    fn write(&self, path: &str, text: &str, mode: u32) -> io::Result<()> {
        self.write_for(0, path, text, mode)
    }

    fn write_for(&self, owner: u32, path: &str, text: &str, mode: u32) -> io::Result<()> {
        let (above, name) = self.above(path)?;
        match statat(&above, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                unlinkat(&above, name, AtFlags::REMOVEDIR)?;
            }
            Ok(_) => unlinkat(&above, name, AtFlags::empty())?,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let made = make_file(above.as_fd(), name)?;
        self.give(made.as_fd(), owner)?;
        fchmod(&made, Mode::from_raw_mode(mode))?;
        File::from(made).write_all(text.as_bytes())
    }

    /// Creates the home directory of `user`, with the files that a shell reads there.
    fn home(&self) -> io::Result<()> {
        let home = format!("home/{USER}");
        self.directory(&home, 0o755)?;
        let directory = self.open(&home, OFlags::RDONLY | OFlags::DIRECTORY)?;
        self.give(directory.as_fd(), USER_ID)?;
        for (name, text) in [(".profile", texts::HOME_PROFILE), (".bashrc", texts::HOME_BASHRC)] {
            let path = format!("{home}/{name}");
            if !self.has(&path) {
                self.write_for(USER_ID, &path, text, 0o644)?;
            }
        }
        Ok(())
    }
}

fn make_file(above: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(above, name, flags, Mode::from_raw_mode(0o600))
}

fn with_newline(text: &str) -> String {
    if text.is_empty() || text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") }
}

/// Replaces the account with the id of `user`: files of the first person of an image then belong to
/// `user`.
fn with_user(passwd: &str, user: User) -> String {
    let is_other = |line: &&str| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next(), fields.nth(1));
        name != Some(USER) && number != Some("1000")
    };
    let mut lines: Vec<&str> = passwd.lines().filter(is_other).collect();
    if !lines.iter().any(|line| line.starts_with("root:")) {
        lines.insert(0, "root:x:0:0:root:/root:/bin/sh");
    }
    match user {
        User::Own => lines.push("user:x:1000:1000::/home/user:/bin/bash"),
        User::Root => lines.insert(0, "user:x:0:0::/home/user:/bin/bash"),
    }
    lines.join("\n") + "\n"
}

fn with_group(group: &str, user: User) -> String {
    let is_other = |line: &&str| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next(), fields.nth(1));
        name != Some(USER) && number != Some("1000")
    };
    let mut lines: Vec<String> = group.lines().filter(is_other).map(str::to_owned).collect();
    if !lines.iter().any(|line| line.starts_with("root:")) {
        lines.insert(0, "root:x:0:".to_owned());
    }
    for line in lines.iter_mut().filter(|line| line.starts_with("sudo:")) {
        line.push_str(if line.ends_with(':') { USER } else { ",user" });
    }
    match user {
        User::Own => lines.push(format!("{USER}:x:1000:")),
        User::Root => lines.insert(0, format!("{USER}:x:0:")),
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn an_empty_tree_becomes_one_that_boots() {
        let root = tempfile::tempdir().expect("a directory");
        // No owner is changed, so that any user can run this test.
        let missing = furnish(root.path(), Privilege::Single).expect("it can be furnished");
        assert_eq!(missing, ["sh: no command can be run without a shell"]);
        let passwd = fs::read_to_string(root.path().join("etc/passwd")).expect("it is there");
        assert_eq!(passwd, "user:x:0:0::/home/user:/bin/bash\nroot:x:0:0:root:/root:/bin/sh\n");
        assert!(root.path().join("home/user/.profile").is_file());
        assert!(furnish(root.path(), Privilege::Single).is_ok(), "again");
    }

    #[test]
    fn the_first_person_of_an_image_becomes_user() {
        let before = "root:x:0:0:root:/root:/bin/bash\nnode:x:1000:1000::/home/node:/bin/bash\ngit:x:99:99::/:/bin/sh";
        let after = with_user(before, User::Own);
        assert_eq!(with_user("", User::Own), "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/bash\n");
        assert!(
            !after.contains("node:") && after.contains("git:x:99") && after.contains("user:x:1000:1000"),
            "{after}"
        );
        assert_eq!(
            with_group("root:x:0:\nsudo:x:27:bob\nnode:x:1000:", User::Own),
            "root:x:0:\nsudo:x:27:bob,user\nuser:x:1000:\n"
        );
    }

    #[test]
    fn links_lead_nowhere_but_into_the_tree() {
        let (outside, root) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("another"));
        for path in ["passwd", "profile", "x"] {
            fs::write(outside.path().join(path), "untouched").expect("a file");
        }
        symlink(outside.path(), root.path().join("home")).expect("a link");
        fs::create_dir(root.path().join("etc")).expect("a directory");
        for name in ["passwd", "profile"] {
            symlink(outside.path().join(name), root.path().join("etc").join(name)).expect("a link");
        }
        symlink("../../../../../../etc", root.path().join("tmp")).expect("a link");
        furnish(root.path(), Privilege::Single).expect("it can be furnished");
        for path in ["passwd", "profile", "x"] {
            let text = fs::read_to_string(outside.path().join(path)).expect("it is there");
            assert_eq!(text, "untouched", "{path}");
        }
        assert_eq!(fs::read_dir(outside.path()).expect("it is there").count(), 3);
    }
}
