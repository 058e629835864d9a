//! Extensions of a server beyond E2B.

use http::Method;
use protocol::rest::Capabilities;

use super::request::Request;
use crate::client::Client;
use crate::error::CallError;
use crate::transport::{Failure, Refusal};

impl Client {
    /// The extensions of a Sandbar server, with their limits. [`None`] on other E2B servers.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn capabilities(&self) -> Result<Option<Capabilities>, CallError> {
        let request = Request::new(self, Method::GET, "/sandbar/capabilities", "get the capabilities of the server");
        match request.json().await {
            Ok(capabilities) => Ok(Some(capabilities)),
            Err(Failure::Refused(Refusal { status: 404 | 405 | 501, .. })) => Ok(None),
            Err(failure) => Err(failure.into_error(&request.call)),
        }
    }
}
