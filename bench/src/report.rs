//! The table of figures, and the document that records the last run.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use serde::Serialize;

use crate::measure::{Plan, Row, Target};

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    rows: Vec<Row>,
    plan: Plan,
    machine: String,
    server: String,
    date: String,
}

impl Report {
    pub(crate) fn new(rows: Vec<Row>, plan: &Plan, server: &Path) -> Self {
        let date = jiff::Zoned::now().strftime("%Y-%m-%d").to_string();
        Self { rows, plan: *plan, machine: machine(), server: version(server), date }
    }

    pub(crate) fn targets_met(&self) -> bool {
        self.rows.iter().all(Row::met)
    }

    pub(crate) fn sane(&self) -> bool {
        self.rows.iter().all(Row::sane)
    }

    /// The table, for a terminal and for the document alike.
    pub(crate) fn table(&self) -> String {
        let mut lines = vec![["", "measured", "baseline", "value", "target", ""].map(str::to_owned)];
        lines.extend(self.rows.iter().map(|row| {
            [
                row.name.to_owned(),
                row.figure.clone(),
                row.baseline.clone(),
                with_unit(row.value, row.unit),
                row.target.map_or(String::new(), |target| describe(target, row.unit)),
                if row.target.is_none() {
                    String::new()
                } else if row.met() {
                    "met".into()
                } else {
                    "MISSED".into()
                },
            ]
        }));
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..6).map(width).collect();
        let mut text = String::new();
        for (number, line) in lines.iter().enumerate() {
            for (cell, width) in line.iter().zip(&widths) {
                let _ = write!(text, "| {cell:width$} ");
            }
            text.push_str("|\n");
            if number == 0 {
                for width in &widths {
                    let _ = write!(text, "|-{:-<width$}-", "");
                }
                text.push_str("|\n");
            }
        }
        text
    }

    /// The document: table, machine and method.
    pub(crate) fn document(&self) -> String {
        let Self { rows, machine, server, date, plan } = self;
        let mut text = format!(
            "# Measured\n\nWritten by `./dev bench`; do not edit. {date}, {server}, {}.\n{machine}\n\n{}\n## Method\n\n\
             Every figure with a baseline is taken alternately with it in the same run, so that a busy machine slows both. The\n\
             client is blocking, over one kept HTTP/1.1 connection on the loopback.\n\n",
            if plan.quick { "a quick run" } else { "a full run" },
            self.table()
        );
        for row in rows {
            let _ = writeln!(text, "- **{}**: {}", row.name, row.method);
        }
        text
    }
}

fn with_unit(value: f64, unit: &str) -> String {
    match unit {
        "x" => format!("{value:.2}x"),
        "%" => format!("{value:.0} %"),
        _ => format!("{value:.2} {unit}"),
    }
}

fn describe(target: Target, unit: &str) -> String {
    let (sign, limit) = match target {
        Target::AtMost { limit, .. } => ("≤", limit),
        Target::AtLeast { limit, .. } => ("≥", limit),
    };
    match unit {
        "x" => format!("{sign} {limit}x"),
        _ => format!("{sign} {limit} {unit}"),
    }
}

/// Kernel, processors and memory, by which a reader judges the figures.
fn machine() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease");
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown processor");
    let model = model.trim_start_matches([' ', '\t', ':']);
    let cores = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let meminfo = read("/proc/meminfo");
    let kib = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok());
    let gib = kib.unwrap_or(0u64) as f64 / (1024.0 * 1024.0);
    format!("Machine: {cores} x {model}, {gib:.0} GiB, Linux {}.", kernel.trim())
}

/// The server's version, and whether it is a release build.
fn version(program: &Path) -> String {
    let output = Command::new(program).arg("--version").output().ok();
    let text = output.and_then(|output| String::from_utf8(output.stdout).ok()).unwrap_or_default();
    let version = if text.trim().is_empty() { "sandbar" } else { text.trim() };
    let build = if program.components().any(|part| part.as_os_str() == "debug") { "debug" } else { "release" };
    format!("{version}, {build} build")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(value: f64, target: Target) -> Row {
        let (figure, baseline) = ("20 ms".into(), "10 ms".into());
        Row { name: "a thing", figure, baseline, value, unit: "x", target: Some(target), method: "measured".into() }
    }

    #[test]
    fn a_missed_target_is_named_in_the_table() {
        let target = Target::AtMost { limit: 1.5, sane: 15.0 };
        let report = Report::new(vec![row(2.0, target)], &Plan::quick(), Path::new("/nonexistent/sandbar"));
        assert!(report.table().contains("| 2.00x | ≤ 1.5x | MISSED |"), "{}", report.table());
        assert!(!report.targets_met());
        assert!(report.sane());
    }

    #[test]
    fn a_rate_below_its_target_is_missed_and_above_is_met() {
        let target = Target::AtLeast { limit: 50.0, sane: 5.0 };
        assert!(!row(49.0, target).met());
        assert!(row(51.0, target).met());
        assert!(!row(4.0, target).sane());
    }
}
