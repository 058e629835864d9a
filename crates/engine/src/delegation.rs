//! Finds the cgroups in which this process may create sandboxes. Root has the machine's trees.
//! Another user has what was delegated to it: the process's own cgroup, where the user owns its
//! directory (`systemd-run --user --scope -p Delegate=yes`). Without one, sandboxes have no limits
//! but those of [`crate::processes`]; the probe, the log and the API report that.
//!
//! The next server may be started in another cgroup, so the mount points are written to a file
//! beside the sockets as long as sandboxes are in them.

use std::fs;
use std::io;
use std::path::Path;

use cgroup::{Ceiling, CgroupError, Hierarchy, Mounts};
use tracing::{info, warn};

use crate::error::NamespacesError;
use crate::group::Groups;
use crate::privilege::Privilege;
use crate::processes::Register;
use crate::rootless::Identity;

/// Why there are no limits.
pub(crate) const UNLIMITED: &str = "no cgroup was delegated to this user: processor time and memory are not limited";
/// The command that delegates a cgroup where systemd runs the user's sessions.
pub(crate) const DELEGATE: &str =
    "systemd-run --user --scope -p Delegate=yes sandbar up (cgroup v2 with systemd), or sudo sandbar up";

const NOTE: &str = "cgroups.json";
/// The server moves itself in here, so that its own cgroup can hand down controllers.
const LEAF: &str = "sandbar-server";

pub(crate) fn groups(privilege: Privilege, identity: Identity, runtime: &Path) -> Result<Groups, NamespacesError> {
    let name = identity.to_string();
    if privilege.is_root() {
        let hierarchy = Hierarchy::open(&name)?;
        limit_together(&hierarchy);
        return Ok(Groups::Cgroups(hierarchy));
    }
    let note = runtime.join(NOTE);
    let noted = fs::read(&note).ok().and_then(|text| serde_json::from_slice::<Mounts>(&text).ok());
    let noted = noted.filter(|mounts| mounts.places().any(|place| place.join(&name).is_dir()));
    let Some(mounts) = noted.or_else(|| Mounts::find_delegated().ok().flatten()) else {
        return Ok(Groups::Processes(Register::new(runtime.to_owned(), identity)));
    };
    match open(&name, &mounts) {
        Ok(hierarchy) => {
            let text = serde_json::to_vec(&mounts).map_err(io::Error::from);
            let noted = text.and_then(|text| fs::create_dir_all(runtime).and_then(|()| fs::write(&note, text)));
            noted.map_err(NamespacesError::io(format!("write {}", note.display())))?;
            limit_together(&hierarchy);
            info!(cgroups = mounts.describe(), "limits go through the cgroup that was delegated to this user");
            Ok(Groups::Cgroups(hierarchy))
        }
        Err(error) => {
            warn!(error = &error as &dyn std::error::Error, "the delegated cgroup cannot be used: {UNLIMITED}");
            Ok(Groups::Processes(Register::new(runtime.to_owned(), identity)))
        }
    }
}

/// Limits all sandboxes together. If that fails, each still has its own limits.
fn limit_together(hierarchy: &Hierarchy) {
    let limited = Ceiling::of_this_machine()
        .map_err(|error| error.to_string())
        .and_then(|ceiling| hierarchy.limit_together(ceiling).map_err(|error| describe(&error)));
    if let Err(error) = limited {
        warn!(error, "sandboxes have limits of their own, but not all of those that hold for all of them together");
    }
}

fn describe(error: &CgroupError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// Removes the file of mount points in which no sandbox is left.
pub(crate) fn forget(runtime: &Path) {
    // If the file stays, the next server finds no cgroup there and detects the trees again.
    let _ = fs::remove_file(runtime.join(NOTE));
}

fn open(name: &str, mounts: &Mounts) -> Result<Hierarchy, CgroupError> {
    match Hierarchy::with_mounts(name, mounts) {
        Err(CgroupError::Unsupported { .. }) if mounts.move_self_to(LEAF).is_ok() => {
            Hierarchy::with_mounts(name, mounts)
        }
        opened => opened,
    }
}
