//! Secrets that users present: access tokens, which are shown once, and the tokens of browser
//! sessions. Nothing but their digests is kept.

use sdk::Secret;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

const PREFIX: &str = "sbt_";
const SESSION_PREFIX: &str = "sbs_";
const DIGITS: usize = 40;

/// A new token: `sbt_` and 40 hexadecimal digits.
pub fn new_token() -> Secret {
    generate(PREFIX)
}

/// The token of a new browser session: `sbs_` and 40 hexadecimal digits.
pub(crate) fn new_session() -> Secret {
    generate(SESSION_PREFIX)
}

fn generate(prefix: &str) -> Secret {
    let random = format!("{:032x}{:032x}", rand::random::<u128>(), rand::random::<u128>());
    Secret::from(format!("{prefix}{}", &random[..DIGITS]))
}

/// What a token is known by: SHA-256, in hexadecimal. A token has more chance in it than a digest can hide, so that no salt
/// is needed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Digest(String);

impl Digest {
    /// None for what cannot be a token.
    pub fn of(token: &str) -> Option<Self> {
        Self::with_prefix(PREFIX, token)
    }

    /// None for what cannot be the token of a session.
    pub(crate) fn of_session(token: &str) -> Option<Self> {
        Self::with_prefix(SESSION_PREFIX, token)
    }

    fn with_prefix(prefix: &str, token: &str) -> Option<Self> {
        let digits = token.strip_prefix(prefix)?;
        let plain = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        plain.then(|| Self(Sha256::digest(token.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn is(&self, other: &str) -> bool {
        self.0.as_bytes().ct_eq(other.as_bytes()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_their_form_and_no_two_are_the_same() {
        let (one, two) = (new_token(), new_token());
        let digest = Digest::of(one.expose()).expect("its own form");
        assert_ne!(Some(&digest), Digest::of(two.expose()).as_ref());
        assert!(digest.is(digest.as_str()) && !digest.is("x"));
        for text in ["", "sbt_", "sbt_123", &one.expose()[4..], "e2b_0123456789012345678901234567890123456789"] {
            assert!(Digest::of(text).is_none(), "{text}");
        }
        let session = new_session();
        assert!(Digest::of_session(session.expose()).is_some() && Digest::of(session.expose()).is_none());
        assert!(Digest::of_session(one.expose()).is_none(), "an access token opens no session");
    }
}
