//! Names that the studio gives: a prefix that says of what, and hexadecimal digits that nobody guesses. Parsed once.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Not a name of that kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no id of a {what}")]
pub struct InvalidId {
    what: &'static str,
    text: String,
}

/// Bits enough that nobody finds another's by trying.
const DIGITS: usize = 20;

fn digits() -> String {
    let number = rand::random::<u128>();
    format!("{number:032x}")[..DIGITS].to_owned()
}

fn check(what: &'static str, prefix: &str, text: &str) -> Result<(), InvalidId> {
    let plain =
        |id: &str| id.len() == DIGITS && id.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    match text.strip_prefix(prefix) {
        Some(id) if plain(id) => Ok(()),
        _ => Err(InvalidId { what, text: text.to_owned() }),
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// A new one.
            #[expect(clippy::new_without_default, reason = "no two are the same")]
            pub fn new() -> Self {
                Self(format!("{}{}", $prefix, digits()))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                check($what, $prefix, text)?;
                Ok(Self(text.to_owned()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;

            fn try_from(text: String) -> Result<Self, InvalidId> {
                check($what, $prefix, &text)?;
                Ok(Self(text))
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id! {
    /// Names a build.
    JobId, "job", "job_"
}
id! {
    /// Names what several builds are of.
    ProjectId, "project", "prj_"
}
id! {
    /// Names somebody.
    UserId, "user", "usr_"
}
id! {
    /// Names a picture.
    ScreenshotId, "screenshot", "pic_"
}

impl ScreenshotId {
    /// The one of something that has a name already: the same for the same.
    pub(crate) fn of(name: &str) -> Self {
        let digest: String = Sha256::digest(name.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        Self(format!("pic_{}", &digest[..DIGITS]))
    }

    /// Where the REST face serves it.
    pub fn url(&self, job: &JobId) -> String {
        format!("/api/jobs/{job}/screenshots/{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_parsed_once_and_hostile_ones_refused() {
        let id = JobId::new();
        assert_eq!(id.as_str().parse::<JobId>().expect("its own form"), id);
        assert_ne!(id, JobId::new());
        for text in ["", "job_", "prj_0123456789abcdef0123", "job_0123456789ABCDEF0123", "job_../../../../../../../.."]
        {
            assert!(text.parse::<JobId>().is_err(), "{text}");
        }
    }
}
