//! `/health` and `/ready`: whether the server accepts changes. Both are open to load balancers,
//! which have no key; the causes contain paths of the machine and require it.

use std::collections::BTreeMap;

use http::{Method, Request, Response, StatusCode};
use node::Unwritable;
use node::ports::Unreadable;
use protocol::rest::{PartState, Readiness, SetAsideRow};

use super::authenticate;
use crate::body::{self, Body};
use crate::content::Content;
use crate::server::App;

pub(super) fn owns(segments: &[&str]) -> bool {
    matches!(segments, ["health" | "ready"])
}

/// The response to a health check; `None` for another request.
pub(super) async fn answer(app: &App, request: &Request<Content>, segments: &[&str]) -> Option<Response<Body>> {
    if !owns(segments) || ![Method::GET, Method::HEAD].contains(request.method()) {
        return None;
    }
    let parts = parts(app);
    let status = match parts.values().all(Option::is_none) {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    if segments == ["ready"] {
        let detailed = authenticate(app, request, segments).is_ok();
        let parts = parts.into_iter().map(|(name, fault)| (name.to_owned(), state(fault, detailed)));
        let set_aside = if detailed { set_aside(app).await } else { Vec::new() };
        let readiness = Readiness { ready: status == StatusCode::OK, parts: parts.collect(), set_aside };
        return Some(body::json(status, &readiness));
    }
    if status == StatusCode::OK {
        return Some(body::text(status, "OK"));
    }
    let faulty: Vec<&str> = parts.iter().filter(|(_, fault)| fault.is_some()).map(|(name, _)| *name).collect();
    let text = format!("changes are refused by: {}; GET /ready with the API key says why", faulty.join(", "));
    Some(body::whole(status, "text/plain; charset=utf-8", text))
}

/// All parts of the server, with their faults.
fn parts(app: &App) -> BTreeMap<&'static str, Option<Unwritable>> {
    let mut parts = BTreeMap::from([("records", None), ("pool", None)]);
    parts.extend(app.node.health().faults.iter().map(|fault| (fault.part(), Some(fault.unwritable().clone()))));
    parts.extend(app.fallback.parts.iter().map(|(name, check)| (*name, check())));
    parts
}

async fn set_aside(app: &App) -> Vec<SetAsideRow> {
    // Records that cannot be read at all are reported as a fault.
    let rows = app.node.unreadable().await.unwrap_or_default();
    let row =
        |Unreadable { table, id, cause, files: _ }: Unreadable| SetAsideRow { table: table.to_owned(), id, cause };
    rows.into_iter().map(row).collect()
}

fn state(fault: Option<Unwritable>, detailed: bool) -> PartState {
    let ok = fault.is_none();
    let Some(Unwritable { path, cause, since }) = fault.filter(|_| detailed) else {
        return PartState { ok, path: None, cause: None, since: None };
    };
    PartState { ok, path: Some(path.display().to_string()), cause: Some(cause), since: Some(since.to_string()) }
}
