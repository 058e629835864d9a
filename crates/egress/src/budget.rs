//! Limits of what the flows of all sandboxes hold together: descriptors of this process, and UDP
//! ports of the host.
//!
//! The fair share of a sandbox is the budget divided by the number of sandboxes that hold something
//! plus one newcomer. A sandbox may hold more than its share while more than a sixteenth of the
//! budget is free. That sixteenth is reserved for sandboxes below their share. While it is used up,
//! the sandboxes that hold most above theirs close their least recently used flows. So a greedy
//! sandbox is refused first, and loses idle flows only to one that has less than its share.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Resource, getrlimit};
use tokio::sync::Notify;

/// The kernel's default range of local ports, where `/proc` cannot be read.
const USUAL_PORTS: usize = 28_232;
/// Burst of new flows, in seconds of the rate: for a page with many resources, or a package manager
/// that starts.
const BURST_SECONDS: f64 = 4.0;
/// The divisor of the budget whose quotient is reserved for sandboxes below their share.
const RESERVED: usize = 16;

/// The budget of one server.
#[derive(Debug)]
pub struct Budget {
    rate: f64,
    total: Amount,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    free: Amount,
    /// What each connected sandbox holds.
    holders: HashMap<u64, Held>,
    /// The number of sandboxes that hold something.
    active: usize,
    next: u64,
}

#[derive(Debug)]
struct Held {
    amount: Amount,
    /// Notifies the sandbox's task to close what is above its share.
    asked: Arc<Notify>,
}

/// What a flow holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) descriptors: usize,
    pub(crate) ports: usize,
}

/// The connection to the sandbox and that to its target. The kernel shares TCP's local ports
/// between targets.
pub(crate) const TCP_FLOW: Amount = Amount { descriptors: 2, ports: 0 };
/// A socket with a local port that no other has.
pub(crate) const UDP_FLOW: Amount = Amount { descriptors: 1, ports: 1 };

impl Amount {
    const NONE: Self = Self { descriptors: 0, ports: 0 };

    fn each(self, other: Self, join: impl Fn(usize, usize) -> usize) -> Self {
        Self { descriptors: join(self.descriptors, other.descriptors), ports: join(self.ports, other.ports) }
    }

    fn plus(self, other: Self) -> Self {
        self.each(other, |a, b| a + b)
    }

    fn minus(self, other: Self) -> Self {
        self.each(other, usize::saturating_sub)
    }

    fn divided(self, by: usize) -> Self {
        self.each(Self::NONE, |a, _| a / by)
    }

    /// Whether it is at most `other` in every resource that `need` uses.
    fn fits(self, other: Self, need: Self) -> bool {
        (need.descriptors == 0 || self.descriptors <= other.descriptors)
            && (need.ports == 0 || self.ports <= other.ports)
    }
}

impl Budget {
    /// Default limit of new flows per sandbox and second. A browser or a package manager opens some
    /// dozens.
    pub const FLOWS_PER_SECOND: u32 = 500;

    /// A budget of `descriptors`, and of half of the host's local ports. The other half is left to
    /// the host.
    pub fn new(descriptors: usize, flows_per_second: u32) -> Self {
        let total = Amount { descriptors, ports: local_ports() / 2 };
        let state = State { free: total, holders: HashMap::new(), active: 0, next: 0 };
        Self { rate: f64::from(flows_per_second), total, state: Mutex::new(state) }
    }

    pub(crate) fn account(self: &Arc<Self>) -> Account {
        let asked = Arc::new(Notify::new());
        let mut state = self.state();
        state.next += 1;
        let id = state.next;
        state.holders.insert(id, Held { amount: Amount::NONE, asked: Arc::clone(&asked) });
        drop(state);
        let holder = Arc::new(Holder { budget: Arc::clone(self), id });
        Account { holder, asked, rate: Bucket::new(self.rate, self.rate * BURST_SECONDS) }
    }

    fn reserve(&self) -> Amount {
        self.total.divided(RESERVED)
    }

