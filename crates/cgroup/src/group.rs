//! One group of processes: a directory in each tree that has one of its controllers.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{CgroupError, Controller, files};

/// A freeze takes 0.2 ms; a process in an uninterruptible wait, such as for a dead disk, can delay
/// it without end.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(5);
/// Killing a fork bomb at its limit of processes takes well under a second.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between the last exit and the moment the kernel allows the directory to be removed.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// Period of the processor quota: the scheduler refills it after this time.
pub(super) const CPU_PERIOD_USEC: u64 = 100_000;
/// Processor weight of a group among the others: a tenth of the kernel's default, in v1 and v2. All
/// groups have the same, so that it matters only to those in the background, whose weight the
/// kernel fixes at 3 of 1024. A process of the background that holds a lock of the file system
/// then gets the processor for it ten times as often beside one of the foreground that computes
/// without end, and who waits for the lock waits a tenth as long.
const CPU_SHARES: &str = "102";
const CPU_WEIGHT: &str = "10";

/// The version of a controller's tree, and the cgroup's directory in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    V1(PathBuf),
    V2(PathBuf),
}

impl Place {
    pub(super) fn path(&self) -> &Path {
        let (Self::V1(path) | Self::V2(path)) = self;
        path
    }

    pub(super) fn below(&self, name: &str) -> Self {
        match self {
            Self::V1(path) => Self::V1(path.join(name)),
            Self::V2(path) => Self::V2(path.join(name)),
        }
    }
}

/// The cgroup's directory for each controller; several may be the same.
#[derive(Debug, Clone)]
pub(super) struct Places {
    pub(super) memory: Place,
    pub(super) cpu: Place,
    pub(super) pids: Place,
    /// Freezes, kills and counts processor time where it exists.
    pub(super) unified: Option<PathBuf>,
    /// Both replace `unified`, and are present if that is absent.
    pub(super) freezer: Option<PathBuf>,
    pub(super) cpuacct: Option<PathBuf>,
}

impl Places {
    pub(super) fn below(&self, name: &str) -> Self {
        let join = |path: &Option<PathBuf>| path.as_ref().map(|path| path.join(name));
        Self {
            memory: self.memory.below(name),
            cpu: self.cpu.below(name),
            pids: self.pids.below(name),
            unified: join(&self.unified),
            freezer: join(&self.freezer),
            cpuacct: join(&self.cpuacct),
        }
    }

    /// Each directory once, the cgroup2 one first: it can be killed and frozen as a whole.
    pub(super) fn directories(&self) -> Vec<&Path> {
        let mut all: Vec<&Path> = Vec::with_capacity(6);
        let optional = [&self.unified, &self.freezer, &self.cpuacct].into_iter().flatten().map(PathBuf::as_path);
        for path in optional.chain([self.memory.path(), self.cpu.path(), self.pids.path()]) {
            if !all.contains(&path) {
                all.push(path);
            }
        }
        all
    }

    /// Processor time that the processes of the group and of those below it have used.
    pub(super) fn cpu_time(&self) -> Result<ProcessorTime, CgroupError> {
        match (&self.unified, &self.cpuacct) {
            (Some(path), _) => {
                let text = files::read(&path.join("cpu.stat"))?;
                let value = |key| Duration::from_micros(files::value_of(&text, key));
                Ok(ProcessorTime { total: value("usage_usec"), kernel: value("system_usec") })
            }
            (None, Some(path)) => {
                let value = |file| files::read_number(&path.join(file)).map(Duration::from_nanos);
                Ok(ProcessorTime {
                    total: value("cpuacct.usage")?,
                    kernel: value("cpuacct.usage_sys").unwrap_or_default(),
                })
            }
            (None, None) => unreachable!("Places::choose demands one of the two"),
        }
    }

    /// The controllers that are in the cgroup2 tree.
    pub(super) fn unified_controllers(&self) -> Vec<Controller> {
        [(Controller::Memory, &self.memory), (Controller::Cpu, &self.cpu), (Controller::Pids, &self.pids)]
            .into_iter()
            .filter(|(_, place)| matches!(place, Place::V2(_)))
            .map(|(controller, _)| controller)
            .collect()
    }

    /// The cgroup2 directory, if it has controllers to hand down.
    pub(super) fn unified_with_controllers(&self) -> Option<&Path> {
        if self.unified_controllers().is_empty() { None } else { self.unified.as_deref() }
    }
}

/// Processor time since a cgroup was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ProcessorTime {
    pub(super) total: Duration,
    /// The kernel's part of it.
    pub(super) kernel: Duration,
}

