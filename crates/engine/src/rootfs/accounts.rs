//! The sandbox's users and groups: the host's system accounts, which own files in the views, and
//! `user`.
//!
//! Contains no person of the host, no password, no membership.

use std::fmt::Write;

use crate::privilege::Privilege;

/// The account that runs commands in a sandbox unless the caller names another.
pub(super) const USER: &str = "user";
pub(super) const USER_ID: u32 = 1000;

/// Which id that account has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum User {
    Own,
    /// Root's, where there is no other. Listed before root, so that files belong to `user` by name.
    Root,
}

impl User {
    pub(super) fn for_privilege(privilege: Privilege) -> Self {
        if privilege == Privilege::Single { Self::Root } else { Self::Own }
    }
}
/// Lower ids are system accounts, by the convention of every distribution.
const FIRST_PERSON: u32 = 1000;
const OVERFLOW_ID: u32 = 65534;

/// The text of the four files.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Accounts {
    pub(super) passwd: String,
    pub(super) group: String,
    pub(super) shadow: String,
    pub(super) gshadow: String,
    /// Group that may read the password files; 0 where the host has none.
    pub(super) shadow_group: u32,
    /// The user that downloads for apt; 0 where the host has none.
    pub(super) apt_user: u32,
}

/// Builds the files from the text of the host's `passwd` and `group`.
pub(super) fn from_host(host_passwd: &str, host_group: &str, user: User) -> Accounts {
    let mut accounts = Accounts {
        passwd: String::new(),
        group: String::new(),
        shadow: String::new(),
        gshadow: String::new(),
        shadow_group: 0,
        apt_user: 0,
    };
    let mut people: Vec<[&str; 6]> = Vec::new();
    for line in host_passwd.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, gecos, home, shell] = fields[..] else { continue };
        if is_system(uid) && is_system(gid) && ![USER, "root"].contains(&name) && uid != "0" {
            people.push([name, uid, gid, gecos, home, shell]);
        }
        if name == "_apt" {
            accounts.apt_user = uid.parse().unwrap_or(0);
        }
    }
    people.insert(0, ["root", "0", "0", "root", "/root", "/bin/bash"]);
    match user {
        User::Own => people.push([USER, "1000", "1000", "", "/home/user", "/bin/bash"]),
        User::Root => people.insert(0, [USER, "0", "0", "", "/home/user", "/bin/bash"]),
    }
    for [name, uid, gid, gecos, home, shell] in people {
        writeln!(accounts.passwd, "{name}:x:{uid}:{gid}:{gecos}:{home}:{shell}").expect("writing to a string");
        // `*` is no password's hash: no user can log in with a password, and sudo asks for none.
        writeln!(accounts.shadow, "{name}:*:20000:0:99999:7:::").expect("writing to a string");
    }
    let mut groups: Vec<(&str, &str)> = Vec::new();
    for line in host_group.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, gid, _] = fields[..] else { continue };
        if is_system(gid) && ![USER, "root", "sudo"].contains(&name) && gid != "0" {
            groups.push((name, gid));
        }
        if name == "shadow" {
            accounts.shadow_group = gid.parse().unwrap_or(0);
        }
    }
    groups.insert(0, ("root", "0"));
    groups.push(("sudo", "27"));
    match user {
        User::Own => groups.push((USER, "1000")),
        User::Root => groups.insert(0, (USER, "0")),
    }
    for (name, gid) in groups {
        let member = if name == "sudo" { USER } else { "" };
        writeln!(accounts.group, "{name}:x:{gid}:{member}").expect("writing to a string");
        writeln!(accounts.gshadow, "{name}:*::{member}").expect("writing to a string");
    }
    accounts
}

fn is_system(id: &str) -> bool {
    id.parse::<u32>().is_ok_and(|id| id < FIRST_PERSON || id == OVERFLOW_ID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_accounts_stay_and_people_do_not() {
        let passwd = "root:x:0:0:Root Person:/root:/bin/zsh\ntoor:x:0:0::/root:/bin/sh\n_apt:x:42:65534::/nonexistent:/bin/false\n\
                      alice:x:1000:1000:Alice,Room 1:/home/alice:/bin/bash\nbroken\n\
                      nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n";
        let group = "root:x:0:\nshadow:x:43:alice\nsudo:x:27:alice\nalice:x:1000:\nnogroup:x:65534:\n";
        let accounts = from_host(passwd, group, User::Own);
        assert_eq!(
            accounts.passwd,
            "root:x:0:0:root:/root:/bin/bash\n_apt:x:42:65534::/nonexistent:/bin/false\n\
             nobody:x:65534:65534:nobody:/nonexistent:/bin/false\nuser:x:1000:1000::/home/user:/bin/bash\n"
        );
        assert_eq!(accounts.group, "root:x:0:\nshadow:x:43:\nnogroup:x:65534:\nsudo:x:27:user\nuser:x:1000:\n");
        assert!(accounts.shadow.starts_with("root:*:") && accounts.shadow.contains("user:*:"));
        assert_eq!((accounts.shadow_group, accounts.apt_user), (43, 42));
        assert!(!format!("{accounts:?}").contains("lice"));
        let single = from_host(passwd, group, User::Root);
        assert!(single.passwd.starts_with("user:x:0:0::/home/user:/bin/bash\nroot:x:0:0:"), "{}", single.passwd);
        assert!(single.group.starts_with("user:x:0:\nroot:x:0:"), "{}", single.group);
    }
}
