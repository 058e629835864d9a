//! Serves MCP over streamable HTTP.
//!
//! A client with a handshake gets a connection, which it closes or which times out after twenty
//! idle minutes. The current revision (2026-07-28) has only requests: the sandbox is released when
//! none arrived for a while. A client that returns later repeats the handshake and finds the
//! sandbox as it was, because releasing pauses it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::serve::ListenerExt as _;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::access::Access;
use crate::handler::Handler;
use crate::server::MAX_REQUEST_BYTES;
use crate::state::{ClosedSessions, ServerState};

/// Path of the endpoint.
pub(crate) const PATH: &str = "/mcp";
/// Long enough for a person who thinks, or for a background task; short enough that a vanished
/// client does not keep a sandbox running for long.
const CONNECTION_IDLE_TIMEOUT: Duration = Duration::from_secs(20 * 60);
/// Time for responses in flight at shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves until `stop`, then cancels the running calls.
pub(crate) async fn serve(
    state: Arc<ServerState>,
    mut closed_sessions: ClosedSessions,
    listener: TcpListener,
    access: Access,
    stop: CancellationToken,
) -> io::Result<()> {
    let mut connections = LocalSessionManager::default();
    connections.session_config.keep_alive = Some(CONNECTION_IDLE_TIMEOUT);
    // Ends connections. Calls are cancelled first, so that their responses can be sent.
    let ended = CancellationToken::new();
    let config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts() // `Access` looks at hosts, origins and tokens.
        .with_max_request_body_bytes(MAX_REQUEST_BYTES)
        .with_cancellation_token(ended.clone());
    let mine = Arc::clone(&state);
    let service =
        StreamableHttpService::new(move || Ok(Handler::for_http(Arc::clone(&mine))), Arc::new(connections), config);
    let router = Router::new().route_service(PATH, service).layer(from_fn_with_state(Arc::new(access), authorize));
    let finished = ended.clone();
    // A response is several small writes; with Nagle's algorithm the last would wait for an ACK of
    // the first.
    let listener = listener.tap_io(|connection| {
        let _ = connection.set_nodelay(true);
    });
    let serving = axum::serve(listener, router).with_graceful_shutdown(async move { finished.cancelled().await });
    let serving = async { serving.await };
    let maintaining = async {
        let interval = state.settings.idle_timeout.min(Duration::from_secs(30)) / 2;
        loop {
            tokio::select! {
                Some(session) = closed_sessions.recv() => state.close_session(&session.name).await,
                () = sleep(interval) => {}
            }
            state.release_if_idle().await;
        }
    };
    let mut serving = std::pin::pin!(serving);
    let done = tokio::select! {
        done = &mut serving => Some(done),
        () = maintaining => None,
        () = stop.cancelled() => None,
    };
    // Responses of cancelled calls can be sent only while the server still runs.
    let mut ending = std::pin::pin!(async {
        state.shut_down().await;
        ended.cancel();
    });
    let done = match done {
        Some(done) => Some(done),
        None => tokio::select! {
            done = &mut serving => Some(done),
            () = &mut ending => return timeout(DRAIN_TIMEOUT, serving).await.unwrap_or_else(|_| {
                warn!("connections did not end in time");
                Ok(())
            }),
        },
    };
    ending.await;
    done.unwrap_or(Ok(()))
}

async fn authorize(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let ends_session = request.method() == Method::DELETE;
    match access.check(request.uri(), request.headers()) {
        Ok(()) => {
            let response = next.run(request).await;
            // rmcp answers 202; the official clients expect 200 or 204 and warn about other
            // statuses.
            let has_ended = ends_session && response.status() == StatusCode::ACCEPTED;
            if has_ended { StatusCode::NO_CONTENT.into_response() } else { response }
        }
        Err(StatusCode::UNAUTHORIZED) => {
            let challenge = (header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"sandbar\""));
            let text =
                "The request needs the header `Authorization: Bearer TOKEN` with the token that the server printed.\n";
            (StatusCode::UNAUTHORIZED, [challenge], text).into_response()
        }
        Err(status) => (status, "Requests for another host, or from another origin, are refused.\n").into_response(),
    }
}
