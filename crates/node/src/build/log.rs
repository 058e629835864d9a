//! The log of a build. It only grows while the build runs, so that readers can continue at their
//! position. Lines beyond the limits are dropped, and the log notes that.

use parking_lot::{Mutex, MutexGuard};

use jiff::Timestamp;

use crate::clock::Clock;
use crate::log::LogLevel;

const MOST_LINES: usize = 20_000;
const MOST_BYTES: usize = 4 << 20;
/// Longer lines are truncated.
const MOST_LINE_BYTES: usize = 4 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildLine {
    pub at: Timestamp,
    pub level: LogLevel,
    pub message: String,
    /// As in [`crate::template::BuildFailure`].
    pub step: Option<String>,
}

#[derive(Debug, Default)]
pub struct BuildLog(Mutex<Lines>);

#[derive(Debug, Default)]
struct Lines {
    lines: Vec<BuildLine>,
    bytes: usize,
    is_full: bool,
}

impl BuildLog {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.0.lock()
    }

    /// All lines so far, oldest first.
    pub fn lines(&self) -> Vec<BuildLine> {
        self.lock().lines.clone()
    }

    pub(crate) fn write(&self, clock: &dyn Clock, level: LogLevel, step: Option<&str>, message: &str) {
        let mut held = self.lock();
        if held.is_full && level != LogLevel::Error {
            return;
        }
        let message = message[..message.floor_char_boundary(MOST_LINE_BYTES)].to_owned();
        held.bytes += message.len();
        let at = clock.now();
        held.lines.push(BuildLine { at, level, message, step: step.map(str::to_owned) });
        if !held.is_full && (held.lines.len() >= MOST_LINES || held.bytes >= MOST_BYTES) {
            held.is_full = true;
            let message = "the log is full; what follows is left out".to_owned();
            held.lines.push(BuildLine { at, level: LogLevel::Warn, message, step: None });
        }
    }
}

/// Cuts a stream of bytes into lines.
#[derive(Default)]
pub(super) struct Splitter(Vec<u8>);

impl Splitter {
    /// Calls `line` with every line that `bytes` completes.
    pub(super) fn push(&mut self, bytes: &[u8], mut line: impl FnMut(&str)) {
        for byte in bytes {
            match byte {
                b'\n' => self.flush(&mut line),
                // A progress bar overwrites its line; each state becomes a line of its own.
                b'\r' => self.flush(&mut line),
                _ if self.0.len() < MOST_LINE_BYTES => self.0.push(*byte),
                _ => {}
            }
        }
    }

    /// Calls `line` with the last line if it has no line break.
    pub(super) fn flush(&mut self, mut line: impl FnMut(&str)) {
        if !self.0.is_empty() {
            line(&String::from_utf8_lossy(&self.0));
            self.0.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    #[test]
    fn lines_are_cut_at_their_ends() {
        let (mut splitter, mut lines) = (Splitter::default(), Vec::new());
        for part in ["one\ntw", "o\r\n10%\r20%\r", "\n\nlast"] {
            splitter.push(part.as_bytes(), |line| lines.push(line.to_owned()));
        }
        splitter.flush(|line| lines.push(line.to_owned()));
        assert_eq!(lines, ["one", "two", "10%", "20%", "last"]);
    }

    #[test]
    fn a_log_is_bounded_and_still_tells_of_a_failure() {
        let log = BuildLog::default();
        for _ in 0..MOST_LINES + 10 {
            log.write(&SystemClock, LogLevel::Info, Some("1"), "y");
        }
        log.write(&SystemClock, LogLevel::Error, Some("1"), "failed");
        let lines = log.lines();
        assert_eq!(lines.len(), MOST_LINES + 2);
        assert_eq!(lines.last().map(|line| line.message.as_str()), Some("failed"));
    }
}
