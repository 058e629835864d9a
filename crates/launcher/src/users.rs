//! A user namespace for a server that is not root: in it the server is, with ids of its own to give to sandboxes.
//!
//! ```text
//! host             999 (the user)    800000 … 865535 (subordinate: /etc/subuid, by newuidmap)
//! server           0                 1 … 65536
//! sandbox                            0 … 65535
//! ```
//! So no process of a sandbox has an id that means anything on the host, and the server can give away, and remove, whatever
//! sandboxes own. Without subordinate ids the user's own is all there is: 0 in both.
//!
//! A child makes the namespace and the caller joins it, because the programs that hand out subordinate ids must be run outside.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write, stdin, stdout};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::{Command, Stdio, exit};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use crate::HOLD;
use crate::sys::namespace::unshare_users;

/// As many as every distribution expects.
pub const SANDBOX_IDS: u32 = 1 << 16;

/// What ids a user can give to sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ids {
    /// The first of [`SANDBOX_IDS`] each.
    Subordinate { user: u32, group: u32 },
    /// Only the user's own.
    Single { why: String, fix: String },
}

impl Ids {
    /// Those of the user who runs this process.
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

/// Beside the server's own, which is 0.
pub const FIRST_SUBORDINATE: u32 = 1;

/// What rights the calling process has over ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Root of the machine: any.
    All,
    /// Root of a user namespace with ids for a sandbox beside its own.
    Range,
    /// None but its own.
    Own,
}

impl Rights {
    pub fn of_this_process() -> Self {
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        Self::of(rustix::process::geteuid().is_root(), &map)
    }

    fn of(is_root: bool, uid_map: &str) -> Self {
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

/// Owner, first id and count of each range in the text of a file like `/etc/subuid`.
fn ranges(text: &str) -> impl Iterator<Item = (&str, u32, u32)> {
    text.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        Some((fields.next()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    })
}

/// The first id of a range that is long enough.
fn first_range(text: &str, name: &str, uid: u32) -> Option<u32> {
    let mut own = ranges(text).filter(|(owner, ..)| *owner == name || *owner == uid.to_string());
    own.find(|(_, _, count)| *count >= SANDBOX_IDS).map(|(_, first, _)| first)
}

/// An id behind all that anybody has: who shares ids shares files.
fn first_free(texts: &[String]) -> u64 {
    let ends = texts.iter().flat_map(|text| ranges(text)).map(|(_, first, count)| u64::from(first) + u64::from(count));
    ends.fold(BEHIND_ACCOUNTS, u64::max)
}

/// Distributions and directories of accounts give lower ones.
const BEHIND_ACCOUNTS: u64 = 524_288;

/// Moves the calling process, which must have a single thread, into a new user namespace with these ids, as root of it. `hold` runs
/// this program as [`hold`].
pub fn enter_new(mut hold: Command, ids: &Ids) -> io::Result<()> {
    let mut holder = hold.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let output = holder.stdout.take().expect("standard output is piped");
    let made = wait_until_made(output).and_then(|()| map(holder.id(), ids));
    let joined = made.and_then(|()| join(File::open(format!("/proc/{}/ns/user", holder.id()))?.as_fd()));
    // Ends it.
    drop(holder.stdin.take());
    holder.wait()?;
    joined
}

/// Moves the calling process, which must have a single thread, into a user namespace that its user made.
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
            // Who cannot take ids from others may not leave groups, which can be a way past a ban.
            let process = Path::new("/proc").join(pid.to_string());
            for (file, text) in [
                ("uid_map", format!("0 {uid} 1\n")),
                ("setgroups", "deny".to_owned()),
                ("gid_map", format!("0 {gid} 1\n")),
            ] {
                // One write: the kernel takes no second.
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
    let said = String::from_utf8_lossy(&done.stderr);
    Err(io::Error::other(said.lines().next().unwrap_or("no ids were handed out").to_owned()))
}

/// Makes a user namespace, says so, and keeps it until standard input closes.
pub fn hold() -> ! {
    let made = unshare_users();
    let errno = made.as_ref().map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0);
    let told = writeln!(stdout(), "{errno}").and_then(|()| stdout().flush());
    // Whatever is said, the end is all that counts.
    let _ = io::copy(&mut stdin(), &mut io::sink());
    exit(i32::from(made.is_err() || told.is_err()))
}

/// The command that runs this very program as [`hold`].
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
        let of = |map| Rights::of(true, map);
        assert_eq!(of("         0          0 4294967295\n"), Rights::All);
        assert_eq!(of("         0       1000          1\n         1     100000      65536\n"), Rights::Range);
        assert_eq!(of("         0     100000      65537\n"), Rights::Range);
        assert_eq!(of("         0       1000          1\n         1     100000       1000\n"), Rights::Own);
        assert_eq!(of("         0       1000          1\n"), Rights::Own);
        assert_eq!(Rights::of(false, "         0          0 4294967295\n"), Rights::Own);
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
    fn nobody_is_told_to_take_ids_that_others_have() {
        assert_eq!(first_free(&[String::new(), "other:100000:65536".to_owned()]), 524_288);
        assert_eq!(first_free(&["a:524288:65536\nb:100000:65536".to_owned(), "a:600000:10".to_owned()]), 600_010);
    }
}
