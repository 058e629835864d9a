//! Files of sandboxes created ahead of their first boot, on the disk before a create needs them.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use protocol::SandboxId;
use tracing::warn;

use crate::boot::{BootRecord, MOUNT_RESERVE_BYTES, SandboxBuilder, WRITABLE};
use crate::error::NamespacesError;
use crate::files_id::FilesId;

impl SandboxBuilder {
    /// Creates spare files for each of `ids`: empty ones, or copies of the files of `from`.
    /// They are on the disk when this returns. Blocks.
    pub(crate) fn make_spares(&self, ids: &[SandboxId], from: Option<&FilesId>) -> Result<(), NamespacesError> {
        match from {
            Some(from) => ids.iter().try_for_each(|id| self.copy_to_spare(from.as_str(), id.as_str())),
            None => self.create_spares(ids),
        }
    }

    fn create_spares(&self, ids: &[SandboxId]) -> Result<(), NamespacesError> {
        // The boot sets its own limit.
        let made = ids.iter().map(|id| self.pool.create_spare(id.as_str(), MOUNT_RESERVE_BYTES));
        let volumes = made.collect::<Result<Vec<_>, _>>()?;
        for volume in &volumes {
            let path = volume.path();
            fs::create_dir(path.join(WRITABLE)).map_err(NamespacesError::io(format!("make {}", path.display())))?;
        }
        // The first sync commits one transaction with all of them.
        for volume in &volumes {
            let path = volume.path();
            self.pool
                .sync_new(volume, &[])
                .map_err(NamespacesError::io(format!("write {} to the disk", path.display())))?;
        }
        Ok(())
    }

    fn copy_to_spare(&self, from: &str, name: &str) -> Result<(), NamespacesError> {
        let limit = self.prepare_copy(from)?;
        let copy = self.pool.copy_to_spare(from, name, limit)?;
        BootRecord::start_copy(copy.path()).map_err(NamespacesError::io(format!("write the record of volume {name}")))
    }

    /// Reconciles the spares of an earlier server. One in `keep` becomes the files of its sandbox.
    /// Others are removed, but for those that a sandbox may have used before a power cut: they
    /// become files that no record names, which the sweep moves to the trash. What fails is logged
    /// and left. Blocks.
    pub(crate) fn settle_spares(&self, keep: &HashSet<FilesId>) -> Result<(), NamespacesError> {
        let of_this_boot = self.pool.spares_are_of_this_boot();
        for (name, path) in self.pool.spares()? {
            let settled = if !keep.contains(name.as_str()) && (of_this_boot || is_untouched(&path)) {
                self.pool.remove_spare(&name)
            } else {
                self.pool.place_spare(&name).map(drop)
            };
            if let Err(error) = settled {
                warn!(name, %error, "spare files of an earlier server are left in the pool");
            }
        }
        Ok(())
    }
}

/// Whether no sandbox wrote to an empty spare: it may have been mounted for one. A directory that
/// cannot be read may have content.
fn is_untouched(volume: &Path) -> bool {
    // Of a mount.
    let is_unused =
        |directory: &Path| holds_only(directory, |path| !path.ends_with("upper") || holds_only(path, |_| false));
    holds_only(volume, |path| path.ends_with(WRITABLE) && holds_only(path, is_unused))
}

/// Whether it is a directory in which `known` is true of every entry.
fn holds_only(directory: &Path, known: impl Fn(&Path) -> bool) -> bool {
    fs::read_dir(directory).is_ok_and(|mut entries| entries.all(|entry| entry.is_ok_and(|entry| known(&entry.path()))))
}
