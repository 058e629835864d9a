//! The edge: forwards requests to ports of sandboxes, and reports in E2B's words why it cannot.
//!
//! Invariants: the edge does not dial a sandbox that cannot be reached, since a frozen one would
//! accept and never answer; connections through the edge break as soon as the sandbox can no longer
//! be reached; the guest's control routes are not served.

mod auto_resume;
mod connections;
mod early_response_io;
mod forward;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod headers;
mod page;
mod peers;
mod proxied_body;
mod refusal;
mod secured;
mod signed;
mod token;
mod tunnel;

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Request, Response, StatusCode, header};
use node::{PersistedState, Reachability, Record, Resumed, RunningSandbox, SandboxError};
use parking_lot::Mutex;
use protocol::guest::{CONTROL_PREFIX, ENVD_PORT, INIT_PATH, INTERPRETER_PORT};
use protocol::headers::{ACCESS_TOKEN, TRAFFIC_ACCESS_TOKEN};
use subtle::ConstantTimeEq;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use crate::body::{self, Body};
use crate::content::Content;
use crate::query;
use crate::routing::Target;
use crate::server::App;
use auto_resume::ResumeLimit;
use connections::Connections;
use peers::KnownPeers;
use refusal::{Refusal, Style};

pub(crate) use proxied_body::ProxiedBody;
pub(crate) use signed::serve_signed_file;
pub(crate) use token::serve_by_token;

/// How long a request waits for a sandbox that is being paused or resumed: most changes take
/// milliseconds, and SDKs treat "changing" as an error.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(2);

/// State that the edge keeps between requests.
pub(crate) struct Edge {
    connections: Connections,
    /// Clients that have sent a credential.
    pub(crate) peers: KnownPeers,
    resumes: ResumeLimit,
    /// Tunnels and connections to sandboxes; they end with `end` at the latest.
    tasks: TaskTracker,
    end: CancellationToken,
}

impl Edge {
    pub(crate) fn new(tasks: TaskTracker, end: CancellationToken) -> Self {
        Self {
            connections: Connections::default(),
            peers: KnownPeers::default(),
            resumes: ResumeLimit::default(),
            tasks,
            end,
        }
    }
}

/// Serves a request for a port of a sandbox.
pub(crate) async fn serve(app: &Arc<App>, target: Target, request: Request<Content>) -> Response<Body> {
    let style = Style::from_headers(request.headers());
    if target.port == ENVD_PORT && is_control_route(request.uri().path()) {
        return refusal::control_route(request.uri().path());
    }
    match reach(app, &target, &request).await {
        Err(Refusal::Preflight) => allow_preflight(&request),
        Ok(route) => forward::forward(app, &route, &target, request, style).await,
        Err(refusal) => refusal.answer(&target, style),
    }
}

/// How a request reaches a port of a running sandbox.
struct Route {
    live: Arc<RunningSandbox>,
    /// The `Host` that the service receives, if not the client's.
    host: Option<HeaderValue>,
    /// Whether the service speaks TLS itself.
    secured: bool,
    /// Whether the client's address has sent a credential; only set for the interpreter's port.
    known_peer: bool,
    /// Whether the request proves that its sender may use the sandbox.
    is_authenticated: bool,
    /// A connection that was opened before the resume.
    dialled: Mutex<Option<TcpStream>>,
}

impl Route {
    fn new(
        live: Arc<RunningSandbox>,
        record: &Record,
        target: &Target,
        known_peer: bool,
        is_authenticated: bool,
    ) -> Self {
        let dialled = Mutex::default();
        if target.port == ENVD_PORT {
            return Self { live, host: None, secured: false, known_peer, is_authenticated, dialled };
        }
        // The host was validated when the sandbox was created.
        let host = record.spec.ingress.host(target.port).and_then(|host| HeaderValue::try_from(host).ok());
        let secured = record.spec.ingress.https_ports.contains(&target.port);
        Self { live, host, secured, known_peer, is_authenticated, dialled }
    }

    fn take_dialled(&self) -> Option<TcpStream> {
        self.dialled.lock().take()
    }
}

