//! Signed links: grant access to read or write one file over plain HTTP without a key.

use std::time::Duration;

use protocol::signature::{Claim, Operation};

use super::{Files, encoded};
use crate::config::join;
use crate::error::CallError;

/// The validity of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Expiry {
    /// Valid as long as the sandbox lives.
    #[default]
    Never,
    /// Valid for this duration from now, in whole seconds.
    After(Duration),
}

impl Files<'_> {
    /// A link to read a file with GET. Sends no request.
    ///
    /// # Errors
    /// [`CallError::Protocol`] when the sandbox's domain is not a valid host.
    pub fn download_url(&self, path: &str, expiry: Expiry) -> Result<String, CallError> {
        self.link(path, Operation::Read, expiry)
    }

    /// A link to write a file with POST, as a form or as raw bytes. Sends no request.
    ///
    /// # Errors
    /// [`CallError::Protocol`] when the sandbox's domain is not a valid host.
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
            let username = self.sandbox.user_for_daemon(self.user.as_deref()).unwrap_or_default();
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
