//! What a running sandbox may reach.

use http::Method;
use protocol::rest::NetworkUpdate;

use super::life::SandboxError;
use super::request::Request;
use crate::client::Client;
use crate::id::SandboxId;

impl Client {
    /// Replaces all egress rules of a running sandbox; what `network` leaves out is cleared.
    ///
    /// # Errors
    /// [`SandboxError::NotFound`], [`SandboxError::Conflict`] when it does not run, or what may happen to any call.
    pub async fn update_network(&self, id: &SandboxId, network: &NetworkUpdate) -> Result<(), SandboxError> {
        let path = format!("/sandboxes/{id}/network");
        let request =
            Request::new(self, Method::PUT, path, format!("change the network of sandbox {id}")).body(network);
        request.send().await.map(drop).map_err(|failure| SandboxError::of(failure, id, &request))
    }
}
