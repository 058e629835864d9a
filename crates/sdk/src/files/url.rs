//! Signed links: whoever holds one may read or write one file, without a key and with plain HTTP.

use std::time::Duration;

use protocol::signature::{Claim, Operation};

use super::{Files, encoded};
use crate::config::join;
use crate::error::CallError;

/// Until when a link works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Expiry {
    /// As long as the sandbox lives.
    #[default]
    Never,
    /// From now on, in whole seconds.
    After(Duration),
}

impl Files<'_> {
    /// A link to read a file with GET. No request is made.
    ///
    /// # Errors
    /// [`CallError::Protocol`] when the sandbox's domain makes no URL.
    pub fn download_url(&self, path: &str, expiry: Expiry) -> Result<String, CallError> {
        self.link(path, Operation::Read, expiry)
    }

    /// A link to write a file with POST, as a form or as nothing but its bytes. No request is made.
    ///
    /// # Errors
    /// [`CallError::Protocol`] when the sandbox's domain makes no URL.
    pub fn upload_url(&self, path: &str, expiry: Expiry) -> Result<String, CallError> {
        self.link(path, Operation::Write, expiry)
    }

    fn link(&self, path: &str, operation: Operation, expiry: Expiry) -> Result<String, CallError> {
        let base = self.sandbox.link_url()?;
        let mut target = self.target(Some(path));
        if let Some(token) = self.sandbox.access_token() {
            let expiration = match expiry {
                Expiry::Never => None,
                Expiry::After(time) => {
                    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
                    Some(jiff::Timestamp::now().as_second().saturating_add(seconds))
                }
            };
            let username = self.sandbox.user_to_name(self.user.as_deref()).unwrap_or_default();
            let signature = Claim { path, operation, username, expiration }.sign(token.expose());
            target.push_str("&signature=");
            target.extend(encoded(&signature));
            if let Some(seconds) = expiration {
                target.push_str(&format!("&signature_expiration={seconds}"));
            }
        }
        Ok(join(&base, &target).into())
    }
}
