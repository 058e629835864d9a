//! How requests from outside meet a sandbox's own services. Said when it is made; its forks have the same.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ingress {
    /// What services see as `Host`, in which `${PORT}` stands for their port. Absent: what the client called.
    pub mask_request_host: Option<String>,
    /// Ports whose services speak TLS themselves.
    pub https_ports: Vec<u16>,
}

impl Ingress {
    /// The `Host` for the service on a port, if it is not to see the client's.
    pub fn host(&self, port: u16) -> Option<String> {
        self.mask_request_host.as_ref().map(|mask| mask.replace("${PORT}", &port.to_string()))
    }
}
