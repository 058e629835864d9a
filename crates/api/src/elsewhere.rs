//! What is neither the control plane's nor the edge's: whoever starts the server says who answers that.
//!
//! The other side gets the request as it came, able to be upgraded, with the peer's address (a [`SocketAddr`]) among its
//! extensions. It knows nothing of sandboxes' ports, and nothing here knows what it serves.
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

pub(crate) type OtherBody = UnsyncBoxBody<Bytes, OtherError>;
pub(crate) type OtherError = Box<dyn Error + Send + Sync>;
type Answering = Pin<Box<dyn Future<Output = Response<OtherBody>> + Send>>;

/// Why a part refuses changes, while it does. Called with every `/ready`: it does no I/O.
pub type Check = Arc<dyn Fn() -> Option<Unwritable> + Send + Sync>;

/// Who answers what is neither the control plane's nor the edge's. By default nobody: then it is 404.
#[derive(Clone, Default)]
pub struct Elsewhere {
    service: Option<Arc<dyn Fn(Request<Content>) -> Answering + Send + Sync>>,
    /// What paths must begin with; empty: any.
    prefix: &'static str,
    /// Its parts in `/ready`.
    pub(crate) parts: Vec<(&'static str, Check)>,
}

impl Elsewhere {
    /// This service does.
    pub fn new<S, B>(service: S) -> Self
    where
        S: Service<Request<Content>, Response = Response<B>, Error = Infallible> + Send + Sync + 'static,
        S::Future: Send + 'static,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<OtherError>,
    {
        let service = move |request| -> Answering {
            let answering = service.call(request);
            Box::pin(async move {
                let Ok(response) = answering.await;
                response.map(|body| body.map_err(Into::into).boxed_unsync())
            })
        };
        Self { service: Some(Arc::new(service)), prefix: "", parts: Vec::new() }
    }

    /// Only requests whose paths begin with `prefix`; all others are answered as if there were no service.
    pub fn below(self, prefix: &'static str) -> Self {
        Self { prefix, ..self }
    }

    /// Adds a part whose state `/ready` reports beside the node's.
    #[must_use]
    pub fn with_part(mut self, name: &'static str, check: Check) -> Self {
        self.parts.push((name, check));
        self
    }

    /// The answer, or the request again when there is nobody to answer it.
    pub(crate) async fn answer(&self, request: Request<Content>) -> Result<Response<OtherBody>, Request<Content>> {
        match &self.service {
            Some(answer) if request.uri().path().starts_with(self.prefix) => Ok(answer(request).await),
            _ => Err(request),
        }
    }
}

impl fmt::Debug for Elsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.service.is_some() { "Elsewhere(a service)" } else { "Elsewhere(none)" })
    }
}
