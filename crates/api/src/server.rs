//! The listener: accepts connections, serves HTTP/1.1 and HTTP/2 with upgrades, plain and over TLS
//! on the same port, and shuts down gracefully.

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::{io, iter};

use http::uri::Scheme;
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use node::Node;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument as _, debug, info_span, warn};

use crate::ApiConfig;
use crate::body::{self, Body, BodyError};
use crate::connection::{ClientStream, HeadTimer};
use crate::connection_limit::{ConnectionLimiter, ConnectionLimits, ConnectionPermit};
use crate::content::Content;
use crate::control;
use crate::edge::{self, Edge};
use crate::fallback::Fallback;
use crate::request_id::RequestIds;
use crate::routing::{Plane, plane};
use crate::tally::Tally;
use crate::tls::{self, Tls};

/// SDKs keep idle connections for 300 s, and E2B's edge for 600 s; this server closes last.
const IDLE_TIMEOUT: Duration = Duration::from_secs(900);
/// From a head's first byte to its last: a head that is never finished holds a buffer.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time for responses in progress when the server stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// Lets large transfers move in large pieces.
pub(crate) const BUFFER_BYTES: usize = 512 << 10;
/// SDKs send every request of a program on one HTTP/2 connection, and every running command is one.
const MOST_STREAMS: u32 = 1024;
/// How many bytes a client may send before the server reads them, per stream and per connection.
/// They differ so that an upload that a sandbox does not read does not block the other streams.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Interval of HTTP/2 pings: nothing else closes connections whose clients have vanished.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(60);
/// Wait after a failed accept, for example without free descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// State that requests share.
pub(crate) struct App {
    pub node: Arc<Node>,
    pub config: ApiConfig,
    pub edge: Edge,
    pub fallback: Fallback,
    /// Absent: plain connections only.
    tls: Option<Tls>,
    /// Calls of the control plane with a wrong key.
    pub wrong_keys: Arc<Tally>,
    request_ids: RequestIds,
}

/// Serves `node` on `listener`, and `elsewhere` for requests that are neither for its control plane
/// nor for its sandboxes, until `stop`; then ends what still runs within a few seconds.
pub async fn serve(
    listener: TcpListener,
    node: Arc<Node>,
    config: ApiConfig,
    fallback: Fallback,
    stop: CancellationToken,
) -> io::Result<()> {
    let tasks = TaskTracker::new();
    // Tunnels and connections to sandboxes end with this; responses in progress get STOP_TIMEOUT
    // first.
    let end = CancellationToken::new();
    let tls = config.authority.clone().map(|authority| {
        let names = [Some(config.domain.as_str()), config.dashboard_host.as_deref()];
        Tls::new(authority, names.into_iter().flatten())
    });
    let wrong_keys = Tally::new(&tasks, &end, |count, peer| {
        warn!(count, peer = %peer.ip(), "refused calls with a wrong API key");
    });
    let (limit, per_address) = (config.max_connections, config.max_connections_per_address);
    let refused = Tally::new(&tasks, &end, move |count, peer| {
        warn!(
            count, limit, per_address, peer = %peer.ip(),
            "closed new connections at once: there are as many as the limits allow (`limits` in the configuration)"
        );
    });
    let limiter = ConnectionLimiter::new(ConnectionLimits { total: limit, per_address });
    let edge = Edge::new(tasks.clone(), end.clone());
    let app = App { node, config, edge, fallback, tls, wrong_keys, request_ids: RequestIds::default() };
    let app = Arc::new(app);
    let mut connections = JoinSet::new();
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, peer)) => match limiter.take(peer.ip()) {
                Some(permit) => {
                    connections.spawn(serve_connection(stream, peer, permit, Arc::clone(&app), stop.clone()));
                }
                None => refused.count(peer),
            },
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_BACKOFF).await;
            }
        }
        while connections.try_join_next().is_some() {} // Drop the finished ones.
    }
    drop(listener);
    while connections.join_next().await.is_some() {} // Each ends within STOP_TIMEOUT.
    end.cancel();
    tasks.close();
    tasks.wait().await;
    Ok(())
}

