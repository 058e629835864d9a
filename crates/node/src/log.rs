//! The log of a sandbox: entries of the guest and of the server. It is bounded and in memory: the
//! guest keeps its part across restarts of the server, and the server's part explains the current
//! state.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;
pub use protocol::guest::LogLevel;

const MOST_ENTRIES: usize = 5000;
/// Most bytes of the server's memory that the entries of one sandbox take.
const MOST_BYTES: usize = 1 << 20;
/// Messages, field names and field values of a guest, which may be hostile, are truncated to this
/// length.
const MOST_TEXT_BYTES: usize = 4 << 10;
const MOST_FIELDS: usize = 16;
/// Approximate overhead of an entry or a field besides its text.
const ENTRY_BYTES: usize = 128;
const FIELD_BYTES: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub at: Timestamp,
    pub level: LogLevel,
    pub message: String,
    pub fields: BTreeMap<String, String>,
}

impl Entry {
    fn bytes(&self) -> usize {
        let fields = self.fields.iter().map(|(name, value)| FIELD_BYTES + name.len() + value.len());
        ENTRY_BYTES + self.message.len() + fields.sum::<usize>()
    }
}

/// The log of one sandbox, ordered by time.
#[derive(Debug, Default)]
pub struct Log {
    entries: VecDeque<Entry>,
    /// The sum over the entries.
    bytes: usize,
    /// Sequence number of the newest entry read from the guest of this boot.
    seen: u64,
}

impl Log {
    pub fn write(&mut self, at: Timestamp, level: LogLevel, message: impl Into<String>) {
        self.insert(Entry { at, level, message: message.into(), fields: BTreeMap::new() });
    }

    pub(crate) fn write_all(&mut self, entries: Vec<Entry>) {
        entries.into_iter().for_each(|entry| self.insert(entry));
    }

    /// The server requests entries after this number from the guest.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Expects a new guest, which counts from the beginning.
    pub fn reset(&mut self) {
        self.seen = 0;
    }

    pub fn take_from_guest(&mut self, entries: Vec<protocol::guest::LogEntry>) {
        for protocol::guest::LogEntry { seq, unix_ms, level, message, fields } in entries {
            if seq <= self.seen {
                continue;
            }
            self.seen = seq;
            let at = i64::try_from(unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
            let fields =
                fields.into_iter().take(MOST_FIELDS).map(|(name, value)| (truncate(name), truncate(value))).collect();
            self.insert(Entry { at: at.unwrap_or(Timestamp::UNIX_EPOCH), level, message: truncate(message), fields });
        }
    }

    fn insert(&mut self, entry: Entry) {
        let place = self.entries.partition_point(|other| other.at <= entry.at);
        self.bytes += entry.bytes();
        self.entries.insert(place, entry);
        while self.entries.len() > MOST_ENTRIES || self.bytes > MOST_BYTES {
            let Some(oldest) = self.entries.pop_front() else { return };
            self.bytes -= oldest.bytes();
        }
    }

    pub fn entries(&self) -> Vec<Entry> {
        self.entries.iter().cloned().collect()
    }
}

/// Truncates a text and releases the memory that it no longer uses.
fn truncate(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MOST_TEXT_BYTES));
    text.shrink_to_fit();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(seq: u64, unix_ms: u64) -> protocol::guest::LogEntry {
        protocol::guest::LogEntry {
            seq,
            unix_ms,
            level: LogLevel::Info,
            message: seq.to_string(),
            fields: BTreeMap::new(),
        }
    }

    #[test]
    fn entries_are_ordered_by_time_and_taken_once() {
        let mut log = Log::default();
        log.write(Timestamp::from_millisecond(15).expect("in range"), LogLevel::Warn, "server");
        log.take_from_guest(vec![guest(1, 10), guest(2, 20)]);
        log.take_from_guest(vec![guest(2, 20), guest(3, 20)]);
        let messages: Vec<String> = log.entries().into_iter().map(|entry| entry.message).collect();
        assert_eq!(messages, ["1", "server", "2", "3"]);
        assert_eq!(log.seen(), 3);
    }

    #[test]
    fn the_oldest_entries_are_dropped() {
        let mut log = Log::default();
        log.take_from_guest((1..=6000).map(|seq| guest(seq, seq)).collect());
        assert_eq!(log.entries().len(), MOST_ENTRIES);
        assert_eq!(log.entries()[0].message, "1001");
    }

    #[test]
    fn entries_of_a_guest_are_truncated() {
        let mut log = Log::default();
        let long = "\u{e9}".repeat(1 << 20);
        let fields = (0..100).map(|index| (format!("{index:03}{long}"), long.clone())).collect();
        log.take_from_guest(vec![protocol::guest::LogEntry { message: format!("a{long}"), fields, ..guest(1, 1) }]);
        let entry = &log.entries()[0];
        assert_eq!(entry.message.len(), MOST_TEXT_BYTES - 1, "cut between characters");
        assert_eq!(entry.fields.len(), MOST_FIELDS);
        assert!(entry.fields.iter().all(|(name, value)| name.len().max(value.len()) <= MOST_TEXT_BYTES));
    }

    #[test]
    fn memory_is_bounded_whatever_the_entries_hold() {
        let mut log = Log::default();
        let say = |seq| protocol::guest::LogEntry { message: "x".repeat(100_000), ..guest(seq, seq) };
        log.take_from_guest((1..=1000).map(say).collect());
        let held: usize = log.entries().iter().map(Entry::bytes).sum();
        assert_eq!(held, log.bytes);
        assert!(held <= MOST_BYTES && held > MOST_BYTES / 2, "{held}");
        assert_eq!(log.entries().last().map(|entry| entry.at.as_millisecond()), Some(1000), "the newest stay");
    }
}
