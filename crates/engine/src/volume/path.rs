//! A path inside a volume.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Absolute, with the volume as its root, and without `.`, `..` or empty parts. The root itself has
/// no parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumePath {
    parts: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{}' cannot be a path in a volume", .0.escape_debug())]
pub struct InvalidPath(String);

impl FromStr for VolumePath {
    type Err = InvalidPath;

    fn from_str(text: &str) -> Result<Self, InvalidPath> {
        let parts: Vec<String> =
            text.split('/').filter(|part| !part.is_empty() && *part != ".").map(str::to_owned).collect();
        if text.contains('\0') || parts.iter().any(|part| part == "..") {
            return Err(InvalidPath(text.to_owned()));
        }
        Ok(Self { parts })
    }
}

impl VolumePath {
    pub(super) fn parts(&self) -> &[String] {
        &self.parts
    }

    /// Its directory and its name there; `None` for the root.
    pub(super) fn split(&self) -> Option<(Self, &str)> {
        let (name, directory) = self.parts.split_last()?;
        Some((Self { parts: directory.to_vec() }, name))
    }

    /// Its first `count` parts.
    pub(super) fn first(&self, count: usize) -> Self {
        Self { parts: self.parts[..count].to_vec() }
    }

    pub(super) fn join(&self, name: &str) -> Self {
        Self { parts: [&self.parts[..], &[name.to_owned()]].concat() }
    }

    /// Relative to the volume's root, for system calls.
    pub(super) fn relative(&self) -> PathBuf {
        if self.parts.is_empty() { PathBuf::from(".") } else { self.parts.iter().collect() }
    }

    pub(super) fn name(&self) -> &str {
        self.parts.last().map_or("/", String::as_str)
    }
}

impl fmt::Display for VolumePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.parts.join("/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_plain() {
        for (text, plain) in [("", "/"), ("/", "/"), ("a", "/a"), ("//a/./b/", "/a/b"), ("/ä b/...", "/ä b/...")] {
            assert_eq!(text.parse::<VolumePath>().map(|path| path.to_string()), Ok(plain.to_owned()));
        }
        for text in ["..", "/../a", "a/../b", "a/..", "a\0b"] {
            assert_eq!(text.parse::<VolumePath>(), Err(InvalidPath(text.to_owned())));
        }
    }
}
