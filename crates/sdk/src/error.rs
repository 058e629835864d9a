//! Errors of any call. Operations add their own enums (`CreateError`, `CommandError`, …), each with
//! [`CallError`] as its last variant.

use std::time::Duration;

/// A call that failed independently of its operation, or that the server refused.
///
/// `call` names the attempted operation and the sandbox. No variant contains a key or token.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Nothing was sent: name resolution, the connection or TLS failed. Try another endpoint.
    #[error("{call}: cannot reach {host}: {cause}")]
    Unreachable { call: String, host: String, cause: String },
    /// The connection broke after the request was sent; the server may have processed it.
    #[error("{call}: the connection to {host} was lost: {cause}")]
    ConnectionLost { call: String, host: String, cause: String },
    /// No response in time; the server may still process the request.
    #[error("{call}: no answer within {after:?}")]
    DeadlineExceeded { call: String, after: Duration },
    /// The key or token is missing, invalid or lacks permission.
    #[error("{call}: not authorized: {message}")]
    Unauthorized { call: String, message: String },
    /// The server limits the rate, or has no capacity. Wait, or try another provider.
    #[error("{call}: the server is at a limit: {message}")]
    Limited { call: String, message: String, retry_after: Option<Duration> },
    /// The request is invalid: a retry returns the same response.
    #[error("{call}: refused: {message}")]
    Invalid { call: String, message: String },
    /// This server does not have the call.
    #[error("{call}: not supported by this server: {message}")]
    Unsupported { call: String, message: String },
    /// The server failed.
    #[error("{call}: the server answered {status}: {message}")]
    Service { call: String, status: u16, message: String },
    /// The response violates the protocol.
    #[error("{call}: the server's answer cannot be understood: {detail}")]
    Protocol { call: String, detail: String },
}

impl CallError {
    /// Whether the service is at fault, so that another service may succeed.
    pub fn is_service_trouble(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::ConnectionLost { .. }
            | Self::DeadlineExceeded { .. }
            | Self::Limited { .. }
            | Self::Service { .. }
            | Self::Protocol { .. } => true,
            Self::Unauthorized { .. } | Self::Invalid { .. } | Self::Unsupported { .. } => false,
        }
    }
}