impl ProcessorTime {
    pub(super) fn since(self, earlier: Self) -> Self {
        Self { total: self.total.saturating_sub(earlier.total), kernel: self.kernel.saturating_sub(earlier.kernel) }
    }

    pub(super) fn is_mostly_kernel(self) -> bool {
        self.kernel > self.total / 2
    }
}

/// How much the processes of a cgroup may use together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CgroupLimits {
    /// Whole processors.
    pub cpu_count: u32,
    pub memory_mb: u32,
    /// Processes and threads.
    pub pids: u32,
}

/// What the processes of a cgroup use together at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CgroupUsage {
    /// Processor time since the cgroup was created.
    pub cpu_usec: u64,
    /// Memory that the kernel cannot reclaim without harm: all that is charged but the file cache.
    pub memory_used: u64,
    /// File cache, which the kernel drops when memory is short.
    pub memory_cache: u64,
    pub memory_limit: u64,
    pub pids: u64,
}

/// Handle to one cgroup. Dropping it changes nothing; [`Cgroup::remove`] does.
#[derive(Debug, Clone)]
pub struct Cgroup {
    name: String,
    places: Places,
}

impl Cgroup {
    pub(super) fn new(name: String, places: Places) -> Self {
        Self { name, places }
    }

    pub(super) fn places(&self) -> &Places {
        &self.places
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Files into each of which a pid must be written to move that process into the cgroup; `0`
    /// moves the writer.
    pub fn procs_files(&self) -> Vec<PathBuf> {
        self.places.directories().iter().map(|directory| directory.join("cgroup.procs")).collect()
    }

    /// The cgroup2 directory, if there is one, for `clone3` with `CLONE_INTO_CGROUP`.
    pub fn unified(&self) -> Option<&Path> {
        self.places.unified.as_deref()
    }

    /// Moves process `pid` with all its threads into the cgroup.
    pub fn add(&self, pid: u32) -> Result<(), CgroupError> {
        self.procs_files().iter().try_for_each(|file| files::write(file, &pid.to_string()))
    }

    pub(super) fn set_limits(&self, limits: &CgroupLimits) -> Result<(), CgroupError> {
        let memory = (u64::from(limits.memory_mb) << 20).to_string();
        match &self.places.memory {
            Place::V1(path) => {
                files::write(&path.join("memory.limit_in_bytes"), &memory)?;
                // Limits memory and swap together, so that swapping does not double the limit;
                // absent without swap accounting.
                files::write_if_present(&path.join("memory.memsw.limit_in_bytes"), &memory)?;
                // TCP buffers are charged to a cgroup only once it has a limit for them; absent
                // from kernels that always charge them.
                files::write_if_present(&path.join("memory.kmem.tcp.limit_in_bytes"), &memory)?;
            }
            Place::V2(path) => {
                files::write(&path.join("memory.max"), &memory)?;
                files::write_if_present(&path.join("memory.swap.max"), "0")?;
                // Only the process that the kernel chooses is killed, not the whole group.
                files::write_if_present(&path.join("memory.oom.group"), "0")?;
            }
        }
        if let Place::V1(path) = &self.places.cpu {
            files::write(&path.join("cpu.cfs_period_us"), &CPU_PERIOD_USEC.to_string())?;
        }
        self.set_processor_quota(u64::from(limits.cpu_count) * CPU_PERIOD_USEC)?;
        // A directory that was taken over may be of a group in the background.
        self.set_background(false)?;
        self.limit_processes(u64::from(limits.pids))
    }

    /// Puts the group into the background, or takes it out. Kernels before 5.15 have one class.
    pub(super) fn set_background(&self, background: bool) -> Result<(), CgroupError> {
        let cpu = &self.places.cpu;
        files::write_if_present(&cpu.path().join("cpu.idle"), if background { "1" } else { "0" })?;
        if background {
            return Ok(());
        }
        // The kernel gives a group that leaves the background its default weight.
        match cpu {
            Place::V1(path) => files::write(&path.join("cpu.shares"), CPU_SHARES),
            Place::V2(path) => files::write(&path.join("cpu.weight"), CPU_WEIGHT),
        }
    }

    /// Sets the processor time of each period, in microseconds.
    pub(super) fn set_processor_quota(&self, quota: u64) -> Result<(), CgroupError> {
        match &self.places.cpu {
            Place::V1(path) => files::write(&path.join("cpu.cfs_quota_us"), &quota.to_string()),
            Place::V2(path) => files::write(&path.join("cpu.max"), &format!("{quota} {CPU_PERIOD_USEC}")),
        }
    }

    pub(super) fn processor_quota(&self) -> Result<u64, CgroupError> {
        match &self.places.cpu {
            Place::V1(path) => files::read_number(&path.join("cpu.cfs_quota_us")),
            Place::V2(path) => {
                let text = files::read(&path.join("cpu.max"))?;
                let quota = text.split_whitespace().next().and_then(|word| word.parse().ok());
                // Without a limit.
                Ok(quota.unwrap_or(u64::MAX))
            }
        }
    }

    /// Sets the limit of processes. A cgroup above it only makes no new ones.
    pub fn limit_processes(&self, most: u64) -> Result<(), CgroupError> {
        files::write(&self.places.pids.path().join("pids.max"), &most.to_string())
    }

    pub(super) fn process_limit(&self) -> Result<u64, CgroupError> {
        files::read_number(&self.places.pids.path().join("pids.max"))
    }

    pub(super) fn process_count(&self) -> Result<u64, CgroupError> {
        files::read_number(&self.places.pids.path().join("pids.current"))
    }

    /// Stops every process and returns when all have stopped.
    /// # Errors
    /// [`CgroupError::Timeout`] when one could not be stopped in time; then all run again.
    /// [`CgroupError::Io`] when the kernel's files cannot be used.
    pub fn freeze(&self) -> Result<(), CgroupError> {
        let (file, state) = self.freezer_files();
        files::write(&file, self.freezer_word(true))?;
        let stopped = files::wait_for(&state, FREEZE_TIMEOUT, |text| self.reads_frozen(text))
            .map_err(CgroupError::io(format!("read {}", state.display())))?;
        if stopped {
            return Ok(());
        }
        self.thaw()?;
        Err(CgroupError::Timeout { name: self.name.clone(), what: "freezing" })
    }

    /// Lets every process continue.
    pub fn thaw(&self) -> Result<(), CgroupError> {
        files::write(&self.freezer_files().0, self.freezer_word(false))
    }

    pub fn is_frozen(&self) -> Result<bool, CgroupError> {
        Ok(self.reads_frozen(&files::read(&self.freezer_files().1)?))
    }

    /// The file that orders a freeze and the file that reports whether it is complete.
    fn freezer_files(&self) -> (PathBuf, PathBuf) {
        match (&self.places.unified, &self.places.freezer) {
            (Some(path), _) => (path.join("cgroup.freeze"), path.join("cgroup.events")),
            (None, Some(path)) => (path.join("freezer.state"), path.join("freezer.state")),
            (None, None) => unreachable!("Places::choose demands one of the two"),
        }
    }

    fn freezer_word(&self, frozen: bool) -> &'static str {
        match (self.places.unified.is_some(), frozen) {
            (true, true) => "1",
            (true, false) => "0",
            (false, true) => "FROZEN",
            (false, false) => "THAWED",
        }
    }

