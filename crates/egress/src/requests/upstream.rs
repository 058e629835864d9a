//! The upstream connection of an exchange: reconnects when the target has closed it between two
//! requests.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::exchange::Security;
use crate::stream::{Dial, Outside, Stream};
use crate::trust::Trust;

/// Timeout of a TLS handshake on a connected socket.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);
/// Timeout for the connection to become free after the previous response.
const READY_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Upstream {
    /// Connected before the first request.
    first: Option<Outside>,
    redial: Dial,
    security: Security,
    trust: Arc<Trust>,
    sender: Option<SendRequest<Incoming>>,
    /// Drivers of the connections: hyper makes progress only while they are polled.
    drivers: JoinSet<()>,
}

impl Upstream {
    pub(super) fn new(first: Outside, redial: Dial, security: Security, trust: Arc<Trust>) -> Self {
        Self { first: Some(first), redial, security, trust, sender: None, drivers: JoinSet::new() }
    }

    /// A connection that is ready for a request. The error text explains the failure to the user.
    pub(super) async fn sender(&mut self) -> Result<&mut SendRequest<Incoming>, String> {
        while self.drivers.try_join_next().is_some() {} // Drops finished drivers.
        let usable = match &mut self.sender {
            Some(sender) => timeout(READY_TIMEOUT, sender.ready()).await.is_ok_and(|ready| ready.is_ok()),
            None => false,
        };
        if !usable {
            let stream = match self.first.take() {
                Some(stream) => stream,
                None => {
                    (self.redial)().await.map_err(|error| format!("the target cannot be reached again: {error}"))?
                }
            };
            let stream = self.secure(stream).await?;
            self.sender = Some(
                self.start_http(stream).await.map_err(|error| format!("the target does not speak HTTP: {error}"))?,
            );
        }
        Ok(self.sender.as_mut().expect("it was made above unless it was there"))
    }

    async fn secure(&self, stream: Outside) -> Result<Box<dyn Stream>, String> {
        let Security::Tls { name } = &self.security else { return Ok(stream.boxed()) };
        let wrong = |what: &dyn std::fmt::Display| format!("the certificate of {name} cannot be verified: {what}");
        let server = ServerName::try_from(name.clone()).map_err(|error| wrong(&error))?;
        let trust = Arc::clone(&self.trust);
        let config = tokio::task::spawn_blocking(move || trust.client()).await.map_err(|error| wrong(&error))?;
        let config = config.map_err(|error| wrong(&error))?;
        let handshake = TlsConnector::from(config).connect(server, stream.boxed());
        match timeout(HANDSHAKE_TIMEOUT, handshake).await {
            Ok(Ok(stream)) => Ok(Box::new(stream)),
            Ok(Err(error)) => Err(wrong(&error)),
            Err(_) => Err(wrong(&"no answer in time")),
        }
    }

    async fn start_http(&mut self, stream: Box<dyn Stream>) -> io::Result<SendRequest<Incoming>> {
        let (sender, connection) = http1::Builder::new()
            .preserve_header_case(true)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        self.drivers.spawn(async move {
            // The pending request receives the connection error.
            let _ = connection.with_upgrades().await;
        });
        Ok(sender)
    }
}
