//! Sessions: calls of one session share working directory, variables, file cache and background
//! tasks.
//!
//! Standard streams have one session per process, HTTP with a handshake one per connection. Without
//! a handshake (2026-07-28) the client names its session in every call; calls that name none share
//! one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

/// An unused session is removed after this time. The tool schema states it.
pub(crate) const SESSION_IDLE_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// Bounds the memory that a client can use by creating sessions.
const MAX_SESSIONS: usize = 1000;

/// The session name that creates a new session.
pub(crate) const NEW_SESSION: &str = "new";

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) name: String,
    /// The sandbox that the client was last notified about.
    announced: Mutex<Option<String>>,
}

impl Session {
    pub(crate) fn new(name: String) -> Arc<Self> {
        Arc::new(Self { name, announced: Mutex::default() })
    }

    /// Creates a session with a name that no other client can guess.
    pub(crate) fn with_random_name() -> Arc<Self> {
        Self::new(Uuid::new_v4().to_string())
    }

    /// Records that the client learns of `sandbox`. True if it did not know it yet.
    pub(crate) fn announce(&self, sandbox: &str) -> bool {
        let mut announced = self.announced.lock();
        announced.replace(sandbox.to_owned()).as_deref() != Some(sandbox)
    }
}

/// Result of looking up a session name.
#[derive(Debug)]
pub(crate) enum SessionLookup {
    Known(Arc<Session>),
    Unknown,
    TooMany,
}

/// Sessions that clients name themselves.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    known: HashMap<String, (Arc<Session>, Instant)>,
}

impl Sessions {
    /// The session called `name`, or a new one for [`NEW_SESSION`].
    pub(crate) fn resolve(&mut self, name: &str, now: Instant) -> SessionLookup {
        if name == NEW_SESSION {
            if self.known.len() >= MAX_SESSIONS {
                return SessionLookup::TooMany;
            }
            let session = Session::with_random_name();
            self.known.insert(session.name.clone(), (Arc::clone(&session), now));
            return SessionLookup::Known(session);
        }
        match self.known.get_mut(name) {
            Some((session, used)) => {
                *used = now;
                SessionLookup::Known(Arc::clone(session))
            }
            None => SessionLookup::Unknown,
        }
    }

    /// Removes sessions past their idle timeout and returns their names.
    pub(crate) fn remove_expired(&mut self, now: Instant) -> Vec<String> {
        let old = self.known.extract_if(|_, (_, used)| now.duration_since(*used) >= SESSION_IDLE_TIMEOUT);
        old.map(|(name, _)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_expires_after_its_idle_timeout() {
        let mut sessions = Sessions::default();
        let start = Instant::now();
        let SessionLookup::Known(session) = sessions.resolve(NEW_SESSION, start) else { panic!("a new session") };
        let later = start + SESSION_IDLE_TIMEOUT - Duration::from_secs(1);
        assert!(matches!(sessions.resolve(&session.name, later), SessionLookup::Known(_)));
        assert!(sessions.remove_expired(later + Duration::from_secs(2)).is_empty());
        assert_eq!(sessions.remove_expired(later + SESSION_IDLE_TIMEOUT), std::slice::from_ref(&session.name));
        assert!(matches!(sessions.resolve(&session.name, later), SessionLookup::Unknown));
        assert!(matches!(sessions.resolve("made up", start), SessionLookup::Unknown));
    }

    #[test]
    fn client_is_notified_once_per_sandbox() {
        let session = Session::with_random_name();
        assert!(session.announce("a"));
        assert!(!session.announce("a"));
        assert!(session.announce("b"), "another sandbox is announced");
    }
}
