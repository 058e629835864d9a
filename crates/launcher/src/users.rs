//! A user namespace for a rootless server, in which the server is root and has ids to assign to
//! sandboxes.
//!
//! ```text
//! host             999 (the user)    800000 … 865535 (subordinate: /etc/subuid, by newuidmap)
//! server           0                 1 … 65536
//! sandbox                            0 … 65535
//! ```
//! So no process of a sandbox has an id with permissions on the host, and the server can change the
//! owner of, and remove, all files of sandboxes. Without subordinate ids there is only the user's
//! own id, which is 0 in both.
//!
//! A child makes the namespace and the caller joins it, because `newuidmap` and `newgidmap`, which
//! assign the subordinate ids, must run outside of it.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write, stdin, stdout};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::{Command, Stdio, exit};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use crate::HOLD;
use crate::sys::namespace::unshare_users;

/// Number of ids per sandbox, as every distribution expects.
pub const SANDBOX_IDS: u32 = 1 << 16;

/// The first of [`SANDBOX_IDS`] ids that a root server assigns to confined processes and to nothing
/// else. They follow those of sandboxes.
pub const CONFINED_IDS: u32 = 0x7FFD_0000;

/// The ids that a user can assign to sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ids {
    /// The first user id and the first group id of [`SANDBOX_IDS`] each.
    Subordinate { user: u32, group: u32 },
    /// Only the user's own.
    Single { why: String, fix: String },
}

impl Ids {
    /// The ids of the user of this process.
    pub fn of_this_user() -> Self {
        let (uid, name) = (rustix::process::getuid().as_raw(), own_name());
        for program in ["newuidmap", "newgidmap"] {
            if !is_installed(program) {
                let (why, fix) = (format!("{program} is not installed"), "apt-get install -y uidmap".to_owned());
                return Self::Single { why, fix };
            }
        }
        let files = ["/etc/subuid", "/etc/subgid"];
        let texts = files.map(|file| fs::read_to_string(file).unwrap_or_default());
        match texts.each_ref().map(|text| first_range(text, &name, uid)) {
            [Some(user), Some(group)] => Self::Subordinate { user, group },
            [user, _] => {
                let file = if user.is_none() { files[0] } else { files[1] };
                let why = format!("{file} gives {name} no {SANDBOX_IDS} ids in a row");
                let first = first_free(&texts);
                let range = format!("{first}-{}", first + u64::from(SANDBOX_IDS) - 1);
                let fix = format!("sudo usermod --add-subuids {range} --add-subgids {range} {name}");
                Self::Single { why, fix }
            }
        }
    }
}

/// The first subordinate id in the namespace. The server's own is 0.
pub const FIRST_SUBORDINATE: u32 = 1;

/// Which ids the calling process may assign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Any: it is root of the machine.
    All,
    /// Those of one sandbox besides its own: it is root of a user namespace.
    Range,
    /// Only its own.
    Own,
}

impl Rights {
    pub fn of_this_process() -> Self {
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        Self::from_map(rustix::process::geteuid().is_root(), &map)
    }

    fn from_map(is_root: bool, uid_map: &str) -> Self {
        let ranges = uid_map.lines().filter_map(|line| {
            let mut numbers = line.split_ascii_whitespace().map(str::parse::<u64>);
            Some((numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?))
        });
        let ranges: Vec<_> = ranges.collect();
        let has = |id: u32| ranges.iter().any(|(first, _, count)| (*first..first + count).contains(&u64::from(id)));
        match is_root {
            true if ranges == [(0, 0, u64::from(u32::MAX))] => Self::All,
            true if has(FIRST_SUBORDINATE) && has(SANDBOX_IDS) => Self::Range,
            _ => Self::Own,
        }
    }
}

fn own_name() -> String {
    let uid = rustix::process::getuid().as_raw().to_string();
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let own = passwd.lines().find(|line| line.split(':').nth(2) == Some(&uid));
    let listed = own.and_then(|line| line.split(':').next()).map(str::to_owned);
    listed.or_else(|| std::env::var("USER").ok()).unwrap_or(uid)
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/usr/bin".into()]).any(|directory| directory.join(program).is_file())
}

/// Owner, first id and count of each range in a file of the format of `/etc/subuid`.
fn ranges(text: &str) -> impl Iterator<Item = (&str, u32, u32)> {
    text.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        Some((fields.next()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    })
}

/// The first id of the user's first range that is long enough.
fn first_range(text: &str, name: &str, uid: u32) -> Option<u32> {
    let mut own = ranges(text).filter(|(owner, ..)| *owner == name || *owner == uid.to_string());
    own.find(|(_, _, count)| *count >= SANDBOX_IDS).map(|(_, first, _)| first)
}

