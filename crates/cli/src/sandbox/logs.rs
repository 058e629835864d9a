//! `sandbar sandbox logs`: prints the log of a sandbox, and follows it by polling.

use super::{Session, explain};
use crate::show::{Show, local_time, printable};
use crate::values;
use anyhow::Context as _;
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use sdk::model::{LogLevel, SandboxLogEntry};
use sdk::{LogQuery, SandboxError, SandboxId};
use std::time::Duration;

/// Between two requests for new entries.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Show what happened in and to a sandbox.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar sandbox logs iabc123            the newest 1000 entries, oldest first
  sandbar sandbox logs iabc123 -f         and what comes, until the sandbox ends or Ctrl-C
  sandbar sandbox logs iabc123 --since 10m --level warn
  sandbar sandbox logs iabc123 -f --json  one object a line (without -f: one array)")]
pub(crate) struct Logs {
    /// The sandbox
    id: SandboxId,
    /// Go on with what comes
    #[arg(long, short)]
    follow: bool,
    /// The newest so many entries
    #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..=1000), conflicts_with = "since")]
    limit: u16,
    /// Entries since so long ago
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    since: Option<Duration>,
    /// Only entries of this level or a more serious one
    #[arg(long)]
    level: Option<Level>,
    /// Only entries with this text
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

impl Logs {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let mut entries = match self.since {
            Some(time) => {
                let start = Timestamp::now().checked_sub(jiff::SignedDuration::try_from(time)?);
                Reader::since(start.context("--since lies before all time")?)
                    .rest(session, &self)
                    .await
                    .map_err(explain)?
            }
            None => {
                let newest = self.narrow(LogQuery::newest()).limit(self.limit.into());
                let mut newest = session.client.logs(&self.id, &newest).await.map_err(explain)?;
                newest.reverse();
                newest
            }
        };
        if session.show.json && !self.follow {
            return Ok(session.show.object(&entries)?);
        }
        let mut reader = Reader::after(&entries);
        loop {
            entries.iter().try_for_each(|entry| print(session.show, entry))?;
            if !self.follow {
                return Ok(());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
            entries = match reader.rest(session, &self).await {
                Ok(entries) => entries,
                Err(SandboxError::NotFound { id }) => {
                    eprintln!("sandbox {id} has ended");
                    return Ok(());
                }
                Err(error) => return Err(explain(error)),
            };
        }
    }

    fn narrow(&self, query: LogQuery) -> LogQuery {
        let query = match self.level {
            Some(Level::Debug) => query.level(LogLevel::Debug),
            Some(Level::Info) => query.level(LogLevel::Info),
            Some(Level::Warn) => query.level(LogLevel::Warn),
            Some(Level::Error) => query.level(LogLevel::Error),
            None => query,
        };
        match &self.search {
            Some(text) => query.search(text),
            None => query,
        }
    }
}

/// Reads the entries since a moment. Servers count in milliseconds and return those of the last
/// millisecond again, so that the entries read of it are remembered.
struct Reader {
    cursor: Timestamp,
    seen: Vec<SandboxLogEntry>,
    /// The last entry of the first page. Older entries of its millisecond are skipped.
    first_after: Option<SandboxLogEntry>,
}

impl Reader {
    fn since(cursor: Timestamp) -> Self {
        Self { cursor, seen: Vec::new(), first_after: None }
    }

    fn after(entries: &[SandboxLogEntry]) -> Self {
        let mut reader = Self::since(Timestamp::UNIX_EPOCH);
        reader.note(entries);
        reader.first_after = entries.last().cloned();
        reader
    }

    /// Reads all new entries, page by page.
    async fn rest(&mut self, session: &Session, logs: &Logs) -> Result<Vec<SandboxLogEntry>, SandboxError> {
        let mut all = Vec::new();
        loop {
            let query = logs.narrow(LogQuery::since(self.cursor));
            let mut page = session.client.logs(&logs.id, &query).await?;
            if let Some(last) = self.first_after.take() {
                let known = page.iter().rposition(|entry| *entry == last).map_or(0, |at| at + 1);
                self.seen.extend(page.drain(..known));
            }
            page.retain(|entry| !self.seen.contains(entry));
            if page.is_empty() {
                return Ok(all);
            }
            self.note(&page);
            all.append(&mut page);
        }
    }

    fn note(&mut self, entries: &[SandboxLogEntry]) {
        let moment = |entry: &SandboxLogEntry| entry.timestamp.parse::<Timestamp>().ok();
        let Some(last) = entries.iter().filter_map(moment).max() else { return };
        if last.as_millisecond() != self.cursor.as_millisecond() {
            self.seen.clear();
        }
        self.cursor = last;
        let at_last =
            |entry: &&SandboxLogEntry| moment(entry).is_some_and(|at| at.as_millisecond() == last.as_millisecond());
        self.seen.extend(entries.iter().filter(at_last).cloned());
    }
}

fn print(show: Show, entry: &SandboxLogEntry) -> std::io::Result<()> {
    if show.json {
        return show.event(entry);
    }
    let fields: String = entry.fields.iter().map(|(key, value)| format!(" {key}={value}")).collect();
    let text = printable(&format!("{}{fields}", entry.message.trim_end()));
    show.line(format!("{} {} {text}", local_time(&entry.timestamp), show.level(entry.level)))
}
