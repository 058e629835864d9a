//! Two classes of processor time, for sandboxes that answer calls and for those that only compute.
//!
//! A sandbox that is called while others compute without end waits behind them: the kernel gives
//! each of them a whole slice before it runs the process that just woke. So on a busy machine a
//! sandbox that has used more processor time than its calls account for goes to the background
//! (`cpu.idle`): a process of any other sandbox takes the processor from it at once. In the
//! background sandboxes share what is left equally, and the weight of all sandboxes together
//! against other programs of the host stays the same.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Cgroup, CgroupError, Hierarchy, files};

/// Processor time that one call accounts for: far more than most take.
const CALL_CREDIT: Duration = Duration::from_millis(20);
/// The most that can be saved up, which is what a new sandbox begins with.
const MAX_CREDIT: Duration = Duration::from_millis(50);
/// The most that can be owed: so long after its last computation a sandbox without calls is back.
const MAX_DEBT: Duration = Duration::from_millis(200);
/// Without calls a sandbox earns one part in this many of one processor.
const EARNED_PART: u32 = 20;
/// After this time without computation a sandbox has all its credit again.
const RECOVERY: Duration = MAX_CREDIT.saturating_add(MAX_DEBT).saturating_mul(EARNED_PART);
/// The classes matter while sandboxes use at least this part of all processors: one that computes
/// on one of two processors delays others already, more so where other programs use the rest.
const BUSY_PERCENT: u32 = 10;

/// Calls to sandboxes since they were last counted. Cheap to record.
#[derive(Debug, Default)]
pub struct Calls(Mutex<HashMap<String, u32>>);

impl Calls {
    pub fn record(&self, sandbox: &str) {
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match calls.get_mut(sandbox) {
            Some(count) => *count = count.saturating_add(1),
            None => drop(calls.insert(sandbox.to_owned(), 1)),
        }
    }

    pub(crate) fn take(&self) -> HashMap<String, u32> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Which sandboxes are in the background at present.
#[derive(Debug)]
pub struct ProcessorClasses {
    hierarchy: Hierarchy,
    processors: u32,
    busy_percent: u32,
    /// When all sandboxes together had used how much.
    last: Option<(Instant, Duration)>,
    /// Of every sandbox that ran while the machine was busy and has not recovered since.
    accounts: BTreeMap<String, Account>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Account {
    settled: Instant,
    /// Processor time of the sandbox when the account was settled.
    used: Duration,
    /// Calls since then.
    calls: u32,
    /// What the sandbox may use before it goes to the background, in microseconds.
    credit: i64,
    in_background: bool,
}

impl ProcessorClasses {
    /// Takes the sandboxes that an earlier server left in the background out of it. `processors` is
    /// the machine's number.
    pub fn new(hierarchy: Hierarchy, processors: usize) -> Self {
        for group in groups(&hierarchy) {
            let _ = group.set_background(false);
        }
        let processors = u32::try_from(processors).unwrap_or(u32::MAX);
        Self { hierarchy, processors, busy_percent: BUSY_PERCENT, last: None, accounts: BTreeMap::new() }
    }

    /// Has the classes matter while sandboxes use at least `percent` of all processors; 0: always.
    #[must_use]
    pub fn with_busy_percent(self, percent: u32) -> Self {
        Self { busy_percent: percent, ..self }
    }

    /// Gives each sandbox its class by what it has used and by the `calls` since the last time. To
    /// be called several times a second. Reads one file while the machine is not busy, and one more
    /// per [`RECOVERY`] of each sandbox that ran while it was.
    /// # Errors
    /// [`CgroupError::Io`] when the time of all sandboxes together cannot be read. A sandbox that
    /// ended meanwhile is none.
    pub fn balance(&mut self, calls: &HashMap<String, u32>) -> Result<(), CgroupError> {
        for (name, account) in &mut self.accounts {
            account.calls = account.calls.saturating_add(calls.get(name).copied().unwrap_or(0));
        }
        let (now, together) = (Instant::now(), self.hierarchy.places().cpu_time()?);
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
            account.change_class(&group, account.credit < 0);
            self.accounts.insert(group.name().to_owned(), account);
        }
    }

