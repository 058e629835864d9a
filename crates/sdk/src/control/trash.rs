//! What a Sandbar server keeps of files that no record names.

use http::Method;
use protocol::rest::{Recoverable, Recovered};

use super::query::encode;
use super::request::Request;
use crate::client::Client;
use crate::error::CallError;
use crate::transport::{Failure, Refusal};

impl Client {
    /// Files of the server that no record names and that can be brought back.
    ///
    /// # Errors
    /// What may happen to any call; a server that is plain E2B does not have it.
    pub async fn trash(&self) -> Result<Vec<Recoverable>, CallError> {
        let request = Request::new(self, Method::GET, "/sandbar/trash", "list what can be recovered");
        request.json().await.map_err(|failure| failure.into_error(&request.call))
    }

    /// Brings back what `id` names: files, a sandbox, a template or a volume. None when there is no
    /// such thing.
    ///
    /// # Errors
    /// What may happen to any call.
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
