//! Secrets of users: access tokens, which are printed once, and browser session tokens. Only their
//! digests are stored.

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

/// The SHA-256 of a token, in hexadecimal. Needs no salt, because a token has more random bits than
/// can be guessed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TokenDigest(String);

impl TokenDigest {
    /// None when the text does not have the form of an access token.
    pub fn from_token(token: &str) -> Option<Self> {
        Self::with_prefix(PREFIX, token)
    }

    /// None when the text does not have the form of a session token.
    pub(crate) fn from_session(token: &str) -> Option<Self> {
        Self::with_prefix(SESSION_PREFIX, token)
    }

    fn with_prefix(prefix: &str, token: &str) -> Option<Self> {
        let digits = token.strip_prefix(prefix)?;
        let plain = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        plain.then(|| Self(hex::encode(Sha256::digest(token.as_bytes()))))
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
    fn tokens_are_unique_and_well_formed() {
        let (one, two) = (new_token(), new_token());
        let digest = TokenDigest::from_token(one.expose()).expect("its own form");
        assert_ne!(Some(&digest), TokenDigest::from_token(two.expose()).as_ref());
        assert!(digest.is(digest.as_str()) && !digest.is("x"));
        for text in ["", "sbt_", "sbt_123", &one.expose()[4..], "e2b_0123456789012345678901234567890123456789"] {
            assert!(TokenDigest::from_token(text).is_none(), "{text}");
        }
        let session = new_session();
        assert!(
            TokenDigest::from_session(session.expose()).is_some()
                && TokenDigest::from_token(session.expose()).is_none()
        );
        assert!(TokenDigest::from_session(one.expose()).is_none(), "an access token opens no session");
    }
}
