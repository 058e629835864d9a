//! Two classes of processor time, for groups that answer calls and for those that only compute.
//!
//! A group that is called while others compute without end waits behind them: the kernel gives
//! each of them a whole slice before it runs the process that just woke. So on a busy machine a
//! group that has used more processor time than its calls account for goes to the background
//! (`cpu.idle`): a process of any other group takes the processor from it at once. In the
//! background groups share what is left equally, and the weight of all groups together
//! against other programs of the host stays the same.
//!
//! A third class is for crowds: fork bombs. Processes of all groups map the same files (the
//! shell, the C library), and the kernel has one queue per file for each fork, mapping and exit.
//! Hundreds of background processes in it wake one after the other, each once the processor is
//! free, and a process of another group behind them waits for seconds. So a crowd stays in the
//! foreground, where each holder of the lock passes it on at once, with a small quota: at its end
//! the kernel (since 6.18) stops each process when it returns to its program, where it holds no
//! lock.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::group::{CPU_PERIOD_USEC, ProcessorTime};
use super::{Cgroup, CgroupError, Hierarchy, files};

/// Processor time that one call accounts for: far more than most take.
const CALL_CREDIT: Duration = Duration::from_millis(20);
/// The most that can be saved up, which is what a new group begins with.
const MAX_CREDIT: Duration = Duration::from_millis(50);
/// The most that can be owed: so long after its last computation a group without calls is back.
const MAX_DEBT: Duration = Duration::from_millis(200);
/// Without calls a group earns one part in this many of one processor.
const EARNED_PART: u32 = 20;
/// After this time without computation a group has all its credit again.
const RECOVERY: Duration = MAX_CREDIT.saturating_add(MAX_DEBT).saturating_mul(EARNED_PART);
/// The classes matter while groups use at least this part of all processors: one that computes
/// on one of two processors delays others already, more so where other programs use the rest.
const BUSY_PERCENT: u32 = 10;

/// The fewest processes of a crowd: a build has fewer per processor.
const CROWD: u64 = 128;
const CROWD_PER_PROCESSOR: u64 = 64;
/// A crowd gets one part in this many of its processor quota. Restores as a factor: see
/// [`Cgroup::set_rationed`].
const RATION_PART: u64 = 10;
/// The processor time of a debt by which the kernel's part is judged.
const JUDGED: Duration = Duration::from_secs(1);
/// So long after the last call to another group a crowd delays none.
const CALM: Duration = Duration::from_secs(10);
/// The first kernel whose quota stops processes only on their return to user mode. Before, one that
/// was stopped kept its locks until the next period.
const QUOTA_SPARES_LOCKS: (u32, u32) = (6, 18);

/// Calls to groups since they were last counted. Cheap to record.
#[derive(Debug, Default)]
pub struct Calls(Mutex<HashMap<String, u32>>);

impl Calls {
    pub fn record(&self, group: &str) {
        let mut calls = self.0.lock();
        match calls.get_mut(group) {
            Some(count) => *count = count.saturating_add(1),
            None => drop(calls.insert(group.to_owned(), 1)),
        }
    }

