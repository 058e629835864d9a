//! Copies of a sandbox's files, made while no process writes to them, and what copies mean for limits.

use std::io;

use crate::boot::{Record, Workshop};
use crate::error::EngineError;
use crate::pool::Pool;

/// Less than this is what an empty volume is charged for its own administration.
const WORTH_NOTING: u64 = 1 << 20;

impl Workshop {
    /// Gives `to` a copy of the files of `from`. Blocks.
    pub(crate) fn copy(&self, from: &str, to: &str) -> Result<(), EngineError> {
        let record = Record::read(&self.pool.path_of(from));
        let limit = record.as_ref().map_or(0, |record| record.limit_bytes);
        if let Some(record) = record {
            self.allow_for_copies(from, record)
                .map_err(EngineError::io(format!("prepare volume {from} for a copy")))?;
        }
        let copy = self.pool.copy(from, to, limit)?;
        if let Some(record) = Record::read(copy.path()).filter(|record| record.shared_bytes > 0) {
            let written = Record { shared_bytes: 0, ..record }.write(copy.path());
            written.map_err(EngineError::io(format!("write the record of volume {to}")))?;
        }
        Ok(())
    }

    /// What a copy holds stays charged to its source: the source's own limit begins after that.
    fn allow_for_copies(&self, name: &str, record: Record) -> io::Result<()> {
        let volume = self.pool.existing(name, record.limit_bytes)?;
        if !volume.is_limit_hard() {
            return Ok(());
        }
        let shared_bytes = volume.used_bytes()?;
        if shared_bytes <= record.shared_bytes + WORTH_NOTING {
            return Ok(());
        }
        // First, since a full volume has no room for the record.
        volume.set_allowance(shared_bytes)?;
        Record { shared_bytes, ..record }.write(volume.path())
    }
}

/// Gives the files `name`, which were unpacked from a backup and written out, as much room as they had. A copy of a template
/// is not charged what it shares with the template; unpacked, it shares nothing and is charged for all of it. The
/// difference is allowed beyond its limit. `charged_before` is what was charged at the backup; unknown counts as nothing.
/// Blocks.
pub fn allow_for_restored(pool: &Pool, name: &str, charged_before: Option<u64>) -> io::Result<()> {
    // Volumes that sandboxes mount have no record, and are no copies.
    let Some(record) = Record::read(&pool.path_of(name)) else { return Ok(()) };
    let volume = pool.existing(name, record.limit_bytes)?;
    if !volume.is_limit_hard() {
        return Ok(());
    }
    let more = volume.used_bytes()?.saturating_sub(charged_before.unwrap_or(0));
    if more > 0 {
        let shared_bytes = record.shared_bytes.saturating_add(more).saturating_add(WORTH_NOTING);
        Record { shared_bytes, ..record }.write(volume.path())?;
    }
    Ok(())
}
