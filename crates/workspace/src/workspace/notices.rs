//! Notices about events that a session missed, with per-session delivery tracking.
//!
//! Each notice is delivered once to every reader that existed before it, and to the first of those
//! that come later: sessions work concurrently, and a notice delivered to one is not known to the
//! others.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The most notices kept. Without any reader, the newest ones matter.
const LINES: usize = 20;
/// The most readers tracked. Those absent for longest count as new when they return.
const READERS: usize = 50;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Notices {
    /// With their numbers.
    lines: Vec<(u64, String)>,
    /// The number of the next notice.
    next: u64,
    /// For each reader, the first number that was not delivered.
    readers: BTreeMap<String, u64>,
}

impl Notices {
    pub(super) fn add(&mut self, line: String) {
        self.lines.push((self.next, line));
        self.next += 1;
        let surplus = self.lines.len().saturating_sub(LINES);
        self.lines.drain(..surplus);
    }

    /// Takes the notices that were not delivered to a reader.
    pub(super) fn take(&mut self, reader: &str) -> Vec<String> {
        let delivered = self.readers.values().max().copied().unwrap_or(0);
        let from = self.readers.get(reader).copied().unwrap_or(delivered);
        let undelivered =
            self.lines.iter().filter(|(number, _)| *number >= from).map(|(_, line)| line.clone()).collect();
        self.readers.insert(reader.to_owned(), self.next);
        while self.readers.len() > READERS {
            let longest_away =
                self.readers.iter().min_by_key(|(_, delivered)| **delivered).map(|(name, _)| name.clone());
            longest_away.map(|name| self.readers.remove(&name));
        }
        undelivered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reader_gets_each_notice_once() {
        let mut notices = Notices::default();
        notices.add("one".to_owned());
        assert_eq!(notices.take("a"), ["one"]);
        assert_eq!(notices.take("b"), [""; 0], "already delivered to a reader");
        notices.add("two".to_owned());
        assert_eq!(
            (notices.take("b"), notices.take("a"), notices.take("a")),
            (vec!["two".into()], vec!["two".into()], vec![])
        );
        for number in 0..LINES + 1 {
            notices.add(number.to_string());
        }
        assert_eq!(notices.take("a").first().map(String::as_str), Some("1"), "the newest are kept");
        for reader in 0..READERS {
            notices.take(&reader.to_string());
        }
        assert_eq!(notices.readers.len(), READERS);
    }
}
