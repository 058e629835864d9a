//! What can go wrong with any call. Operations add what is special to them in enums of their own (`CreateError`,
//! `CommandError`, …), each with [`CallError`] as its last variant.

use std::time::Duration;

/// A call that failed for a reason that has nothing to do with what it asked for, or that the server refused.
///
/// `call` says what was attempted and on which sandbox. Keys and tokens are in none of these.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Nothing was sent: the name does not resolve, nobody listens, or TLS failed. Try another endpoint.
    #[error("{call}: cannot reach {host}: {cause}")]
    Unreachable { call: String, host: String, cause: String },
    /// The connection broke after the request was sent; the server may have acted on it.
    #[error("{call}: the connection to {host} was lost: {cause}")]
    ConnectionLost { call: String, host: String, cause: String },
    /// No answer in time; the server may still act on the request.
    #[error("{call}: no answer within {after:?}")]
    DeadlineExceeded { call: String, after: Duration },
    /// The key or token is missing, wrong or may not do this.
    #[error("{call}: not authorized: {message}")]
    Unauthorized { call: String, message: String },
    /// The server wants fewer requests, or has no room now. Wait, or try another provider.
    #[error("{call}: the server is at a limit: {message}")]
    Limited { call: String, message: String, retry_after: Option<Duration> },
    /// The request itself is wrong: repeating it, anywhere, gives the same answer.
    #[error("{call}: refused: {message}")]
    Invalid { call: String, message: String },
    /// This server does not have the call.
    #[error("{call}: not supported by this server: {message}")]
    Unsupported { call: String, message: String },
    /// The server failed.
    #[error("{call}: the server answered {status}: {message}")]
    Service { call: String, status: u16, message: String },
    /// The answer is not what the protocol says.
    #[error("{call}: the server's answer cannot be understood: {detail}")]
    Protocol { call: String, detail: String },
}

impl CallError {
    /// Whether the service itself is the trouble, so that another one may do what this one could not.
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
