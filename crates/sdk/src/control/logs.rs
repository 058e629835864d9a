//! Logs of a sandbox.

use http::Method;
use jiff::Timestamp;
use protocol::rest::{LogLevel, SandboxLog, SandboxLogEntry, SandboxLogPage, SandboxLogs};

use super::life::SandboxError;
use super::query::Path;
use super::request::{Request, lacks_path};
use crate::client::Client;
use crate::transport::Failure;
use protocol::SandboxId;

/// Page size limit of servers.
const MAX_ENTRIES: usize = 1000;

/// Direction from the cursor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Direction {
    /// Newest first, from the cursor or the end backwards.
    #[default]
    Backward,
    /// Oldest first, from the cursor or the beginning forwards.
    Forward,
}

/// Filters of log entries; the latest thousand, newest first, by default.
#[derive(Debug, Clone, Default)]
pub struct LogQuery {
    direction: Direction,
    cursor: Option<Timestamp>,
    limit: Option<usize>,
    level: Option<LogLevel>,
    search: Option<String>,
}

impl LogQuery {
    /// The newest entries, newest first.
    pub fn newest() -> Self {
        Self::default()
    }

    /// The oldest entries, oldest first.
    pub fn oldest() -> Self {
        Self { direction: Direction::Forward, ..Self::default() }
    }

    /// Entries from `moment` on, oldest first, including its millisecond.
    pub fn since(moment: Timestamp) -> Self {
        Self { cursor: Some(moment), ..Self::oldest() }
    }

    /// Entries up to `moment`, newest first, including its millisecond.
    pub fn before(moment: Timestamp) -> Self {
        Self { cursor: Some(moment), ..Self::newest() }
    }

    /// At most this many; servers send a thousand at most.
    #[must_use]
    pub fn limit(mut self, entries: usize) -> Self {
        self.limit = Some(entries);
        self
    }

    /// Only entries of this level or a more severe one.
    #[must_use]
    pub fn level(mut self, least: LogLevel) -> Self {
        self.level = Some(least);
        self
    }

    /// Only entries whose message contains this text, at most 256 bytes.
    #[must_use]
    pub fn search(mut self, text: impl Into<String>) -> Self {
        self.search = Some(text.into());
        self
    }

    /// The query of the log at `path`.
    pub(super) fn on(&self, path: String) -> Path {
        let direction = match self.direction {
            Direction::Backward => "backward",
            Direction::Forward => "forward",
        };
        Path::new(path)
            .with("direction", Some(direction))
            .with("cursor", self.cursor.map(Timestamp::as_millisecond))
            .with("limit", self.limit)
            .with("level", self.level.map(name))
            .with("search", self.search.as_deref())
    }

    fn admits(&self, entry: &SandboxLogEntry) -> bool {
        let at = millisecond(&entry.timestamp);
        let within = match (self.cursor.map(Timestamp::as_millisecond), self.direction) {
            (None, _) => true,
            (Some(cursor), Direction::Backward) => at.is_some_and(|at| at <= cursor),
            (Some(cursor), Direction::Forward) => at.is_some_and(|at| at >= cursor),
        };
        let serious = self.level.is_none_or(|least| rank(entry.level) >= rank(least));
        within && serious && self.search.as_ref().is_none_or(|text| entry.message.contains(text))
    }

    /// Selects from all entries, oldest first, like a server of API version 2.
    fn choose(&self, mut entries: Vec<SandboxLogEntry>) -> Vec<SandboxLogEntry> {
        entries.retain(|entry| self.admits(entry));
        if self.direction == Direction::Backward {
            entries.reverse();
        }
        entries.truncate(self.limit.unwrap_or(MAX_ENTRIES).min(MAX_ENTRIES));
        entries
    }
}

fn name(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Debug => "debug",
        LogLevel::Info => "info",
        LogLevel::Warn => "warn",
        LogLevel::Error => "error",
    }
}

fn rank(level: LogLevel) -> u8 {
    match level {
        LogLevel::Debug => 0,
        LogLevel::Info => 1,
        LogLevel::Warn => 2,
        LogLevel::Error => 3,
    }
}

