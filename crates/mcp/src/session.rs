//! Sessions: calls that share a directory, variables, a ledger and background tasks.
//!
//! On standard streams there is one a process, over HTTP with a handshake one a connection. Without a handshake (2026-07-28) the
//! client names its session in every call; those who name none share one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

/// A session that is unused for so long is forgotten. Its description says so.
pub(crate) const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 3600);
/// More are a mistake, or mischief.
const MOST: usize = 1000;

/// The word that asks for a new session.
pub(crate) const NEW: &str = "new";

/// One session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) name: String,
    /// The sandbox that its client was told about.
    told: Mutex<Option<String>>,
}

impl Session {
    pub(crate) fn new(name: String) -> Arc<Self> {
        Arc::new(Self { name, told: Mutex::default() })
    }

    /// One that nobody else knows of.
    pub(crate) fn mint() -> Arc<Self> {
        Self::new(Uuid::new_v4().to_string())
    }

    /// Whether the client has yet to hear of this sandbox. It counts as told from here on.
    pub(crate) fn tell(&self, sandbox: &str) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.replace(sandbox.to_owned()).as_deref() != Some(sandbox)
    }
}

/// What a client asked for.
#[derive(Debug)]
pub(crate) enum Named {
    Known(Arc<Session>),
    Unknown,
    TooMany,
}

/// The sessions that clients name themselves.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    known: HashMap<String, (Arc<Session>, Instant)>,
}

impl Sessions {
    /// The session of that name, or a new one.
    pub(crate) fn named(&mut self, name: &str, now: Instant) -> Named {
        if name == NEW {
            if self.known.len() >= MOST {
                return Named::TooMany;
            }
            let session = Session::mint();
            self.known.insert(session.name.clone(), (Arc::clone(&session), now));
            return Named::Known(session);
        }
        match self.known.get_mut(name) {
            Some((session, used)) => {
                *used = now;
                Named::Known(Arc::clone(session))
            }
            None => Named::Unknown,
        }
    }

    /// Forgets those that nobody used for long, and names them.
    pub(crate) fn forget(&mut self, now: Instant) -> Vec<String> {
        let old = self.known.extract_if(|_, (_, used)| now.duration_since(*used) >= FORGOTTEN_AFTER);
        old.map(|(name, _)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_lives_while_it_is_used() {
        let mut sessions = Sessions::default();
        let start = Instant::now();
        let Named::Known(session) = sessions.named(NEW, start) else { panic!("a new session") };
        let later = start + FORGOTTEN_AFTER - Duration::from_secs(1);
        assert!(matches!(sessions.named(&session.name, later), Named::Known(_)));
        assert!(sessions.forget(later + Duration::from_secs(2)).is_empty());
        assert_eq!(sessions.forget(later + FORGOTTEN_AFTER), std::slice::from_ref(&session.name));
        assert!(matches!(sessions.named(&session.name, later), Named::Unknown));
        assert!(matches!(sessions.named("made up", start), Named::Unknown));
    }

    #[test]
    fn a_client_is_told_of_a_sandbox_once() {
        let session = Session::mint();
        assert!(session.tell("a"));
        assert!(!session.tell("a"));
        assert!(session.tell("b"), "another sandbox is news");
    }
}
