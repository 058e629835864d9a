//! What a server has beyond E2B.

use http::Method;
use protocol::rest::Capabilities;

use super::request::Request;
use crate::client::Client;
use crate::error::CallError;
use crate::transport::{Failure, Refusal};

impl Client {
    /// What a Sandbar server adds to E2B, with its limits. [`None`] on servers that are plain E2B.
    ///
    /// # Errors
    /// What may happen to any call.
    pub async fn capabilities(&self) -> Result<Option<Capabilities>, CallError> {
        let request = Request::new(self, Method::GET, "/sandbar/capabilities", "ask for the server's capabilities");
        match request.json().await {
            Ok(capabilities) => Ok(Some(capabilities)),
            Err(Failure::Refused(Refusal { status: 404 | 405 | 501, .. })) => Ok(None),
            Err(failure) => Err(failure.into_error(&request.call)),
        }
    }
}