/// The first id above all assigned ranges: users who share ids can access each other's files.
fn first_free(texts: &[String]) -> u64 {
    let ends = texts.iter().flat_map(|text| ranges(text)).map(|(_, first, count)| u64::from(first) + u64::from(count));
    ends.fold(BEHIND_ACCOUNTS, u64::max)
}

/// Distributions and directory services assign lower ids.
const BEHIND_ACCOUNTS: u64 = 524_288;

/// Moves the calling process, which must have a single thread, into a new user namespace with these
/// ids, as its root. `hold` runs this program as [`hold`].
pub fn enter_new(mut hold: Command, ids: &Ids) -> io::Result<()> {
    let mut holder = hold.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let output = holder.stdout.take().expect("standard output is piped");
    let made = wait_until_made(output).and_then(|()| map(holder.id(), ids));
    let joined = made.and_then(|()| join(File::open(format!("/proc/{}/ns/user", holder.id()))?.as_fd()));
    // The holder exits when its standard input closes.
    drop(holder.stdin.take());
    holder.wait()?;
    joined
}

/// Moves the calling process, which must have a single thread, into a user namespace of its user.
pub fn join(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace, Some(LinkNameSpaceType::User))?)
}

fn wait_until_made(output: impl Read) -> io::Result<()> {
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    match line.trim().parse::<i32>() {
        Ok(0) => Ok(()),
        Ok(errno) => Err(io::Error::from_raw_os_error(errno)),
        Err(_) => Err(io::Error::other("the process that makes a user namespace died")),
    }
}

fn map(pid: u32, ids: &Ids) -> io::Result<()> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    match ids {
        Ids::Subordinate { user, group } => {
            hand_out("newuidmap", pid, uid, *user)?;
            hand_out("newgidmap", pid, gid, *group)
        }
        Ids::Single { .. } => {
            // Without privileges over other ids the kernel requires that setgroups is denied:
            // leaving a group can bypass a permission that excludes the group.
            let process = Path::new("/proc").join(pid.to_string());
            for (file, text) in [
                ("uid_map", format!("0 {uid} 1\n")),
                ("setgroups", "deny".to_owned()),
                ("gid_map", format!("0 {gid} 1\n")),
            ] {
                // A single write: the kernel refuses a second one.
                File::options().write(true).open(process.join(file))?.write_all(text.as_bytes())?;
            }
            Ok(())
        }
    }
}

fn hand_out(program: &str, pid: u32, own: u32, first: u32) -> io::Result<()> {
    let numbers = [pid, 0, own, 1, 1, first, SANDBOX_IDS].map(|number| number.to_string());
    let done = Command::new(program).args(numbers).stdin(Stdio::null()).output()?;
    if done.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&done.stderr);
    Err(io::Error::other(message.lines().next().unwrap_or("no ids were handed out").to_owned()))
}

/// Makes a user namespace, prints the error number or 0, and holds it until standard input closes.
pub fn hold() -> ! {
    let made = unshare_users();
    let errno = made.as_ref().map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0);
    let written = writeln!(stdout(), "{errno}").and_then(|()| stdout().flush());
    // The input is discarded; only its end matters.
    let _ = io::copy(&mut stdin(), &mut io::sink());
    exit(i32::from(made.is_err() || written.is_err()))
}

/// The command that runs this program as [`hold`].
pub(crate) fn hold_by_itself() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(HOLD).env_clear();
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_of_ids_tells_the_rights() {
        let of = |map| Rights::from_map(true, map);
        assert_eq!(of("         0          0 4294967295\n"), Rights::All);
        assert_eq!(of("         0       1000          1\n         1     100000      65536\n"), Rights::Range);
        assert_eq!(of("         0     100000      65537\n"), Rights::Range);
        assert_eq!(of("         0       1000          1\n         1     100000       1000\n"), Rights::Own);
        assert_eq!(of("         0       1000          1\n"), Rights::Own);
        assert_eq!(Rights::from_map(false, "         0          0 4294967295\n"), Rights::Own);
        assert_eq!(of(""), Rights::Own);
    }

    #[test]
    fn the_first_long_range_of_the_user_counts() {
        let text = "# comment\nother:100000:65536\nme:200000:1000\nme:300000:65536\nme:400000:65536\nbroken:x:y\n";
        assert_eq!(first_range(text, "me", 1000), Some(300_000));
        assert_eq!(first_range("1000:7:70000\n", "me", 1000), Some(7));
        assert_eq!(first_range(text, "nobody", 65_534), None);
    }

    #[test]
    fn proposed_ids_do_not_overlap_those_of_other_users() {
        assert_eq!(first_free(&[String::new(), "other:100000:65536".to_owned()]), 524_288);
        assert_eq!(first_free(&["a:524288:65536\nb:100000:65536".to_owned(), "a:600000:10".to_owned()]), 600_010);
    }
}
