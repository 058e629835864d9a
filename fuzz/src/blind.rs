//! Runs a target without coverage: the corpus first, then changes of it until the time is over.
//!
//! An input that fails is left in `target/fuzz/failures`. A run from the same seed repeats the same
//! inputs, also when a failure ends the process (a stack that overflows): the seed of the last run
//! is beside the failures.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::mutation::{Random, mutate};
use crate::sys::most_held;
use crate::target::Target;

/// The most processor time of one input, in an unoptimized build: none takes a tenth of it.
const MAX_TIME: Duration = Duration::from_secs(10);
/// The most processor time of an input that others are made from.
const MAX_SEED_TIME: Duration = Duration::from_millis(20);
/// Inputs between two looks at the clock.
const BATCH: u64 = 16;

/// What a run did.
#[derive(Debug, Clone, Copy)]
pub struct Report {
    pub executions: u64,
    pub elapsed: Duration,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn failures() -> PathBuf {
    let directory = root().join("../target/fuzz/failures");
    fs::create_dir_all(&directory).expect("target/ can be written");
    directory
}

/// The committed inputs of a target, by file name.
fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let directory = root().join("corpus").join(target.name);
    let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a directory").path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("a file of the corpus")).collect()
}

/// Leaves the input behind when the check panics.
struct KeepOnPanic<'a> {
    target: &'a Target,
    input: &'a [u8],
}

impl Drop for KeepOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let path = failures().join(self.target.name);
            let _ = fs::write(&path, self.input);
            eprintln!("{}: this input fails: {}", self.target.name, path.display());
        }
    }
}

/// Checks one input, and what it takes.
fn check(target: &Target, input: &[u8]) {
    let guard = KeepOnPanic { target, input };
    let before = processor_time();
    let held = most_held(|| (target.check)(input));
    let spent = processor_time() - before;
    assert!(held <= target.memory, "{} bytes are held for {} bytes of input", held, input.len());
    assert!(spent <= MAX_TIME, "{spent:?} are spent on {} bytes of input", input.len());
    drop(guard);
}

/// Of this thread, so that other work on the machine does not count.
fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Checks the committed inputs.
///
/// # Panics
/// When one fails.
pub fn replay(target: &Target) -> usize {
    let corpus = corpus(target);
    assert!(!corpus.is_empty(), "corpus/{} has no input", target.name);
    check(target, &[]);
    corpus.iter().for_each(|input| check(target, input));
    corpus.len()
}

/// Checks changed inputs of the corpus for `time`.
///
/// # Panics
/// When one fails.
pub fn run(target: &Target, seed: u64, time: Duration) -> Report {
    let mut corpus = corpus(target);
    // Inputs that take long, such as those that reach a limit, are only replayed.
    let is_quick = |input: &Vec<u8>| {
        let before = processor_time();
        (target.check)(input);
        processor_time() - before < MAX_SEED_TIME
    };
    if corpus.iter().any(is_quick) {
        corpus.retain(is_quick);
    }
    let mut random = Random::new(seed);
    fs::write(failures().join(format!("{}.seed", target.name)), seed.to_string()).expect("target/ can be written");
    let start = Instant::now();
    let mut executions = 0;
    while executions % BATCH != 0 || start.elapsed() < time {
        let mut input = corpus[random.below(corpus.len())].clone();
        let other = &corpus[random.below(corpus.len())];
        mutate(&mut random, target, &mut input, other);
        check(target, &input);
        executions += 1;
    }
    Report { executions, elapsed: start.elapsed() }
}
