//! The studio over HTTP: the calls under `/api` with their OpenAPI document, sign-in, and the
//! dashboard's pages.
//!
//! A request passes the security headers, then, under `/api`, authentication and rate limits
//! ([`auth`], [`limits`]); its handler then calls the [`Studio`](crate::Studio) and converts the
//! result. Handlers never access the records themselves, and a read never resumes a sandbox.

mod auth;
mod cookie;
mod document;
mod events;
mod failure;
mod files;
mod generation;
mod headers;
mod host;
mod input;
mod jobs;
mod limits;
mod operation;
mod pages;
mod requests;
mod routes;
mod screenshots;
mod session;
mod terminal;
mod view;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use http::HeaderValue;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use limits::{Limits, Rate};

use crate::Studio;
use limits::RateLimiter;

/// How long requests in progress may take after `stop`.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Half of the usual idle timeout of proxies.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);

/// Configuration of the HTTP interface.
#[derive(Debug, Clone)]
pub struct RestOptions {
    /// The origins of previews, which the dashboard may frame, as sources of a
    /// `Content-Security-Policy`.
    pub preview_sources: Vec<String>,
    /// The only host name that serves pages and sessions; absent: any. Calls with a bearer token
    /// are served under every name.
    pub host: Option<String>,
    pub limits: Limits,
    /// The interval of heartbeats on an idle event stream.
    pub heartbeat: Duration,
}

impl Default for RestOptions {
    /// Previews of this machine, and of E2B's cloud.
    fn default() -> Self {
        let preview_sources = vec!["http://*.localhost:*".to_owned(), "https://*.e2b.app".to_owned()];
        Self { preview_sources, host: None, limits: Limits::default(), heartbeat: HEARTBEAT_INTERVAL }
    }
}

impl RestOptions {
    /// Allows previews below this domain, too: `sandbox.example`, with or without a port.
    #[must_use]
    pub fn with_preview_domain(mut self, domain: &str) -> Self {
        self.preview_sources.extend(["http", "https"].map(|scheme| format!("{scheme}://*.{domain}")));
        self
    }
}

/// The state of the handlers.
struct App {
    studio: Studio,
    limiter: RateLimiter,
    document: Bytes,
    /// The `Content-Security-Policy` of pages.
    page_policy: HeaderValue,
    /// The only host name of pages and sessions, in lower case.
    host: Option<String>,
    heartbeat: Duration,
    /// Ends streams and terminals.
    stop: CancellationToken,
}

type Shared = Arc<App>;

/// The router of everything that the studio serves. Streams end with `stop`.
///
/// The peer's address must be in the request's extensions, as [`SocketAddr`] or as axum's
/// `ConnectInfo` of it.
pub fn router(studio: Studio, options: &RestOptions, stop: CancellationToken) -> Router {
    let (known, open, document) = routes::calls().finish();
    let document = Bytes::from(document.finish().to_string());
    let app = Arc::new(App {
        studio,
        limiter: RateLimiter::new(options.limits),
        document,
        page_policy: headers::page_policy(&options.preview_sources),
        host: options.host.as_deref().map(str::to_ascii_lowercase),
        heartbeat: options.heartbeat,
        stop,
    });
    let identified = known.route_layer(axum::middleware::from_fn_with_state(Arc::clone(&app), auth::identify));
    Router::new()
        .merge(identified)
        .merge(open)
        .merge(routes::pages())
        .method_not_allowed_fallback(failure::wrong_method)
        .fallback(pages::file)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&app), host::check))
        .layer(axum::middleware::from_fn(headers::protect))
        .layer(axum::extract::DefaultBodyLimit::max(input::BODY_BYTES))
        .with_state(app)
}

/// Serves `router` on `listener` until `stop`, then ends open connections within a few seconds.
///
/// # Errors
/// [`io::Error`] of the listener.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) -> io::Result<()> {
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    let serving = axum::serve(listener, service).with_graceful_shutdown(stop.clone().cancelled_owned());
    let late = async {
        stop.cancelled().await;
        tokio::time::sleep(SHUTDOWN_TIMEOUT).await;
    };
    tokio::select! {
        served = serving => served,
        () = late => Ok(()),
    }
}
