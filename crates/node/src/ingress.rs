//! Ingress settings: how requests from outside reach a sandbox's services. Set when the sandbox is
//! created; its forks inherit them.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ingress {
    /// The `Host` that services receive, in which `${PORT}` is replaced by their port. Absent: the
    /// client's own.
    pub mask_request_host: Option<String>,
    /// Ports whose services speak TLS themselves.
    pub https_ports: Vec<u16>,
}

impl Ingress {
    /// The `Host` for the service on a port, unless it receives the client's.
    pub fn host(&self, port: u16) -> Option<String> {
        self.mask_request_host.as_ref().map(|mask| mask.replace("${PORT}", &port.to_string()))
    }
}
