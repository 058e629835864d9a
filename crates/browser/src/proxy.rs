//! HTTP proxy for one origin, and the only way out of the browser's network namespace.
//!
//! Each capture has an [`OriginProxy`] on its own listener, so a page reaches neither the outside
//! nor the sandbox of a concurrent capture. It forwards requests to the origin, and refuses and
//! records all others:
//!
//! ```text
//! GET http://origin/…            forwarded, with the upstream's headers
//! CONNECT origin  (ws:// page)   HTTP inside the tunnel, then as above; upgrades pass through
//! CONNECT origin  (https page)   copied to the upstream, still encrypted
//! anything else                  403
//! ```

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, WWW_AUTHENTICATE,
};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::service::{HttpService, service_fn};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;
use url::Url;

use crate::origin::{Origin, Upstream};

const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// A page in a loop may be refused thousands of times; the first requests are enough to report.
const MAX_NOTED: usize = 200;
/// Headers with this prefix route at E2B's edge; a page must not select another sandbox with them.
const ROUTING_PREFIX: &str = "e2b-";
/// Shown in a frame in place of a foreign document.
const REFUSAL: &str = "Blocked: this address is outside the sandbox's own preview.";

type Body = Either<Incoming, Full<Bytes>>;

/// Forwards requests to one origin.
pub(crate) struct OriginProxy {
    origin: Origin,
    upstream: Upstream,
    notes: Mutex<ProxyNotes>,
    connections: TaskTracker,
    stop: CancellationToken,
}

/// What a proxy recorded.
#[derive(Debug, Default, Clone)]
pub(crate) struct ProxyNotes {
    pub(crate) refused: Vec<Refused>,
    /// Refused requests after the list was full.
    pub(crate) refused_more: usize,
    /// Redirects that lead out of the origin, including those that the browser does not follow.
    pub(crate) foreign_redirects: Vec<String>,
    /// Reason of the latest failure to reach the upstream.
    pub(crate) unreachable: Option<String>,
}

/// A refused request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    Request(String),
    /// A tunnel to `host:port`; its contents are unknown.
    Tunnel(String),
}

impl OriginProxy {
    pub(crate) fn new(origin: Origin, upstream: Upstream) -> Arc<Self> {
        Arc::new(Self {
            origin,
            upstream,
            notes: Mutex::default(),
            connections: TaskTracker::new(),
            stop: CancellationToken::new(),
        })
    }

    /// Serves until [`close`](Self::close).
    pub(crate) async fn serve(self: &Arc<Self>, listener: &TcpListener) {
        while let Some(accepted) = self.stop.run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok((stream, _)) => self.spawn({
                    let proxy = Arc::clone(self);
                    async move { proxy.serve_browser(stream).await }
                }),
                // Out of file descriptors, for example: the page waits within the capture's
                // deadline.
                Err(error) => {
                    debug!(%error, "the browser's proxy cannot accept");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    /// Closes every connection and waits for their tasks.
    pub(crate) async fn close(&self) {
        self.stop.cancel();
        self.connections.close();
        self.connections.wait().await;
    }

    pub(crate) fn notes(&self) -> ProxyNotes {
        self.notes.lock().clone()
    }

    fn note(&self, change: impl FnOnce(&mut ProxyNotes)) {
        change(&mut self.notes.lock());
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.connections.spawn(async move {
            stop.run_until_cancelled(work).await;
        });
    }

    async fn serve_browser(self: Arc<Self>, stream: TcpStream) {
        let answer = service_fn(|request| {
            let proxy = Arc::clone(&self);
            async move { Ok::<_, Infallible>(proxy.answer(request).await) }
        });
        serve_http(TokioIo::new(stream), answer).await;
    }

    /// A WebSocket arrives through a tunnel to the origin, whose requests carry a relative URI.
    async fn serve_tunnel(self: Arc<Self>, inside: Upgraded) {
        let answer = service_fn(|request: Request<Incoming>| {
            let proxy = Arc::clone(&self);
            async move {
                Ok::<_, Infallible>(match request.uri().authority() {
                    None => proxy.forward(request).await,
                    Some(_) => proxy.refuse(request.uri()),
                })
            }
        });
        serve_http(inside, answer).await;
    }

    async fn answer(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        if request.method() == Method::CONNECT {
            return match request.uri().authority() {
                Some(authority) if self.origin.is_authority(authority) => self.tunnel(request).await,
                _ => self.refuse(request.uri()),
            };
        }
        match Url::parse(&request.uri().to_string()) {
            Ok(url) if self.origin.covers(&url) => self.forward(request).await,
            _ => self.refuse(request.uri()),
        }
    }

    fn refuse(&self, uri: &Uri) -> Response<Body> {
        let refused = match (uri.scheme(), uri.authority()) {
            (None, Some(authority)) => Refused::Tunnel(authority.to_string()),
            _ => Refused::Request(uri.to_string()),
        };
        debug!(?refused, "the browser asked for something outside");
        self.note(|notes| {
            let known = notes.refused.contains(&refused);
            match notes.refused.len() < MAX_NOTED {
                true if !known => notes.refused.push(refused),
                false if !known => notes.refused_more += 1,
                _ => {}
            }
        });
        plain(StatusCode::FORBIDDEN, REFUSAL)
    }

    async fn tunnel(self: &Arc<Self>, mut request: Request<Incoming>) -> Response<Body> {
        // The upstream is dialled before the tunnel is granted, so that a failure is reported as
        // such.
        let dialled = match self.origin.is_https() {
            true => match self.dial().await {
                Ok(stream) => Some(stream),
                Err(response) => return response,
            },
            false => None,
        };
        let upgrade = hyper::upgrade::on(&mut request);
        let proxy = Arc::clone(self);
        self.spawn(async move {
            let Ok(inside) = upgrade.await else { return };
            match dialled {
                Some(mut stream) => {
                    let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(inside), &mut stream).await;
                }
                None => proxy.serve_tunnel(inside).await,
            }
        });
        Response::new(Either::Right(Full::default()))
    }

    async fn forward(self: &Arc<Self>, mut request: Request<Incoming>) -> Response<Body> {
        let page = request.uri().clone();
        let browser_side = hyper::upgrade::on(&mut request);
        prepare(&mut request, &self.origin, &self.upstream);
        let stream = match self.dial().await {
            Ok(stream) => stream,
            Err(response) => return response,
        };
        let mut response = match self.exchange(stream, request).await {
            Ok(response) => response,
            Err(error) => return self.unreachable(&error),
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let server_side = hyper::upgrade::on(&mut response);
            self.spawn(async move {
                let (Ok(browser), Ok(server)) = tokio::join!(browser_side, server_side) else { return };
                let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(browser), &mut TokioIo::new(server)).await;
            });
        } else {
            remove_hop_by_hop(response.headers_mut());
            // A password prompt would never be answered; without it the browser shows the page of
            // the response.
            response.headers_mut().remove(WWW_AUTHENTICATE);
            self.note_redirect(&page, response.headers());
        }
        response.map(Either::Left)
    }

