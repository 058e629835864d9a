//! `sandbar scrub`: reads all stored data again and compares it with its checksums, so that damage
//! by a disk is found while a backup still has the data.

use super::source::{MAX_PATH_BYTES, OpenPool, Tree, is_too_long};
use crate::config::{self, Config, Overrides};
use crate::runtime;
use anyhow::{Context as _, bail};
use checkpoint::{CheckpointCondition, Checkpoints, ObjectKey, Objects, ProjectId};
use clap::Args;
use rustix::fs::{Advice, fadvise};
use serde::Serialize;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Inode number of the root directory of every btrfs subvolume.
const SUBVOLUME_INODE: u64 = 256;

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

#[derive(Debug, Serialize)]
struct Flaw {
    what: String,
    flaw: String,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    databases: usize,
    pool_bytes: u64,
    snapshots: usize,
    flaws: Vec<Flaw>,
    /// Data without a checksum, which was not compared.
    not_checked: Vec<String>,
}

impl Report {
    fn note(&mut self, what: impl Into<String>, flaw: impl std::fmt::Display) {
        self.flaws.push(Flaw { what: what.into(), flaw: flaw.to_string() });
    }
}

impl Scrub {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        crate::logging::start_if_wanted()?;
        let overrides = Overrides { data: self.data.clone(), ..Overrides::default() };
        let config = Config::load(self.config.as_deref(), &overrides)?;
        if !config.data.is_dir() {
            bail!("there is no data directory {}; --data names another", config.data.display());
        }
        crate::data::check_owner(&config.data)?;
        let data = config.data.canonicalize()?;
        // Before any thread is started: a thread that exists already would stay outside of the
        // namespaces.
        engine::enter_private_mounts(&data).context("cannot make namespaces")?;
        let report = runtime::block_on(async {
            let mut report = Report::default();
            scrub_databases(&data, &mut report).await?;
            scrub_pool(&data, &mut report)?;
            scrub_snapshots(&config, &mut report).await;
            Ok(report)
        })?;
        if self.json {
            println!("{}", serde_json::to_string(&report)?);
        } else {
            report.flaws.iter().for_each(|Flaw { what, flaw }| println!("damaged: {what}: {flaw}"));
            report.not_checked.iter().for_each(|what| println!("not checked: {what}"));
            let Report { databases, pool_bytes, snapshots, flaws, .. } = &report;
            println!(
                "{databases} databases, {pool_bytes} bytes of the pool, {snapshots} snapshots: {} flaws",
                flaws.len()
            );
        }
        Ok(if report.flaws.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

async fn scrub_databases(data: &Path, report: &mut Report) -> anyhow::Result<()> {
    let mut roots = vec![(super::Root::Data, data.to_owned())];
    let workspaces = config::workspaces_directory()?;
    if workspaces.is_dir() && !workspaces.canonicalize()?.starts_with(data) {
        roots.push((super::Root::Workspaces, workspaces));
    }
    for (root, directory) in roots {
        for file in super::source::files_below(root, &directory)?.into_iter().filter(|file| file.database) {
            report.databases += 1;
            if let Err(error) = database::verify(&file.path).await {
                report.note(file.path.display().to_string(), sdk::error_chain(&error));
            }
        }
    }
    Ok(())
}

fn scrub_pool(data: &Path, report: &mut Report) -> anyhow::Result<()> {
    let pool = OpenPool::open(data)?;
    let Some(root) = pool.root() else { return Ok(()) };
    let is_btrfs = root.metadata()?.ino() == SUBVOLUME_INODE && data.join("pool.img").exists();
    if !is_btrfs {
        report.pool_bytes = read_all(root, report)?;
        if !engine::pool::is_btrfs(root)? {
            report.not_checked.push(format!(
                "the content of the pool's files in {}: their file system has no checksums, so that only files that \
                 cannot be read are found",
                root.display()
            ));
        }
        return Ok(());
    }
    let done = Command::new("btrfs").args(["scrub", "start", "-B", "-R", "-r"]).arg(root).output();
    let done = done.context("cannot run `btrfs` (package btrfs-progs)")?;
    let stdout = String::from_utf8_lossy(&done.stdout);
    let counter = |name: &str| {
        let line = stdout.lines().find_map(|line| line.trim().strip_prefix(name)?.trim().strip_prefix(':'))?;
        line.trim().parse::<u64>().ok()
    };
    report.pool_bytes = counter("data_bytes_scrubbed").unwrap_or(0) + counter("tree_bytes_scrubbed").unwrap_or(0);
    let before = report.flaws.len();
    for name in ["read_errors", "csum_errors", "verify_errors", "super_errors", "uncorrectable_errors"] {
        if let Some(count) = counter(name).filter(|count| *count > 0) {
            report.note("the pool", format!("{count} {}", name.replace('_', " ")));
        }
    }
    if report.flaws.len() > before {
        // btrfs counts damaged blocks only. Reading all files finds which of them fail with EIO.
        read_all(root, report)?;
    } else if !done.status.success() {
        report.note("the pool", String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(())
}

/// Reads every file and reports those that cannot be read. Returns how many bytes were read. On a
/// file system without checksums this finds read errors of the device only.
fn read_all(root: &Path, report: &mut Report) -> anyhow::Result<u64> {
    let (tree, mut left, mut read, mut too_long) = (Tree::open(root)?, vec![PathBuf::new()], 0, false);
    while let Some(folder) = left.pop() {
        let entries = match fs::read_dir(tree.path(&folder)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                report.note(in_pool(&folder), error);
                continue;
            }
        };
        for entry in entries {
            let entry = entry?;
            let (kind, path) = (entry.file_type()?, folder.join(entry.file_name()));
            if is_too_long(&path) {
                too_long = true;
            } else if kind.is_dir() {
                left.push(path);
            } else if kind.is_file() {
                match File::open(tree.path(&path)).and_then(read_from_disk) {
                    Ok(bytes) => read += bytes,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => report.note(in_pool(&path), error),
                }
            }
        }
    }
    if too_long {
        report.not_checked.push(format!("files of the pool with paths of {MAX_PATH_BYTES} bytes or more"));
    }
    Ok(read)
}

/// Reads a file to its end and returns its length. Clean pages are dropped from the page cache
/// before, so that the device is read.
fn read_from_disk(mut file: File) -> io::Result<u64> {
    fadvise(&file, 0, None, Advice::DontNeed)?;
    io::copy(&mut file, &mut io::sink())
}

/// The name of a pool's file in the report: its volume and its path there.
fn in_pool(path: &Path) -> String {
    format!("the pool's {}", path.display())
}

/// Verifies the checkpoints of workspaces and of the studio's jobs. A store that does not answer is
/// reported as a flaw.
async fn scrub_snapshots(config: &Config, report: &mut Report) {
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
        if let Err(error) = scrub_store(objects, report).await {
            report.note("a store of snapshots", format!("{error:#}"));
        }
    }
}

async fn scrub_store(objects: Objects, report: &mut Report) -> anyhow::Result<()> {
    let listed = objects.list(&ObjectKey::from("projects")).await?;
    let mut projects: Vec<ProjectId> = listed
        .iter()
        .filter_map(|object| object.location.parts().nth(1).and_then(|part| part.as_ref().parse().ok()))
        .collect();
    projects.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    projects.dedup_by(|a, b| a.as_str() == b.as_str());
    let snapshots = Checkpoints::new(objects);
    for project in projects {
        for one in snapshots.list(&project).await? {
            report.snapshots += 1;
            let name = format!("snapshot {} of {}", one.stamp, project.as_str());
            match snapshots.verify(&project, one.stamp).await? {
                Some(CheckpointCondition::Damaged { reason }) => report.note(name, reason),
                Some(CheckpointCondition::Whole { verified: false, .. }) => {
                    report.note(name, "its archive could not be verified");
                }
                // Verified, or pruned meanwhile.
                Some(CheckpointCondition::Whole { .. }) | None => {}
            }
        }
    }
    Ok(())
}
