//! Ids and tokens of sandboxes.

use std::fmt;
use std::str::FromStr;

use rand::RngExt;
use serde::{Deserialize, Serialize};

/// `i` and 20 lower-case letters or digits. Never a hyphen: host names contain `<port>-<id>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SandboxId(String);

/// The text cannot be the id of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("Invalid sandbox ID")]
pub struct InvalidSandboxId;

const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// First letter of the ids of sandboxes that builds run in; others have an `i`.
const BUILD: char = 'b';
const NAME_LENGTH: usize = 21;

/// `first` and 20 random letters or digits.
pub(crate) fn random_name(first: char) -> String {
    let mut random = rand::rng();
    let tail = (0..20).map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())]));
    std::iter::once(first).chain(tail).collect()
}

impl SandboxId {
    pub fn random() -> Self {
        Self(random_name('i'))
    }

    /// The id of a sandbox that a build runs in, whose files are useless without the build.
    pub(crate) fn random_for_build() -> Self {
        Self(random_name(BUILD))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Accepts `<id>` and the older `<id>-<client>`. Any lower-case alphanumeric text is a possible id:
/// the answer for an unknown one is "not found", not "invalid".
impl FromStr for SandboxId {
    type Err = InvalidSandboxId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (id, client) = text.split_once('-').unwrap_or((text, "x"));
        let good = |part: &str| {
            (1..=64).contains(&part.len())
                && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        if good(id) && good(client) { Ok(Self(id.to_owned())) } else { Err(InvalidSandboxId) }
    }
}

/// The id under which files are kept: those of a sandbox, or those of a template, which never
/// change.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FilesId(String);

impl FilesId {
    /// An id for files that belong to no sandbox; its first letter differs from that of sandboxes.
    pub fn random() -> Self {
        Self(random_name('f'))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FilesId {
    /// Whether they are the files of a sandbox.
    pub(crate) fn is_sandbox(&self) -> bool {
        self.0.starts_with('i')
    }

    /// Whether they are the files of a sandbox that a build ran in.
    pub(crate) fn is_scratch(&self) -> bool {
        self.0.len() == NAME_LENGTH && self.0.starts_with(BUILD)
    }
}

impl FromStr for FilesId {
    type Err = InvalidSandboxId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<SandboxId>().map(|id| Self::from(&id))
    }
}

impl From<&SandboxId> for FilesId {
    fn from(id: &SandboxId) -> Self {
        Self(id.0.clone())
    }
}

impl fmt::Display for FilesId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A secret that grants access; only [`Token::reveal`] returns its text.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// 256 random bits, as lower-case hex digits.
    pub fn random() -> Self {
        let bytes: [u8; 32] = rand::rng().random();
        Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Token {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_ids_have_the_form_of_the_real_ones() {
        let id = SandboxId::random();
        assert_eq!(id.as_str().len(), 21);
        assert!(id.as_str().starts_with('i'));
        assert_eq!(id.as_str().parse(), Ok(id.clone()));
        assert_ne!(id, SandboxId::random());
    }

    #[test]
    fn the_older_form_is_cut_at_the_hyphen() {
        assert_eq!("iabc-client0".parse::<SandboxId>().map(|id| id.to_string()), Ok("iabc".to_owned()));
        for bad in ["", "i-", "-x", "a-b-c", "Iabc", "i_c", "i/c", "iäc"] {
            assert_eq!(bad.parse::<SandboxId>(), Err(InvalidSandboxId), "{bad:?}");
        }
    }

    #[test]
    fn tokens_are_not_shown_by_debug() {
        let token = Token::random();
        assert_eq!(token.reveal().len(), 64);
        assert!(!format!("{token:?}").contains(token.reveal()));
    }
}
