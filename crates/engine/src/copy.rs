//! Copies of a sandbox's files, made while no process writes to them, and the limits of the source
//! and of the copy.

use std::io;
use std::path::Path;

use crate::boot::{BootRecord, SandboxBuilder};
use crate::error::NamespacesError;
use crate::pool::Pool;

/// Changes below this are the metadata of an empty volume.
const WORTH_NOTING: u64 = 1 << 20;

impl SandboxBuilder {
    /// Gives `to` a copy of the files of `from`. Blocks.
    pub(crate) fn copy(&self, from: &str, to: &str) -> Result<(), NamespacesError> {
        let limit = self.prepare_copy(from)?;
        let copy = self.pool.copy(from, to, limit)?;
        BootRecord::start_copy(copy.path()).map_err(NamespacesError::io(format!("write the record of volume {to}")))
    }

    /// Raises the allowance of `from` for what a copy will share with it; returns the limit of
    /// both.
    pub(crate) fn prepare_copy(&self, from: &str) -> Result<u64, NamespacesError> {
        let Some(record) = BootRecord::read(&self.pool.path_of(from)) else { return Ok(0) };
        let limit = record.limit_bytes;
        self.allow_for_copies(from, record)
            .map_err(NamespacesError::io(format!("prepare volume {from} for a copy")))?;
        Ok(limit)
    }

    /// The kernel keeps charging to a volume what its copies share with it, so its own limit starts
    /// after that.
    fn allow_for_copies(&self, name: &str, record: BootRecord) -> io::Result<()> {
        let volume = self.pool.existing(name, record.limit_bytes)?;
        if !volume.is_limit_hard() {
            return Ok(());
        }
        let shared_bytes = volume.used_bytes()?;
        if shared_bytes <= record.shared_bytes + WORTH_NOTING {
            return Ok(());
        }
        // The allowance first, since a full volume has no space for the record.
        volume.set_allowance(shared_bytes)?;
        BootRecord { shared_bytes, ..record }.write(volume.path())
    }
}

impl BootRecord {
    /// Resets the allowance: a copy is not charged what it shares with its source.
    pub(crate) fn start_copy(copy: &Path) -> io::Result<()> {
        match Self::read(copy).filter(|record| record.shared_bytes > 0) {
            Some(record) => Self { shared_bytes: 0, ..record }.write(copy),
            None => Ok(()),
        }
    }
}

/// Raises the allowance of the files `name`, which were unpacked from a backup and written out, so
/// that they have as much free space as before. A copy of a template is not charged what it shares
/// with the template; unpacked, it shares nothing and is charged for all of it. The difference is
/// allowed beyond its limit. `charged_before` is what was charged at the backup; `None` counts as
/// 0. Blocks.
pub fn allow_for_restored(pool: &Pool, name: &str, charged_before: Option<u64>) -> io::Result<()> {
    // Volumes that sandboxes mount have no record, and are not copies.
    let Some(record) = BootRecord::read(&pool.path_of(name)) else { return Ok(()) };
    let volume = pool.existing(name, record.limit_bytes)?;
    if !volume.is_limit_hard() {
        return Ok(());
    }
    let more = volume.used_bytes()?.saturating_sub(charged_before.unwrap_or(0));
    if more > 0 {
        let shared_bytes = record.shared_bytes.saturating_add(more).saturating_add(WORTH_NOTING);
        BootRecord { shared_bytes, ..record }.write(volume.path())?;
    }
    Ok(())
}
