//! A program's parent cgroup at the root of the cgroup trees, and the groups below it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::ceiling::disks_are_weighed;
use super::group::{Place, Places};
use super::mounts::controllers_in;
use super::{Cgroup, CgroupError, CgroupLimits, Controller, Mounts, files};

/// The parent cgroup in every tree that a group's limits need.
#[derive(Debug, Clone)]
pub struct Hierarchy {
    places: Places,
}

/// Controllers without which a group would have no limits.
const REQUIRED: [Controller; 3] = [Controller::Memory, Controller::Cpu, Controller::Pids];

impl Hierarchy {
    /// Creates or opens the cgroup `group` at the root of this machine's trees.
    /// # Errors
    /// [`CgroupError::Unsupported`] when a controller is missing, with what to do about it.
    pub fn open(group: &str) -> Result<Self, CgroupError> {
        let mounts = Mounts::detect().map_err(CgroupError::io("read /proc/self/mountinfo"))?;
        Self::with_mounts(group, &mounts)
    }

    /// As [`Hierarchy::open`] with the trees given: a part of the machine's, or a stand-in.
    pub fn with_mounts(group: &str, mounts: &Mounts) -> Result<Self, CgroupError> {
        check_name(group)?;
        let places = Places::choose(mounts)?.below(group);
        for directory in places.directories() {
            match fs::create_dir(directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(CgroupError::io(format!("make cgroup {}", directory.display()))(error));
                }
                _ => {}
            }
        }
        if let (Some(root), Some(own)) = (&mounts.unified, places.unified_with_controllers()) {
            let wanted = places.unified_controllers();
            hand_down(root, &wanted)?;
            hand_down(own, &wanted)?;
            if mounts.unified_controllers().contains(&Controller::Io) && disks_are_weighed(root) {
                // Without it disks are shared by the order of requests, as before.
                let _ = hand_down(root, &[Controller::Io]).and_then(|()| hand_down(own, &[Controller::Io]));
            }
        }
        Ok(Self { places })
    }

    pub(super) fn places(&self) -> &Places {
        &self.places
    }

    /// Creates the group `name` with its limits. Reuses one that is left over without
    /// processes.
    /// # Errors
    /// [`CgroupError::Exists`] when a cgroup of that name has processes.
    pub fn create(&self, name: &str, limits: &CgroupLimits) -> Result<Cgroup, CgroupError> {
        check_name(name)?;
        let group = Cgroup::new(name.to_owned(), self.places.below(name));
        self.prepare(&group, limits).inspect_err(|error| {
            // An incomplete cgroup limits nothing. The next sweep removes what cannot be removed
            // now.
            if !matches!(error, CgroupError::Exists(_)) {
                let _ = group.remove();
            }
        })?;
        Ok(group)
    }

    fn prepare(&self, group: &Cgroup, limits: &CgroupLimits) -> Result<(), CgroupError> {
        for directory in group.places().directories() {
            make_fresh(group.name(), directory)?;
        }
        group.set_limits(limits)?;
        // A reused one may have been left frozen.
        group.thaw()
    }

    /// The group `name`, if it exists in any tree.
    pub fn open_existing(&self, name: &str) -> Option<Cgroup> {
        check_name(name).ok()?;
        let group = Cgroup::new(name.to_owned(), self.places.below(name));
        group.places().directories().iter().any(|directory| directory.is_dir()).then_some(group)
    }

    /// Names of all groups that exist in any tree.
    pub fn list(&self) -> Vec<String> {
        let mut names = BTreeSet::new();
        for directory in self.places.directories() {
            let Ok(entries) = fs::read_dir(directory) else { continue };
            let groups = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            names.extend(groups.filter_map(|entry| entry.file_name().into_string().ok()));
        }
        names.into_iter().collect()
    }

    /// Removes the parent cgroup where no group is left in it; returns whether no directory of it
    /// remains.
    pub fn remove_root_if_empty(&self) -> bool {
        let mut gone = true;
        for directory in self.places.directories() {
            match fs::remove_dir(directory) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => gone = false,
                _ => {}
            }
        }
        gone
    }
}

