//! Metrics of sandboxes.

use std::collections::BTreeMap;

use http::Method;
use jiff::Timestamp;
use protocol::rest::{SandboxMetric, SandboxesMetrics};

use super::life::SandboxError;
use super::query::Path;
use super::request::Request;
use crate::client::Client;
use crate::error::CallError;
use protocol::SandboxId;

/// Most ids per request that servers accept.
const MAX_IDS: usize = 100;

/// A time range in whole seconds; all retained samples by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimeRange {
    pub start: Option<Timestamp>,
    pub end: Option<Timestamp>,
}

impl TimeRange {
    /// All retained samples.
    pub const ALL: Self = Self { start: None, end: None };

    pub fn since(start: Timestamp) -> Self {
        Self { start: Some(start), end: None }
    }
}

impl Client {
    /// Samples of one sandbox, oldest first. A new sandbox has none for a few seconds.
    ///
    /// # Errors
    /// [`SandboxError::NotFound`], [`SandboxError::Call`].
    pub async fn metrics(&self, id: &SandboxId, range: TimeRange) -> Result<Vec<SandboxMetric>, SandboxError> {
        let path = Path::new(format!("/sandboxes/{id}/metrics"))
            .with("start", range.start.map(Timestamp::as_second))
            .with("end", range.end.map(Timestamp::as_second));
        let request = Request::new(self, Method::GET, path, format!("read metrics of sandbox {id}"));
        request.json().await.map_err(|failure| SandboxError::from_failure(failure, id, &request))
    }

    /// The latest sample of each sandbox; omits sandboxes that are gone or have none yet.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn latest_metrics(&self, ids: &[SandboxId]) -> Result<BTreeMap<SandboxId, SandboxMetric>, CallError> {
        let mut found = BTreeMap::new();
        for some in ids.chunks(MAX_IDS) {
            let list: Vec<&str> = some.iter().map(SandboxId::as_str).collect();
            let path = Path::new("/sandboxes/metrics").with("sandbox_ids", Some(list.join(",")));
            let request = Request::new(self, Method::GET, path, format!("read metrics of {} sandboxes", some.len()));
            let answer = request.json::<SandboxesMetrics>().await;
            let answer = answer.map_err(|failure| failure.into_error(&request.call))?;
            let known = answer.sandboxes.into_iter().filter_map(|(id, metric)| Some((id.parse().ok()?, metric)));
            found.extend(known);
        }
        Ok(found)
    }
}
