//! A handle to a sandbox that leaves it as it is.

use protocol::rest;

use crate::client::Client;
use crate::error::CallError;
use crate::sandbox::Sandbox;

impl Client {
    /// A handle to a sandbox that [`Client::info`] told of. No request is made: unlike [`Client::connect`] this neither
    /// wakes the sandbox nor extends its life. It has no traffic token, which is told only to who creates or connects.
    ///
    /// # Errors
    /// [`CallError::Protocol`] when what the service told cannot be used.
    pub fn attach(&self, detail: &rest::SandboxDetail) -> Result<Sandbox, CallError> {
        let rest::SandboxDetail { listed, envd_access_token, domain, .. } = detail;
        let made = rest::Sandbox {
            template_id: listed.template_id.clone(),
            sandbox_id: listed.sandbox_id.clone(),
            client_id: listed.client_id.clone(),
            envd_version: listed.envd_version.clone(),
            alias: listed.alias.clone(),
            envd_access_token: envd_access_token.clone(),
            traffic_access_token: None,
            domain: domain.clone(),
        };
        Sandbox::new(self, made)
    }
}
