//! Egress rules of a running sandbox.

use http::Method;
use protocol::rest::NetworkUpdate;

use super::life::SandboxError;
use super::request::Request;
use crate::client::Client;
use protocol::SandboxId;

impl Client {
    /// Replaces all egress rules of a running sandbox; absent fields are cleared.
    ///
    /// # Errors
    /// [`SandboxError::NotFound`], [`SandboxError::Conflict`] when it does not run,
    /// [`SandboxError::Call`].
    pub async fn update_network(&self, id: &SandboxId, network: &NetworkUpdate) -> Result<(), SandboxError> {
        let path = format!("/sandboxes/{id}/network");
        let request =
            Request::new(self, Method::PUT, path, format!("change the network of sandbox {id}")).body(network);
        request.send().await.map(drop).map_err(|failure| SandboxError::from_failure(failure, id, &request))
    }
}
