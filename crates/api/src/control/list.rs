//! Lists of sandboxes.

use http::{HeaderValue, Request, Response, StatusCode};
use jiff::Timestamp;
use node::list::{Cursor, ListOrder, Page, Query};
use protocol::headers::{NEXT_TOKEN, TOTAL_RUNNING};
use protocol::rest::ListedSandbox;

use super::failure::Failure;
use super::{CallResult, view};
use crate::body::{self, Body};
use crate::content::Content;
use crate::query;
use crate::server::App;

const MOST_ROWS: usize = 100;

/// `GET /v2/sandboxes`.
pub(super) fn list(app: &App, request: &Request<Content>) -> CallResult {
    let pairs = query::pairs(request.uri().query().unwrap_or(""));
    let Some(query) = parse(app, &pairs)? else {
        // Filtered by a template that does not exist.
        return Ok(body::json(StatusCode::OK, &Vec::<ListedSandbox>::new()));
    };
    let Page { sandboxes, next, total_running } = app.node.list(&query);
    let rows: Vec<ListedSandbox> = sandboxes.iter().map(view::list_entry).collect();
    let mut response = body::json(StatusCode::OK, &rows);
    if query.running {
        response.headers_mut().insert(TOTAL_RUNNING, HeaderValue::from(total_running));
    }
    Ok(with_next(response, next))
}

/// Adds the token of the next page, if there is one.
pub(super) fn with_next(mut response: Response<Body>, next: Option<Cursor>) -> Response<Body> {
    if let Some(cursor) = next {
        let token = HeaderValue::try_from(cursor.to_token()).expect("base64 is a good header");
        response.headers_mut().insert(NEXT_TOKEN, token);
    }
    response
}

/// Parses the limit and the token of a page.
pub(super) fn paging(pairs: &[(String, String)]) -> Result<(usize, Option<Cursor>), Failure> {
    let limit = match query::first(pairs, "limit") {
        None => MOST_ROWS,
        Some(text) => {
            let limit = text.parse().ok().filter(|limit| (1..=MOST_ROWS).contains(limit));
            let wrong = || Failure::bad_request(format!("limit is '{text}'; it must be between 1 and {MOST_ROWS}"));
            limit.ok_or_else(wrong)?
        }
    };
    let token = query::first(pairs, "nextToken").filter(|token| !token.is_empty());
    let cursor = |token| Cursor::from_token(token).ok_or_else(|| Failure::bad_request("Invalid next token"));
    Ok((limit, token.map(cursor).transpose()?))
}

/// `GET /sandboxes`: for old SDKs, running sandboxes on one page.
pub(super) fn list_running(app: &App, request: &Request<Content>) -> CallResult {
    let pairs = query::pairs(request.uri().query().unwrap_or(""));
    let query = Query { paused: false, limit: usize::MAX, metadata: metadata(&pairs), ..everything() };
    let rows: Vec<ListedSandbox> = app.node.list(&query).sandboxes.iter().map(view::list_entry).collect();
    Ok(body::json(StatusCode::OK, &rows))
}

fn everything() -> Query {
    Query {
        running: true,
        paused: true,
        metadata: Default::default(),
        started_after: None,
        template_id: None,
        order: ListOrder::NewestFirst,
        limit: MOST_ROWS,
        after: None,
    }
}

fn metadata(pairs: &[(String, String)]) -> std::collections::BTreeMap<String, String> {
    query::first(pairs, "metadata").map(|value| query::metadata(value).collect()).unwrap_or_default()
}

/// Parses the query of a list; `None` if nothing can match it.
fn parse(app: &App, pairs: &[(String, String)]) -> Result<Option<Query>, Failure> {
    let mut query = Query { metadata: metadata(pairs), ..everything() };
    let states: Vec<&str> = pairs
        .iter()
        .filter(|(name, _)| name == "state")
        .flat_map(|(_, value)| value.split(','))
        .map(str::trim)
        .filter(|state| !state.is_empty())
        .collect();
    if let Some(other) = states.iter().find(|state| !["running", "paused"].contains(state)) {
        return Err(Failure::bad_request(format!("state '{other}' is neither running nor paused")));
    }
    if !states.is_empty() {
        query.running = states.contains(&"running");
        query.paused = states.contains(&"paused");
    }
    query.order = match query::first(pairs, "order") {
        None | Some("" | "desc") => ListOrder::NewestFirst,
        Some("asc") => ListOrder::OldestFirst,
        Some(other) => return Err(Failure::bad_request(format!("order '{other}' is neither asc nor desc"))),
    };
    if let Some(text) = query::first(pairs, "startedAfter") {
        // An unencoded plus sign of an offset arrives as a space.
        let moment = text.trim().replace(' ', "+").parse::<Timestamp>();
        query.started_after = Some(moment.map_err(|error| Failure::bad_request(format!("startedAfter: {error}")))?);
    }
    (query.limit, query.after) = paging(pairs)?;
    if let Some(reference) = query::first(pairs, "template").filter(|reference| !reference.is_empty()) {
        match app.node.resolve_template_filter(reference)? {
            Some(template) => query.template_id = Some(template),
            None => return Ok(None),
        }
    }
    Ok(Some(query))
}