    /// The calls since the last time, by group.
    pub fn take(&self) -> HashMap<String, u32> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// Which groups are in the background at present.
#[derive(Debug)]
pub struct ProcessorClasses {
    hierarchy: Hierarchy,
    processors: u32,
    busy_percent: u32,
    /// Whether the kernel's quota can be used against crowds.
    can_ration: bool,
    /// The last call to each group, within [`CALM`].
    called: HashMap<String, Instant>,
    /// When all groups together had used how much.
    last: Option<(Instant, Duration)>,
    /// Of every group that ran while the machine was busy and has not recovered since.
    accounts: BTreeMap<String, Account>,
}

/// How the kernel schedules a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Foreground,
    Background,
    /// In the foreground, with a part of its quota.
    Rationed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Account {
    settled: Instant,
    /// Processor time of the group when the account was settled.
    used: ProcessorTime,
    /// Calls since then.
    calls: u32,
    /// What the group may use before it goes to the background, in microseconds.
    credit: i64,
    /// Processor time of the group when its debt began, or at most [`JUDGED`] of use ago.
    solvent: ProcessorTime,
    class: Class,
}

impl ProcessorClasses {
    /// Takes the groups that an earlier server left in the background out of it. `processors` is
    /// the machine's number.
    pub fn new(hierarchy: Hierarchy, processors: usize) -> Self {
        for group in groups(&hierarchy) {
            let _ = group.set_background(false);
            let _ = group.set_rationed(false);
        }
        Self {
            hierarchy,
            processors: u32::try_from(processors).unwrap_or(u32::MAX),
            busy_percent: BUSY_PERCENT,
            can_ration: quota_spares_locks(&rustix::system::uname().release().to_string_lossy()),
            called: HashMap::new(),
            last: None,
            accounts: BTreeMap::new(),
        }
    }

    /// Has the classes matter while groups use at least `percent` of all processors; 0: always.
    #[must_use]
    pub fn with_busy_percent(self, percent: u32) -> Self {
        Self { busy_percent: percent, ..self }
    }

    /// Gives each group its class by what it has used and by the `calls` since the last time. To
    /// be called several times a second. Reads one file while the machine is not busy, and one more
    /// per [`RECOVERY`] of each group that ran while it was.
    /// # Errors
    /// [`CgroupError::Io`] when the time of all groups together cannot be read. A group that
    /// ended meanwhile is none.
    pub fn balance(&mut self, calls: &HashMap<String, u32>) -> Result<(), CgroupError> {
        for (name, account) in &mut self.accounts {
            account.calls = account.calls.saturating_add(calls.get(name).copied().unwrap_or(0));
        }
        let (now, together) = (Instant::now(), self.hierarchy.places().cpu_time()?.total);
        self.called.extend(calls.keys().map(|name| (name.clone(), now)));
        self.called.retain(|_, last| now.saturating_duration_since(*last) < CALM);
        let Some((then, before)) = self.last.replace((now, together)) else { return Ok(()) };
        let available = now.duration_since(then).saturating_mul(self.processors);
        let is_busy = together.saturating_sub(before) >= available.saturating_mul(self.busy_percent) / 100;
        if is_busy {
            self.settle(now);
        } else {
            self.release(now);
        }
        Ok(())
    }

    fn settle(&mut self, now: Instant) {
        let mut present = Vec::new();
        for group in groups(&self.hierarchy) {
            // One that ended has no such file.
            let Ok(used) = group.places().cpu_time() else { continue };
            let account = self.accounts.get(group.name()).copied().unwrap_or_else(|| Account::new(now, used));
            present.push((group, used, account));
        }
        let active = present.iter().filter(|(_, used, account)| account.is_active(now, *used)).count();
        let active = u32::try_from(active).unwrap_or(u32::MAX).max(1);
        self.accounts.clear();
        for (group, used, mut account) in present {
            account.settle(now, used, self.processors, active);
            let in_debt = account.judge(used);
            let class = match account.credit < 0 || account.class == Class::Rationed {
                true if self.is_rationed(&group, account.class, in_debt) => Class::Rationed,
                _ if account.credit < 0 => Class::Background,
                _ => Class::Foreground,
            };
            account.change_class(&group, class);
            self.accounts.insert(group.name().to_owned(), account);
        }
    }

    /// Whether a group that owes processor time is a crowd that others would wait for. `in_debt`
    /// is the time that it used since it owes: that of forks is the kernel's, of a build its own.
    fn is_rationed(&self, group: &Cgroup, class: Class, in_debt: ProcessorTime) -> bool {
        let delays_others = self.can_ration && self.called.keys().any(|name| name != group.name());
        if !delays_others {
            return false;
        }
        let crowd = group.processors().map_or(CROWD, |count| CROWD.max(CROWD_PER_PROCESSOR * count));
        if class == Class::Rationed {
            return group.process_count().is_ok_and(|count| count >= crowd / 2);
        }
        // Threads share the mappings of their process.
        in_debt.is_mostly_kernel()
            && group.process_count().is_ok_and(|count| count >= crowd)
            && group.count_processes() >= crowd
    }

