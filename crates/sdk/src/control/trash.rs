//! Recoverable files of a Sandbar server that no record names.

use http::Method;
use protocol::rest::{Recoverable, Recovered};

use super::query::encode;
use super::request::Request;
use crate::client::Client;
use crate::error::CallError;
use crate::transport::{Failure, Refusal};

impl Client {
    /// Lists recoverable files that no record names.
    ///
    /// # Errors
    /// Any [`CallError`]; [`CallError::Unsupported`] on other E2B servers.
    pub async fn trash(&self) -> Result<Vec<Recoverable>, CallError> {
        let request = Request::new(self, Method::GET, "/sandbar/trash", "list what can be recovered");
        request.json().await.map_err(|failure| failure.into_error(&request.call))
    }

    /// Recovers the files, sandbox, template or volume with this id. [`None`] when it does not
    /// exist.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn recover(&self, id: &str) -> Result<Option<Recovered>, CallError> {
        let path = format!("/sandbar/trash/{}", encode(id));
        let request = Request::new(self, Method::POST, path, format!("recover {id:?}"));
        match request.json().await {
            Ok(recovered) => Ok(Some(recovered)),
            Err(Failure::Refused(Refusal { status: 404, .. })) => Ok(None),
            Err(failure) => Err(failure.into_error(&request.call)),
        }
    }
}
