//! Ids of files in the pool.

use std::borrow::Borrow;
use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use protocol::SandboxId;
use serde::{Deserialize, Serialize};

/// The id under which an engine keeps files: those of a sandbox, of a template, which never change,
/// or of a volume. 1 to 64 lower-case letters and digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct FilesId(Arc<str>);

/// The text cannot be the id of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidFilesId(String);

impl fmt::Display for InvalidFilesId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not an id of files: those are lower-case letters and digits", self.0)
    }
}

impl Error for InvalidFilesId {}

impl FilesId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for FilesId {
    type Err = InvalidFilesId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_sound = (1..=64).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        if is_sound { Ok(Self(text.into())) } else { Err(InvalidFilesId(text.to_owned())) }
    }
}

impl TryFrom<String> for FilesId {
    type Error = InvalidFilesId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<FilesId> for String {
    fn from(files: FilesId) -> Self {
        files.as_str().to_owned()
    }
}

impl From<&SandboxId> for FilesId {
    fn from(id: &SandboxId) -> Self {
        Self(id.as_str().into())
    }
}

/// Sets and maps of ids are searched by their text.
impl Borrow<str> for FilesId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FilesId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_leave_the_pool_is_no_id() {
        let long = "f".repeat(65);
        for text in ["", ".", "..", "a/b", "../a", "a-b", "A", "f_c", "fä", &long] {
            assert_eq!(text.parse::<FilesId>(), Err(InvalidFilesId(text.to_owned())));
            assert!(serde_json::from_value::<FilesId>(text.into()).is_err(), "{text:?}");
        }
        let files: FilesId = "f0123".parse().expect("an id");
        assert_eq!(serde_json::to_value(&files).expect("JSON"), "f0123");
        assert_eq!(FilesId::from(&"iabc-client".parse().expect("an id")).as_str(), "iabc");
    }
}
