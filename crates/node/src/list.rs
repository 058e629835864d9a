//! Lists of sandboxes: filters, order, and pages whose tokens stay good while sandboxes come and go.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;

use crate::node::{Node, Seen};
use crate::sandbox::Standing;

/// Which sandboxes to list, and how.
#[derive(Debug, Clone)]
pub struct Query {
    pub running: bool,
    pub paused: bool,
    /// All pairs must be there, exactly.
    pub metadata: BTreeMap<String, String>,
    /// Inclusive.
    pub started_after: Option<Timestamp>,
    pub template_id: Option<String>,
    pub order: Order,
    pub limit: usize,
    pub after: Option<Cursor>,
}

/// By the time of their start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    OldestFirst,
    NewestFirst,
}

/// The last sandbox of a page; the next page begins after it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    started_us: i64,
    id: String,
}

impl Cursor {
    pub(crate) fn new(moment: Timestamp, id: String) -> Self {
        Self { started_us: moment.as_microsecond(), id }
    }

    fn of(seen: &Seen) -> Self {
        Self::new(seen.record.started_at, seen.record.id.to_string())
    }

    /// The text a client hands back; it means nothing to the client.
    pub fn to_token(&self) -> String {
        URL_SAFE_NO_PAD.encode(format!("{}:{}", self.started_us, self.id))
    }

    pub fn from_token(token: &str) -> Option<Self> {
        let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
        let (started, id) = text.split_once(':')?;
        let id = id.parse::<crate::id::SandboxId>().ok()?.to_string();
        Some(Self { started_us: started.parse().ok()?, id })
    }
}

/// One page of a list.
pub struct Page {
    pub sandboxes: Vec<Seen>,
    /// Present when there is more.
    pub next: Option<Cursor>,
    /// Running ones that match, on all pages together.
    pub total_running: usize,
}

impl Node {
    pub fn list(&self, query: &Query) -> Page {
        page(self.all(), query)
    }
}

fn page(all: Vec<Seen>, query: &Query) -> Page {
    let mut matching: Vec<(Cursor, Seen)> =
        all.into_iter().filter(|seen| matches(seen, query)).map(|seen| (Cursor::of(&seen), seen)).collect();
    matching.sort_by(|(one, _), (other, _)| match query.order {
        Order::OldestFirst => one.cmp(other),
        Order::NewestFirst => other.cmp(one),
    });
    let total_running = matching.iter().filter(|(_, seen)| seen.standing == Standing::Running).count();
    let is_beyond = |cursor: &Cursor| match (&query.after, query.order) {
        (None, _) => true,
        (Some(after), Order::OldestFirst) => cursor > after,
        (Some(after), Order::NewestFirst) => cursor < after,
    };
    let mut rest = matching.into_iter().filter(|(cursor, _)| is_beyond(cursor));
    let taken: Vec<(Cursor, Seen)> = rest.by_ref().take(query.limit).collect();
    let next = rest.next().and_then(|_| taken.last().map(|(cursor, _)| cursor.clone()));
    Page { sandboxes: taken.into_iter().map(|(_, seen)| seen).collect(), next, total_running }
}

fn matches(seen: &Seen, query: &Query) -> bool {
    let record = &seen.record;
    let wanted = match seen.standing {
        Standing::Running => query.running,
        Standing::Paused(_) => query.paused,
    };
    wanted
        && query.metadata.iter().all(|(key, value)| record.metadata.get(key) == Some(value))
        && query.started_after.is_none_or(|after| record.started_at.as_microsecond() >= after.as_microsecond())
        && query.template_id.as_ref().is_none_or(|id| record.template.id == *id)
}