fn millisecond(timestamp: &str) -> Option<i64> {
    Some(timestamp.parse::<Timestamp>().ok()?.as_millisecond())
}

impl Client {
    /// Entries of a sandbox's log. For API version 1 the client applies the filters.
    ///
    /// # Errors
    /// [`SandboxError::NotFound`], [`SandboxError::Call`].
    pub async fn logs(&self, id: &SandboxId, query: &LogQuery) -> Result<Vec<SandboxLogEntry>, SandboxError> {
        let request = Request::new(
            self,
            Method::GET,
            query.on(format!("/v2/sandboxes/{id}/logs")),
            format!("read the log of sandbox {id}"),
        );
        match request.json::<SandboxLogPage>().await {
            Ok(page) => Ok(page.logs),
            Err(Failure::Refused(refusal)) if lacks_path(&refusal) => {
                let start = match query.direction {
                    Direction::Forward => query.cursor,
                    Direction::Backward => None,
                };
                Ok(query.choose(self.old_logs(id, start).await?))
            }
            Err(failure) => Err(SandboxError::from_failure(failure, id, &request)),
        }
    }

    /// Reads the log of API version 1 from `start` on, oldest first, page by page.
    async fn old_logs(&self, id: &SandboxId, start: Option<Timestamp>) -> Result<Vec<SandboxLogEntry>, SandboxError> {
        let mut all: Vec<SandboxLogEntry> = Vec::new();
        let mut start = start.map(Timestamp::as_millisecond);
        loop {
            let path = Path::new(format!("/sandboxes/{id}/logs")).with("start", start).with("limit", Some(MAX_ENTRIES));
            let request = Request::new(self, Method::GET, path, format!("read the log of sandbox {id}"));
            let answer = request.json::<SandboxLogs>().await;
            let page = entries(answer.map_err(|failure| SandboxError::from_failure(failure, id, &request))?);
            let full = page.len() >= MAX_ENTRIES;
            // The next page repeats the last millisecond.
            let seen = all.iter().rev().take_while(|entry| millisecond(&entry.timestamp) == start).count();
            let before = all.len();
            all.extend(page.into_iter().skip(if before == 0 { 0 } else { seen }));
            start = all.last().and_then(|entry| millisecond(&entry.timestamp));
            if !full || all.len() == before || start.is_none() {
                return Ok(all);
            }
        }
    }
}

/// The entries, or the plain lines of the oldest servers.
fn entries(logs: SandboxLogs) -> Vec<SandboxLogEntry> {
    if !logs.log_entries.is_empty() {
        return logs.log_entries;
    }
    let entry = |SandboxLog { timestamp, line }| SandboxLogEntry {
        timestamp,
        message: line,
        level: LogLevel::Info,
        fields: Default::default(),
    };
    logs.logs.into_iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(second: u8, level: LogLevel, message: &str) -> SandboxLogEntry {
        let timestamp = format!("2026-01-01T00:00:{second:02}Z");
        SandboxLogEntry { timestamp, message: message.into(), level, fields: Default::default() }
    }

    #[test]
    fn logs_of_api_v1_are_filtered_like_v2() {
        let all = || {
            vec![
                entry(1, LogLevel::Info, "one"),
                entry(2, LogLevel::Error, "two"),
                entry(3, LogLevel::Debug, "three"),
                entry(4, LogLevel::Warn, "four"),
            ]
        };
        let at = |second: u8| format!("2026-01-01T00:00:{second:02}Z").parse::<Timestamp>().expect("a moment");
        for (query, expected) in [
            (LogQuery::newest(), "four three two one"),
            (LogQuery::oldest().limit(2), "one two"),
            (LogQuery::newest().limit(2), "four three"),
            (LogQuery::since(at(3)), "three four"),
            (LogQuery::before(at(2)), "two one"),
            (LogQuery::oldest().level(LogLevel::Warn), "two four"),
            (LogQuery::oldest().search("o"), "one two four"),
        ] {
            let messages: Vec<String> = query.choose(all()).into_iter().map(|entry| entry.message).collect();
            assert_eq!(messages.join(" "), expected, "{query:?}");
        }
    }
}
