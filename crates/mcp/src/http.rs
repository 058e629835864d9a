//! Streamable HTTP.
//!
//! Clients with a handshake get a connection of their own, which they end or which is ended when it is unused for twenty minutes.
//! The current revision has none: a request is all there is, and the sandbox is left when none came for a while. Whoever comes
//! back later shakes hands again and finds the sandbox as it was: it sleeps, it is not gone.

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
use crate::desk::{Departures, Desk};
use crate::handler::Handler;
use crate::server::MOST_INPUT;

/// Where the protocol is spoken.
pub(crate) const PATH: &str = "/mcp";
/// A person may think for long, and a background task may run meanwhile; a client that vanished without a word must not keep a
/// sandbox awake for long.
const CONNECTION_IDLE: Duration = Duration::from_secs(20 * 60);
/// For answers on their way when the server ends.
const DRAIN: Duration = Duration::from_secs(5);

/// Serves until `stop`, then ends what is under way.
pub(crate) async fn serve(
    desk: Arc<Desk>,
    mut departures: Departures,
    listener: TcpListener,
    access: Access,
    stop: CancellationToken,
) -> io::Result<()> {
    let mut connections = LocalSessionManager::default();
    connections.session_config.keep_alive = Some(CONNECTION_IDLE);
    // Ends connections; calls are ended first, so that they can say so.
    let ended = CancellationToken::new();
    let config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts() // `Access` looks at hosts, origins and tokens.
        .with_max_request_body_bytes(MOST_INPUT)
        .with_cancellation_token(ended.clone());
    let mine = Arc::clone(&desk);
    let service =
        StreamableHttpService::new(move || Ok(Handler::http(Arc::clone(&mine))), Arc::new(connections), config);
    let router = Router::new().route_service(PATH, service).layer(from_fn_with_state(Arc::new(access), gate));
    let finished = ended.clone();
    // An answer is several small writes; the last must not wait for an acknowledgement of the first.
    let listener = listener.tap_io(|connection| {
        let _ = connection.set_nodelay(true);
    });
    let serving = axum::serve(listener, router).with_graceful_shutdown(async move { finished.cancelled().await });
    let serving = async { serving.await };
    let watching = async {
        let pause = desk.settings.idle.min(Duration::from_secs(30)) / 2;
        loop {
            tokio::select! {
                Some(session) = departures.recv() => desk.close(&session.name).await,
                () = sleep(pause) => {}
            }
            desk.look_after().await;
        }
    };
    let mut serving = std::pin::pin!(serving);
    let done = tokio::select! {
        done = &mut serving => Some(done),
        () = watching => None,
        () = stop.cancelled() => None,
    };
    // Answers can only be sent while the server goes on.
    let mut ending = std::pin::pin!(async {
        desk.end().await;
        ended.cancel();
    });
    let done = match done {
        Some(done) => Some(done),
        None => tokio::select! {
            done = &mut serving => Some(done),
            () = &mut ending => return timeout(DRAIN, serving).await.unwrap_or_else(|_| {
                warn!("connections did not end in time");
                Ok(())
            }),
        },
    };
    ending.await;
    done.unwrap_or(Ok(()))
}

async fn gate(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let ends_session = request.method() == Method::DELETE;
    match access.check(request.uri(), request.headers()) {
        Ok(()) => {
            let response = next.run(request).await;
            // rmcp answers 202; official clients take 200 and 204 for a session that has ended and warn of everything else.
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
