//! `sandbar sandbox metrics`: prints the processor, memory and disk usage of a sandbox.

use super::{Session, explain};
use crate::show::{size, span, sparkline};
use crate::values;
use anyhow::Context as _;
use clap::Args;
use jiff::Timestamp;
use sdk::model::SandboxMetric;
use sdk::{SandboxId, TimeRange};
use std::io::{IsTerminal, stdout};
use std::time::Duration;

/// Show what a sandbox uses.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar sandbox metrics iabc123  the newest reading, and on a terminal how it came to it
  sandbar sandbox metrics iabc123 --since 10m
  sandbar sandbox metrics iabc123 --json | jq '.[-1].memUsed'")]
pub(crate) struct Metrics {
    /// The sandbox
    id: SandboxId,
    /// Readings since so long ago [default: all that are kept]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    since: Option<Duration>,
}

impl Metrics {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let range = match self.since {
            Some(time) => {
                let start = Timestamp::now().checked_sub(jiff::SignedDuration::try_from(time)?);
                TimeRange::since(start.context("--since lies before all time")?)
            }
            None => TimeRange::ALL,
        };
        let readings = session.client.metrics(&self.id, range).await.map_err(explain)?;
        if session.show.json {
            return Ok(session.show.object(&readings)?);
        }
        let (Some(first), Some(last)) = (readings.first(), readings.last()) else {
            eprintln!("no reading yet; the first comes a few seconds after the start");
            return Ok(());
        };
        let bars = Bars { readings: &readings, shown: stdout().is_terminal() };
        let over = u64::try_from(last.timestamp_unix - first.timestamp_unix).unwrap_or(0);
        let part = |used: u64, total: u64| format!("{} of {}", size(used), size(total));
        let lines = [
            (
                "cpu",
                format!("{:.1} % of {} CPUs", last.cpu_used_pct, last.cpu_count),
                bars.render(|reading| reading.cpu_used_pct, 100.0),
            ),
            (
                "memory",
                part(last.mem_used, last.mem_total),
                bars.render(|reading| float(reading.mem_used), float(last.mem_total)),
            ),
            (
                "disk",
                part(last.disk_used, last.disk_total),
                bars.render(|reading| float(reading.disk_used), float(last.disk_total)),
            ),
        ];
        let width = lines.iter().map(|(_, text, _)| text.len()).max().unwrap_or(0);
        let pairs = lines.map(|(name, text, bars)| (name, format!("{text:width$}  {bars}").trim_end().to_owned()));
        session.show.pairs(&pairs)?;
        let count = readings.len();
        let over = span(Duration::from_secs(over));
        Ok(session.show.line(format!("{count} reading{} over {over}", if count == 1 { "" } else { "s" }))?)
    }
}

/// Renders a value over time as a sparkline, on terminals only.
struct Bars<'a> {
    readings: &'a [SandboxMetric],
    shown: bool,
}

impl Bars<'_> {
    fn render(&self, value: impl Fn(&SandboxMetric) -> f64, full: f64) -> String {
        const WIDTH: usize = 40;
        if !self.shown {
            return String::new();
        }
        // Several readings share a bar, which shows the highest of them.
        let share = self.readings.len().div_ceil(WIDTH);
        let highest = |some: &[SandboxMetric]| some.iter().map(&value).fold(0.0, f64::max);
        let values: Vec<f64> = self.readings.chunks(share).map(highest).collect();
        sparkline(&values, full)
    }
}

#[expect(clippy::cast_precision_loss, reason = "eight bars are shown")]
fn float(bytes: u64) -> f64 {
    bytes as f64
}
