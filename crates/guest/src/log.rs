//! The event log of the sandbox, for the host to fetch: the latest entries, kept in memory.
//! Contains names of commands and numbers; never arguments, environment values or content.

use std::collections::{BTreeMap, VecDeque};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use protocol::guest::{LogEntry, LogLevel};

const MAX_ENTRIES: usize = 1000;
/// Longer texts (a command name can be a megabyte) are truncated.
const MAX_FIELD_BYTES: usize = 256;

#[derive(Default)]
pub(crate) struct GuestLog(Mutex<Ring>);

#[derive(Default)]
struct Ring {
    next: u64,
    entries: VecDeque<LogEntry>,
}

impl GuestLog {
    pub(crate) fn add<const N: usize>(&self, level: LogLevel, message: &str, fields: [(&str, String); N]) {
        let fields: BTreeMap<_, _> = fields.map(|(key, value)| (key.to_owned(), truncate(&value))).into();
        let mut ring = self.0.lock();
        if ring.entries.len() == MAX_ENTRIES {
            ring.entries.pop_front();
        }
        ring.next += 1;
        let seq = ring.next;
        ring.entries.push_back(LogEntry { seq, unix_ms: unix_ms(), level, message: message.to_owned(), fields });
    }

    /// Entries newer than `seq`; 0 returns all.
    pub(crate) fn after(&self, seq: u64) -> Vec<LogEntry> {
        let ring = self.0.lock();
        ring.entries.iter().filter(|entry| entry.seq > seq).cloned().collect()
    }
}

pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Also removes control characters: JSON encodes each as six bytes, and the host accepts at most a
/// megabyte.
fn truncate(text: &str) -> String {
    let start = &text[..text.floor_char_boundary(MAX_FIELD_BYTES)];
    let mut kept = start.replace(char::is_control, "?");
    if start.len() < text.len() {
        kept.push('…');
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_drops_the_oldest_and_keeps_counting() {
        let log = GuestLog::default();
        for number in 0..MAX_ENTRIES + 5 {
            log.add(LogLevel::Info, "tick", [("n", number.to_string())]);
        }
        let all = log.after(0);
        assert_eq!((all.len(), all[0].seq, all[MAX_ENTRIES - 1].seq), (MAX_ENTRIES, 6, MAX_ENTRIES as u64 + 5));
        assert_eq!(log.after(MAX_ENTRIES as u64 + 4).len(), 1);
    }

    #[test]
    fn long_fields_are_truncated_at_characters() {
        let log = GuestLog::default();
        log.add(LogLevel::Info, "start", [("command", "ä".repeat(500))]);
        assert!(log.after(0)[0].fields["command"].len() <= MAX_FIELD_BYTES + 3);
    }
}
