//! Runs deterministic simulations from many seeds.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Each seed runs on one thread; small machines have as many cores.
const THREADS: usize = 2;
const SECONDS_PER_DAY: u64 = 86_400;
/// More seeds than a soak gets through in a day.
const SEEDS_PER_DAY: u64 = 1_000_000;

/// The least rate of a soak, which is an optimised build on a machine of its own.
pub const LEAST_PER_MINUTE: f64 = 1000.0;

/// Which seeds a simulation runs from.
#[derive(Debug, Clone, Copy)]
pub struct Seeds {
    /// Number of seeds of a normal run, always the same ones.
    pub short: u64,
    /// Duration of a run of `./dev soak`, with other seeds every day.
    pub soak: Duration,
}

impl Seeds {
    /// Calls `run` with one seed after the other, on two threads. Each thread passes the state that
    /// it got from `start`. `SANDBAR_SEED=N` runs only seed N.
    ///
    /// # Panics
    /// As `run` does, with the seed printed before. In a soak also when fewer than
    /// [`LEAST_PER_MINUTE`] seeds run in a minute: a simulation finds a rare fault by the number of
    /// its seeds.
    pub fn simulate<S>(self, start: impl Fn() -> S + Sync, run: impl Fn(&mut S, u64) + Sync) {
        let only = std::env::var("SANDBAR_SEED").ok();
        if let Some(seed) = only.map(|seed| seed.parse().expect("SANDBAR_SEED is a number")) {
            return run(&mut start(), seed);
        }
        let soak = std::env::var_os("SANDBAR_SOAK").is_some();
        let (first, begun) = (if soak { first_of_today() } else { 0 }, Instant::now());
        let (next, failed) = (AtomicU64::new(first), AtomicBool::new(false));
        let is_over = |seed: u64| if soak { begun.elapsed() >= self.soak } else { seed >= first + self.short };
        let work = |thread: usize| {
            stay_on_processor(thread);
            let (mut state, mut count) = (start(), 0_u64);
            while !failed.load(Ordering::Relaxed) {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if is_over(seed) {
                    break;
                }
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(&mut state, seed))) {
                    failed.store(true, Ordering::Relaxed);
                    eprintln!("seed {seed} fails; SANDBAR_SEED={seed} replays it");
                    resume_unwind(panic);
                }
                count += 1;
            }
            count
        };
        let count: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
            let ended = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            ended.sum()
        });
        let elapsed = begun.elapsed();
        let rate = 60.0 * count as f64 / elapsed.as_secs_f64();
        eprintln!("{count} seeds in {elapsed:.1?}, {rate:.0} per minute");
        let is_slow = soak && count > 0 && rate < LEAST_PER_MINUTE;
        assert!(!is_slow, "{rate:.0} seeds per minute are too few; a soak wants {LEAST_PER_MINUTE}");
    }
}

/// Keeps this thread, and those that it will start, on one of the processors. A simulation with a
/// database passes control to and from SQLite's thread a thousand times per seed; from one
/// processor to another, that takes more time than all else.
fn stay_on_processor(number: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let Some(cpu) = allowed.get(number % allowed.len().max(1)) else { return };
    let mut only = CpuSet::new();
    only.set(*cpu);
    // Where that is forbidden, the simulation is slower.
    let _ = sched_setaffinity(None, &only);
}

fn first_of_today() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_secs() / SECONDS_PER_DAY * SEEDS_PER_DAY
}

/// SplitMix64: the same numbers from a seed, independent of libraries and their versions.
#[derive(Debug)]
pub struct Random(AtomicU64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    pub fn next(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number less than `bound`.
    pub fn below(&self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// An index of a list of `count` elements.
    pub fn index(&self, count: usize) -> usize {
        let index = self.below(u64::try_from(count).expect("a usize has at most 64 bits"));
        usize::try_from(index).expect("it is below a usize")
    }

    /// True once in `times`.
    pub fn one_in(&self, times: u64) -> bool {
        self.below(times) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use parking_lot::Mutex;

    #[test]
    fn each_seed_of_a_normal_run_runs_once() {
        let seen = Mutex::new(Vec::new());
        let seeds = Seeds { short: 50, soak: Duration::ZERO };
        seeds.simulate(
            || 0_u64,
            |own, seed| {
                *own += 1;
                seen.lock().push((seed, *own));
            },
        );
        let seen = seen.into_inner();
        assert_eq!(seen.iter().map(|(seed, _)| *seed).collect::<BTreeSet<_>>(), (0..50).collect());
        assert_eq!(seen.len(), 50);
    }

    #[test]
    #[should_panic(expected = "seed 7")]
    fn a_seed_that_fails_fails_the_run() {
        let seeds = Seeds { short: 50, soak: Duration::ZERO };
        seeds.simulate(|| (), |(), seed| assert_ne!(seed, 7, "seed 7"));
    }

    #[test]
    fn numbers_are_those_of_splitmix64() {
        let random = Random::new(1_234_567);
        let numbers = [random.next(), random.next(), random.next()];
        assert_eq!(numbers, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }
}
