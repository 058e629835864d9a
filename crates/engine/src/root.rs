//! Volumes with a whole root of their own, where other volumes contain what a sandbox changed of
//! the base: the tree is where a sandbox's writes would be, above an empty layer. Copies of such a
//! volume are such volumes, at the same price as any.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cgroup::{Cgroup, CgroupLimits};
use tracing::warn;

use crate::boot::{BootRecord, MOUNT_RESERVE_BYTES, SandboxBuilder, WRITABLE};
use crate::error::NamespacesError;
use crate::group::Groups;
use crate::privilege::Privilege;
use crate::rootfs::{self, MountPlan, Template};

/// In a volume: marks that the root is all its own.
const MARK: &str = "own-root";

/// An empty root to be filled.
#[derive(Debug)]
pub struct NewRoot {
    pub path: PathBuf,
    /// The id on disk of the sandbox's root; its other ids follow. `None`: sandboxes have no id but
    /// that of this process, and all files that it creates are theirs.
    pub first_id: Option<u32>,
    /// The `cgroup.procs` files of a cgroup for a process that fills the root, if this server has
    /// cgroups.
    pub cgroup: Vec<PathBuf>,
}

/// Limits of the process that fills a root. Its memory is limited by its address space, too; here
/// the cache of what it writes counts as well.
const FILLER: CgroupLimits = CgroupLimits { cpu_count: 1, memory_mb: 1536, pids: 16 };

/// Whether the sandbox of this volume has a root of its own.
pub(crate) fn is_own(volume: &Path) -> bool {
    volume.join(MARK).exists()
}

/// The template of such a sandbox. An overlay needs a lower layer: `nothing` is an empty directory.
pub(crate) fn template(nothing: PathBuf) -> Template {
    Template {
        mounts: vec![MountPlan { at: "/".into(), lowers: vec![nothing], of_host: false }],
        env: Default::default(),
    }
}

impl SandboxBuilder {
    /// Creates a volume whose root `fill` fills; returns what that root lacks. Nothing is left when
    /// it fails. Blocks.
    pub(crate) fn make_root<E>(
        &self,
        name: &str,
        limit_bytes: u64,
        fill: impl FnOnce(&NewRoot) -> Result<(), E>,
    ) -> Result<Result<Vec<String>, E>, NamespacesError> {
        let failed = || NamespacesError::io(format!("make the root of volume {name}"));
        let group = FillerGroup::create(&self.groups, name)?;
        let volume = self.pool.create_volume(name, limit_bytes + MOUNT_RESERVE_BYTES)?;
        let root = prepare(volume.path(), self.privilege).map_err(failed());
        let root = root.map(|root| NewRoot { cgroup: group.procs_files(), ..root });
        let made = root.and_then(|root| match fill(&root) {
            Err(error) => Ok(Err(error)),
            Ok(()) => {
                let lacks = rootfs::furnish(&root.path, self.privilege).map_err(failed())?;
                let record = BootRecord { layers: Default::default(), limit_bytes, shared_bytes: 0, pids: None };
                // The mark last: the sweep removes an incomplete root of a killed server, which is
                // never taken for a complete one.
                record
                    .write(volume.path())
                    .and_then(|()| fs::write(volume.path().join(MARK), ""))
                    .and_then(|()| self.pool.commit())
                    .map_err(failed())?;
                Ok(Ok(lacks))
            }
        });
        if !matches!(made, Ok(Ok(_))) {
            self.pool.remove(name)?;
        }
        made
    }
}

/// A cgroup for the process that fills a root, beside those of the sandboxes: a sweep ends what a
/// killed server has left in it. Dropping it ends the process and removes the cgroup.
struct FillerGroup(Option<Cgroup>);

impl FillerGroup {
    fn create(groups: &Groups, name: &str) -> Result<Self, NamespacesError> {
        match groups {
            Groups::Cgroups(hierarchy) => Ok(Self(Some(hierarchy.create(name, &FILLER)?))),
            Groups::Processes(_) => Ok(Self(None)),
        }
    }

    fn procs_files(&self) -> Vec<PathBuf> {
        self.0.as_ref().map(Cgroup::procs_files).unwrap_or_default()
    }
}

impl Drop for FillerGroup {
    fn drop(&mut self) {
        if let Some(group) = &self.0
            && let Err(error) = group.kill_all().and_then(|()| group.remove())
        {
            warn!(error = &error as &dyn std::error::Error, "the cgroup of an unpacker is left until the next start");
        }
    }
}

/// Creates the directory of the root, with those that an overlay needs beside it.
fn prepare(volume: &Path, privilege: Privilege) -> io::Result<NewRoot> {
    let overlay = volume.join(WRITABLE).join("root");
    for (path, mode) in [
        (volume.join(WRITABLE), 0o755),
        (overlay.clone(), 0o700),
        (overlay.join("upper"), 0o755),
        (overlay.join("work"), 0o700),
    ] {
        fs::create_dir(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    let path = overlay.join("upper");
    privilege.give(&path, 0, 0)?;
    let first_id = (privilege != Privilege::Single).then(|| privilege.id_on_disk(0));
    Ok(NewRoot { path, first_id, cgroup: Vec::new() })
}