    fn share(&self, state: &State) -> Amount {
        self.total.divided(state.active + 1)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn held(&self, id: u64) -> Amount {
        self.holders.get(&id).map_or(Amount::NONE, |held| held.amount)
    }

    fn set(&mut self, id: u64, amount: Amount) {
        let Some(held) = self.holders.get_mut(&id) else { return };
        let before = std::mem::replace(&mut held.amount, amount);
        self.active += usize::from(before == Amount::NONE && amount != Amount::NONE);
        self.active -= usize::from(before != Amount::NONE && amount == Amount::NONE);
    }

    /// Notifies the sandboxes that hold most of the resources in `lack`, of descriptors and of
    /// ports.
    fn ask_greediest(&self, lack: Amount) {
        let most = |of: fn(&Amount) -> usize| {
            self.holders.values().max_by_key(|held| of(&held.amount)).filter(|_| of(&lack) > 0)
        };
        for held in [most(|amount| amount.descriptors), most(|amount| amount.ports)].into_iter().flatten() {
            held.asked.notify_one();
        }
    }
}

impl Default for Budget {
    /// Three eighths of the current descriptor limit of this process.
    fn default() -> Self {
        let limit = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
        Self::new(limit.map_or(1 << 20, |limit| limit / 8 * 3), Self::FLOWS_PER_SECOND)
    }
}

/// The number of ephemeral ports of the kernel.
fn local_ports() -> usize {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let bounds: Vec<usize> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match bounds[..] {
        [first, last] if first <= last => last - first + 1,
        _ => USUAL_PORTS,
    }
}

/// One sandbox's part of the budget.
#[derive(Debug)]
pub(crate) struct Account {
    holder: Arc<Holder>,
    asked: Arc<Notify>,
    rate: Bucket,
}

/// Why a flow is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The sandbox holds its share.
    Share,
    /// Other sandboxes hold more than theirs and were notified; the sandbox may retry.
    ForNow,
}

#[derive(Debug)]
struct Holder {
    budget: Arc<Budget>,
    id: u64,
}

impl Drop for Holder {
    fn drop(&mut self) {
        let mut state = self.budget.state();
        state.set(self.id, Amount::NONE);
        state.holders.remove(&self.id);
    }
}

impl Account {
    /// Whether the rate limit allows one more flow now. If not, the SYN is dropped, and the
    /// sandbox's kernel retransmits it a second later.
    pub(crate) fn may_begin(&mut self, now: Instant) -> bool {
        self.rate.take(now)
    }

    /// Takes what a flow holds.
    pub(crate) fn take(&self, need: Amount) -> Result<Permit, Refused> {
        let Holder { budget, id } = &*self.holder;
        let mut state = budget.state();
        let held = state.held(*id).plus(need);
        let newcomer = usize::from(held == need);
        let share = budget.total.divided(state.active + newcomer + 1);
        let within = held.fits(share, need);
        let kept = if within { Amount::NONE } else { budget.reserve() };
        let left = state.free.minus(need);
        let granted = need.fits(state.free, need) && kept.fits(left, need);
        if granted {
            state.free = left;
            state.set(*id, held);
        }
        if within {
            state.ask_greediest(budget.reserve().minus(state.free));
        }
        match (granted, within) {
            (true, _) => Ok(Permit { holder: Arc::clone(&self.holder), amount: need }),
            (false, true) => Err(Refused::ForNow),
            (false, false) => Err(Refused::Share),
        }
    }

    /// Resolves when another sandbox lacks what this one may hold above its share.
    pub(crate) fn wait_until_asked(&self) -> impl Future<Output = ()> + 'static {
        let asked = Arc::clone(&self.asked);
        async move { asked.notified().await }
    }

    /// What must be released now: what is above the share, as long as the reserve is incomplete.
    pub(crate) fn excess(&self) -> Amount {
        let Holder { budget, id } = &*self.holder;
        let state = budget.state();
        let above = state.held(*id).minus(budget.share(&state));
        above.each(budget.reserve().minus(state.free), usize::min)
    }
}

/// What one flow holds; released on drop.
#[derive(Debug)]
pub(crate) struct Permit {
    holder: Arc<Holder>,
    amount: Amount,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.holder.budget.state();
        state.free = state.free.plus(self.amount);
        let held = state.held(self.holder.id).minus(self.amount);
        state.set(self.holder.id, held);
    }
}

