//! Users and groups of the sandbox, from its own passwd and group files.
//!
//! A static executable cannot use the C library's lookups, and must not: they load plug-ins from
//! the sandbox. The files are read again when they change.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

/// A user with the ids that processes and files need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: String,
    /// Primary and supplementary groups.
    pub(crate) groups: Vec<u32>,
}

/// A snapshot of both files.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    users: Vec<User>,
    groups: Vec<(String, u32)>,
}

impl Accounts {
    fn parse(passwd: &str, group: &str) -> Self {
        let mut groups = Vec::new();
        let mut members: Vec<(&str, u32)> = Vec::new();
        for line in group.lines() {
            let mut fields = line.split(':');
            let (Some(name), Some(gid)) = (fields.next(), fields.nth(1).and_then(|gid| gid.parse().ok())) else {
                continue;
            };
            groups.push((name.to_owned(), gid));
            let names = fields.next().unwrap_or_default().split(',').map(str::trim);
            members.extend(names.filter(|name| !name.is_empty()).map(|name| (name, gid)));
        }
        let mut users = Vec::new();
        for line in passwd.lines() {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, uid, gid, _, home, ..] = fields[..] else { continue };
            let (Ok(uid), Ok(gid)) = (uid.parse(), gid.parse()) else { continue };
            let mut of_user = vec![gid];
            for (member, group) in &members {
                if *member == name && !of_user.contains(group) {
                    of_user.push(*group);
                }
            }
            let home = if home.is_empty() { "/" } else { home };
            users.push(User { name: name.to_owned(), uid, gid, home: home.to_owned(), groups: of_user });
        }
        Self { users, groups }
    }

    pub(crate) fn user(&self, name: &str) -> Option<&User> {
        self.users.iter().find(|user| user.name == name)
    }

    /// The name of a user id, or the number itself without one.
    pub(crate) fn user_name(&self, uid: u32) -> String {
        self.users.iter().find(|user| user.uid == uid).map_or_else(|| uid.to_string(), |user| user.name.clone())
    }

    pub(crate) fn group_name(&self, gid: u32) -> String {
        self.groups.iter().find(|group| group.1 == gid).map_or_else(|| gid.to_string(), |group| group.0.clone())
    }
}

/// Identity and modification time of a file.
type Stamp = Option<(u64, u64, i64, i64, u64)>;

fn stamp(path: &Path) -> Stamp {
    let meta = fs::metadata(path).ok()?;
    Some((meta.dev(), meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.len()))
}

/// The current accounts, read on demand.
pub(crate) struct Users {
    passwd: PathBuf,
    group: PathBuf,
    cached: Mutex<Option<(Stamp, Stamp, Arc<Accounts>)>>,
}

impl Users {
    pub(crate) fn new(etc: &Path) -> Self {
        Self { passwd: etc.join("passwd"), group: etc.join("group"), cached: Mutex::new(None) }
    }

    pub(crate) fn accounts(&self) -> Arc<Accounts> {
        let (passwd, group) = (stamp(&self.passwd), stamp(&self.group));
        let mut cached = self.cached.lock();
        if let Some((old_passwd, old_group, accounts)) = &*cached
            && (*old_passwd, *old_group) == (passwd, group)
        {
            return Arc::clone(accounts);
        }
        let read = |path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        let accounts = Arc::new(Accounts::parse(&read(&self.passwd), &read(&self.group)));
        *cached = Some((passwd, group, Arc::clone(&accounts)));
        accounts
    }

    pub(crate) fn find(&self, name: &str) -> Option<User> {
        self.accounts().user(name).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nbroken\nuser:x:1000:1000::/home/user:/bin/bash\n";
    const GROUP: &str = "root:x:0:\nsudo:x:27:other,user\nuser:x:1000:\ndocker:x:999: user\n";

    #[test]
    fn a_user_has_primary_and_supplementary_groups() {
        let accounts = Accounts::parse(PASSWD, GROUP);
        let user = accounts.user("user").expect("user exists");
        assert_eq!((user.uid, user.home.as_str(), user.groups.as_slice()), (1000, "/home/user", &[1000, 27, 999][..]));
        assert_eq!(accounts.user("broken"), None);
    }

    #[test]
    fn unknown_ids_are_shown_as_numbers() {
        let accounts = Accounts::parse(PASSWD, GROUP);
        assert_eq!((accounts.user_name(1000), accounts.user_name(4242)), ("user".into(), "4242".into()));
        assert_eq!((accounts.group_name(27), accounts.group_name(4242)), ("sudo".into(), "4242".into()));
    }

    #[test]
    fn a_changed_file_is_read_again() {
        let etc = tempfile::tempdir().expect("a directory");
        fs::write(etc.path().join("passwd"), PASSWD).expect("passwd");
        let users = Users::new(etc.path());
        assert_eq!(users.find("late"), None);
        fs::write(etc.path().join("passwd"), format!("{PASSWD}late:x:7:7::/:/bin/sh\n")).expect("passwd");
        assert_eq!(users.find("late").map(|user| user.uid), Some(7));
    }
}