    /// Takes all groups but crowds out of the background. Their accounts stay until they have
    /// recovered, so that no group gets a new one by a pause between two bursts.
    fn release(&mut self, now: Instant) {
        let mut accounts = std::mem::take(&mut self.accounts);
        accounts.retain(|name, account| {
            let is_due = now.saturating_duration_since(account.settled) >= RECOVERY;
            if account.class == Class::Foreground && !is_due {
                return true;
            }
            // It may have ended.
            let Some(group) = self.hierarchy.open_existing(name) else { return false };
            // The machine may be calm only because of the ration.
            if account.class == Class::Rationed && self.is_rationed(&group, account.class, ProcessorTime::default()) {
                return true;
            }
            account.change_class(&group, Class::Foreground);
            if is_due {
                let Ok(used) = group.places().cpu_time() else { return false };
                account.settle(now, used, self.processors, 1);
            }
            account.class != Class::Foreground || account.credit < micros(MAX_CREDIT)
        });
        self.accounts = accounts;
    }
}

impl Account {
    fn new(now: Instant, used: ProcessorTime) -> Self {
        Self { settled: now, used, calls: 0, credit: micros(MAX_CREDIT), solvent: used, class: Class::Foreground }
    }

    /// Whether the group has used more than every group earns.
    fn is_active(&self, now: Instant, used: ProcessorTime) -> bool {
        used.since(self.used).total > now.saturating_duration_since(self.settled) / EARNED_PART
    }

    /// Adds what the group earned since the account was settled, by time and by its calls, and
    /// takes what it has used. `active` groups compete for `processors`.
    fn settle(&mut self, now: Instant, used: ProcessorTime, processors: u32, active: u32) {
        let elapsed = now.saturating_duration_since(self.settled);
        // At most a fair part: a client cannot call a group to the front of all.
        let fair = elapsed.saturating_mul(processors) / active;
        let by_calls = CALL_CREDIT.saturating_mul(self.calls).min(fair);
        let earned = micros((elapsed / EARNED_PART).saturating_add(by_calls));
        let spent = micros(used.since(self.used).total);
        let credit = self.credit.saturating_add(earned).saturating_sub(spent);
        self.credit = credit.clamp(-micros(MAX_DEBT), micros(MAX_CREDIT));
        (self.settled, self.used, self.calls) = (now, used, 0);
    }

    /// The time that the group used in its debt, after a settlement. The kernel samples which
    /// part is its own, so that a single interval says little.
    fn judge(&mut self, used: ProcessorTime) -> ProcessorTime {
        let in_debt = used.since(self.solvent);
        if self.credit >= 0 || in_debt.total > JUDGED {
            self.solvent = used;
        }
        in_debt
    }

    fn change_class(&mut self, group: &Cgroup, class: Class) {
        // A group that ended has no such files.
        if self.class != class
            && group.set_background(class == Class::Background).is_ok()
            && group.set_rationed(class == Class::Rationed).is_ok()
        {
            self.class = class;
        }
    }
}

/// Whether the kernel of this `release` stops processes whose quota is used up only on their return
/// to user mode.
fn quota_spares_locks(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
    matches!((numbers.next(), numbers.next()), (Some(major), Some(minor)) if (major, minor) >= QUOTA_SPARES_LOCKS)
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 4)
}

fn groups(hierarchy: &Hierarchy) -> impl Iterator<Item = Cgroup> {
    hierarchy.list().into_iter().filter_map(|name| hierarchy.open_existing(&name))
}

