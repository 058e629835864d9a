//! Volumes that hold a whole root of their own, where others hold what a sandbox changed of the base: the tree lies where a sandbox's writes
//! would, above nothing. Copies of such a volume are such volumes, at the same price as any.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::boot::{ROOM_TO_MOUNT, Record, WRITABLE, Workshop};
use crate::error::EngineError;
use crate::rootfs::{self, MountPlan, Template};
use crate::standing::Standing;

/// In a volume: says that the root is all its own.
const MARK: &str = "own-root";

/// An empty root that is to be filled.
#[derive(Debug)]
pub struct NewRoot {
    pub path: PathBuf,
    /// Which id files of the sandbox's root have here, with those of its others counted from there. None: sandboxes have no id but
    /// that of this process, and whatever it makes is theirs.
    pub first_id: Option<u32>,
}

/// Whether the sandbox whose volume this is has a root of its own.
pub(crate) fn is_own(volume: &Path) -> bool {
    volume.join(MARK).exists()
}

/// What such a sandbox boots from. An overlay needs something beneath: `nothing` is an empty directory.
pub(crate) fn template(nothing: PathBuf) -> Template {
    Template {
        mounts: vec![MountPlan { at: "/".into(), lowers: vec![nothing], of_host: false }],
        env: Default::default(),
    }
}

impl Workshop {
    /// Makes a volume whose root `fill` fills; says what that root lacks. Nothing is left when it fails. Blocks.
    pub(crate) fn make_root<E>(
        &self,
        name: &str,
        limit_bytes: u64,
        fill: impl FnOnce(&NewRoot) -> Result<(), E>,
    ) -> Result<Result<Vec<String>, E>, EngineError> {
        let volume = self.pool.create_volume(name, limit_bytes + ROOM_TO_MOUNT)?;
        let failed = || EngineError::io(format!("make the root of volume {name}"));
        let root = prepare(volume.path(), self.standing).map_err(failed());
        let made = root.and_then(|root| match fill(&root) {
            Err(error) => Ok(Err(error)),
            Ok(()) => {
                let lacks = rootfs::furnish(&root.path, self.standing).map_err(failed())?;
                let record = Record { layers: Default::default(), limit_bytes, shared_bytes: 0 };
                // The mark last: what a killed server left half done is swept, and never taken for whole.
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

/// The place of the root, with what an overlay wants beside it.
fn prepare(volume: &Path, standing: Standing) -> io::Result<NewRoot> {
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
    standing.give(&path, 0, 0)?;
    let first_id = (standing != Standing::Single).then(|| standing.id_on_disk(0));
    Ok(NewRoot { path, first_id })
}
