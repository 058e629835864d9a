//! Names that users give to workspaces and providers. Validated once; they appear in paths,
//! metadata and messages.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Fits a host label, a file name and a database column.
const LONGEST: usize = 63;

/// Not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a name: use 1 to 63 letters, digits, `-`, `_` and `.`, beginning with a letter or digit")]
pub struct InvalidName(String);

fn check(text: &str) -> Result<(), InvalidName> {
    let begins = text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric());
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if begins && plain && text.len() <= LONGEST { Ok(()) } else { Err(InvalidName(text.to_owned())) }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                check(text)?;
                Ok(Self(text.to_owned()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                check(&text)?;
                Ok(Self(text))
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// The name of a workspace.
    WorkspaceName
}

name! {
    /// The name of a provider, as the configuration gives it.
    ProviderName
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_rejected() {
        for text in ["a", "shop-2", "My_App.v1", "0"] {
            assert_eq!(text.parse::<WorkspaceName>().expect("a name").as_str(), text);
        }
        let long = "a".repeat(64);
        for text in ["", ".", "..", "-a", "a/b", "a b", "ä", "a\n", long.as_str()] {
            assert!(text.parse::<ProviderName>().is_err(), "{text:?}");
        }
    }
}
