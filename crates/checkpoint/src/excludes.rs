//! Generated folders that checkpoints exclude.
//!
//! The name makes a folder a candidate. A candidate is excluded only for a reason: a manifest next
//! to it names its generator, the generator marked it, or git ignores all its files. Hand-written
//! files in `dist` or `build` are kept. `scripts/excludes.sh` has the whole rule. Other ignored
//! files are kept, since `.env` is ignored too.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Only programs write into these.
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
/// Users write into these by hand, too.
const LIKELY: &[&str] = &["dist", "build", "target"];

/// The name of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FolderName(String);

/// Not the name of a folder that can be excluded.
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
        // `--` separates the lists on the script's command line.
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

/// The folders that a checkpoint may exclude, by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Excludes {
    /// Named in the configuration: excluded unless git tracks a file in them.
    #[serde(default)]
    pub named: Vec<FolderName>,
    /// Excluded where a manifest, a mark or git shows that they are generated, unless git tracks a
    /// file in them.
    pub certain: Vec<FolderName>,
    /// Excluded where git ignores all their files or, outside of repositories, where a manifest
    /// names their generator.
    pub likely: Vec<FolderName>,
}

impl Excludes {
    /// Excludes nothing.
    pub fn nothing() -> Self {
        Self { named: Vec::new(), certain: Vec::new(), likely: Vec::new() }
    }

    /// As arguments of the script.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = String> {
        let names = |names: &[FolderName]| names.iter().map(FolderName::to_string).collect::<Vec<_>>();
        [names(&self.named), names(&self.certain), names(&self.likely)].join(&"--".to_owned()).into_iter()
    }
}

impl Default for Excludes {
    fn default() -> Self {
        let names = |names: &[&str]| names.iter().map(|name| FolderName((*name).to_owned())).collect();
        Self { named: Vec::new(), certain: names(CERTAIN), likely: names(LIKELY) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_history_and_paths_cannot_be_excluded() {
        for name in ["node_modules", ".next", "my-cache+1@x"] {
            assert!(name.parse::<FolderName>().is_ok(), "{name}");
        }
        for name in ["", ".", "..", ".git", "--", "a/b", "*", "a b", "a\n"] {
            assert!(name.parse::<FolderName>().is_err(), "{name:?}");
        }
        let Excludes { named, certain, likely } = Excludes::default();
        assert!(
            named.is_empty() && certain.iter().chain(&likely).all(|name| name.as_str().parse::<FolderName>().is_ok())
        );
    }
}