impl Cgroup {
    /// Takes most of the group's processor quota, or gives it back. A whole quota is at least one
    /// period, so a smaller one is a ration: also a later server tells and restores it.
    pub(super) fn set_rationed(&self, rationed: bool) -> Result<(), CgroupError> {
        let quota = self.processor_quota()?;
        match (quota < CPU_PERIOD_USEC, rationed) {
            (false, true) => self.set_processor_quota(quota / RATION_PART),
            (true, false) => self.set_processor_quota(quota * RATION_PART),
            _ => Ok(()),
        }
    }

    /// The number of processors of the group's quota.
    fn processors(&self) -> Result<u64, CgroupError> {
        let quota = self.processor_quota()?;
        Ok(if quota < CPU_PERIOD_USEC { quota * RATION_PART } else { quota } / CPU_PERIOD_USEC)
    }

    /// Processes without their threads.
    fn count_processes(&self) -> u64 {
        let text = files::read(&self.places().pids.path().join("cgroup.procs")).unwrap_or_default();
        u64::try_from(text.lines().count()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(100);

    /// The class after each of `ticks` in which the group used `used` and received `calls`, among
    /// `active` groups on two processors.
    fn run(account: &mut Account, ticks: u32, used: Duration, calls: u32, active: u32) -> Vec<bool> {
        let step = |_| {
            account.calls = calls;
            account.settle(account.settled + TICK, plus(account.used, used), 2, active);
            account.credit < 0
        };
        (0..ticks).map(step).collect()
    }

    fn new() -> Account {
        Account::new(Instant::now(), ProcessorTime::default())
    }

    fn plus(time: ProcessorTime, used: Duration) -> ProcessorTime {
        ProcessorTime { total: time.total + used, ..time }
    }

    #[test]
    fn a_group_that_only_computes_goes_to_the_background() {
        // A sixth of two processors, as beside five others.
        let classes = run(&mut new(), 4, TICK / 3, 0, 6);
        assert_eq!(classes, [false, true, true, true]);
    }

    #[test]
    fn calls_pay_for_what_they_use_up_to_a_fair_part() {
        for active in [1, 2, 6, 40] {
            let fair = TICK * 2 / active;
            let within = run(&mut new(), 50, fair, 10_000, active);
            assert!(within.iter().all(|background| !background), "{active}: {within:?}");
            let beyond = run(&mut new(), 50, fair + TICK / 10, 10_000, active);
            assert_eq!(beyond.last(), Some(&true), "{active}: {beyond:?}");
        }
        assert_eq!(run(&mut new(), 50, TICK, 1, 1).last(), Some(&true), "one call pays for little");
    }

    #[test]
    fn a_call_brings_a_group_back_soon_and_time_later() {
        let mut account = new();
        run(&mut account, 100, TICK * 2, 0, 2);
        let mut called = account;
        assert_eq!(run(&mut called, 3, TICK / 50, 5, 2), [true, false, false]);
        let still = run(&mut account, 60, Duration::ZERO, 0, 2);
        assert!(still[30] && !still[45], "{still:?}");
        assert_eq!(account.credit, micros(MAX_CREDIT), "after the time of recovery");
        assert!(TICK * 60 > RECOVERY);
    }

    #[test]
    fn a_pause_pays_for_no_burst() {
        let mut account = new();
        // 150 ms of two processors, then 210 ms of none.
        let used = plus(account.used, Duration::from_millis(300));
        account.settle(account.settled + Duration::from_millis(360), used, 2, 1);
        assert!(account.credit < 0, "{account:?}");
    }

    #[test]
    fn crowds_are_rationed_on_kernels_that_spare_locks() {
        for release in ["6.18.44-fc-v657", "6.18.0", "7.0-rc1", "10.2"] {
            assert!(quota_spares_locks(release), "{release}");
        }
        for release in ["6.17.9", "6.1.0-18-amd64", "5.15", "", "linux"] {
            assert!(!quota_spares_locks(release), "{release}");
        }
    }
}
