//! Where the time of a boot goes, on either side.

use std::time::Instant;

/// Where the time goes, in microseconds from its start; a few dozen marks a boot.
pub struct Stopwatch {
    start: Instant,
    pub marks: Vec<(String, u64)>,
}

impl Stopwatch {
    pub fn start() -> Self {
        Self { start: Instant::now(), marks: Vec::new() }
    }

    pub fn mark(&mut self, what: &str) {
        let elapsed = u64::try_from(self.start.elapsed().as_micros()).expect("a boot is shorter than centuries");
        self.marks.push((what.to_owned(), elapsed));
    }
}
