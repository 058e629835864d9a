//! Fallback service for requests that are neither for the control plane nor for the edge.
//!
//! It gets the request unchanged, with the possibility to upgrade it, and with the peer's address
//! (a [`SocketAddr`]) among its extensions. It knows nothing of sandboxes' ports, and nothing here
//! knows what it serves.
//!
//! [`SocketAddr`]: std::net::SocketAddr

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::service::Service;
use node::Unwritable;

use crate::content::Content;

pub(crate) type FallbackBody = UnsyncBoxBody<Bytes, FallbackError>;
pub(crate) type FallbackError = Box<dyn Error + Send + Sync>;
type ResponseFuture = Pin<Box<dyn Future<Output = Response<FallbackBody>> + Send>>;

/// Why a part refuses changes, while it does. Called with every `/ready`: it does no I/O.
pub type PartCheck = Arc<dyn Fn() -> Option<Unwritable> + Send + Sync>;

/// Serves requests that are neither for the control plane nor for the edge. The default has no
/// service: the response is 404.
#[derive(Clone, Default)]
pub struct Fallback {
    service: Option<Arc<dyn Fn(Request<Content>) -> ResponseFuture + Send + Sync>>,
    /// Prefix of the paths that it serves; empty serves all.
    prefix: &'static str,
    /// Its parts in `/ready`.
    pub(crate) parts: Vec<(&'static str, PartCheck)>,
}

impl Fallback {
    /// Creates a fallback to `service`.
    pub fn new<S, B>(service: S) -> Self
    where
        S: Service<Request<Content>, Response = Response<B>, Error = Infallible> + Send + Sync + 'static,
        S::Future: Send + 'static,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<FallbackError>,
    {
        let service = move |request| -> ResponseFuture {
            let answering = service.call(request);
            Box::pin(async move {
                let Ok(response) = answering.await;
                response.map(|body| body.map_err(Into::into).boxed_unsync())
            })
        };
        Self { service: Some(Arc::new(service)), prefix: "", parts: Vec::new() }
    }

    /// Serves only paths that begin with `prefix`; other requests are answered as without a
    /// service.
    pub fn below(self, prefix: &'static str) -> Self {
        Self { prefix, ..self }
    }

    /// Adds a part whose state `/ready` reports beside the node's.
    #[must_use]
    pub fn with_part(mut self, name: &'static str, check: PartCheck) -> Self {
        self.parts.push((name, check));
        self
    }

    /// Returns the response, or the request if no service serves it.
    pub(crate) async fn answer(&self, request: Request<Content>) -> Result<Response<FallbackBody>, Request<Content>> {
        match &self.service {
            Some(answer) if request.uri().path().starts_with(self.prefix) => Ok(answer(request).await),
            _ => Err(request),
        }
    }
}

impl fmt::Debug for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.service.is_some() { "Fallback(a service)" } else { "Fallback(none)" })
    }
}
