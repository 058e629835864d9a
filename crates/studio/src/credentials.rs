//! Ends what a credential opened, terminals and event streams, when the credential is revoked: at once
//! when this process revokes it, else after the next poll of the records, which see every process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::records::Records;
use crate::token::Digest;

/// Between two polls. With the time for which requests are answered from memory, a revoked
/// credential keeps nothing open for more than 5 s.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// The credentials by which something is open in this process.
#[derive(Default)]
pub(crate) struct Credentials {
    open: Mutex<HashMap<Digest, Open>>,
}

struct Open {
    guards: usize,
    revoked: CancellationToken,
}

/// Held for as long as something is open by a credential.
pub(crate) struct CredentialGuard {
    credential: Digest,
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
    fn open(&self) -> MutexGuard<'_, HashMap<Digest, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn guard(self: &Arc<Self>, credential: &Digest) -> CredentialGuard {
        let mut open = self.open();
        let entry =
            open.entry(credential.clone()).or_insert_with(|| Open { guards: 0, revoked: CancellationToken::new() });
        entry.guards += 1;
        let revoked = entry.revoked.clone();
        CredentialGuard { credential: credential.clone(), revoked, credentials: Arc::clone(self) }
    }

    /// Ends what is open by a credential.
    pub(crate) fn revoke(&self, credential: &Digest) {
        if let Some(entry) = self.open().get(credential) {
            entry.revoked.cancel();
        }
    }

    /// Looks for credentials that another process revoked, for as long as there are some to look after.
    pub(crate) async fn poll(credentials: Weak<Self>, records: Records) {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let Some(credentials) = credentials.upgrade() else { return };
            let open: Vec<Digest> = credentials.open().keys().cloned().collect();
            if open.is_empty() {
                continue;
            }
            match records.valid_credentials(&open).await {
                Ok(valid) => open
                    .iter()
                    .filter(|credential| !valid.contains(credential.as_str()))
                    .for_each(|credential| credentials.revoke(credential)),
                // A database that cannot be read revokes nothing; the next poll asks again.
                Err(error) => {
                    warn!(error = %crate::chain(&error), "cannot check whether open streams are still allowed");
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
    fn a_revoked_credential_ends_all_it_opened_and_is_forgotten_with_the_last() {
        let credentials = Arc::new(Credentials::default());
        let (mine, other) = (new_token(), new_token());
        let (mine, other) = (Digest::of(mine.expose()).expect("a token"), Digest::of(other.expose()).expect("a token"));
        let guards = [credentials.guard(&mine), credentials.guard(&mine)];
        let kept = credentials.guard(&other);
        credentials.revoke(&mine);
        assert!(guards.iter().all(|guard| guard.revoked().is_cancelled()) && !kept.revoked().is_cancelled());
        drop(guards);
        assert_eq!(credentials.open().len(), 1);
        assert!(!credentials.guard(&mine).revoked().is_cancelled(), "a guard made later starts valid");
    }
}