    async fn exchange(&self, stream: TcpStream, request: Request<Incoming>) -> hyper::Result<Response<Incoming>> {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        self.spawn(async move {
            // The result of the request reports the error.
            let _ = connection.with_upgrades().await;
        });
        sender.send_request(request).await
    }

    async fn dial(&self) -> Result<TcpStream, Response<Body>> {
        let dialled = tokio::time::timeout(DIAL_TIMEOUT, TcpStream::connect(&self.upstream.address)).await;
        let stream =
            dialled.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(|e| self.unreachable(&e))?;
        let _ = stream.set_nodelay(true); // Only affects latency.
        Ok(stream)
    }

    fn unreachable(&self, error: &dyn std::error::Error) -> Response<Body> {
        let reason = error.to_string();
        self.note(|notes| notes.unreachable = Some(reason));
        plain(StatusCode::BAD_GATEWAY, "The sandbox's preview does not answer.")
    }

    fn note_redirect(&self, page: &Uri, headers: &HeaderMap) {
        let Some(location) = headers.get(LOCATION).and_then(|value| value.to_str().ok()) else { return };
        let base = page.path_and_query().and_then(|path| self.origin.page(path.as_str()));
        let Some(target) = base.and_then(|base| base.join(location).ok()) else { return };
        if !self.origin.covers(&target) {
            self.note(|notes| {
                if notes.foreign_redirects.len() < MAX_NOTED {
                    notes.foreign_redirects.push(target.into());
                }
            });
        }
    }
}

async fn serve_http<S, A>(stream: S, answer: A)
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    A: HttpService<Incoming, ResBody = Body, Error = Infallible>,
{
    let served = hyper::server::conn::http1::Builder::new().serve_connection(stream, answer).with_upgrades();
    if let Err(error) = served.await {
        debug!(%error, "a connection of the browser ended");
    }
}

/// Converts the browser's request to a proxy into a request to the upstream.
fn prepare(request: &mut Request<Incoming>, origin: &Origin, upstream: &Upstream) {
    let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from(path);
    let headers = request.headers_mut();
    let upgrade = headers.get(UPGRADE).cloned();
    remove_hop_by_hop(headers);
    if let Some(upgrade) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, upgrade);
    }
    let routing: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with(ROUTING_PREFIX)).cloned().collect();
    for name in routing {
        headers.remove(name);
    }
    if let Ok(host) = HeaderValue::try_from(origin.host_header()) {
        headers.insert(HOST, host);
    }
    for (name, value) in &upstream.headers {
        headers.insert(name, value.clone());
    }
}

/// Removes the headers that belong to one connection rather than to the message.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let usual = [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION];
    let unregistered = ["keep-alive", "proxy-connection"].map(HeaderName::from_static);
    for name in named.into_iter().chain(usual).chain(unregistered) {
        headers.remove(name);
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Either::Right(Full::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