async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    permit: ConnectionPermit,
    app: Arc<App>,
    stop: CancellationToken,
) {
    if let Err(error) = stream.set_nodelay(true) {
        return debug!(%error, "the client is gone already");
    }
    // A connection that sends nothing costs no more than its socket.
    let mut first = [0];
    let spoken = tokio::time::timeout(IDLE_TIMEOUT, stream.peek(&mut first));
    let Some(Ok(Ok(1))) = stop.run_until_cancelled(spoken).await else {
        return debug!("a connection ended before it was used");
    };
    let (stream, scheme) = match &app.tls {
        Some(tls) if first == [tls::HANDSHAKE] => match stop.run_until_cancelled(tls.accept(stream)).await {
            Some(Ok(stream)) => (Either::Right(stream), Scheme::HTTPS),
            Some(Err(error)) => return debug!(%peer, %error, "a handshake failed"),
            None => return debug!(%peer, "cut a handshake"),
        },
        _ => (Either::Left(stream), Scheme::HTTP),
    };
    let stream = ClientStream::new(stream, permit);
    let state = stream.state();
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(HeadTimer { state: Arc::clone(&state), head_timeout: HEAD_TIMEOUT })
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(BUFFER_BYTES)
        .preserve_header_case(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MOST_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL);
    let asked = CancellationToken::new();
    let asking = asked.clone();
    let service = service_fn(move |request| {
        asking.cancel();
        answer(Arc::clone(&app), peer, scheme.clone(), request)
    });
    // The first head may be HTTP/2's, and is read in part before hyper's timer starts.
    let unasked = async {
        if tokio::time::timeout(HEAD_TIMEOUT, asked.cancelled()).await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = unasked => return debug!("cut a connection that did not finish its first head"),
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(STOP_TIMEOUT, connection).await {
                Ok(result) => result,
                Err(_) => return debug!("cut a connection that did not end in time"),
            }
        }
    };
    if let Err(error) = result {
        // Clients that disconnect and sandboxes that end lead here: this is normal.
        debug!(%error, "a connection ended early");
        if is_broken_answer(&*error) {
            state.reset_when_closed();
        }
    }
}

/// Whether a response that could not be completed ended the connection.
fn is_broken_answer(error: &(dyn Error + 'static)) -> bool {
    iter::successors(Some(error), |&error| error.source()).any(|error| error.is::<BodyError>())
}

async fn answer(
    app: Arc<App>,
    peer: SocketAddr,
    scheme: Scheme,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let (mut parts, content) = request.into_parts();
    let plane = plane(&parts, app.config.dashboard_host.as_deref());
    parts.extensions.insert(peer);
    parts.extensions.insert(scheme);
    let (content, rest) = Content::new(content);
    let id = app.request_ids.id_for(&parts.headers);
    let span = info_span!("request", id = %id.as_str());
    let mut response = dispatch(&app, plane, Request::from_parts(parts, content)).instrument(span).await;
    id.mark(response.headers_mut());
    // Streamed responses begin while their requests may still be read; complete ones need no more
    // of the request.
    let whole = match response.body() {
        Body::Whole(_) => true,
        Body::Proxied(_) => false,
        Body::Other(body) => body.size_hint().exact().is_some(),
    };
    if whole {
        rest.discard().await;
    }
    Ok(response)
}

async fn dispatch(app: &Arc<App>, plane: Plane, request: Request<Content>) -> Response<Body> {
    match plane {
        Plane::Edge(target) => edge::serve(app, target, request).await,
        Plane::ByToken => edge::serve_by_token(app, request).await,
        Plane::SignedFile => edge::serve_signed_file(app, request).await,
        Plane::Preflight => edge::allow_preflight(&request),
        Plane::Control => control::serve(app, request).await,
        Plane::Fallback => match app.fallback.answer(request).await {
            Ok(response) => response.map(Body::Other),
            Err(request) => control::serve(app, request).await,
        },
        Plane::Refused(text) => body::text(http::StatusCode::BAD_REQUEST, text),
    }
}
