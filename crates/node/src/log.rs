//! What happened in and to a sandbox: the guest's own record, joined with the server's. Bounded, and in memory: the guest
//! keeps its part across restarts of the server, and the server's part says why things are as they are now.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;
pub use protocol::guest::LogLevel;

const MOST_ENTRIES: usize = 5000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub at: Timestamp,
    pub level: LogLevel,
    pub message: String,
    pub fields: BTreeMap<String, String>,
}

/// The log of one sandbox, ordered by time.
#[derive(Debug, Default)]
pub struct Log {
    entries: VecDeque<Entry>,
    /// Sequence number of the newest entry taken from the guest of this boot.
    seen: u64,
}

impl Log {
    pub fn write(&mut self, at: Timestamp, level: LogLevel, message: impl Into<String>) {
        self.insert(Entry { at, level, message: message.into(), fields: BTreeMap::new() });
    }

    /// What to ask the guest for: entries after this number.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// A new guest counts from the beginning.
    pub fn start_anew(&mut self) {
        self.seen = 0;
    }

    pub fn take_from_guest(&mut self, entries: Vec<protocol::guest::LogEntry>) {
        for protocol::guest::LogEntry { seq, unix_ms, level, message, fields } in entries {
            if seq <= self.seen {
                continue;
            }
            self.seen = seq;
            let at = i64::try_from(unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
            self.insert(Entry { at: at.unwrap_or(Timestamp::UNIX_EPOCH), level, message, fields });
        }
    }

    fn insert(&mut self, entry: Entry) {
        let place = self.entries.partition_point(|other| other.at <= entry.at);
        self.entries.insert(place, entry);
        if self.entries.len() > MOST_ENTRIES {
            self.entries.pop_front();
        }
    }

    pub fn entries(&self) -> Vec<Entry> {
        self.entries.iter().cloned().collect()
    }
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
    fn the_oldest_are_forgotten() {
        let mut log = Log::default();
        log.take_from_guest((1..=6000).map(|seq| guest(seq, seq)).collect());
        assert_eq!(log.entries().len(), MOST_ENTRIES);
        assert_eq!(log.entries()[0].message, "1001");
    }
}
