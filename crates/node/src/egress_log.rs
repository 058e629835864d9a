//! Egress decisions as entries of a sandbox's log. Repetitions are counted and floods are summed
//! up, so that a sandbox that scans networks does not push other entries out of its log.

use std::collections::HashMap;

use egress::Decision;
use jiff::{SignedDuration, Timestamp};

use crate::log::{Entry, LogLevel};

/// How long repetitions are only counted.
const WINDOW: SignedDuration = SignedDuration::from_secs(60);
/// Most different decisions that one window lists.
const MOST_LISTED: usize = 100;

#[derive(Default)]
pub(crate) struct EgressLog {
    began: Option<Timestamp>,
    /// Decisions listed in this window, and how often each was repeated.
    repeated: HashMap<Decision, u64>,
    unlisted: u64,
}

impl EgressLog {
    /// Adds a decision and returns the entries to write now.
    pub(crate) fn take(&mut self, now: Timestamp, decision: Decision) -> Vec<Entry> {
        let mut entries = self.flush(now);
        let listed = self.repeated.len();
        match self.repeated.get_mut(&decision) {
            Some(count) => *count += 1,
            None if listed < MOST_LISTED => {
                self.began.get_or_insert(now);
                entries.push(entry(now, &decision, 0));
                self.repeated.insert(decision, 0);
            }
            None => self.unlisted += 1,
        }
        entries
    }

    /// Ends the window if it has lasted long enough and returns the entries that sum it up.
    pub(crate) fn flush(&mut self, now: Timestamp) -> Vec<Entry> {
        if self.began.is_none_or(|began| now.duration_since(began) < WINDOW) {
            return Vec::new();
        }
        let repeated = std::mem::take(&mut self.repeated).into_iter().filter(|(_, count)| *count > 0);
        let mut entries: Vec<Entry> = repeated.map(|(decision, count)| entry(now, &decision, count)).collect();
        if self.unlisted > 0 {
            let message = format!("egress: {} more decisions, too many to be listed", self.unlisted);
            entries.push(Entry { at: now, level: LogLevel::Warn, message, fields: [].into() });
        }
        *self = Self::default();
        entries
    }
}

fn entry(at: Timestamp, decision: &Decision, repeated: u64) -> Entry {
    let Decision { allowed, protocol, address, port, name, reason } = decision;
    let (verdict, level) = if *allowed { ("allowed", LogLevel::Debug) } else { ("denied", LogLevel::Warn) };
    let place = match (address, port) {
        (Some(address), Some(port)) => Some(std::net::SocketAddr::new(*address, *port).to_string()),
        (Some(address), None) => Some(address.to_string()),
        (None, _) => None,
    };
    let whom = match (&place, name) {
        (Some(place), Some(name)) => format!("{place} ({name})"),
        (Some(text), None) | (None, Some(text)) => text.clone(),
        (None, None) => String::new(),
    };
    let again = if repeated > 0 { format!(", {repeated} more times") } else { String::new() };
    let fields = [
        ("egress", Some(verdict.to_owned())),
        ("protocol", Some(protocol.to_string())),
        ("address", address.map(|address| address.to_string())),
        ("port", port.map(|port| port.to_string())),
        ("name", name.clone()),
        ("reason", Some(reason.clone())),
    ];
    let fields = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
    Entry { at, level, message: format!("egress {verdict}: {protocol} {whom}: {reason}{again}"), fields }
}

#[cfg(test)]
mod tests {
    use egress::Protocol;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn denied(port: u16) -> Decision {
        Decision {
            allowed: false,
            protocol: Protocol::Tcp,
            address: Some([1, 2, 3, 4].into()),
            port: Some(port),
            name: Some("a.example".to_owned()),
            reason: "no".to_owned(),
        }
    }

    fn texts(entries: Vec<Entry>) -> Vec<String> {
        entries.into_iter().map(|entry| entry.message).collect()
    }

    #[test]
    fn repetitions_are_counted() {
        let mut log = EgressLog::default();
        let first = log.take(at(0), denied(80));
        assert_eq!(first[0].fields["egress"], "denied");
        assert_eq!(texts(first), ["egress denied: tcp 1.2.3.4:80 (a.example): no"]);
        assert!(log.take(at(1), denied(80)).is_empty() && log.take(at(2), denied(80)).is_empty());
        assert_eq!(texts(log.take(at(3), denied(81))).len(), 1);
        assert!(log.flush(at(59)).is_empty());
        assert_eq!(texts(log.flush(at(60))), ["egress denied: tcp 1.2.3.4:80 (a.example): no, 2 more times"]);
        assert_eq!(log.take(at(61), denied(80)).len(), 1);
    }

    #[test]
    fn a_flood_is_summed_up() {
        let mut log = EgressLog::default();
        let written: usize = (0..1000).map(|port| log.take(at(0), denied(port)).len()).sum();
        assert_eq!(written, MOST_LISTED);
        assert_eq!(texts(log.flush(at(70))), ["egress: 900 more decisions, too many to be listed"]);
    }
}