/// Finds the route to the sandbox; resumes it if it has auto-resume and the caller is allowed to.
async fn reach(app: &App, target: &Target, request: &Request<Content>) -> Result<Route, Refusal> {
    let headers = request.headers();
    let (record, reachability) =
        app.node.settled_reachability(&target.id, CHANGE_TIMEOUT).await.ok_or(Refusal::NotFound)?;
    if target.port != ENVD_PORT
        && let Some(token) = &record.traffic_token
    {
        let given = headers.get(TRAFFIC_ACCESS_TOKEN).ok_or(Refusal::TrafficTokenMissing)?;
        if !bool::from(given.as_bytes().ct_eq(token.reveal().as_bytes())) {
            return Err(Refusal::TrafficTokenWrong);
        }
    }
    let known_peer = target.port == INTERPRETER_PORT && app.edge.peers.check(&record, request);
    let is_authenticated = is_authenticated(app, &record, target, request, known_peer);
    match reachability {
        Reachability::Open(live) => Ok(Route::new(live, &record, target, known_peer, is_authenticated)),
        Reachability::Changing => Err(Refusal::Changing),
        Reachability::Closed if matches!(record.standing, PersistedState::Paused(_)) => Err(Refusal::Paused),
        Reachability::Closed => Err(Refusal::NotFound),
        Reachability::Resumable(frozen) => {
            let now = app.node.now().as_second();
            let dialled = auto_resume::check(&record, frozen.as_deref(), target, request, known_peer, now).await?;
            let live = resume(app, target).await?;
            Ok(Route {
                dialled: Mutex::new(dialled),
                ..Route::new(live, &record, target, known_peer, is_authenticated)
            })
        }
    }
}

/// Whether the request has a credential of the sandbox: the token of its daemon, a signature, the
/// token of its traffic, or, where the daemon takes no token, an address that is known for one.
fn is_authenticated(app: &App, record: &Record, target: &Target, request: &Request<Content>, known_peer: bool) -> bool {
    match (target.port, &record.access_token) {
        (ENVD_PORT | INTERPRETER_PORT, Some(token)) => {
            let given = request.headers().get(ACCESS_TOKEN);
            known_peer
                || given.is_some_and(|given| bool::from(given.as_bytes().ct_eq(token.reveal().as_bytes())))
                || target.port == ENVD_PORT && signed::is_signed(request, token, app.node.now().as_second())
        }
        (ENVD_PORT, None) => app.edge.peers.check(record, request),
        (INTERPRETER_PORT, None) => known_peer,
        // [`reach`] has compared it.
        _ => record.traffic_token.is_some(),
    }
}

async fn resume(app: &App, target: &Target) -> Result<Arc<RunningSandbox>, Refusal> {
    if !app.edge.resumes.allows(&target.id) {
        return Err(Refusal::ResumedTooOften);
    }
    match app.node.auto_resume(&target.id).await {
        Ok((live, resumed)) => {
            if resumed == Resumed::FromPause {
                app.edge.resumes.count(&target.id);
            }
            Ok(live)
        }
        Err(SandboxError::NotFound(_) | SandboxError::NotRunning { .. }) => Err(Refusal::NotFound),
        Err(SandboxError::Full { .. }) => Err(Refusal::Full),
        Err(SandboxError::FilesMissing { .. }) => Err(Refusal::FilesMissing),
        Err(error) => {
            warn!(sandbox = %target.id, %error, "traffic could not wake the sandbox");
            Err(Refusal::CannotResume)
        }
    }
}

/// Routes of the guest that only the host may use, and those of envd that the guest does not have.
pub(crate) fn is_control_route(path: &str) -> bool {
    const ROUTES: [&str; 7] = [INIT_PATH, "/freeze", "/unfreeze", "/collapse", "/fsfreeze", "/fsthaw", "/upgrade"];
    // Normalized first, so that the guest never decodes a route that this check missed.
    let decoded = query::decode(path);
    let parts: Vec<&str> = decoded.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let plain = format!("/{}", parts.join("/"));
    ROUTES.contains(&plain.as_str()) || format!("{plain}/").starts_with(CONTROL_PREFIX) || parts.contains(&"..")
}

/// envd's response to CORS preflight requests.
pub(crate) fn allow_preflight(request: &Request<Content>) -> Response<Body> {
    let mut response = body::empty(StatusCode::NO_CONTENT);
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    let methods = HeaderValue::from_static("HEAD, GET, POST, PUT, PATCH, DELETE");
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("7200"));
    if let Some(wanted) = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_routes_are_recognised_however_they_are_written() {
        for path in
            ["/init", "//init", "/init/", "/%69nit", "/./init", "/sandbar/lease", "/sandbar", "/x/../init", "/upgrade"]
        {
            assert!(is_control_route(path), "{path}");
        }
        for path in ["/", "/health", "/files", "/initial", "/sandbarista", "/process.Process/Start"] {
            assert!(!is_control_route(path), "{path}");
        }
    }
}
