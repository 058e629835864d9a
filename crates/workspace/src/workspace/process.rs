//! Which process has a lease, so that people can see it and another process of the same machine can tell whether it is
//! still there: one that was killed gives nothing back.

use std::fs;

/// This process: for people, and in brackets what tells it from every other.
pub(super) fn this() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let host = if host.is_empty() { "this machine" } else { host };
    let pid = std::process::id();
    match (started(pid), place()) {
        (Some(Started::At(start)), Some(place)) => format!("process {pid} on {host} [{start} {place}]"),
        _ => format!("process {pid} on {host}"),
    }
}

/// Without what only programs read.
pub(super) fn for_people(owner: &str) -> &str {
    owner.split_once(" [").map_or(owner, |(people, _)| people)
}

/// Certainly no more: it was a process of this machine, since this start of it, in the same numbering of processes, and there
/// is none like it. Of all others nobody here knows.
pub(super) fn is_dead(owner: &str) -> bool {
    let known = || {
        let (people, facts) = owner.strip_suffix(']')?.split_once(" [")?;
        let (start, where_it_ran) = facts.split_once(' ')?;
        let pid: u32 = people.strip_prefix("process ")?.split(' ').next()?.parse().ok()?;
        (place()? == where_it_ran).then(|| Some((pid, start.parse::<u64>().ok()?)))?
    };
    match known() {
        // Who sees the first process sees all.
        Some((pid, start)) if started(1).is_some_and(|first| first != Started::Nobody) => {
            started(pid).is_some_and(|found| found != Started::At(start))
        }
        _ => false,
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

/// The start of the machine, and the numbering of processes.
fn place() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let numbering = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{} {}", boot.trim(), numbering.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_is_certainly_gone_is_dead() {
        let me = this();
        assert!(!is_dead(&me) && me.contains('['), "{me}");
        assert_eq!(for_people(&me), me.split(" [").next().expect("a part"));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("it starts");
        let Some(Started::At(start)) = started(child.id()) else { panic!("it runs") };
        let owner = format!("process {} on here [{start} {}]", child.id(), place().expect("a place"));
        assert!(!is_dead(&owner));
        child.kill().expect("SIGKILL");
        child.wait().expect("it ends");
        assert!(is_dead(&owner));
        // Another process has its number by now.
        assert!(is_dead(&me.replace(" [", " [1")));
        for unknown in ["process 1 on there", "the test", &owner.replace("pid:[", "pid:[9"), "process x on h [1 2 3]"] {
            assert!(!is_dead(unknown), "{unknown}");
        }
    }
}
