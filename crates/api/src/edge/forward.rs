//! Forwards one request through the edge and returns its response.

use std::sync::Arc;

use http::{Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use node::RunningSandbox;
use protocol::guest::{ENVD_PORT, INTERPRETER_PORT};
use protocol::headers::KNOWN_PEER;
use tracing::debug;

use super::Route;
use super::connections::{Connection, OpenError};
use super::headers::{
    clean_request, forbid_heuristic_caching, remove_access_tokens, remove_hop_by_hop, set_upgrade, wanted_upgrade,
};
use super::proxied_body::ProxiedBody;
use super::refusal::{Refusal, Style};
use super::tunnel;
use crate::body::Body;
use crate::content::Content;
use crate::routing::{self, Target};
use crate::server::App;

pub(super) async fn forward(
    app: &Arc<App>,
    route: &Route,
    target: &Target,
    request: Request<Content>,
    style: Style,
) -> Response<Body> {
    let live = &route.live;
    if route.is_authenticated {
        live.machine.record_call();
    }
    let (request, client) = prepare(app, route, target, request);
    let exchange = exchange(app, route, target, request);
    let exchanged = tokio::select! {
        biased;
        () = live.disconnect.cancelled() => Err(Refusal::NotFound),
        exchanged = exchange => exchanged,
    };
    match exchanged {
        Ok((mut response, connection)) => {
            if target.port != ENVD_PORT {
                forbid_heuristic_caching(response.headers_mut());
            }
            pass_on(app, live, response, connection, client)
        }
        // A request that failed because the sandbox ended gets "not found".
        Err(_) if live.disconnect.is_cancelled() => Refusal::NotFound.answer(target, style),
        Err(refusal) => refusal.answer(target, style),
    }
}

/// Prepares a client's request for the sandbox. Returns the client's side of an upgrade, if it
/// requests one.
fn prepare(
    app: &App,
    route: &Route,
    target: &Target,
    mut request: Request<Content>,
) -> (Request<Content>, Option<OnUpgrade>) {
    let upgrade = wanted_upgrade(request.headers());
    let client = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    let (mut parts, content) = request.into_parts();
    let host = routing::host(&parts).to_owned();
    clean_request(&mut parts.headers, &host, &app.config.api_key);
    if target.port != ENVD_PORT && target.port != INTERPRETER_PORT {
        remove_access_tokens(&mut parts.headers);
    }
    // The authority of the request's target takes precedence over its header.
    if parts.uri.authority().is_some()
        && let Ok(host) = http::HeaderValue::from_str(&host)
    {
        parts.headers.insert(http::header::HOST, host);
    }
    if let Some(host) = &route.host {
        parts.headers.insert(http::header::HOST, host.clone());
    }
    if let Some(protocol) = upgrade {
        set_upgrade(&mut parts.headers, protocol);
    }
    parts.uri = parts.uri.path_and_query().map_or(Uri::from_static("/"), |path| Uri::from(path.clone()));
    parts.version = Version::HTTP_11;
    (Request::from_parts(parts, content), client)
}

/// Sends the request over an idle connection or a new one.
async fn exchange(
    app: &App,
    route: &Route,
    target: &Target,
    request: Request<Content>,
) -> Result<(Response<Incoming>, Connection), Refusal> {
    let edge = &app.edge;
    let mut request = request;
    let mut kept = edge.connections.reuse(&route.live, target);
    loop {
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => {
                let opened = edge.connections.open(route, target, &edge.tasks, &edge.end).await;
                opened.map_err(|error| cannot_open(target, error))?
            }
        };
        if !connection.prefix.is_empty() {
            *request.uri_mut() = below(connection.prefix, request.uri());
            if route.known_peer {
                request.headers_mut().insert(KNOWN_PEER, http::HeaderValue::from_static("1"));
            }
        }
        let error = match connection.sender.try_send_request(request).await {
            Ok(response) => return Ok((response, connection)),
            Err(error) => error,
        };
        let mut error = error;
        match error.take_message() {
            // Closed before the request was sent, so a retry is safe.
            Some(unsent) if connection.used => request = unsent,
            _ => {
                debug!(sandbox = %target.id, port = target.port, error = %error.error(), "no answer");
                return Err(Refusal::NoAnswer);
            }
        }
    }
}

/// Adds a prefix to the path. A path that cannot be parsed with it becomes `/`.
fn below(prefix: &str, uri: &Uri) -> Uri {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    format!("{prefix}{path}").parse().unwrap_or_else(|_| Uri::from_static("/"))
}

fn cannot_open(target: &Target, error: OpenError) -> Refusal {
    let (refusal, error) = match error {
        OpenError::Closed(error) => (Refusal::PortClosed, error),
        OpenError::NotSecured(error) => (Refusal::NotSecured, error),
    };
    debug!(sandbox = %target.id, port = target.port, %error, "cannot connect");
    refusal
}

fn pass_on(
    app: &Arc<App>,
    live: &Arc<RunningSandbox>,
    mut response: Response<Incoming>,
    connection: Connection,
    client: Option<OnUpgrade>,
) -> Response<Body> {
    let agreed = (response.status() == StatusCode::SWITCHING_PROTOCOLS)
        .then(|| response.headers().get(http::header::UPGRADE).cloned())
        .flatten();
    if let (Some(_), Some(client)) = (&agreed, client) {
        let sandbox = hyper::upgrade::on(&mut response);
        let edge = &app.edge;
        edge.tasks.spawn(tunnel::join(client, sandbox, live.disconnect.clone(), edge.end.clone()));
    }
    let (mut parts, content) = response.into_parts();
    remove_hop_by_hop(&mut parts.headers);
    if let Some(protocol) = agreed {
        set_upgrade(&mut parts.headers, protocol);
    }
    parts.version = Version::HTTP_11;
    Response::from_parts(parts, Body::Proxied(ProxiedBody::new(content, live, connection)))
}
