//! Ends terminals and event streams when their credential is revoked: at once when this process
//! revokes it, else after the next poll of the records, which all processes share.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::records::Records;
use crate::token::TokenDigest;

/// Between two polls. Together with [`crate::studio`]'s credential cache, a revoked credential
/// keeps nothing open for more than 5 s.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// The credentials that hold something open in this process.
#[derive(Default)]
pub(crate) struct Credentials {
    open: Mutex<HashMap<TokenDigest, Open>>,
}

struct Open {
    guards: usize,
    revoked: CancellationToken,
}

/// Held while something is open by a credential.
pub(crate) struct CredentialGuard {
    credential: TokenDigest,
    revoked: CancellationToken,
    credentials: Arc<Credentials>,
}

impl CredentialGuard {
    /// Cancelled when the credential is revoked or expires.
    pub(crate) fn revoked(&self) -> CancellationToken {
        self.revoked.clone()
    }
}

impl Drop for CredentialGuard {
    fn drop(&mut self) {
        let mut open = self.credentials.open();
        if let Some(entry) = open.get_mut(&self.credential) {
            entry.guards -= 1;
            if entry.guards == 0 {
                open.remove(&self.credential);
            }
        }
    }
}

impl Credentials {
    fn open(&self) -> MutexGuard<'_, HashMap<TokenDigest, Open>> {
        self.open.lock()
    }

    pub(crate) fn guard(self: &Arc<Self>, credential: &TokenDigest) -> CredentialGuard {
        let mut open = self.open();
        let entry =
            open.entry(credential.clone()).or_insert_with(|| Open { guards: 0, revoked: CancellationToken::new() });
        entry.guards += 1;
        let revoked = entry.revoked.clone();
        CredentialGuard { credential: credential.clone(), revoked, credentials: Arc::clone(self) }
    }

    /// Ends everything that a credential holds open.
    pub(crate) fn revoke(&self, credential: &TokenDigest) {
        if let Some(entry) = self.open().get(credential) {
            entry.revoked.cancel();
        }
    }

    /// Polls for credentials that another process revoked, until the studio is dropped.
    pub(crate) async fn poll(credentials: Weak<Self>, records: Records) {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let Some(credentials) = credentials.upgrade() else { return };
            let open: Vec<TokenDigest> = credentials.open().keys().cloned().collect();
            if open.is_empty() {
                continue;
            }
            match records.valid_credentials(&open).await {
                Ok(valid) => open
                    .iter()
                    .filter(|credential| !valid.contains(credential.as_str()))
                    .for_each(|credential| credentials.revoke(credential)),
                // A failed read revokes nothing; the next poll reads again.
                Err(error) => {
                    warn!(error = %text::error_chain(&error), "cannot check whether open streams are still allowed");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::new_token;

    #[test]
    fn revoking_a_credential_cancels_all_its_guards() {
        let credentials = Arc::new(Credentials::default());
        let (mine, other) = (new_token(), new_token());
        let (mine, other) = (
            TokenDigest::from_token(mine.expose()).expect("a token"),
            TokenDigest::from_token(other.expose()).expect("a token"),
        );
        let guards = [credentials.guard(&mine), credentials.guard(&mine)];
        let kept = credentials.guard(&other);
        credentials.revoke(&mine);
        assert!(guards.iter().all(|guard| guard.revoked().is_cancelled()) && !kept.revoked().is_cancelled());
        drop(guards);
        assert_eq!(credentials.open().len(), 1);
        assert!(!credentials.guard(&mine).revoked().is_cancelled(), "a guard made later starts valid");
    }
}
