//! Snapshots and forks: sandboxes with the files of another one, without its memory, which the
//! sandbox's log notes.

use http::{Request, StatusCode};
use node::template::Reference;
use node::{SandboxId, SnapshotPage, SnapshotQuery};
use protocol::rest::{Fork, ForkResult, NewSnapshot, Snapshot};

use super::failure::Failure;
use super::{CallResult, list, payload, timeout, view};
use crate::body;
use crate::content::Content;
use crate::query;
use crate::server::App;

/// E2B's default is 15 s, which the newest SDKs no longer override: too short to use a child.
const FORK_TIMEOUT: i64 = 300;
const MOST_CHILDREN: u32 = 100;

/// `POST /sandboxes/{id}/snapshots`.
pub(super) async fn take(app: &App, id: &SandboxId, request: Request<Content>) -> CallResult {
    // Memory cannot be kept, whether it was requested or not.
    let NewSnapshot { name, memory: _ } = payload::read_json(request).await?;
    let name = name.filter(|name| !name.trim().is_empty());
    let taken = app.node.snapshot(id, name.as_deref()).await?;
    Ok(body::json(StatusCode::CREATED, &wire(taken)))
}

/// `GET /snapshots`.
pub(super) fn list(app: &App, request: &Request<Content>) -> CallResult {
    let pairs = query::pairs(request.uri().query().unwrap_or(""));
    let given = |name: &str| query::first(&pairs, name).filter(|value| !value.is_empty());
    let (limit, after) = list::paging(&pairs)?;
    let query = SnapshotQuery {
        of: given("sandboxID").map(str::parse).transpose()?,
        name: given("name").map(Reference::parse).transpose()?,
        limit,
        after,
    };
    let SnapshotPage { snapshots, next } = app.node.snapshots(&query);
    let rows: Vec<Snapshot> = snapshots.into_iter().map(wire).collect();
    Ok(list::with_next(body::json(StatusCode::OK, &rows), next))
}

/// `POST /sandboxes/{id}/fork`.
pub(super) async fn fork(app: &App, id: &SandboxId, request: Request<Content>) -> CallResult {
    let Fork { timeout, count } = payload::read_json(request).await?;
    let lease = match timeout.unwrap_or(FORK_TIMEOUT) {
        ..=0 => return Err(Failure::bad_request("Timeout must be greater than 0")),
        seconds => timeout::check(app, seconds)?,
    };
    let count = count.unwrap_or(1);
    if !(1..=MOST_CHILDREN).contains(&count) {
        return Err(Failure::bad_request(format!("count is {count}; it must be between 1 and {MOST_CHILDREN}")));
    }
    let children = app.node.fork(id, lease, count as usize).await?;
    let results = children.into_iter().map(|child| match child {
        Ok(created) => ForkResult { sandbox: Some(view::sandbox(created, &app.config.domain)), error: None },
        Err(error) => ForkResult { sandbox: None, error: Some(Failure::from(error).body()) },
    });
    Ok(body::json(StatusCode::CREATED, &results.collect::<Vec<_>>()))
}

fn wire(snapshot: node::Snapshot) -> Snapshot {
    let node::Snapshot { id, names } = snapshot;
    Snapshot { snapshot_id: id, names }
}
