//! Which process has a lease, so that people can see it and another process of the same machine can
//! tell whether it is still there: one that was killed gives nothing back.

use std::fs;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

/// How far the clocks of machines that share records may be apart. A lease that ends later than a
/// new one would, by more than this, was written under a clock that was ahead.
pub const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// What is known of the process that an owner names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// It runs on this machine.
    Alive,
    /// It ran on this machine and does not any more.
    Gone,
    /// It runs, or ran, on another machine, or in another numbering of processes.
    Unknown,
}

/// This process: for people, and in brackets what tells it from every other: when it started, the
/// boot of the machine, the numbering of processes, the machine.
pub fn this() -> String {
    let (pid, host) = (std::process::id(), host());
    match (started(pid), place()) {
        (Some(Started::At(start)), Some(Place { boot, numbering })) => {
            let machine = machine().map(|machine| format!(" {machine}")).unwrap_or_default();
            format!("process {pid} on {host} [{start} {boot} {numbering}{machine}]")
        }
        _ => format!("process {pid} on {host}"),
    }
}

/// Without what only programs read.
pub fn for_people(owner: &str) -> &str {
    owner.split_once(" [").map_or(owner, |(people, _)| people)
}

/// Whether the process that has a lease is still there. One of an earlier boot of this machine is
/// gone, and so is one of this boot, in the same numbering of processes, whose number is free or is
/// another process's.
pub fn liveness(owner: &str) -> Liveness {
    let Some(Owner { pid, host: its_host, start, boot, numbering, machine: its_machine }) = Owner::parse(owner) else {
        return Liveness::Unknown;
    };
    let Some(here) = place() else { return Liveness::Unknown };
    if boot != here.boot {
        let same = its_host == host() && its_machine.is_some() && its_machine == machine().as_deref();
        return if same { Liveness::Gone } else { Liveness::Unknown };
    }
    // Who sees the first process sees all.
    let sees_all = started(1).is_some_and(|first| first != Started::Nobody);
    if numbering != here.numbering || !sees_all {
        return Liveness::Unknown;
    }
    match started(pid) {
        Some(Started::At(found)) if found == start => Liveness::Alive,
        Some(_) => Liveness::Gone,
        None => Liveness::Unknown,
    }
}

/// The parts of an owner's name.
struct Owner<'a> {
    pid: u32,
    host: &'a str,
    start: u64,
    boot: &'a str,
    numbering: &'a str,
    /// Absent where the machine has no id, and from an older program.
    machine: Option<&'a str>,
}

impl<'a> Owner<'a> {
    fn parse(owner: &'a str) -> Option<Self> {
        let (people, facts) = owner.strip_suffix(']')?.split_once(" [")?;
        let (pid, host) = people.strip_prefix("process ")?.split_once(" on ")?;
        let mut facts = facts.split(' ');
        Some(Self {
            pid: pid.parse().ok()?,
            host,
            start: facts.next()?.parse().ok()?,
            boot: facts.next()?,
            numbering: facts.next()?,
            machine: facts.next(),
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Started {
    /// In ticks since the machine's start.
    At(u64),
    /// There is no such process, or nothing is left of it but its number.
    Nobody,
}

/// None when it cannot be told.
fn started(pid: u32) -> Option<Started> {
    let text = match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Some(Started::Nobody),
        Err(_) => return None,
    };
    // The name before it may hold anything.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    match fields.next()? {
        "Z" | "X" => Some(Started::Nobody),
        _ => fields.nth(18)?.parse().ok().map(Started::At),
    }
}

/// The boot of the machine, and the numbering of processes.
struct Place {
    boot: String,
    numbering: String,
}

fn place() -> Option<Place> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let numbering = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(Place { boot: boot.trim().to_owned(), numbering: numbering.display().to_string() })
}

fn host() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    if host.is_empty() { "this machine".to_owned() } else { host.to_owned() }
}

/// What stays the same over boots. Its own id is not to be shown to others (machine-id(5)), a
/// digest is.
fn machine() -> Option<String> {
    let id = fs::read_to_string("/etc/machine-id").ok()?;
    let id = id.trim();
    let digest = Sha256::digest(format!("sandbar {id}").as_bytes());
    (!id.is_empty()).then(|| digest[..8].iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_certainly_gone_is_gone() {
        let me = this();
        assert!(liveness(&me) == Liveness::Alive && me.contains('['), "{me}");
        assert_eq!(for_people(&me), me.split(" [").next().expect("a part"));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("it starts");
        let Some(Started::At(start)) = started(child.id()) else { panic!("it runs") };
        let Place { boot, numbering } = place().expect("a place");
        let owner = format!("process {} on here [{start} {boot} {numbering}]", child.id());
        assert_eq!(liveness(&owner), Liveness::Alive);
        child.kill().expect("SIGKILL");
        child.wait().expect("it ends");
        assert_eq!(liveness(&owner), Liveness::Gone);
        // Another process has its number by now.
        assert_eq!(liveness(&me.replace(" [", " [1")), Liveness::Gone);
        for unknown in ["process 1 on there", "the test", &owner.replace("pid:[", "pid:[9"), "process x on h [1 2 3]"] {
            assert_eq!(liveness(unknown), Liveness::Unknown, "{unknown}");
        }
    }

    #[test]
    fn a_process_of_an_earlier_boot_of_this_machine_is_gone() {
        let (host, Some(machine)) = (host(), machine()) else { return };
        let of =
            |host: &str, machine: &str| format!("process 77 on {host} [123 another-boot pid:[4026531836]{machine}]");
        assert_eq!(liveness(&of(&host, &format!(" {machine}"))), Liveness::Gone);
        for other in [of("elsewhere", &format!(" {machine}")), of(&host, " 0011223344556677"), of(&host, "")] {
            assert_eq!(liveness(&other), Liveness::Unknown, "{other}");
        }
    }
}
