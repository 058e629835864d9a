//! Metrics of sandboxes.

use std::collections::BTreeMap;

use http::{Request, StatusCode};
use jiff::Timestamp;
use node::metrics::Sample;
use node::{SandboxError, SandboxId};
use protocol::rest::{SandboxMetric, SandboxesMetrics};

use super::failure::Failure;
use super::{CallResult, view};
use crate::body;
use crate::content::Content;
use crate::query;
use crate::server::App;

const MOST_IDS: usize = 100;

/// `GET /sandboxes/{id}/metrics`, between `start` and `end` in Unix seconds.
pub(super) fn range(app: &App, id: &SandboxId, request: &Request<Content>) -> CallResult {
    let pairs = query::pairs(request.uri().query().unwrap_or(""));
    let moment = |name: &str| {
        let Some(text) = query::first(&pairs, name).filter(|text| !text.is_empty()) else { return Ok(None) };
        let moment = text.parse().ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
        moment.map(Some).ok_or_else(|| Failure::bad_request(format!("{name} is '{text}'; it must be Unix seconds")))
    };
    let (start, end) = (moment("start")?, moment("end")?);
    if app.node.get(id).is_none() {
        return Err(SandboxError::NotFound(id.clone()).into());
    }
    let samples = app.node.metrics(id, start, end)?;
    Ok(body::json(StatusCode::OK, &samples.into_iter().map(metric).collect::<Vec<_>>()))
}

/// `GET /sandboxes/metrics`: the newest sample of several sandboxes; without those that are unknown
/// or have none yet.
pub(super) fn latest(app: &App, request: &Request<Content>) -> CallResult {
    let pairs = query::pairs(request.uri().query().unwrap_or(""));
    let ids: Vec<&str> = pairs
        .iter()
        .filter(|(name, _)| name == "sandbox_ids")
        .flat_map(|(_, value)| value.split(','))
        .filter(|id| !id.is_empty())
        .collect();
    if ids.len() > MOST_IDS {
        return Err(Failure::bad_request(format!(
            "sandbox_ids names {} sandboxes; {MOST_IDS} are the most",
            ids.len()
        )));
    }
    let mut sandboxes = BTreeMap::new();
    for text in ids {
        let id: SandboxId = text.parse()?;
        if let Some(sample) = app.node.latest_metric(&id) {
            sandboxes.insert(id.to_string(), metric(sample));
        }
    }
    Ok(body::json(StatusCode::OK, &SandboxesMetrics { sandboxes }))
}

fn metric(sample: Sample) -> SandboxMetric {
    let Sample { at, cpu_count, cpu_used_percent, memory_used, memory_total, memory_cache, disk_used, disk_total } =
        sample;
    SandboxMetric {
        timestamp: view::time(at),
        timestamp_unix: at.as_second(),
        cpu_count,
        cpu_used_pct: cpu_used_percent,
        mem_used: memory_used,
        mem_total: memory_total,
        mem_cache: memory_cache,
        disk_used,
        disk_total,
    }
}
