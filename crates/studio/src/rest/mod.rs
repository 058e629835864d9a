//! The studio over HTTP: the calls under `/api` with their OpenAPI document, sign-in, and the dashboard's pages.
//!
//! A request passes the security headers, then, under `/api`, the question who asks and how often ([`auth`], [`limits`]);
//! then its call turns it into words of the [`Studio`](crate::Studio) and back. Nothing here reads or writes records, and
//! reading anything never wakes a sandbox: that is the studio's promise, and no call here goes around it.

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
mod pictures;
mod requests;
mod routes;
mod session;
mod terminal;
mod text;
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
use limits::Gate;

/// Between the wish to stop and the end of what is still being answered.
const STOP_PATIENCE: Duration = Duration::from_secs(3);

/// Half of what proxies usually bear in silence.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// How the studio shows itself.
#[derive(Debug, Clone)]
pub struct Face {
    /// Whose pages may be shown inside of ours, as `Content-Security-Policy` writes sources: the origins of previews.
    pub preview_sources: Vec<String>,
    /// The only host name that pages and sessions are served under; absent: any. Calls with a bearer
    /// token are served under every name.
    pub host: Option<String>,
    pub limits: Limits,
    /// How often a stream of events that has nothing to tell shows that it lives.
    pub heartbeat: Duration,
}

impl Default for Face {
    /// Previews of this machine, and of E2B's cloud.
    fn default() -> Self {
        let preview_sources = vec!["http://*.localhost:*".to_owned(), "https://*.e2b.app".to_owned()];
        Self { preview_sources, host: None, limits: Limits::default(), heartbeat: HEARTBEAT }
    }
}

impl Face {
    /// Shows previews below this domain, too: `sandbox.example`, with or without a port.
    #[must_use]
    pub fn domain(mut self, domain: &str) -> Self {
        self.preview_sources.extend(["http", "https"].map(|scheme| format!("{scheme}://*.{domain}")));
        self
    }
}

/// What every call may need.
struct App {
    studio: Studio,
    gate: Gate,
    document: Bytes,
    /// The `Content-Security-Policy` of pages.
    page_policy: HeaderValue,
    /// The only host name of pages and sessions, in lower case.
    host: Option<String>,
    heartbeat: Duration,
    /// Ends what would go on for ever.
    stop: CancellationToken,
}

type Shared = Arc<App>;

/// Everything the studio serves. Streams end with `stop`.
///
/// The peer's address is expected among a request's extensions, as [`SocketAddr`] or as axum's `ConnectInfo` of it.
pub fn router(studio: Studio, face: &Face, stop: CancellationToken) -> Router {
    let (known, open, document) = routes::calls().finish();
    let document = Bytes::from(document.finish().to_string());
    let app = Arc::new(App {
        studio,
        gate: Gate::new(face.limits),
        document,
        page_policy: headers::page_policy(&face.preview_sources),
        host: face.host.as_deref().map(str::to_ascii_lowercase),
        heartbeat: face.heartbeat,
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

/// Serves `router` on `listener` until `stop`, then ends what still runs within a few seconds.
///
/// # Errors
/// The listener failed.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) -> io::Result<()> {
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    let serving = axum::serve(listener, service).with_graceful_shutdown(stop.clone().cancelled_owned());
    let late = async {
        stop.cancelled().await;
        tokio::time::sleep(STOP_PATIENCE).await;
    };
    tokio::select! {
        served = serving => served,
        () = late => Ok(()),
    }
}
