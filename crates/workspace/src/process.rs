//! Identifies the process that owns a lease, so that users can see it and other processes of the
//! same machine can detect its death: a killed process releases nothing.

use std::fs;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

/// How far the clocks of machines that share records may differ. A lease that ends later than a new
/// one would by more than this was written under a clock that was ahead.
pub const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// Whether a lease's owner still runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// It runs on this machine.
    Alive,
    /// It ran on this machine and has exited.
    Gone,
    /// It belongs to another machine or PID namespace.
    Unknown,
}

/// The owner name of this process: a readable part, and in brackets its unique identity: start
/// time, boot id, PID namespace and machine.
pub fn identify() -> String {
    let (pid, host) = (std::process::id(), host());
    match (start_time(pid), pid_scope()) {
        (Some(StartTime::At(start)), Some(PidScope { boot, pid_namespace })) => {
            let machine = machine().map(|machine| format!(" {machine}")).unwrap_or_default();
            format!("process {pid} on {host} [{start} {boot} {pid_namespace}{machine}]")
        }
        _ => format!("process {pid} on {host}"),
    }
}

/// The readable part of an owner name.
pub fn display_name(owner: &str) -> &str {
    owner.split_once(" [").map_or(owner, |(people, _)| people)
}

/// Whether the owner of a lease still runs. A process of an earlier boot of this machine is gone.
/// So is one of this boot and PID namespace whose PID is free or belongs to a process with another
/// start time.
pub fn liveness(owner: &str) -> Liveness {
    let Some(Owner { pid, host: its_host, start, boot, pid_namespace, machine: its_machine }) = Owner::parse(owner)
    else {
        return Liveness::Unknown;
    };
    let Some(here) = pid_scope() else { return Liveness::Unknown };
    if boot != here.boot {
        let same = its_host == host() && its_machine.is_some() && its_machine == machine().as_deref();
        return if same { Liveness::Gone } else { Liveness::Unknown };
    }
    // A process that sees PID 1 in /proc sees all processes (`hidepid` is off).
    let sees_all = start_time(1).is_some_and(|first| first != StartTime::NotRunning);
    if pid_namespace != here.pid_namespace || !sees_all {
        return Liveness::Unknown;
    }
    match start_time(pid) {
        Some(StartTime::At(found)) if found == start => Liveness::Alive,
        Some(_) => Liveness::Gone,
        None => Liveness::Unknown,
    }
}

/// The parsed parts of an owner name.
struct Owner<'a> {
    pid: u32,
    host: &'a str,
    start: u64,
    boot: &'a str,
    pid_namespace: &'a str,
    /// Absent when the machine has no id, or when an older program wrote the lease.
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
            pid_namespace: facts.next()?,
            machine: facts.next(),
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StartTime {
    /// In clock ticks since boot.
    At(u64),
    /// There is no such process, or it is a zombie.
    NotRunning,
}

/// The start time of a process; [`None`] when /proc does not reveal it.
fn start_time(pid: u32) -> Option<StartTime> {
    let text = match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Some(StartTime::NotRunning),
        Err(_) => return None,
    };
    // Skips the name in parentheses, which may contain any character.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    match fields.next()? {
        "Z" | "X" => Some(StartTime::NotRunning),
        _ => fields.nth(18)?.parse().ok().map(StartTime::At),
    }
}

/// Where a PID is unique: the boot of the machine and the PID namespace.
struct PidScope {
    boot: String,
    pid_namespace: String,
}

fn pid_scope() -> Option<PidScope> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let pid_namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(PidScope { boot: boot.trim().to_owned(), pid_namespace: pid_namespace.display().to_string() })
}

fn host() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    if host.is_empty() { "this machine".to_owned() } else { host.to_owned() }
}

/// An id that survives reboots: a digest, since machine-id(5) forbids exposing the id itself.
fn machine() -> Option<String> {
    let id = fs::read_to_string("/etc/machine-id").ok()?;
    let id = id.trim();
    let digest = Sha256::digest(format!("sandbar {id}").as_bytes());
    (!id.is_empty()).then(|| hex::encode(&digest[..8]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_certainly_exited_processes_are_gone() {
        let me = identify();
        assert!(liveness(&me) == Liveness::Alive && me.contains('['), "{me}");
        assert_eq!(display_name(&me), me.split(" [").next().expect("a part"));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("it starts");
        let Some(StartTime::At(start)) = start_time(child.id()) else { panic!("it runs") };
        let PidScope { boot, pid_namespace } = pid_scope().expect("a place");
        let owner = format!("process {} on here [{start} {boot} {pid_namespace}]", child.id());
        assert_eq!(liveness(&owner), Liveness::Alive);
        child.kill().expect("SIGKILL");
        child.wait().expect("it ends");
        assert_eq!(liveness(&owner), Liveness::Gone);
        // The PID was reused by a process with another start time.
        assert_eq!(liveness(&me.replace(" [", " [1")), Liveness::Gone);
        for unknown in ["process 1 on there", "the test", &owner.replace("pid:[", "pid:[9"), "process x on h [1 2 3]"] {
            assert_eq!(liveness(unknown), Liveness::Unknown, "{unknown}");
        }
    }

    #[test]
    fn a_process_of_an_earlier_boot_is_gone() {
        let (host, Some(machine)) = (host(), machine()) else { return };
        let of =
            |host: &str, machine: &str| format!("process 77 on {host} [123 another-boot pid:[4026531836]{machine}]");
        assert_eq!(liveness(&of(&host, &format!(" {machine}"))), Liveness::Gone);
        for other in [of("elsewhere", &format!(" {machine}")), of(&host, " 0011223344556677"), of(&host, "")] {
            assert_eq!(liveness(&other), Liveness::Unknown, "{other}");
        }
    }
}
