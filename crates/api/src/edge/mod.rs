//! The edge: leads requests to the ports of sandboxes, and says in E2B's words why it cannot.
//!
//! Invariants: a sandbox that cannot be reached is not dialled, for a frozen one would accept and never answer; what runs
//! through the edge breaks as soon as the sandbox can be reached no longer; the guest's control routes are not here.

mod attentive;
mod connections;
mod forward;
mod headers;
mod page;
mod passing;
mod peers;
mod refusal;
mod secured;
mod signed;
mod token;
mod tunnel;
mod wake;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderValue, Request, Response, StatusCode, header};
use node::{Gate, Live, Record, Resumed, SandboxError, Standing};
use protocol::guest::{CONTROL_PREFIX, ENVD_PORT, INIT_PATH, INTERPRETER_PORT};
use protocol::headers::TRAFFIC_ACCESS_TOKEN;
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
use connections::Connections;
use peers::KnownPeers;
use refusal::{Refusal, Style};
use wake::WakeLimit;

pub(crate) use passing::Passing;
pub(crate) use signed::serve_signed_file;
pub(crate) use token::serve_by_token;

/// A request that meets a sandbox on its way into a pause or out of one waits this long for the outcome: most changes
/// take milliseconds, and SDKs take "changing" for an error.
const CHANGE_PATIENCE: Duration = Duration::from_secs(2);

/// What the edge keeps between requests.
pub(crate) struct Edge {
    connections: Connections,
    /// Clients that have shown a credential.
    pub(crate) peers: KnownPeers,
    wakes: WakeLimit,
    /// Tunnels and connections to sandboxes; they end with `end` at the latest.
    tasks: TaskTracker,
    end: CancellationToken,
}

impl Edge {
    pub(crate) fn new(tasks: TaskTracker, end: CancellationToken) -> Self {
        Self {
            connections: Connections::default(),
            peers: KnownPeers::default(),
            wakes: WakeLimit::default(),
            tasks,
            end,
        }
    }
}

/// Answers a request for a port of a sandbox.
pub(crate) async fn serve(app: &Arc<App>, target: Target, request: Request<Content>) -> Response<Body> {
    let style = Style::of(request.headers());
    if target.port == ENVD_PORT && is_control_route(request.uri().path()) {
        return refusal::control_route(request.uri().path());
    }
    match reach(app, &target, &request).await {
        Err(Refusal::Preflight) => allow_preflight(&request),
        Ok(way) => forward::forward(app, &way, &target, request, style).await,
        Err(refusal) => refusal.answer(&target, style),
    }
}

/// The way into a sandbox.
struct Way {
    live: Arc<Live>,
    /// What the service is to see as `Host`, if not what the client called.
    host: Option<HeaderValue>,
    /// Whether the service speaks TLS itself.
    secured: bool,
    /// Whether the client's address has shown a credential; only known where the interpreter is meant.
    known_peer: bool,
    /// A connection that was made before the sandbox was woken.
    dialled: Mutex<Option<TcpStream>>,
}

impl Way {
    fn new(live: Arc<Live>, record: &Record, target: &Target, known_peer: bool) -> Self {
        let dialled = Mutex::default();
        if target.port == ENVD_PORT {
            return Self { live, host: None, secured: false, known_peer, dialled };
        }
        // What was kept was checked when it came.
        let host = record.ingress.host(target.port).and_then(|host| HeaderValue::try_from(host).ok());
        let secured = record.ingress.https_ports.contains(&target.port);
        Self { live, host, secured, known_peer, dialled }
    }

    fn take_dialled(&self) -> Option<TcpStream> {
        self.dialled.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Finds the way into the sandbox; wakes it when it wishes so and the caller may.
async fn reach(app: &App, target: &Target, request: &Request<Content>) -> Result<Way, Refusal> {
    let headers = request.headers();
    let (record, gate) = app.node.settled_gate(&target.id, CHANGE_PATIENCE).await.ok_or(Refusal::NotFound)?;
    if target.port != ENVD_PORT
        && let Some(token) = &record.traffic_token
    {
        let given = headers.get(TRAFFIC_ACCESS_TOKEN).ok_or(Refusal::TrafficTokenMissing)?;
        if !bool::from(given.as_bytes().ct_eq(token.reveal().as_bytes())) {
            return Err(Refusal::TrafficTokenWrong);
        }
    }
    let known_peer = target.port == INTERPRETER_PORT && app.edge.peers.check(&record, request);
    match gate {
        Gate::Open(live) => Ok(Way::new(live, &record, target, known_peer)),
        Gate::Changing => Err(Refusal::Changing),
        Gate::Closed if matches!(record.standing, Standing::Paused(_)) => Err(Refusal::Asleep),
        Gate::Closed => Err(Refusal::NotFound),
        Gate::Asleep(frozen) => {
            let now = app.node.now().as_second();
            let dialled = wake::check(&record, frozen.as_deref(), target, request, known_peer, now).await?;
            let live = wake(app, target).await?;
            Ok(Way { dialled: Mutex::new(dialled), ..Way::new(live, &record, target, known_peer) })
        }
    }
}

async fn wake(app: &App, target: &Target) -> Result<Arc<Live>, Refusal> {
    if !app.edge.wakes.allows(&target.id) {
        return Err(Refusal::WokenTooOften);
    }
    match app.node.wake(&target.id).await {
        Ok((live, resumed)) => {
            if resumed == Resumed::FromPause {
                app.edge.wakes.count(&target.id);
            }
            Ok(live)
        }
        Err(SandboxError::NotFound(_) | SandboxError::NotRunning { .. }) => Err(Refusal::NotFound),
        Err(SandboxError::Full { .. }) => Err(Refusal::Full),
        Err(SandboxError::FilesMissing { .. }) => Err(Refusal::FilesMissing),
        Err(error) => {
            warn!(sandbox = %target.id, %error, "traffic could not wake the sandbox");
            Err(Refusal::CannotWake)
        }
    }
}

/// Routes of the guest that only the host may use, and those of envd that ours does not have.
fn is_control_route(path: &str) -> bool {
    const ROUTES: [&str; 7] = [INIT_PATH, "/freeze", "/unfreeze", "/collapse", "/fsfreeze", "/fsthaw", "/upgrade"];
    // However the path is written, the guest must not be the first to understand it.
    let decoded = query::decode(path);
    let parts: Vec<&str> = decoded.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let plain = format!("/{}", parts.join("/"));
    ROUTES.contains(&plain.as_str()) || format!("{plain}/").starts_with(CONTROL_PREFIX) || parts.contains(&"..")
}

/// What envd says to browsers that ask whether they may call it.
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
