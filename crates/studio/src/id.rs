//! Ids: a prefix per kind and random hexadecimal digits that cannot be guessed. Parsed at the
//! boundary.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The text is no id of that kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no id of a {what}")]
pub struct InvalidId {
    what: &'static str,
    text: String,
}

/// 80 random bits, so that ids cannot be found by trying.
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
            /// A new random id.
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
    /// Identifies a build.
    JobId, "job", "job_"
}
id! {
    /// Identifies a project.
    ProjectId, "project", "prj_"
}
id! {
    /// Identifies a user.
    UserId, "user", "usr_"
}
id! {
    /// Identifies a screenshot.
    ScreenshotId, "screenshot", "pic_"
}

impl ScreenshotId {
    /// The id derived from a name: equal names give equal ids.
    pub(crate) fn from_name(name: &str) -> Self {
        let digest = hex::encode(Sha256::digest(name.as_bytes()));
        Self(format!("pic_{}", &digest[..DIGITS]))
    }

    /// The path under which the REST API serves it.
    pub fn url(&self, job: &JobId) -> String {
        format!("/api/jobs/{job}/screenshots/{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_ids_are_refused() {
        let id = JobId::new();
        assert_eq!(id.as_str().parse::<JobId>().expect("its own form"), id);
        assert_ne!(id, JobId::new());
        for text in ["", "job_", "prj_0123456789abcdef0123", "job_0123456789ABCDEF0123", "job_../../../../../../../.."]
        {
            assert!(text.parse::<JobId>().is_err(), "{text}");
        }
    }
}
