//! Sandbox ids, parsed once.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A sandbox's id: lower-case letters and digits. The older form `ID-CLIENT` is accepted, and its
/// first part kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SandboxId(Arc<str>);

/// Not a valid sandbox id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a sandbox id: those are lower-case letters and digits")]
pub struct InvalidSandboxId(String);

impl SandboxId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SandboxId {
    type Err = InvalidSandboxId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let (id, client) = text.split_once('-').map_or((text, None), |(id, client)| (id, Some(client)));
        if plain(id) && client.is_none_or(plain) { Ok(Self(id.into())) } else { Err(InvalidSandboxId(text.to_owned())) }
    }
}

impl TryFrom<&str> for SandboxId {
    type Error = InvalidSandboxId;

    fn try_from(text: &str) -> Result<Self, Self::Error> {
        text.parse()
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
    fn hostile_ids_are_refused() {
        for (text, id) in [("iabc123", Some("iabc123")), ("iabc-6532622b", Some("iabc"))] {
            assert_eq!(text.parse::<SandboxId>().ok().map(|id| id.to_string()).as_deref(), id);
        }
        for text in ["", "-", "iAbc", "i/../x", "i-b-c", "i abc", "i%2f"] {
            assert!(text.parse::<SandboxId>().is_err(), "{text}");
        }
    }
}
