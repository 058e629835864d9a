//! Predicts the kind of pool that a data directory would get, without creating anything.

use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::statvfs;

use super::quota::Quota;
use super::{ONLY_ROOT, PoolKind, free, has_volumes, image, is_btrfs, reserve, volumes_in};
use crate::privilege::Privilege;

/// What [`super::Pool::open`] would result in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forecast {
    pub kind: PoolKind,
    /// Why disk limits would be soft, and the command or setting that makes them hard.
    pub shortcoming: Option<Shortcoming>,
    /// Free on the host's file system, and the part of it that stays free.
    pub free: u64,
    pub reserve: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortcoming {
    pub what: String,
    pub fix: String,
}

/// Examines the data directory, which need not exist yet.
pub fn forecast(data: &Path) -> io::Result<Forecast> {
    let existing = data.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
    let host = statvfs(existing)?;
    let (kind, shortcoming) = kind(data, existing)?;
    Ok(Forecast { kind, shortcoming, free: free(&host), reserve: reserve(&host) })
}

fn kind(data: &Path, existing: &Path) -> io::Result<(PoolKind, Option<Shortcoming>)> {
    if image::exists(data) {
        return Ok((PoolKind::LoopBtrfs, None));
    }
    if !Privilege::detect().is_root() {
        let (what, fix) = (ONLY_ROOT.to_owned(), "sudo sandbar up".to_owned());
        return Ok((PoolKind::Directory, Some(Shortcoming { what, fix })));
    }
    if is_btrfs(existing)? && Quota::find(existing)?.is_some() {
        return Ok((PoolKind::NativeBtrfs, None));
    }
    if has_volumes(data) {
        let what = format!("{} holds sandboxes that were made without btrfs", volumes_in(data).display());
        let fix = "end them (sandbar down), or use another directory (--data DIR)".to_owned();
        return Ok((PoolKind::Directory, Some(Shortcoming { what, fix })));
    }
    Ok(match missing_for_image() {
        None => (PoolKind::LoopBtrfs, None),
        Some(shortcoming) => (PoolKind::Directory, Some(shortcoming)),
    })
}

/// What prevents an image from being created and mounted.
fn missing_for_image() -> Option<Shortcoming> {
    let lacks = |what: &str, fix: String| Some(Shortcoming { what: what.to_owned(), fix });
    let file_systems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !file_systems.split_whitespace().any(|word| word == "btrfs") {
        return lacks("the kernel has not loaded btrfs", load("btrfs"));
    }
    if !Path::new("/dev/loop-control").exists() {
        return lacks("there are no loop devices", load("loop"));
    }
    if image::mkfs().is_err() {
        return lacks("mkfs.btrfs is not installed", "apt-get install -y btrfs-progs".to_owned());
    }
    None
}

fn load(module: &str) -> String {
    format!("modprobe {module} (at every start: echo {module} >/etc/modules-load.d/{module}.conf)")
}
