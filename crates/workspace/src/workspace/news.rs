//! What whoever works in a workspace has to be told, and who was told what.
//!
//! Each line is told once to every reader who was there before it came, and to the first of those who come later: sessions
//! work side by side, and what one of them was told the others have not heard.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Kept for whoever asks. Where nobody ever does, the newest are the ones that matter.
const LINES: usize = 20;
/// Of more readers than this, those that have been away for longest are new when they come back.
const READERS: usize = 50;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct News {
    /// With their numbers.
    lines: Vec<(u64, String)>,
    /// The next line's number.
    next: u64,
    /// From which number on each has heard nothing.
    readers: BTreeMap<String, u64>,
}

impl News {
    pub(super) fn add(&mut self, line: String) {
        self.lines.push((self.next, line));
        self.next += 1;
        let surplus = self.lines.len().saturating_sub(LINES);
        self.lines.drain(..surplus);
    }

    /// What a reader has not heard.
    pub(super) fn tell(&mut self, reader: &str) -> Vec<String> {
        let heard = self.readers.values().max().copied().unwrap_or(0);
        let from = self.readers.get(reader).copied().unwrap_or(heard);
        let unheard = self.lines.iter().filter(|(number, _)| *number >= from).map(|(_, line)| line.clone()).collect();
        self.readers.insert(reader.to_owned(), self.next);
        while self.readers.len() > READERS {
            let longest_away = self.readers.iter().min_by_key(|(_, heard)| **heard).map(|(name, _)| name.clone());
            longest_away.map(|name| self.readers.remove(&name));
        }
        unheard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reader_hears_each_line_once() {
        let mut news = News::default();
        news.add("one".to_owned());
        assert_eq!(news.tell("a"), ["one"]);
        assert_eq!(news.tell("b"), [""; 0], "somebody was told");
        news.add("two".to_owned());
        assert_eq!((news.tell("b"), news.tell("a"), news.tell("a")), (vec!["two".into()], vec!["two".into()], vec![]));
        for number in 0..LINES + 1 {
            news.add(number.to_string());
        }
        assert_eq!(news.tell("a").first().map(String::as_str), Some("1"), "the newest are kept");
        for reader in 0..READERS {
            news.tell(&reader.to_string());
        }
        assert_eq!(news.readers.len(), READERS);
    }
}
