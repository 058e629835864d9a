//! The control plane: E2B's REST calls of both API versions, one file per subject.
//!
//! Paths are matched before they are decoded, since a template reference may contain an encoded
//! slash.

mod builds;
mod capabilities;
mod connect;
mod create;
mod failure;
mod health;
mod inspect;
mod list;
mod logs;
mod metrics;
mod network;
mod pause;
mod payload;
mod secrets;
mod snapshots;
mod teams;
mod templates;
mod timeout;
mod trash;
mod unserved;
mod view;
mod volume_content;
mod volumes;

use std::net::SocketAddr;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use node::SandboxId;
use protocol::headers::API_KEY;
use subtle::ConstantTimeEq;
use tracing::error;

use crate::body::Body;
use crate::content::Content;
use crate::query;
use crate::server::App;
use failure::Failure;

type CallResult = Result<Response<Body>, Failure>;

/// The version of a call that exists in two; their defaults differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ApiVersion {
    V1,
    V2,
}

/// Serves a call of the control plane.
pub(crate) async fn serve(app: &Arc<App>, request: Request<Content>) -> Response<Body> {
    // For the log: the path contains the sandbox's id, if there is one.
    let (method, uri) = (request.method().clone(), request.uri().clone());
    dispatch(app, request).await.unwrap_or_else(|failure| {
        if let Some(causes) = failure.causes() {
            error!(call = %format_args!("{method} {}", uri.path()), error = causes, "a call failed");
        }
        failure.answer()
    })
}

async fn dispatch(app: &Arc<App>, request: Request<Content>) -> CallResult {
    let path = request.uri().path().to_owned();
    let segments = segments(&path);
    if let Some(answer) = health::answer(app, &request, &segments).await {
        return Ok(answer);
    }
    let known = is_known(&segments, app.config.extensions);
    if !known {
        return Err(Failure::new(StatusCode::NOT_FOUND, format!("path '{path}' not found")));
    }
    if let ["templates", template, "files", hash] = segments[..]
        && request.method() == Method::PUT
    {
        return builds::upload(app, &query::decode(template), &query::decode(hash), request).await;
    }
    if let ["volumecontent", volume, kind] = segments[..] {
        return Ok(volume_content::serve(app, &query::decode(volume), kind, request).await);
    }
    authenticate(app, &request, &segments)?;
    route(app, &segments, request).await
}

async fn route(app: &Arc<App>, segments: &[&str], request: Request<Content>) -> CallResult {
    const GET: &Method = &Method::GET;
    const POST: &Method = &Method::POST;
    let method = request.method().clone();
    let id = |text: &str| query::decode(text).parse::<SandboxId>().map_err(Failure::from);
    match (&method, segments) {
        (POST, ["sandboxes"]) => create::create(app, request, ApiVersion::V1).await,
        (POST, ["v2", "sandboxes"]) => create::create(app, request, ApiVersion::V2).await,
        (GET, ["sandboxes"]) => list::list_running(app, &request),
        (GET, ["v2", "sandboxes"]) => list::list(app, &request),
        (GET, ["sandboxes", "metrics"]) => metrics::latest(app, &request),
        (GET, ["sandboxes", sandbox]) => inspect::get(app, &id(sandbox)?),
        (&Method::DELETE, ["sandboxes", sandbox]) => inspect::kill(app, &id(sandbox)?).await,
        (POST, ["sandboxes", sandbox, "connect"]) => {
            connect::connect(app, &id(sandbox)?, request, ApiVersion::V1).await
        }
        (POST, ["v2", "sandboxes", sandbox, "connect"]) => {
            connect::connect(app, &id(sandbox)?, request, ApiVersion::V2).await
        }
        (POST, ["sandboxes", sandbox, "resume"]) => connect::resume(app, &id(sandbox)?, request).await,
        (POST, ["sandboxes", sandbox, "pause"]) => pause::pause(app, &id(sandbox)?, request).await,
        (POST, ["sandboxes", sandbox, "timeout"]) => timeout::set(app, &id(sandbox)?, request).await,
        (POST, ["sandboxes", sandbox, "refreshes"]) => timeout::refresh(app, &id(sandbox)?, request).await,
        (GET, ["sandboxes", sandbox, "metrics"]) => metrics::range(app, &id(sandbox)?, &request),
        (GET, ["sandboxes", sandbox, "logs"]) => logs::read_v1(app, &id(sandbox)?, &request).await,
        (GET, ["v2", "sandboxes", sandbox, "logs"]) => logs::read_v2(app, &id(sandbox)?, &request).await,
        (&Method::PUT, ["sandboxes", sandbox, "network"]) => network::update(app, &id(sandbox)?, request).await,
        (POST, ["sandboxes", sandbox, "fork"]) => snapshots::fork(app, &id(sandbox)?, request).await,
        (POST, ["sandboxes", sandbox, "snapshots"]) => snapshots::take(app, &id(sandbox)?, request).await,
        (GET, ["snapshots"]) => snapshots::list(app, &request),
        (GET, ["secrets"]) => secrets::list(app, &request),
        (POST, ["secrets"]) => secrets::create(app, request).await,
        (GET, ["secrets", secret]) => secrets::get(app, &query::decode(secret)),
        (POST, ["secrets", secret]) => secrets::update(app, &query::decode(secret), request).await,
        (&Method::DELETE, ["secrets", secret]) => secrets::delete(app, &query::decode(secret)).await,
        (GET, ["teams"]) => Ok(teams::list(app)),
        (GET, ["volumes"]) => volumes::list(app),
        (POST, ["volumes"]) => volumes::create(app, request).await,
        (GET, ["volumes", volume]) => volumes::get(app, &query::decode(volume)),
        (&Method::DELETE, ["volumes", volume]) => volumes::delete(app, &query::decode(volume)).await,
        (GET, ["sandbar", "capabilities"]) => Ok(capabilities::list(app)),
        (GET, ["sandbar", "trash"]) => trash::list(app).await,
        (POST, ["sandbar", "trash", entry]) => trash::recover(app, &query::decode(entry)).await,
        (POST, ["sandbar", "templates", template, "builds", build]) => {
            builds::start_staged(app, &query::decode(template), build, request).await
        }
        (POST, ["v3", "templates"]) => builds::request(app, request).await,
        (_, ["templates", ..] | ["v2", "templates", ..]) => route_templates(app, segments, request).await,
        _ => unserved::answer(&method, segments),
    }
}

