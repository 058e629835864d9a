//! What an idle sandbox costs: memory over many of them, and how fast they are made.

use std::collections::HashSet;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::{Plan, Row, Target};
use crate::sandbox::Sandbox;
use crate::server::Server;
use crate::stats::{Samples, millis};

/// Time for freed and lazily counted memory to settle before it is measured.
const SETTLE: Duration = Duration::from_secs(2);

/// The kernel's memory for sandboxes: structures, stacks, page tables, and counters per processor.
const KERNEL: [&str; 4] = ["Slab:", "KernelStack:", "PageTables:", "Percpu:"];

pub(crate) fn density(server: &Server, plan: &Plan) -> anyhow::Result<Vec<Row>> {
    // The first sandbox loads memory that all others share, so one is created and killed before.
    Sandbox::create(server, server.connect()?)?.kill()?;
    std::thread::sleep(SETTLE);
    let (available, kernel) = machine_memory()?;
    let server_before = proportional_memory(server.pid())?;
    let before = processes()?;

    let started = Instant::now();
    let mut creates = Samples::default();
    let mut sandboxes = Vec::with_capacity(plan.sandboxes);
    for _ in 0..plan.sandboxes {
        let connection = server.connect()?;
        let one = Instant::now();
        sandboxes.push(Sandbox::create(server, connection)?);
        creates.push(one.elapsed());
    }
    let took = started.elapsed();
    for sandbox in &mut sandboxes {
        sandbox.health()?;
    }
    std::thread::sleep(SETTLE);
    let (available_after, kernel_after) = machine_memory()?;
    let grown = proportional_memory(server.pid())?.saturating_sub(server_before);
    let new: Vec<u32> = processes()?.difference(&before).copied().collect();
    let young: u64 = new.iter().filter_map(|&pid| proportional_memory(pid).ok()).sum();

    let ending = Instant::now();
    let count = sandboxes.len();
    for sandbox in sandboxes {
        sandbox.kill()?;
    }
    let ended = ending.elapsed();

    let each = |bytes: f64| bytes / count as f64 / (1024.0 * 1024.0);
    let in_processes = each((young + grown) as f64);
    let in_kernel = each(kernel_after as f64 - kernel as f64);
    let lost = each(available as f64 - available_after as f64);
    Ok(vec![
        Row {
            name: "memory per idle sandbox",
            figure: format!("{in_processes:.2} MiB in processes, {in_kernel:.2} MiB in the kernel"),
            baseline: format!("{lost:.2} MiB less available"),
            value: in_processes + in_kernel,
            unit: "MiB",
            target: Some(Target::AtMost { limit: 3.0, sane: 30.0 }),
            method: format!(
                "{count} sandboxes, idle after one `/health` each. The sum of the proportional set size (PSS) of all \
                 processes that are new since, plus the growth of the server's, plus the growth of the kernel's own \
                 memory (slabs, stacks, page tables, per-processor data), divided. Beside it by how much less \
                 `MemAvailable` is, which also moves with everything else on the machine."
            ),
        },
        Row {
            name: "creates in a row",
            figure: format!(
                "{:.0} a second (median {}, p95 {})",
                count as f64 / took.as_secs_f64(),
                millis(creates.p50()),
                millis(creates.p95())
            ),
            baseline: format!("{:.0} kills a second", count as f64 / ended.as_secs_f64()),
            value: count as f64 / took.as_secs_f64(),
            unit: "per s",
            target: None,
            method: format!(
                "The {count} creates above, one after another, each on a new connection; then {count} kills."
            ),
        },
    ])
}

/// The available memory of the machine, and the memory of its kernel.
fn machine_memory() -> anyhow::Result<(u64, u64)> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let of = |name| field(&text, name).with_context(|| format!("no {name} in /proc/meminfo"));
    let kernel = KERNEL.iter().map(|&name| of(name)).sum::<anyhow::Result<u64>>()?;
    Ok((of("MemAvailable:")?, kernel))
}

/// A process's share of the memory it maps.
fn proportional_memory(pid: u32) -> anyhow::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    field(&text, "Pss:").context("no Pss in smaps_rollup")
}

/// The bytes of a line `NAME  N kB`.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

fn processes() -> anyhow::Result<HashSet<u32>> {
    let entries = fs::read_dir("/proc").context("cannot read /proc")?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_read_in_bytes() {
        assert_eq!(field("MemTotal:  100 kB\nMemAvailable:   42 kB\n", "MemAvailable:"), Some(42 * 1024));
        assert_eq!(field("MemTotal: 100 kB\n", "MemAvailable:"), None);
    }
}