    /// Takes all sandboxes out of the background. Their accounts stay until they have recovered, so
    /// that no sandbox gets a new one by a pause between two bursts.
    fn release(&mut self, now: Instant) {
        let Self { hierarchy, accounts, processors, .. } = self;
        accounts.retain(|name, account| {
            let is_due = now.saturating_duration_since(account.settled) >= RECOVERY;
            if !account.in_background && !is_due {
                return true;
            }
            // It may have ended.
            let Some(group) = hierarchy.open_existing(name) else { return false };
            account.change_class(&group, false);
            if is_due {
                let Ok(used) = group.places().cpu_time() else { return false };
                account.settle(now, used, *processors, 1);
            }
            account.in_background || account.credit < micros(MAX_CREDIT)
        });
    }
}

impl Account {
    fn new(now: Instant, used: Duration) -> Self {
        Self { settled: now, used, calls: 0, credit: micros(MAX_CREDIT), in_background: false }
    }

    /// Whether the sandbox has used more than every sandbox earns.
    fn is_active(&self, now: Instant, used: Duration) -> bool {
        used.saturating_sub(self.used) > now.saturating_duration_since(self.settled) / EARNED_PART
    }

    /// Adds what the sandbox earned since the account was settled, by time and by its calls, and
    /// takes what it has used. `active` sandboxes compete for `processors`.
    fn settle(&mut self, now: Instant, used: Duration, processors: u32, active: u32) {
        let elapsed = now.saturating_duration_since(self.settled);
        // At most a fair part: a client cannot call a sandbox to the front of all.
        let fair = elapsed.saturating_mul(processors) / active;
        let by_calls = CALL_CREDIT.saturating_mul(self.calls).min(fair);
        let earned = micros((elapsed / EARNED_PART).saturating_add(by_calls));
        let spent = micros(used.saturating_sub(self.used));
        let credit = self.credit.saturating_add(earned).saturating_sub(spent);
        self.credit = credit.clamp(-micros(MAX_DEBT), micros(MAX_CREDIT));
        (self.settled, self.used, self.calls) = (now, used, 0);
    }

    fn change_class(&mut self, group: &Cgroup, background: bool) {
        // A sandbox that ended has no such file.
        if self.in_background != background && group.set_background(background).is_ok() {
            self.in_background = background;
        }
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 4)
}

fn groups(hierarchy: &Hierarchy) -> impl Iterator<Item = Cgroup> {
    hierarchy.list().into_iter().filter_map(|name| hierarchy.open_existing(&name))
}

impl Cgroup {
    /// Puts the group into the background, or takes it out. Kernels before 5.15 have one class.
    fn set_background(&self, background: bool) -> Result<(), CgroupError> {
        files::write_if_present(&self.places().cpu.path().join("cpu.idle"), if background { "1" } else { "0" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(100);

    /// The class after each of `ticks` in which the sandbox used `used` and received `calls`, among
    /// `active` sandboxes on two processors.
    fn run(account: &mut Account, ticks: u32, used: Duration, calls: u32, active: u32) -> Vec<bool> {
        let step = |_| {
            account.calls = calls;
            account.settle(account.settled + TICK, account.used + used, 2, active);
            account.credit < 0
        };
        (0..ticks).map(step).collect()
    }

    fn new() -> Account {
        Account::new(Instant::now(), Duration::ZERO)
    }

    #[test]
    fn a_sandbox_that_only_computes_goes_to_the_background() {
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
    fn a_call_brings_a_sandbox_back_soon_and_time_later() {
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
        account.settle(account.settled + Duration::from_millis(360), Duration::from_millis(300), 2, 1);
        assert!(account.credit < 0, "{account:?}");
    }
}
