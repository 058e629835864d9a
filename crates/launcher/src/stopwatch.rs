//! Measures where the time of a boot goes, in the server and in the launcher.

use std::time::Instant;

/// Named marks in microseconds since the start; a few dozen per boot.
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
