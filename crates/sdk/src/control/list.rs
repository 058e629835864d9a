//! Listing sandboxes.

use std::collections::BTreeMap;

use futures::Stream;
use http::Method;
use jiff::Timestamp;
use protocol::headers::TOTAL_RUNNING;
use protocol::rest::{ListedSandbox, SandboxState};

use super::pages::{Page, rows};
use super::query::{Path, metadata_filter};
use super::request::{Request, lacks_path};
use crate::client::Client;
use crate::error::CallError;
use crate::transport::Failure;

/// Order by start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    NewestFirst,
    OldestFirst,
}

/// Filters of a list; all running and paused sandboxes by default.
#[derive(Debug, Clone, Default)]
pub struct ListQuery {
    metadata: BTreeMap<String, String>,
    states: Vec<SandboxState>,
    order: Option<Order>,
    started_after: Option<Timestamp>,
    template: Option<String>,
    page_size: Option<u32>,
}

impl ListQuery {
    pub fn new() -> Self {
        Self::default()
    }

    /// Only sandboxes with this metadata pair; several pairs must all match.
    #[must_use]
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// Only sandboxes in this state; several states are alternatives.
    #[must_use]
    pub fn state(mut self, state: SandboxState) -> Self {
        if !self.states.contains(&state) {
            self.states.push(state);
        }
        self
    }

    /// Newest first by default.
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.order = Some(order);
        self
    }

    /// Only sandboxes started at this moment or later.
    #[must_use]
    pub fn started_after(mut self, moment: Timestamp) -> Self {
        self.started_after = Some(moment);
        self
    }

    /// Only sandboxes created from this template, by id or name.
    #[must_use]
    pub fn template(mut self, template: impl Into<String>) -> Self {
        self.template = Some(template.into());
        self
    }

    /// Rows per page, from 1 to 100; 100 by default. The stream reads all pages in any case.
    #[must_use]
    pub fn page_size(mut self, rows: u32) -> Self {
        self.page_size = Some(rows);
        self
    }

    fn path(&self, token: Option<&str>) -> Path {
        let states: Vec<&str> = self.states.iter().copied().map(name).collect();
        let order = self.order.map(|order| match order {
            Order::NewestFirst => "desc",
            Order::OldestFirst => "asc",
        });
        Path::new("/v2/sandboxes")
            .with("metadata", metadata_filter(&self.metadata))
            .with("state", (!states.is_empty()).then(|| states.join(",")))
            .with("order", order)
            .with("startedAfter", self.started_after)
            .with("template", self.template.as_deref())
            .with("limit", self.page_size)
            .with("nextToken", token)
    }

    /// Applies the filters that the oldest servers ignore.
    fn admits(&self, row: &ListedSandbox) -> bool {
        let template = self.template.as_deref();
        let of_template = template.is_none_or(|name| row.template_id == name || row.alias.as_deref() == Some(name));
        let late_enough = self.started_after.is_none_or(|moment| started(row).is_some_and(|started| started >= moment));
        let has_pairs = self.metadata.iter().all(|(key, value)| row.metadata.get(key) == Some(value));
        of_template && late_enough && has_pairs
    }
}

fn name(state: SandboxState) -> &'static str {
    match state {
        SandboxState::Running => "running",
        SandboxState::Paused => "paused",
    }
}

fn started(row: &ListedSandbox) -> Option<Timestamp> {
    row.started_at.parse().ok()
}

/// One page of sandboxes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SandboxPage {
    pub sandboxes: Vec<ListedSandbox>,
    /// Token of the next page.
    pub next: Option<String>,
    /// Number of matching running sandboxes on all pages, if the server reports it.
    pub total_running: Option<u64>,
}

impl Client {
    /// Streams all matching sandboxes, page by page.
    ///
    /// ```no_run
    /// # async fn example(client: sandbar_sdk::Client) -> Result<(), sandbar_sdk::CallError> {
    /// use futures::TryStreamExt as _;
    /// use sandbar_sdk::ListQuery;
    ///
    /// let mut mine = std::pin::pin!(client.list(ListQuery::new().metadata("owner", "me")));
    /// while let Some(sandbox) = mine.try_next().await? {
    ///     println!("{} {:?}", sandbox.sandbox_id, sandbox.state);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Each page has its own deadline. The stream ends after an error.
    pub fn list(&self, query: ListQuery) -> impl Stream<Item = Result<ListedSandbox, CallError>> + Send + use<> {
        let client = self.clone();
        rows(move |token| {
            let (client, query) = (client.clone(), query.clone());
            async move {
                let page = client.list_page(&query, token.as_deref()).await?;
                Ok(Page { items: page.sandboxes, next: page.next })
            }
        })
    }

    /// One page of the matching sandboxes: the first, or the one named by the previous page's
    /// token.
    ///
    /// # Errors
    /// Any [`CallError`]; [`CallError::Unsupported`] when only paused sandboxes are requested from
    /// one of the oldest servers, which list running sandboxes only.
    pub async fn list_page(&self, query: &ListQuery, token: Option<&str>) -> Result<SandboxPage, CallError> {
        let request = Request::new(self, Method::GET, query.path(token), "list sandboxes");
        match request.page::<ListedSandbox>().await {
            Ok((Page { items, next }, headers)) => {
                let total = headers.get(TOTAL_RUNNING).and_then(|value| value.to_str().ok()?.parse().ok());
                Ok(SandboxPage { sandboxes: items, next, total_running: total })
            }
            Err(Failure::Refused(refusal)) if lacks_path(&refusal) => self.list_running(query).await,
            Err(failure) => Err(failure.into_error(&request.call)),
        }
    }

    /// The oldest list call: running sandboxes on one page.
    async fn list_running(&self, query: &ListQuery) -> Result<SandboxPage, CallError> {
        let path = Path::new("/sandboxes").with("metadata", metadata_filter(&query.metadata));
        let request = Request::new(self, Method::GET, path, "list sandboxes");
        if query.states == [SandboxState::Paused] {
            let message = "this server lists running sandboxes only".to_owned();
            return Err(CallError::Unsupported { call: request.call.what, message });
        }
        let (Page { items, .. }, _) = request.page().await.map_err(|failure| failure.into_error(&request.call))?;
        let mut sandboxes: Vec<ListedSandbox> = items.into_iter().filter(|row| query.admits(row)).collect();
        sandboxes.sort_by_key(started);
        if query.order != Some(Order::OldestFirst) {
            sandboxes.reverse();
        }
        let total_running = Some(sandboxes.len() as u64);
        Ok(SandboxPage { sandboxes, next: None, total_running })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_filter_is_in_the_query() {
        let query = ListQuery::new()
            .metadata("k", "v")
            .state(SandboxState::Running)
            .state(SandboxState::Paused)
            .order(Order::OldestFirst)
            .started_after("2026-01-02T03:04:05.678Z".parse().expect("a moment"))
            .template("team/base")
            .page_size(7);
        let expected = "/v2/sandboxes?metadata=k%3Dv&state=running%2Cpaused&order=asc\
                        &startedAfter=2026-01-02T03%3A04%3A05.678Z&template=team%2Fbase&limit=7&nextToken=t%3D";
        assert_eq!(String::from(query.path(Some("t="))), expected);
        assert_eq!(String::from(ListQuery::new().path(None)), "/v2/sandboxes");
    }
}
