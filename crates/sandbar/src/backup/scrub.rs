//! `sandbar scrub`: reads all stored data again and compares it with its checksums, so that damage
//! by a disk is found while a backup still has the data.

use super::enter;
use crate::config::{self, Config};
use crate::runtime;
use ::backup::{FoundFlaw, ScrubReport};
use checkpoint::Objects;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Re-read databases, pool and snapshots of workspaces, and compare them with their checksums.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar scrub
  sandbar scrub --json | jq '.flaws'    {databases, poolBytes, snapshots, flaws: [{what, flaw}],
                                         notChecked}

Exit code 0 when no damage was found, 1 when some was: it is named. The server may run meanwhile. A \
pool on btrfs is checked by its checksums. One of plain directories, as ordinary users have it, has \
none: every file is read, and the report says that a changed byte is not found there.

By a timer of the server:
  [scrub]
  interval_hours = 168")]
pub(crate) struct Scrub {
    /// The data directory [default: $XDG_DATA_HOME/sandbar]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Configuration file
    #[arg(long, value_name = "FILE", env = "SANDBAR_CONFIG")]
    config: Option<PathBuf>,
    /// Print JSON for programs
    #[arg(long)]
    json: bool,
}

impl Scrub {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        crate::logging::start_if_wanted()?;
        let (config, sources) = enter(self.data.as_deref(), self.config.as_deref())?;
        let report = runtime::block_on(async {
            let mut report = ScrubReport::default();
            ::backup::scrub(&sources, &mut report).await?;
            scrub_stores(&config, &mut report).await;
            Ok(report)
        })?;
        if self.json {
            println!("{}", serde_json::to_string(&report)?);
        } else {
            report.flaws.iter().for_each(|FoundFlaw { what, flaw }| println!("damaged: {what}: {flaw}"));
            report.not_checked.iter().for_each(|what| println!("not checked: {what}"));
            let ScrubReport { databases, pool_bytes, snapshots, flaws, .. } = &report;
            println!(
                "{databases} databases, {pool_bytes} bytes of the pool, {snapshots} snapshots: {} flaws",
                flaws.len()
            );
        }
        Ok(if report.flaws.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Verifies the checkpoints of workspaces and of the studio's jobs. A store that does not answer is
/// reported as a flaw.
async fn scrub_stores(config: &Config, report: &mut ScrubReport) {
    let mut stores = Vec::new();
    let of_workspaces = config.workspaces().and_then(|workspaces| Ok(workspaces.objects.open(&config::variable)?));
    match of_workspaces {
        Ok(objects) => stores.push(objects),
        Err(error) => report.note("the snapshots of workspaces", format!("{error:#}")),
    }
    if let Some(studio) = crate::studio::own_objects(config) {
        match Objects::disk(&studio) {
            Ok(objects) => stores.push(objects),
            Err(error) => report.note("the snapshots of the studio", error),
        }
    }
    for objects in stores {
        if let Err(error) = ::backup::scrub_checkpoints(objects, report).await {
            report.note("a store of snapshots", text::error_chain(&error));
        }
    }
}
