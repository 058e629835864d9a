//! Reads all stored data again and compares it with its checksums, so that damage
//! by a disk is found while a backup still has the data.

use crate::Sources;
use crate::error::{During as _, Result};
use crate::source::{MAX_PATH_BYTES, OpenPool, OpenTree, is_too_long};
use checkpoint::{CheckpointCondition, Checkpoints, ObjectKey, Objects, ProjectId};
use rustix::fs::{Advice, fadvise};
use serde::Serialize;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Inode number of the root directory of every btrfs subvolume.
const SUBVOLUME_INODE: u64 = 256;

/// Damage that was found.
#[derive(Debug, Serialize)]
pub struct FoundFlaw {
    pub what: String,
    pub flaw: String,
}

/// What was read again, and what was found.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ScrubReport {
    pub databases: usize,
    pub pool_bytes: u64,
    pub snapshots: usize,
    pub flaws: Vec<FoundFlaw>,
    /// Data without a checksum, which was not compared.
    pub not_checked: Vec<String>,
}

impl ScrubReport {
    pub fn note(&mut self, what: impl Into<String>, flaw: impl std::fmt::Display) {
        self.flaws.push(FoundFlaw { what: what.into(), flaw: flaw.to_string() });
    }
}

/// Reads the databases and the pool again, and reports what differs from its checksum.
///
/// # Errors
/// [`BackupError`](crate::BackupError) if a check cannot be made; damage is no error.
pub async fn scrub(sources: &Sources, report: &mut ScrubReport) -> Result<()> {
    scrub_databases(sources, report).await?;
    scrub_pool(&sources.data, report)
}

async fn scrub_databases(sources: &Sources, report: &mut ScrubReport) -> Result<()> {
    for file in sources.files()?.into_iter().filter(|file| file.database) {
        report.databases += 1;
        if let Err(error) = database::verify(&file.path).await {
            report.note(file.path.display().to_string(), text::error_chain(&error));
        }
    }
    Ok(())
}

fn scrub_pool(data: &Path, report: &mut ScrubReport) -> Result<()> {
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
    let done = done.during(|| "cannot run `btrfs` (package btrfs-progs)".to_owned())?;
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
fn read_all(root: &Path, report: &mut ScrubReport) -> Result<u64> {
    let (tree, mut left, mut read, mut too_long) = (OpenTree::open(root)?, vec![PathBuf::new()], 0, false);
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

/// Verifies the checkpoints of an object store.
///
/// # Errors
/// [`BackupError`](crate::BackupError) if the store does not answer.
pub async fn scrub_checkpoints(objects: Objects, report: &mut ScrubReport) -> Result<()> {
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
