//! `GET /metrics`: resource usage, read inside the sandbox from `/proc`. The host reads cgroups
//! instead, which are more accurate; this serves callers of the guest.

use std::fs;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use protocol::envd::Metrics;

use crate::log::unix_ms;
use crate::state::Guest;
use crate::thread_pool;

const MIB: u64 = 1 << 20;
/// The unit of `/proc/<pid>/stat`, the same on x86 and ARM whatever the kernel's HZ.
const TICKS_PER_SECOND: f64 = 100.0;

/// Keeps the last sample: usage is the difference of two.
#[derive(Default)]
pub(crate) struct CpuMeter(Mutex<Option<(Instant, u64)>>);

#[derive(Default)]
struct Usage {
    cpu_ticks: u64,
    anonymous_bytes: u64,
    file_bytes: u64,
}

pub(crate) async fn read(guest: &Arc<Guest>) -> Metrics {
    let usage = thread_pool::spawn(|| (all_processes(), disk_used()));
    let (usage, disk_used) = usage.await.unwrap_or_default();
    let limits = &guest.limits;
    let mem_used = usage.anonymous_bytes.min(limits.memory_bytes);
    Metrics {
        ts: i64::try_from(unix_ms() / 1000).unwrap_or(i64::MAX),
        cpu_count: limits.cpu_count,
        cpu_used_pct: guest.cpu.percent(usage.cpu_ticks, limits.cpu_count),
        mem_total: limits.memory_bytes,
        mem_used,
        mem_cache: usage.file_bytes.min(limits.memory_bytes - mem_used),
        mem_total_mib: limits.memory_bytes / MIB,
        mem_used_mib: mem_used / MIB,
        disk_used: disk_used.min(limits.disk_bytes),
        disk_total: limits.disk_bytes,
    }
}

impl CpuMeter {
    /// Percent of all CPUs since the last sample. Misses processes that ended in between.
    fn percent(&self, ticks: u64, processors: u32) -> f64 {
        let now = Instant::now();
        let last = self.0.lock().replace((now, ticks));
        let Some((then, before)) = last else { return 0.0 };
        let elapsed = now.duration_since(then).as_secs_f64().max(0.001);
        let busy = ticks.saturating_sub(before) as f64 / TICKS_PER_SECOND;
        let percent = busy / elapsed / f64::from(processors) * 100.0;
        (percent.min(100.0) * 100.0).round() / 100.0
    }
}

fn all_processes() -> Usage {
    let mut total = Usage::default();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(|first: char| first.is_ascii_digit()) {
            continue;
        }
        // A process may exit between the listing and the read.
        if let Ok(stat) = fs::read_to_string(entry.path().join("stat")) {
            total.cpu_ticks += cpu_ticks(&stat).unwrap_or_default();
        }
        if let Ok(status) = fs::read_to_string(entry.path().join("status")) {
            for line in status.lines() {
                match line.split_once(':') {
                    Some(("RssAnon" | "RssShmem", size)) => total.anonymous_bytes += kilobytes(size),
                    Some(("RssFile", size)) => total.file_bytes += kilobytes(size),
                    _ => {}
                }
            }
        }
    }
    total
}

/// User and system time, fields 14 and 15; the name before them may contain any character,
/// parentheses included.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

fn kilobytes(size: &str) -> u64 {
    size.trim().trim_end_matches("kB").trim().parse::<u64>().map_or(0, |size| size * 1024)
}

fn disk_used() -> u64 {
    rustix::fs::statvfs("/").map_or(0, |disk| disk.f_blocks.saturating_sub(disk.f_bfree) * disk.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_process_names_do_not_break_parsing() {
        let stat = "7 (a) 1 2) R 1 7 7 0 -1 4194560 100 0 0 0 30 12 0 0 20 0 1 0 100 1000 10";
        assert_eq!(cpu_ticks(stat), Some(42));
        assert_eq!(kilobytes("\t  12 kB"), 12288);
    }
}
