//! The processes of a sandbox as one group: a cgroup or, where this process may create none, their
//! PID namespace.

use std::path::{Path, PathBuf};

use cgroup::{Cgroup, CgroupError, CgroupLimits, CgroupUsage, Hierarchy};

use crate::Resources;
use crate::error::NamespacesError;
use crate::processes::{Processes, Register};

/// Where groups are created and found again.
#[derive(Debug, Clone)]
pub(crate) enum Groups {
    Cgroups(Hierarchy),
    Processes(Register),
}

/// The processes of one sandbox. Dropping it changes nothing.
#[derive(Debug, Clone)]
pub(crate) enum Group {
    Cgroup(Cgroup),
    Processes(Processes),
}

impl Groups {
    /// Creates the group of sandbox `name`, with its limits where they can be set.
    pub(crate) fn create(&self, name: &str, limits: &Resources) -> Result<Group, NamespacesError> {
        match self {
            Self::Cgroups(hierarchy) => {
                let Resources { cpu_count, memory_mb, pids, disk_mb: _ } = *limits;
                let limits = CgroupLimits { cpu_count, memory_mb, pids };
                hierarchy.create(name, &limits).map(Group::Cgroup).map_err(|error| match error {
                    CgroupError::Exists(name) => NamespacesError::Running(name),
                    error => error.into(),
                })
            }
            Self::Processes(register) => register.create(name, limits).map(Group::Processes),
        }
    }

    pub(crate) fn open_existing(&self, name: &str) -> Option<Group> {
        match self {
            Self::Cgroups(hierarchy) => hierarchy.open_existing(name).map(Group::Cgroup),
            Self::Processes(register) => register.open_existing(name).map(Group::Processes),
        }
    }

    /// The names of all sandboxes of which anything is left.
    pub(crate) fn list(&self) -> Vec<String> {
        match self {
            Self::Cgroups(hierarchy) => hierarchy.list(),
            Self::Processes(register) => register.list(),
        }
    }

    /// Ends sandboxes that belong to no group. With cgroups there are none.
    pub(crate) fn end_strays(&self) {
        if let Self::Processes(register) = self {
            register.end_strays();
        }
    }

    /// Removes what all groups share if no group is left; returns whether none is.
    pub(crate) fn remove_root_if_empty(&self) -> bool {
        match self {
            Self::Cgroups(hierarchy) => hierarchy.remove_root_if_empty(),
            Self::Processes(register) => register.list().is_empty(),
        }
    }

    /// Whether processor time and memory are limited.
    pub(crate) fn has_limits(&self) -> bool {
        matches!(self, Self::Cgroups(_))
    }
}

impl Group {
    /// Records process 1 as soon as it exists.
    pub(crate) fn record_started(&self, pid: u32) -> Result<(), NamespacesError> {
        match self {
            // The launcher cloned it into the cgroup.
            Self::Cgroup(_) => Ok(()),
            Self::Processes(processes) => processes.record_started(pid),
        }
    }

    pub(crate) fn holds(&self, pid: u32) -> Result<bool, NamespacesError> {
        Ok(self.children()?.contains(&pid))
    }

    /// Processes of the group, among them all that the server may have to reap.
    pub(crate) fn children(&self) -> Result<Vec<u32>, NamespacesError> {
        match self {
            Self::Cgroup(cgroup) => Ok(cgroup.pids()?),
            Self::Processes(processes) => processes.children(),
        }
    }

    /// Kills every process, frozen or not, and returns when none is left.
    pub(crate) fn kill_all(&self) -> Result<(), NamespacesError> {
        match self {
            Self::Cgroup(cgroup) => Ok(cgroup.kill_all()?),
            Self::Processes(processes) => processes.kill_all(),
        }
    }

    /// Removes the group, which must have no processes; absent is success.
    pub(crate) fn remove(&self) -> Result<(), NamespacesError> {
        match self {
            Self::Cgroup(cgroup) => Ok(cgroup.remove()?),
            Self::Processes(processes) => processes.remove(),
        }
    }

    /// Sets the limit of processes, where a cgroup enforces it.
    pub(crate) fn limit_processes(&self, most: u32) -> Result<(), NamespacesError> {
        match self {
            Self::Cgroup(cgroup) => Ok(cgroup.limit_processes(u64::from(most))?),
            Self::Processes(_) => Ok(()),
        }
    }

    pub(crate) fn freeze(&self) -> Result<(), NamespacesError> {
        match self {
            Self::Cgroup(cgroup) => Ok(cgroup.freeze()?),
            Self::Processes(processes) => processes.freeze(),
        }
    }

    pub(crate) fn thaw(&self) -> Result<(), NamespacesError> {
        match self {
            Self::Cgroup(cgroup) => Ok(cgroup.thaw()?),
            Self::Processes(processes) => processes.thaw(),
        }
    }

    pub(crate) fn usage(&self) -> Result<CgroupUsage, NamespacesError> {
        match self {
            Self::Cgroup(cgroup) => Ok(cgroup.usage()?),
            Self::Processes(processes) => processes.usage(),
        }
    }

    pub(crate) fn oom_kills(&self) -> Result<u64, NamespacesError> {
        match self {
            Self::Cgroup(cgroup) => Ok(cgroup.oom_kills()?),
            // Without a limit of its own a sandbox runs out of memory only with the machine.
            Self::Processes(_) => Ok(0),
        }
    }

    /// Files of the v1 trees through which a thread moves itself, and only itself, by writing `0`.
    /// Moving a whole process, as `cgroup.procs` does, stops all forks of the machine for a grace
    /// period of the kernel, milliseconds each time.
    pub(crate) fn tasks_files(&self) -> Vec<PathBuf> {
        let Self::Cgroup(cgroup) = self else { return Vec::new() };
        let first_version = |file: &PathBuf| cgroup.unified() != file.parent();
        cgroup
            .procs_files()
            .iter()
            .filter(|file| first_version(file))
            .map(|file| file.with_file_name("tasks"))
            .collect()
    }

    /// The cgroup2 directory, if there is one.
    pub(crate) fn unified(&self) -> Option<&Path> {
        match self {
            Self::Cgroup(cgroup) => cgroup.unified(),
            Self::Processes(_) => None,
        }
    }
}
