//! Sandbox ids, parsed once: in requests by the server, in arguments and answers by clients.

use std::borrow::Borrow;
use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Most characters of an id, and of the client in its older form.
const MAX_LENGTH: usize = 64;

/// A sandbox's id: 1 to 64 lower-case letters and digits. Never a hyphen: host names contain
/// `<port>-<id>`. The older form `<id>-<client>` is accepted, and its first part kept.
///
/// Any such text is a possible id: the answer for an unknown one is "not found", not "invalid".
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SandboxId(Arc<str>);

/// The text cannot be the id of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidSandboxId(String);

impl fmt::Display for InvalidSandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a sandbox id: those are lower-case letters and digits", self.0)
    }
}

impl Error for InvalidSandboxId {}

impl SandboxId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SandboxId {
    type Err = InvalidSandboxId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_plain = |part: &str| {
            (1..=MAX_LENGTH).contains(&part.len())
                && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        let (id, client) = text.split_once('-').map_or((text, None), |(id, client)| (id, Some(client)));
        if is_plain(id) && client.is_none_or(is_plain) {
            Ok(Self(id.into()))
        } else {
            Err(InvalidSandboxId(text.to_owned()))
        }
    }
}

impl TryFrom<&str> for SandboxId {
    type Error = InvalidSandboxId;

    fn try_from(text: &str) -> Result<Self, Self::Error> {
        text.parse()
    }
}

/// Sets and maps of ids are searched by their text.
impl Borrow<str> for SandboxId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_form_is_cut_at_the_hyphen() {
        for (text, id) in [("iabc123", "iabc123"), ("iabc-6532622b", "iabc"), ("iabc-client0", "iabc")] {
            assert_eq!(text.parse::<SandboxId>().map(|id| id.to_string()).as_deref(), Ok(id));
        }
    }

    #[test]
    fn hostile_ids_are_refused() {
        let long = "i".repeat(MAX_LENGTH + 1);
        for text in ["", "-", "i-", "-x", "i-b-c", "iAbc", "i_c", "i/../x", "i abc", "i%2f", "iäc", &long] {
            assert_eq!(text.parse::<SandboxId>(), Err(InvalidSandboxId(text.to_owned())));
        }
    }
}
