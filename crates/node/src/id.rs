//! New ids and tokens.

use std::fmt;

use engine::FilesId;
use protocol::SandboxId;
use rand::RngExt;

const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// First letters of ids: of sandboxes, and of those that builds run in.
const SANDBOX: char = 'i';
const BUILD: char = 'b';
const NAME_LENGTH: usize = 21;

/// `first` and 20 random letters or digits.
pub(crate) fn random_name(first: char) -> String {
    let mut random = rand::rng();
    let tail = (0..20).map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())]));
    std::iter::once(first).chain(tail).collect()
}

/// The id of a new sandbox: `i` and 20 lower-case letters or digits.
pub fn new_sandbox_id() -> SandboxId {
    sandbox_id(SANDBOX)
}

/// The id of a sandbox that a build runs in, whose files are useless without the build.
pub(crate) fn new_build_sandbox_id() -> SandboxId {
    sandbox_id(BUILD)
}

fn sandbox_id(first: char) -> SandboxId {
    random_name(first).parse().expect("letters and digits are an id")
}

/// An id for files that belong to no sandbox; its first letter differs from that of sandboxes.
pub fn new_files_id() -> FilesId {
    random_name('f').parse().expect("letters and digits are an id")
}

/// Whether they are the files of a sandbox.
pub(crate) fn is_of_sandbox(files: &FilesId) -> bool {
    files.as_str().starts_with(SANDBOX)
}

/// Whether they are the files of a sandbox that a build ran in.
pub(crate) fn is_of_build(files: &FilesId) -> bool {
    files.as_str().len() == NAME_LENGTH && files.as_str().starts_with(BUILD)
}

/// A secret that grants access; only [`Token::reveal`] returns its text.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// 256 random bits, as lower-case hex digits.
    pub fn random() -> Self {
        let bytes: [u8; 32] = rand::rng().random();
        Self(hex::encode(bytes))
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
        let id = new_sandbox_id();
        assert_eq!(id.as_str().len(), 21);
        assert!(id.as_str().starts_with('i'));
        assert_eq!(id.as_str().parse(), Ok(id.clone()));
        assert_ne!(id, new_sandbox_id());
    }

    #[test]
    fn tokens_are_not_shown_by_debug() {
        let token = Token::random();
        assert_eq!(token.reveal().len(), 64);
        assert!(!format!("{token:?}").contains(token.reveal()));
    }
}
