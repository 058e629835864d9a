//! A handle to a sandbox that leaves its state unchanged.

use protocol::rest;

use crate::client::Client;
use crate::error::CallError;
use crate::sandbox::Sandbox;

impl Client {
    /// A handle to a sandbox from [`Client::info`]. Sends no request: unlike [`Client::connect`] it
    /// neither resumes the sandbox nor extends its lifetime. The handle has no traffic token, which
    /// only create and connect return.
    ///
    /// # Errors
    /// [`CallError::Protocol`] when `detail` holds an invalid id or domain.
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
