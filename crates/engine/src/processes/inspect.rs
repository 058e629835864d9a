//! Inspects processes through `/proc`. A process that ends meanwhile counts as absent.

use std::fs;
use std::path::PathBuf;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::MARK;
use crate::boot::start_time_of;
use crate::rootless::Identity;

/// The kernel reports ticks of a hundredth of a second to programs, whatever it counts in itself.
const TICK_USEC: u64 = 10_000;
/// Bit of a signal in the masks of `/proc/PID/status`.
const STOP_PENDING: u64 = 1 << (libc::SIGSTOP - 1);

/// Process 1 of a sandbox, or a process that is about to become one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Marked {
    pub(crate) pid: u32,
    pub(super) parent: u32,
    /// `None`: it has not executed the guest yet.
    pub(super) name: Option<String>,
}

/// Every process 1 of the sandboxes of one data directory.
pub(crate) fn find_marked(identity: Identity) -> Vec<Marked> {
    let wanted = format!("{MARK}={identity}/");
    all()
        .filter_map(|pid| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let numbers: Vec<&str> = field(&status, "NSpid:")?.split_ascii_whitespace().collect();
            if numbers.len() < 2 || numbers.last() != Some(&"1") {
                return None;
            }
            // Every user may read the arguments, which the guest has; the environment, which a
            // launcher has, needs rights over the process.
            let texts = ["cmdline", "environ"].map(|file| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default());
            let mut words = texts.iter().flat_map(|text| text.split(|byte| *byte == 0));
            let mark = words.find_map(|word| word.strip_prefix(wanted.as_bytes()));
            let name = String::from_utf8(mark?.to_vec()).ok()?;
            let parent = field(&status, "PPid:")?.trim().parse().ok()?;
            Some(Marked { pid, parent, name: Some(name).filter(|name| !name.is_empty()) })
        })
        .collect()
}

fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name))
}

/// A process of a sandbox.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) pid: u32,
    start_time: u64,
}

/// All processes of the PID namespace whose process 1 is `first`, oldest first.
pub(super) fn members(first: u32) -> Vec<Member> {
    let namespace = |pid| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let Some(wanted) = namespace(first) else { return Vec::new() };
    let inside = all().filter(|pid| namespace(*pid).as_ref() == Some(&wanted));
    let mut members: Vec<Member> =
        inside.filter_map(|pid| Some(Member { pid, start_time: start_time_of(pid).ok()? })).collect();
    // Processes that started within one tick are ordered by pid; after an overflow of the pids a
    // child may come before its parent, which then may see it stopped.
    members.sort_by_key(|member| (member.pid != first, member.start_time, member.pid));
    members
}

impl Member {
    /// Sends a signal, unless the pid was reused.
    pub(super) fn send(&self, signal: Signal) {
        // The descriptor names the process that has the pid when its start time is read.
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw)
            && let Ok(process) = pidfd_open(pid, PidfdFlags::empty())
            && start_time_of(self.pid).is_ok_and(|now| now == self.start_time)
        {
            // A process that has ended needs no signal.
            let _ = pidfd_send_signal(process, signal);
        }
    }

    pub(super) fn threads(&self) -> impl Iterator<Item = PathBuf> {
        let entries = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
        entries.map(|entry| entry.path())
    }

    /// Whether no thread of it runs, nor will before it is continued.
    pub(super) fn is_stopped(&self) -> bool {
        self.threads().all(|thread| fs::read_to_string(thread.join("status")).map_or(true, |status| is_still(&status)))
    }

    /// Processor time in microseconds, that of its ended children included, and anonymous and
    /// shared memory in bytes.
    pub(super) fn used(&self) -> (u64, u64) {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let times = stat.rsplit_once(')').map(|(_, fields)| fields).unwrap_or_default();
        // Fields 14 to 17; after the name, field 3 comes first.
        let ticks: u64 =
            times.split_ascii_whitespace().skip(14 - 3).take(4).filter_map(|it| it.parse::<u64>().ok()).sum();
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let kilobytes = |name| -> u64 {
            let value = field(&status, name).and_then(|text| text.split_ascii_whitespace().next()?.parse().ok());
            value.unwrap_or(0)
        };
        let memory = (kilobytes("RssAnon:") + kilobytes("RssShmem:")) << 10;
        (ticks * TICK_USEC, memory)
    }
}

fn is_still(status: &str) -> bool {
    match field(status, "State:").and_then(|text| text.trim().chars().next()) {
        // Stopped, traced, ended.
        Some('T' | 't' | 'Z' | 'X') | None => true,
        // It waits for its child to execute a program, and stops when that has happened.
        Some('D') => ["SigPnd:", "ShdPnd:"].iter().any(|name| {
            let mask = field(status, name).and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
            mask.unwrap_or(0) & STOP_PENDING != 0
        }),
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_waits_for_a_stopped_child_is_still() {
        let status = |state: &str, pending: &str| {
            format!("Name:\tx\nState:\t{state}\nSigPnd:\t0000000000000000\nShdPnd:\t{pending}\n")
        };
        assert!(is_still(&status("T (stopped)", "0000000000000000")));
        assert!(is_still(&status("Z (zombie)", "0000000000000000")));
        assert!(is_still(&status("D (disk sleep)", "0000000000040000")));
        assert!(!is_still(&status("D (disk sleep)", "0000000000000000")));
        assert!(!is_still(&status("S (sleeping)", "0000000000040000")));
    }

    #[test]
    fn a_process_without_a_namespace_of_its_own_is_not_marked() {
        assert_eq!(find_marked(Identity(0)), []);
    }
}