/// Creates the directory again, so that its counters start at zero. One that the kernel does not
/// remove yet but that has no processes is used as it is.
fn make_fresh(name: &str, directory: &Path) -> Result<(), CgroupError> {
    let failed = |error| CgroupError::io(format!("make cgroup {}", directory.display()))(error);
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => return other.map_err(failed),
    }
    if fs::remove_dir(directory).is_ok() {
        return fs::create_dir(directory).map_err(failed);
    }
    if files::read(&directory.join("cgroup.procs"))?.trim().is_empty() {
        return Ok(());
    }
    Err(CgroupError::Exists(name.to_owned()))
}

/// Enables `controllers` for the children of the cgroup2 directory.
pub(super) fn hand_down(directory: &Path, controllers: &[Controller]) -> Result<(), CgroupError> {
    let file = directory.join("cgroup.subtree_control");
    let given = controllers_in(&file);
    let missing = controllers.iter().filter(|controller| !given.contains(controller));
    let order = missing.map(|controller| format!("+{controller}")).collect::<Vec<_>>().join(" ");
    if order.is_empty() {
        return Ok(());
    }
    files::write_raw(&file, &order).map_err(|source| match source.raw_os_error() {
        // The kernel allows this only for cgroups without processes of their own, the true root
        // excepted.
        Some(libc::EBUSY) => CgroupError::Unsupported {
            what: format!("{} has processes of its own and cannot hand down its controllers", directory.display()),
            fix: "run outside the container, or start it with the host's cgroup namespace (docker run --cgroupns=host)"
                .into(),
        },
        _ => CgroupError::io(format!("write {order:?} to {}", file.display()))(source),
    })
}

fn check_name(name: &str) -> Result<(), CgroupError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    // No dot, so that a name can neither leave the directory nor collide with the kernel's own
    // files such as `cgroup.procs`.
    if !name.is_empty() && name.len() <= 200 && name.chars().all(plain) {
        return Ok(());
    }
    Err(CgroupError::InvalidName(name.to_owned()))
}

pub(super) fn suffice(mounts: &Mounts) -> bool {
    Places::choose(mounts).is_ok()
}

impl Places {
    /// Picks a tree for each controller: v1 where it is mounted there, else cgroup2.
    fn choose(mounts: &Mounts) -> Result<Self, CgroupError> {
        let v2 = mounts.unified_controllers();
        let pick = |controller: Controller| -> Option<Place> {
            match (mounts.v1.get(&controller), &mounts.unified) {
                (Some(path), _) => Some(Place::V1(path.clone())),
                (None, Some(root)) if v2.contains(&controller) => Some(Place::V2(root.clone())),
                _ => None,
            }
        };
        let require = |controller: Controller| {
            pick(controller).ok_or_else(|| CgroupError::Unsupported {
                what: format!("no tree offers the {controller} controller"),
                fix: missing_controller(controller),
            })
        };
        let [memory, cpu, pids] = REQUIRED.map(require);
        let freezer = mounts.v1.get(&Controller::Freezer).cloned();
        let cpuacct = mounts.v1.get(&Controller::Cpuacct).cloned();
        if mounts.unified.is_none() && (freezer.is_none() || cpuacct.is_none()) {
            return Err(CgroupError::Unsupported {
                what: "nothing can freeze or count processor time".into(),
                fix: MOUNT_UNIFIED.into(),
            });
        }
        // A cgroup2 tree freezes, kills and counts time, so the v1 trees for that are not used
        // beside it.
        let without_unified = |path: Option<PathBuf>| if mounts.unified.is_some() { None } else { path };
        Ok(Self {
            memory: memory?,
            cpu: cpu?,
            pids: pids?,
            unified: mounts.unified.clone(),
            freezer: without_unified(freezer),
            cpuacct: without_unified(cpuacct),
        })
    }
}

pub(crate) const MOUNT_UNIFIED: &str =
    "mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified";

/// What enables a controller that no tree offers. `/proc/cgroups` distinguishes a disabled
/// controller from one that is not mounted.
pub(crate) fn missing_controller(controller: Controller) -> String {
    let table = fs::read_to_string("/proc/cgroups").unwrap_or_default();
    let enabled = table.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(controller.name())).then(|| words.nth(2) == Some("1"))
    });
    match enabled {
        Some(false) => format!("boot with the kernel parameter cgroup_enable={controller}"),
        Some(true) => format!(
            "mkdir -p /sys/fs/cgroup/{controller} && mount -t cgroup -o {controller} cgroup /sys/fs/cgroup/{controller}"
        ),
        None => format!("use a kernel that is built with the {controller} cgroup controller"),
    }
}