async fn route_templates(app: &Arc<App>, segments: &[&str], request: Request<Content>) -> CallResult {
    const GET: &Method = &Method::GET;
    const DELETE: &Method = &Method::DELETE;
    let method = request.method().clone();
    match (&method, segments) {
        (GET, ["templates"]) => templates::list_all(app),
        (GET, ["v2", "templates"]) => templates::list_page(app, &request),
        (&Method::POST, ["templates", "tags"]) => templates::assign_tags(app, request).await,
        (DELETE, ["templates", "tags"]) => templates::remove_tags(app, request).await,
        (GET, ["templates", "aliases", alias]) => templates::by_alias(app, &query::decode(alias)),
        // Old SDKs do not encode the slash of a namespace.
        (GET, ["templates", "aliases", namespace, alias]) => {
            templates::by_alias(app, &format!("{}/{}", query::decode(namespace), query::decode(alias)))
        }
        (GET, ["templates", template, "files", hash]) => {
            builds::upload_link(app, &query::decode(template), &query::decode(hash), request)
        }
        (&Method::POST, ["v2", "templates", template, "builds", build]) => {
            builds::start(app, &query::decode(template), build, request).await
        }
        (GET, ["templates", template, "builds", build, "status"]) => {
            builds::status(app, &query::decode(template), build, &request)
        }
        (GET, ["templates", template, "builds", build, "logs"]) => {
            builds::log(app, &query::decode(template), build, &request)
        }
        (GET, ["templates", template, "tags"]) => templates::tags(app, &query::decode(template)),
        (GET, ["templates", template]) => templates::get(app, &query::decode(template)),
        (DELETE, ["templates", template]) => templates::delete(app, &query::decode(template)).await,
        (&Method::PATCH, ["templates", template] | ["v2", "templates", template]) => {
            templates::update(app, &query::decode(template), request).await
        }
        _ => unserved::answer(&method, segments),
    }
}

fn segments(path: &str) -> Vec<&str> {
    path.split('/').filter(|segment| !segment.is_empty()).collect()
}

/// Whether a path belongs to the control plane, also if it is not served.
pub(crate) fn owns(path: &str) -> bool {
    let segments = segments(path);
    health::owns(&segments) || is_known(&segments, true)
}

/// Whether a path has one of E2B's prefixes, or Sandbar's.
fn is_known(segments: &[&str], extensions: bool) -> bool {
    let segments = match segments {
        ["v2" | "v3", rest @ ..] => rest,
        all => all,
    };
    match segments.first() {
        Some(&"sandbar") => extensions,
        Some(first) => unserved::PREFIXES.contains(first) || *first == "sandboxes",
        None => false,
    }
}

fn authenticate(app: &App, request: &Request<Content>, segments: &[&str]) -> Result<(), Failure> {
    let refuse = |message: &str| Failure::new(StatusCode::UNAUTHORIZED, message);
    let headers = request.headers();
    // E2B's command line lists its teams before it has a key, and sends the same key as a token.
    let token = || headers.get(AUTHORIZATION)?.as_bytes().strip_prefix(b"Bearer ");
    let given = headers.get(API_KEY).map(HeaderValue::as_bytes);
    let given = given.or_else(|| if segments == ["teams"] { token() } else { None });
    let given = given.ok_or_else(|| refuse("the X-API-Key header is missing"))?;
    let peer = request.extensions().get::<SocketAddr>();
    if bool::from(given.ct_eq(app.config.api_key.as_bytes())) {
        peer.iter().for_each(|peer| app.edge.peers.note(peer.ip()));
        return Ok(());
    }
    if let Some(peer) = peer {
        app.wrong_keys.count(*peer);
    }
    Err(refuse("the API key is not valid for this server"))
}
