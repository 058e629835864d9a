//! `sandbar restore`: makes a data directory from a backup.

use super::BackupTarget;
use crate::{config, runtime};
use ::backup::{BackupContents, BackupManifest};
use anyhow::Context as _;
use checkpoint::Objects;
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Make a data directory from a backup; nothing is written before all of it was verified.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar restore /mnt/backup --data /var/lib/sandbar
  sandbar restore s3://BUCKET/sandbar --data DIR --at 20261118T051500Z
  sandbar restore /mnt/backup --list             the backups there are, oldest first
  sandbar restore /mnt/backup --verify           reads all of the newest, writes nothing

Then `sandbar up --data DIR` serves what was there: volumes, templates, sandboxes (without their \
processes), workspaces, the studio with its jobs. The directory must be absent or empty.")]
pub(crate) struct Restore {
    #[command(flatten)]
    target: BackupTarget,
    /// The data directory to be made
    #[arg(long, value_name = "DIR", required_unless_present_any = ["list", "verify"])]
    data: Option<PathBuf>,
    /// Where records and snapshots of workspaces go, if they were not below the data directory
    /// [default: $XDG_DATA_HOME/sandbar/workspaces]
    #[arg(long, value_name = "DIR")]
    workspaces: Option<PathBuf>,
    /// Which backup [default: the newest]
    #[arg(long, value_name = "STAMP")]
    at: Option<String>,
    /// Name the backups there are
    #[arg(long, conflicts_with_all = ["data", "at", "verify"])]
    list: bool,
    /// Read and check the backup only
    #[arg(long, conflicts_with = "data")]
    verify: bool,
    /// Print JSON for programs
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    contents: &'a BackupContents,
    data: Option<&'a Path>,
}

impl Restore {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        crate::logging::start_if_wanted()?;
        let target = self.target.open(false)?;
        if self.list {
            return runtime::block_on(self.print_list(&target));
        }
        if let Some(data) = &self.data {
            ::backup::prepare(data)?;
            // Before any thread is started: a thread that exists already would stay outside of the
            // namespaces.
            engine::enter_private_mounts(data).context("cannot make namespaces")?;
        }
        runtime::block_on(async {
            let manifest = BackupManifest::load(&target, self.at.as_deref()).await?;
            let manifest = manifest.with_context(|| format!("there is no backup in {}", self.target.target))?;
            if self.data.is_some() {
                ::backup::check_ids(&manifest)?;
            }
            ::backup::verify(&target, &manifest).await?;
            if let Some(data) = &self.data {
                let workspaces = self.workspaces.clone().map_or_else(config::workspaces_directory, Ok)?;
                ::backup::restore(&target, &manifest, data, &workspaces, |line| eprintln!("{line}")).await?;
            }
            self.print(&manifest)
        })
    }

    async fn print_list(&self, target: &Objects) -> anyhow::Result<()> {
        let stamps = BackupManifest::stamps(target).await?;
        if self.json {
            println!("{}", serde_json::to_string(&stamps)?);
        } else {
            stamps.iter().for_each(|stamp| println!("{stamp}"));
        }
        Ok(())
    }

    fn print(&self, manifest: &BackupManifest) -> anyhow::Result<()> {
        let contents = manifest.contents();
        if self.json {
            println!("{}", serde_json::to_string(&Report { contents: &contents, data: self.data.as_deref() })?);
            return Ok(());
        }
        let BackupContents { backup, files, volumes, bytes, .. } = &contents;
        match &self.data {
            Some(data) => println!(
                "restored backup {backup} ({files} files, {volumes} volumes); `sandbar up --data {}` serves it",
                data.display()
            ),
            None => println!("backup {backup} is whole: {files} files, {volumes} volumes, {bytes} bytes"),
        }
        for name in &contents.inconsistent_volumes {
            println!("inconsistent: files of volume {name} changed while they were backed up");
        }
        for one in &contents.not_included {
            println!("not in the backup: {one}");
        }
        Ok(())
    }
}
