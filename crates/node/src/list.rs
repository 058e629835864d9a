//! Lists of sandboxes: filters, order, and pages whose tokens stay valid while sandboxes are
//! created and killed.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;

use crate::node::{Node, Seen};
use crate::sandbox::PersistedState;

/// Which sandboxes to list, and in which order.
#[derive(Debug, Clone)]
pub struct Query {
    pub running: bool,
    pub paused: bool,
    /// A sandbox matches if it has all of these pairs, exactly.
    pub metadata: BTreeMap<String, String>,
    /// Inclusive.
    pub started_after: Option<Timestamp>,
    pub template_id: Option<String>,
    pub order: ListOrder,
    pub limit: usize,
    pub after: Option<Cursor>,
}

/// By start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListOrder {
    OldestFirst,
    NewestFirst,
}

/// The last sandbox of a page; the next page starts after it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    started_us: i64,
    id: String,
}

impl Cursor {
    pub(crate) fn new(moment: Timestamp, id: String) -> Self {
        Self { started_us: moment.as_microsecond(), id }
    }

    fn for_sandbox(seen: &Seen) -> Self {
        Self::new(seen.record.started_at, seen.record.id.to_string())
    }

    /// Encodes the cursor as an opaque text, which the client sends to get the next page.
    pub fn to_token(&self) -> String {
        URL_SAFE_NO_PAD.encode(format!("{}:{}", self.started_us, self.id))
    }

    pub fn from_token(token: &str) -> Option<Self> {
        let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
        let (started, id) = text.split_once(':')?;
        let id = id.parse::<protocol::SandboxId>().ok()?.to_string();
        Some(Self { started_us: started.parse().ok()?, id })
    }
}

/// One page of a list.
pub struct Page {
    pub sandboxes: Vec<Seen>,
    /// Present if there are more pages.
    pub next: Option<Cursor>,
    /// Running sandboxes that match, on all pages.
    pub total_running: usize,
}

impl Node {
    pub fn list(&self, query: &Query) -> Page {
        page(self.all(), query)
    }
}

fn page(all: Vec<Seen>, query: &Query) -> Page {
    let mut matching: Vec<(Cursor, Seen)> =
        all.into_iter().filter(|seen| matches(seen, query)).map(|seen| (Cursor::for_sandbox(&seen), seen)).collect();
    matching.sort_by(|(one, _), (other, _)| match query.order {
        ListOrder::OldestFirst => one.cmp(other),
        ListOrder::NewestFirst => other.cmp(one),
    });
    let total_running = matching.iter().filter(|(_, seen)| seen.standing == PersistedState::Running).count();
    let is_beyond = |cursor: &Cursor| match (&query.after, query.order) {
        (None, _) => true,
        (Some(after), ListOrder::OldestFirst) => cursor > after,
        (Some(after), ListOrder::NewestFirst) => cursor < after,
    };
    let mut rest = matching.into_iter().filter(|(cursor, _)| is_beyond(cursor));
    let taken: Vec<(Cursor, Seen)> = rest.by_ref().take(query.limit).collect();
    let next = rest.next().and_then(|_| taken.last().map(|(cursor, _)| cursor.clone()));
    Page { sandboxes: taken.into_iter().map(|(_, seen)| seen).collect(), next, total_running }
}

fn matches(seen: &Seen, query: &Query) -> bool {
    let record = &seen.record;
    let wanted = match seen.standing {
        PersistedState::Running => query.running,
        PersistedState::Paused(_) => query.paused,
    };
    wanted
        && query.metadata.iter().all(|(key, value)| record.spec.metadata.get(key) == Some(value))
        && query.started_after.is_none_or(|after| record.started_at.as_microsecond() >= after.as_microsecond())
        && query.template_id.as_ref().is_none_or(|id| record.template.id == *id)
}
