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
/// The classes matter while sandboxes use more than one part in this many of all processors.
const BUSY_PART: u32 = 2;

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
    processors: usize,
    /// When all sandboxes together had used how much.
    last: Option<(Instant, Duration)>,
    /// Of every sandbox, while the machine is busy.
    accounts: BTreeMap<String, Account>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Account {
    used: Duration,
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
        Self { hierarchy, processors, last: None, accounts: BTreeMap::new() }
    }

    /// Gives each sandbox its class by what it has used and by the `calls` since the last time. To
    /// be called several times a second. Reads one file while the machine is not busy.
    /// # Errors
    /// [`CgroupError::Io`] when the time of all sandboxes together cannot be read. A sandbox that
    /// ended meanwhile is none.
    pub fn balance(&mut self, calls: &HashMap<String, u32>) -> Result<(), CgroupError> {
        let (now, together) = (Instant::now(), self.hierarchy.places().cpu_time()?);
        let Some((then, before)) = self.last.replace((now, together)) else { return Ok(()) };
        let elapsed = now.duration_since(then);
        let available = elapsed.saturating_mul(u32::try_from(self.processors).unwrap_or(u32::MAX));
        if together.saturating_sub(before) < available / BUSY_PART {
            self.release_all();
            return Ok(());
        }
        let mut accounts = BTreeMap::new();
        for group in groups(&self.hierarchy) {
            // One that ended has no such file.
            let Ok(used) = group.places().cpu_time() else { continue };
            let mut account = self.accounts.get(group.name()).copied().unwrap_or_else(|| Account::new(used));
            let was_in_background = account.in_background;
            account.settle(used, calls.get(group.name()).copied().unwrap_or(0), elapsed);
            if account.in_background != was_in_background && group.set_background(account.in_background).is_err() {
                account.in_background = was_in_background;
            }
            accounts.insert(group.name().to_owned(), account);
        }
        self.accounts = accounts;
        Ok(())
    }

    fn release_all(&mut self) {
        for (name, account) in std::mem::take(&mut self.accounts) {
            if account.in_background
                && let Some(group) = self.hierarchy.open_existing(&name)
            {
                // It may have ended.
                let _ = group.set_background(false);
            }
        }
    }
}

impl Account {
    fn new(used: Duration) -> Self {
        Self { used, credit: micros(MAX_CREDIT), in_background: false }
    }

    /// Adds what the sandbox earned in `elapsed` and with its calls, and takes what it has used.
    fn settle(&mut self, used: Duration, calls: u32, elapsed: Duration) {
        // At most one processor: a client cannot call a sandbox to the front of all.
        let by_calls = CALL_CREDIT.saturating_mul(calls).min(elapsed);
        let earned = micros(elapsed / EARNED_PART + by_calls);
        let spent = micros(used.saturating_sub(self.used));
        self.used = used;
        self.credit = (self.credit + earned - spent).clamp(-micros(MAX_DEBT), micros(MAX_CREDIT));
        self.in_background = self.credit < 0;
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

    /// The class after each of `ticks` in which the sandbox used `used` and received `calls`.
    fn run(account: &mut Account, ticks: u32, used: Duration, calls: u32) -> Vec<bool> {
        let step = |_| {
            account.settle(account.used + used, calls, TICK);
            account.in_background
        };
        (0..ticks).map(step).collect()
    }

    #[test]
    fn a_sandbox_that_only_computes_goes_to_the_background() {
        let mut account = Account::new(Duration::ZERO);
        // A sixth of two processors, as beside five others.
        let classes = run(&mut account, 4, TICK / 3, 0);
        assert_eq!(classes, [false, true, true, true]);
    }

    #[test]
    fn calls_pay_for_what_they_use_up_to_one_processor() {
        let mut account = Account::new(Duration::ZERO);
        assert!(run(&mut account, 50, TICK * 9 / 10, 40).iter().all(|background| !background));
        assert_eq!(run(&mut account, 50, TICK * 2, 10_000).last(), Some(&true));
    }

    #[test]
    fn a_call_brings_a_sandbox_back_soon_and_time_later() {
        let mut account = Account::new(Duration::ZERO);
        run(&mut account, 100, TICK * 2, 0);
        let mut called = account;
        assert_eq!(run(&mut called, 3, TICK / 50, 5), [true, false, false]);
        let still = run(&mut account, 60, Duration::ZERO, 0);
        assert!(still[30] && !still[45], "{still:?}");
    }
}