/// A token bucket.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// Tokens per second.
    rate: f64,
    most: f64,
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    pub(crate) fn new(rate: f64, most: f64) -> Self {
        Self { rate, most, tokens: most, filled: Instant::now() }
    }

    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let passed = now.checked_duration_since(self.filled).unwrap_or(Duration::ZERO);
        self.tokens = (self.tokens + passed.as_secs_f64() * self.rate).min(self.most);
        self.filled = self.filled.max(now);
        let has = self.tokens >= 1.0;
        if has {
            self.tokens -= 1.0;
        }
        has
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(account: &Account) -> Vec<Permit> {
        std::iter::from_fn(|| account.take(TCP_FLOW).ok()).collect()
    }

    /// Does what a sandbox's task does when it is notified.
    fn give_back(account: &Account, permits: &mut Vec<Permit>) {
        while account.excess().descriptors > 0 && permits.pop().is_some() {}
    }

    #[test]
    fn a_newcomer_gets_its_share_of_the_greedy_one_after_another() {
        let budget = Arc::new(Budget::new(1600, 1));
        let mut greedy: Vec<(Account, Vec<Permit>)> = Vec::new();
        for number in 1..=9 {
            let account = budget.account();
            let mut permits = fill(&account);
            assert!(!permits.is_empty(), "newcomer {number} has room at once");
            for _ in 0..1000 {
                greedy.iter_mut().for_each(|(other, permits)| give_back(other, permits));
                permits.extend(account.take(TCP_FLOW).ok());
            }
            let share = 1600 / (number + 1);
            assert!(permits.len() * 2 + 2 >= share, "newcomer {number} gets {} of {share}", permits.len() * 2);
            greedy.push((account, permits));
        }
        for (number, (account, permits)) in greedy.iter().enumerate() {
            assert!(permits.len() * 2 >= 1600 / 10 - 2, "{number} keeps its share: {}", permits.len() * 2);
            assert_eq!(account.take(TCP_FLOW).err(), Some(Refused::Share), "{number} is refused more");
        }
        drop(greedy);
        assert_eq!(budget.state().free, budget.total, "everything comes back");
        assert_eq!(budget.state().active, 0);
        assert!(budget.state().holders.is_empty());
    }

    #[test]
    fn one_alone_gets_all_but_the_reserve() {
        let budget = Arc::new(Budget::new(1600, 1));
        let account = budget.account();
        assert_eq!(fill(&account).len(), 750);
        let all: Vec<_> = std::iter::from_fn(|| account.take(UDP_FLOW).ok()).collect();
        assert_eq!(all.len(), 1500.min(budget.total.ports / 16 * 15));
        let newcomer = budget.account();
        let own = fill(&newcomer);
        assert_eq!(own.len(), 50, "the reserve is for those below their share");
        assert_eq!(newcomer.take(TCP_FLOW).err(), Some(Refused::ForNow));
        assert!(account.excess().descriptors > 0 && newcomer.excess() == Amount::NONE);
    }

    #[tokio::test]
    async fn the_greediest_is_asked() {
        let budget = Arc::new(Budget::new(1600, 1));
        let (greedy, modest, newcomer) = (budget.account(), budget.account(), budget.account());
        let one = modest.take(TCP_FLOW);
        let most = fill(&greedy);
        assert!(newcomer.take(TCP_FLOW).is_ok());
        tokio::time::timeout(Duration::from_secs(10), greedy.wait_until_asked()).await.expect("it is asked");
        assert!(tokio::time::timeout(Duration::from_millis(1), modest.wait_until_asked()).await.is_err());
        drop((one, most));
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let mut bucket = Bucket::new(10.0, 40.0);
        let start = Instant::now();
        let taken = |bucket: &mut Bucket, now| (0..1000).filter(|_| bucket.take(now)).count();
        assert_eq!(taken(&mut bucket, start), 40);
        assert_eq!(taken(&mut bucket, start + Duration::from_secs(1)), 10);
        assert_eq!(taken(&mut bucket, start), 0, "a clock that goes back gives nothing");
        assert_eq!(taken(&mut bucket, start + Duration::from_secs(3600)), 40);
    }
}
