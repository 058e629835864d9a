//! Gathers everything that the checks read, as plain values.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cgroup::{Ceiling, CgroupError, CgroupLimits, Hierarchy, Mounts};
use launcher::trial::Trial;
use launcher::users::Ids;
use rustix::process::{Resource, getrlimit};

use super::programs::{self, Missing};
use super::trial;
use crate::delegation;
use crate::pool::{Forecast, forecast};
use crate::privilege::Privilege;

/// Why something does not work, and what fixes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) found: String,
    pub(super) fix: String,
}

#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// The output of `uname -r`.
    pub(super) release: String,
    pub(super) is_root: bool,
    /// `None` for root.
    pub(super) rootless: Option<Privilege>,
    /// Effective capabilities, one bit each.
    pub(super) capabilities: u64,
    /// `None`: the kernel has no user namespaces.
    pub(super) max_user_namespaces: Option<u64>,
    /// The error is the reason why nothing could be tried.
    pub(super) trial: Result<Trial, String>,
    pub(super) cgroups: Result<String, Problem>,
    pub(super) freezer: Result<String, Problem>,
    /// What limits all sandboxes together, or why nothing does.
    pub(super) together: Result<String, String>,
    /// Limit of descriptors that a server can have.
    pub(super) descriptors: u64,
    pub(super) has_tun_node: bool,
    pub(super) data: PathBuf,
    pub(super) disk: Result<Forecast, String>,
    pub(super) missing_programs: Vec<Missing>,
    pub(super) tls_roots: Option<PathBuf>,
    pub(super) has_apt: bool,
    /// Where the host's kernel sends core dumps.
    pub(super) core_pattern: String,
}

impl Facts {
    pub(super) fn gather(data: &Path) -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let privilege = Privilege::detect();
        let (cgroups, freezer) = if privilege.is_root() { try_cgroups() } else { find_delegated() };
        let together = if privilege.is_root() { try_ceiling() } else { predict_ceiling(cgroups.is_ok()) };
        let capabilities = effective_capabilities(&status);
        let trial = trial::run().map_err(|error| error.to_string());
        Self {
            release: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            is_root: rustix::process::geteuid().is_root(),
            rootless: rootless(privilege, trial.as_ref().ok()),
            capabilities,
            max_user_namespaces: fs::read_to_string("/proc/sys/user/max_user_namespaces")
                .ok()
                .and_then(|text| text.trim().parse().ok()),
            trial,
            cgroups,
            freezer,
            together,
            descriptors: descriptors(capabilities),
            has_tun_node: Path::new("/dev/net/tun").exists(),
            data: data.to_owned(),
            disk: forecast(data).map_err(|error| error.to_string()),
            missing_programs: programs::missing(Path::new("/")),
            tls_roots: programs::tls_roots(Path::new("/")),
            has_apt: Path::new("/usr/bin/apt-get").exists(),
            core_pattern: fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default().trim().to_owned(),
        }
    }
}

/// The privilege of the server that would be started: a user with subordinate ids gets them at its
/// start.
fn rootless(privilege: Privilege, trial: Option<&Trial>) -> Option<Privilege> {
    match trial.and_then(|trial| trial.ids.as_ref()) {
        Some(Ids::Subordinate { .. }) => Some(Privilege::Subordinate),
        Some(Ids::Single { .. }) => Some(Privilege::Single),
        None => Some(privilege).filter(|privilege| !privilege.is_root()),
    }
}

fn find_delegated() -> (Result<String, Problem>, Result<String, Problem>) {
    let mounts = Mounts::find_delegated().ok().flatten();
    let cgroups = mounts.as_ref().map(|mounts| format!("delegated to this user: {}", mounts.describe()));
    let lacks = || Problem { found: delegation::UNLIMITED.to_owned(), fix: delegation::DELEGATE.to_owned() };
    let freezer = if mounts.is_some() { "the delegated cgroup" } else { "signals (SIGSTOP, SIGCONT)" };
    (cgroups.ok_or_else(lacks), Ok(freezer.to_owned()))
}

/// Sets the limits of all sandboxes on a cgroup without any.
fn try_ceiling() -> Result<String, String> {
    let ceiling = Ceiling::of_this_machine().map_err(|error| error.to_string())?;
    let name = format!("sandbar-probe-all-{}", std::process::id());
    let hierarchy = Hierarchy::open(&name).map_err(|error| cgroup_problem(&error).found)?;
    let limited = hierarchy.limit_together(ceiling).map_err(|error| cgroup_problem(&error).found);
    hierarchy.remove_root_if_empty();
    limited.map(|()| describe_ceiling(ceiling))
}

fn predict_ceiling(delegated: bool) -> Result<String, String> {
    if !delegated {
        return Err(delegation::UNLIMITED.to_owned());
    }
    Ceiling::of_this_machine().map(describe_ceiling).map_err(|error| error.to_string())
}

fn describe_ceiling(Ceiling { memory, pids }: Ceiling) -> String {
    format!("all sandboxes together have at most {pids} processes and {} MiB of memory", memory >> 20)
}

/// The hard limit, or the kernel's where this process may raise the hard one.
fn descriptors(capabilities: u64) -> u64 {
    const SYS_RESOURCE: u32 = 24;
    let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let most = fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    if capabilities & (1 << SYS_RESOURCE) == 0 { hard } else { most.unwrap_or(hard) }
}

fn effective_capabilities(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0)
}

/// Creates a cgroup with limits, freezes it and removes it.
fn try_cgroups() -> (Result<String, Problem>, Result<String, Problem>) {
    let mounts = match Mounts::detect() {
        Ok(mounts) => mounts,
        Err(error) => {
            let problem = Problem { found: error.to_string(), fix: "mount -t proc proc /proc".into() };
            return (Err(problem.clone()), Err(problem));
        }
    };
    let name = format!("sandbar-probe-{}", std::process::id());
    let hierarchy = match Hierarchy::with_mounts(&name, &mounts) {
        Ok(hierarchy) => hierarchy,
        Err(error) => {
            let problem = cgroup_problem(&error);
            return (Err(problem.clone()), Err(problem));
        }
    };
    let limits = CgroupLimits { cpu_count: 1, memory_mb: 64, pids: 8 };
    let outcome = match hierarchy.create("probe", &limits) {
        Ok(group) => {
            let frozen = group.freeze().and_then(|()| group.thaw());
            // What is left of it is empty; the next server's sweep removes it.
            let _ = group.remove();
            let with = if mounts.unified.is_some() { "cgroup2 (cgroup.freeze)" } else { "v1 (freezer.state)" };
            (Ok(mounts.describe()), frozen.map(|()| with.to_owned()).map_err(|error| cgroup_problem(&error)))
        }
        Err(error) => {
            let problem = cgroup_problem(&error);
            (Err(problem.clone()), Err(problem))
        }
    };
    hierarchy.remove_root_if_empty();
    outcome
}

fn cgroup_problem(error: &CgroupError) -> Problem {
    let denied = |source: &io::Error| source.kind() == io::ErrorKind::PermissionDenied;
    let fix = match error {
        CgroupError::Unsupported { what, fix } => return Problem { found: what.clone(), fix: fix.clone() },
        CgroupError::Io { source, .. } if denied(source) => super::checks::RUN_AS_ROOT,
        CgroupError::Io { source, .. } if source.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            "mount -o remount,rw /sys/fs/cgroup (in a container: docker run --privileged --cgroupns=host)"
        }
        _ => "see `dmesg | tail`, and restart the machine if a cgroup cannot be frozen or removed",
    };
    let found = match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    Problem { found, fix: fix.to_owned() }
}