    fn reads_frozen(&self, text: &str) -> bool {
        if self.places.unified.is_some() { files::value_of(text, "frozen") == 1 } else { text.trim() == "FROZEN" }
    }

    /// Every process in any of the cgroup's directories.
    pub fn pids(&self) -> Result<Vec<u32>, CgroupError> {
        let mut all = BTreeSet::new();
        for file in self.procs_files() {
            match fs::read_to_string(&file) {
                Ok(text) => {
                    all.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()).filter(|pid| *pid != 0));
                }
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(CgroupError::io(format!("read {}", file.display()))(error)),
            }
        }
        Ok(all.into_iter().collect())
    }

    /// Kills every process, frozen or not, and returns when none is left. An absent or empty cgroup
    /// is success.
    pub fn kill_all(&self) -> Result<(), CgroupError> {
        let deadline = Instant::now() + KILL_TIMEOUT;
        // Processes that wait for the next period end then, not now. One that ended has no quota.
        let _ = self.set_rationed(false);
        loop {
            if self.pids()?.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(CgroupError::Timeout { name: self.name.clone(), what: "the end of all processes" });
            }
            self.kill_once()?;
            if let Some(path) = &self.places.unified {
                // The kernel signals the last exit here; the outer loop checks the other trees.
                match files::wait_for(&path.join("cgroup.events"), Duration::from_millis(100), |text| {
                    files::value_of(text, "populated") == 0
                }) {
                    Err(error) if !is_gone(&error) => {
                        return Err(CgroupError::io(format!("watch {}", path.display()))(error));
                    }
                    _ => {}
                }
            }
            if !self.pids()?.is_empty() {
                thread::sleep(RETRY_INTERVAL);
            }
        }
    }

    fn kill_once(&self) -> Result<(), CgroupError> {
        if let Some(path) = &self.places.unified {
            // Atomic with respect to fork, and works on frozen processes.
            files::write_if_present(&path.join("cgroup.kill"), "1")?;
        } else {
            // Frozen processes cannot fork while they are listed; the kill takes effect at the
            // thaw.
            let file = self.freezer_files().0;
            files::write_if_present(&file, self.freezer_word(true))?;
        }
        // Also those in only some of the trees, left by a launcher that died half-way.
        for pid in self.pids()? {
            self.kill_member(pid)?;
        }
        if self.places.unified.is_none() {
            files::write_if_present(&self.freezer_files().0, self.freezer_word(false))?;
        }
        Ok(())
    }

    /// Kills process `pid` if it is still in this cgroup after its pidfd is open: pids are reused.
    fn kill_member(&self, pid: u32) -> Result<(), CgroupError> {
        let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(()) };
        let Ok(handle) = pidfd_open(number, PidfdFlags::empty()) else { return Ok(()) };
        if !self.pids()?.contains(&pid) {
            return Ok(());
        }
        match pidfd_send_signal(handle, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(CgroupError::io(format!("kill process {pid} of cgroup {}", self.name))(error.into())),
        }
    }

    /// What the cgroup's processes use together.
    pub fn usage(&self) -> Result<CgroupUsage, CgroupError> {
        let [used, limit, cache, shared] = match self.places.memory {
            Place::V1(_) => ["memory.usage_in_bytes", "memory.limit_in_bytes", "total_cache", "total_shmem"],
            Place::V2(_) => ["memory.current", "memory.max", "file", "shmem"],
        };
        let memory = self.places.memory.path();
        let stat = files::read(&memory.join("memory.stat"))?;
        let used = files::read_number(&memory.join(used))?;
        // Shared memory is counted as file cache, but the kernel cannot drop it.
        let memory_cache = files::value_of(&stat, cache).saturating_sub(files::value_of(&stat, shared)).min(used);
        Ok(CgroupUsage {
            cpu_usec: u64::try_from(self.places.cpu_time()?.total.as_micros()).unwrap_or(u64::MAX),
            memory_used: used - memory_cache,
            memory_cache,
            memory_limit: files::read_number(&memory.join(limit))?,
            pids: self.process_count()?,
        })
    }

    /// How many processes the kernel killed because the cgroup was out of memory.
    pub fn oom_kills(&self) -> Result<u64, CgroupError> {
        let file = match &self.places.memory {
            Place::V1(path) => path.join("memory.oom_control"),
            Place::V2(path) => path.join("memory.events"),
        };
        Ok(files::value_of(&files::read(&file)?, "oom_kill"))
    }

    /// Removes the cgroup, which must have no processes; absent is success.
    /// # Errors
    /// [`CgroupError::Timeout`] when a directory stays busy.
    pub fn remove(&self) -> Result<(), CgroupError> {
        let deadline = Instant::now() + REMOVE_TIMEOUT;
        for directory in self.places.directories() {
            loop {
                match fs::remove_dir(directory) {
                    Ok(()) => break,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                    Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                        if Instant::now() >= deadline {
                            return Err(CgroupError::Timeout { name: self.name.clone(), what: "removal" });
                        }
                        thread::sleep(RETRY_INTERVAL);
                    }
                    Err(error) => return Err(CgroupError::io(format!("remove cgroup {}", directory.display()))(error)),
                }
            }
        }
        Ok(())
    }
}

/// Whether the cgroup's directory was removed: ENOENT before the file is opened, ENODEV after.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v1_limits_every_kind_of_memory_that_the_kernel_counts() {
        let tree = tempfile::tempdir().unwrap();
        let path = |name: &str| tree.path().join(name);
        let memory = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes"];
        for file in memory.iter().chain(&["cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.shares", "pids.max"]) {
            fs::write(path(file), "").unwrap();
        }
        let place = || Place::V1(tree.path().to_owned());
        let places =
            Places { memory: place(), cpu: place(), pids: place(), unified: None, freezer: None, cpuacct: None };
        let group = Cgroup::new("group".to_owned(), places);
        let limits = CgroupLimits { cpu_count: 1, memory_mb: 64, pids: 20 };
        group.set_limits(&limits).unwrap();
        for file in memory {
            assert_eq!(fs::read_to_string(path(file)).unwrap(), (64 << 20).to_string(), "{file}");
        }
        // Kernels without these two files are accepted.
        memory[1..].iter().for_each(|file| fs::remove_file(path(file)).unwrap());
        group.set_limits(&limits).unwrap();
        assert!(!path(memory[2]).exists());
    }
}
