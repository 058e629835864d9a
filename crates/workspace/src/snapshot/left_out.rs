//! Folders that are not worth keeping, since a program makes them again.
//!
//! The name makes a folder a candidate, and a candidate is left out only for a reason: a manifest beside it names what
//! generates it, the program that made it marked it, or git ignores all that is in it. What people write by hand into `dist` or
//! `build` is kept. `scripts/excludes.sh` has the whole rule. That git ignores something else says nothing: `.env` is ignored,
//! too.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Programs write into these, people do not.
const CERTAIN: &[&str] = &[
    "node_modules",
    "__pycache__",
    ".venv",
    ".next",
    ".nuxt",
    ".svelte-kit",
    ".turbo",
    ".parcel-cache",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".tox",
];
/// People write into these by hand, too.
const LIKELY: &[&str] = &["dist", "build", "target"];

/// The name of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FolderName(String);

/// Not the name of a folder that can be left out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot be left out of snapshots: name a folder with letters, digits, `.`, `_`, `-`, `+` and `@`; `.git` is always kept"
)]
pub struct InvalidFolderName(String);

impl FolderName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for FolderName {
    type Error = InvalidFolderName;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-+@".contains(&byte));
        // `--` divides the names on the script's command line.
        let special = matches!(text.as_str(), "" | "." | ".." | ".git" | "--");
        if plain && !special { Ok(Self(text)) } else { Err(InvalidFolderName(text)) }
    }
}

impl FromStr for FolderName {
    type Err = InvalidFolderName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::try_from(text.to_owned())
    }
}

impl From<FolderName> for String {
    fn from(name: FolderName) -> Self {
        name.0
    }
}

impl fmt::Display for FolderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which folders a snapshot may leave out, by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// Left out unless git tracks something in them: the configuration names them.
    #[serde(default)]
    pub named: Vec<FolderName>,
    /// Left out where a manifest, a mark or git says that they are generated, unless git tracks something in them.
    pub certain: Vec<FolderName>,
    /// Left out where git ignores all files in them or, outside of repositories, where a manifest names what generates them.
    pub likely: Vec<FolderName>,
}

impl LeftOut {
    /// Keeps everything.
    pub fn nothing() -> Self {
        Self { named: Vec::new(), certain: Vec::new(), likely: Vec::new() }
    }

    /// As the script takes them.
    pub(super) fn arguments(&self) -> impl Iterator<Item = String> {
        let names = |names: &[FolderName]| names.iter().map(FolderName::to_string).collect::<Vec<_>>();
        [names(&self.named), names(&self.certain), names(&self.likely)].join(&"--".to_owned()).into_iter()
    }
}

impl Default for LeftOut {
    fn default() -> Self {
        let names = |names: &[&str]| names.iter().map(|name| FolderName((*name).to_owned())).collect();
        Self { named: Vec::new(), certain: names(CERTAIN), likely: names(LIKELY) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_can_be_left_out_and_never_the_history() {
        for name in ["node_modules", ".next", "my-cache+1@x"] {
            assert!(name.parse::<FolderName>().is_ok(), "{name}");
        }
        for name in ["", ".", "..", ".git", "--", "a/b", "*", "a b", "a\n"] {
            assert!(name.parse::<FolderName>().is_err(), "{name:?}");
        }
        let LeftOut { named, certain, likely } = LeftOut::default();
        assert!(
            named.is_empty() && certain.iter().chain(&likely).all(|name| name.as_str().parse::<FolderName>().is_ok())
        );
    }
}
