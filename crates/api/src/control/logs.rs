//! Logs of sandboxes, in both API versions.

use http::{Request, StatusCode};
use jiff::Timestamp;
use node::SandboxId;
use node::log::{Entry, LogLevel};
use protocol::rest::{SandboxLog, SandboxLogEntry, SandboxLogPage, SandboxLogs};

use super::failure::Failure;
use super::{CallResult, view};
use crate::body;
use crate::content::Content;
use crate::query;
use crate::server::App;

const MOST_ENTRIES: usize = 1000;
const LONGEST_SEARCH: usize = 256;

type Pairs = [(String, String)];

/// `GET /sandboxes/{id}/logs`: from `start` (Unix milliseconds) on, oldest first.
pub(super) async fn read_v1(app: &App, id: &SandboxId, request: &Request<Content>) -> CallResult {
    let pairs = query::pairs(request.uri().query().unwrap_or(""));
    let (start, limit) = (moment(&pairs, "start")?, limit(&pairs)?);
    let entries = app.node.log(id).await?;
    let chosen = entries.into_iter().filter(|entry| start.is_none_or(|start| entry.at >= start)).take(limit);
    let entries: Vec<SandboxLogEntry> = chosen.map(wire).collect();
    let logs = entries
        .iter()
        .map(|entry| SandboxLog { timestamp: entry.timestamp.clone(), line: entry.message.clone() })
        .collect();
    Ok(body::json(StatusCode::OK, &SandboxLogs { logs, log_entries: entries }))
}

/// `GET /v2/sandboxes/{id}/logs`: from `cursor` on, forwards or backwards.
pub(super) async fn read_v2(app: &App, id: &SandboxId, request: &Request<Content>) -> CallResult {
    let pairs = query::pairs(request.uri().query().unwrap_or(""));
    let (window, level) = (Window::parse(&pairs)?, level(&pairs)?);
    let search = query::first(&pairs, "search").unwrap_or("");
    if search.len() > LONGEST_SEARCH {
        return Err(Failure::bad_request(format!("search is longer than {LONGEST_SEARCH} bytes")));
    }
    let mut entries = app.node.log(id).await?;
    entries.retain(|entry| is_at_least(entry.level, level) && entry.message.contains(search));
    let chosen = window.choose(entries, |entry: &Entry| entry.at);
    Ok(body::json(StatusCode::OK, &SandboxLogPage { logs: chosen.map(wire).collect() }))
}

/// The requested part of a log: from `cursor` on, forwards or backwards.
pub(super) struct Window {
    cursor: Option<Timestamp>,
    limit: usize,
    backward: bool,
}

impl Window {
    pub(super) fn parse(pairs: &Pairs) -> Result<Self, Failure> {
        let backward = match query::first(pairs, "direction") {
            None | Some("" | "backward") => true,
            Some("forward") => false,
            Some(other) => {
                return Err(Failure::bad_request(format!("direction '{other}' is neither forward nor backward")));
            }
        };
        Ok(Self { cursor: moment(pairs, "cursor")?, limit: limit(pairs)?, backward })
    }

    /// Selects the requested entries from `entries`, which are ordered oldest first, in the
    /// requested order.
    pub(super) fn choose<T>(self, mut entries: Vec<T>, at: impl Fn(&T) -> Timestamp) -> impl Iterator<Item = T> {
        let Self { cursor, limit, backward } = self;
        entries.retain(|entry| match cursor {
            None => true,
            Some(cursor) if backward => at(entry) <= cursor,
            Some(cursor) => at(entry) >= cursor,
        });
        if backward {
            entries.reverse();
        }
        entries.into_iter().take(limit)
    }
}

/// The lowest requested level.
pub(super) fn level(pairs: &Pairs) -> Result<LogLevel, Failure> {
    match query::first(pairs, "level") {
        None | Some("" | "debug") => Ok(LogLevel::Debug),
        Some("info") => Ok(LogLevel::Info),
        Some("warn") => Ok(LogLevel::Warn),
        Some("error") => Ok(LogLevel::Error),
        Some(other) => Err(Failure::bad_request(format!("level '{other}' is unknown"))),
    }
}

pub(super) fn is_at_least(level: LogLevel, least: LogLevel) -> bool {
    let rank = |level| match level {
        LogLevel::Debug => 0,
        LogLevel::Info => 1,
        LogLevel::Warn => 2,
        LogLevel::Error => 3,
    };
    rank(level) >= rank(least)
}

fn moment(pairs: &Pairs, name: &str) -> Result<Option<Timestamp>, Failure> {
    let Some(text) = query::first(pairs, name).filter(|text| !text.is_empty()) else { return Ok(None) };
    let moment = text.parse().ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    moment.map(Some).ok_or_else(|| Failure::bad_request(format!("{name} is '{text}'; it must be Unix milliseconds")))
}

fn limit(pairs: &Pairs) -> Result<usize, Failure> {
    let Some(text) = query::first(pairs, "limit").filter(|text| !text.is_empty()) else { return Ok(MOST_ENTRIES) };
    let limit = text.parse().ok().filter(|limit| (0..=MOST_ENTRIES).contains(limit));
    limit.ok_or_else(|| Failure::bad_request(format!("limit is '{text}'; it must be between 0 and {MOST_ENTRIES}")))
}

fn wire(entry: Entry) -> SandboxLogEntry {
    let Entry { at, level, message, fields } = entry;
    SandboxLogEntry { timestamp: view::time(at), message, level, fields }
}
