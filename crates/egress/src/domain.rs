//! Patterns of names in lists: `example.com` matches that name, `*.example.com` all below it, `*`
//! every name.

use std::fmt;
use std::str::FromStr;

/// The limits of DNS.
const LONGEST_NAME: usize = 253;
const LONGEST_LABEL: usize = 63;

/// A valid pattern. Case and a final dot do not matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a domain name, nor one after `*.`")]
pub struct InvalidDomain(String);

impl FromStr for Domain {
    type Err = InvalidDomain;

    fn from_str(text: &str) -> Result<Self, InvalidDomain> {
        let pattern = text.strip_suffix('.').unwrap_or(text);
        let name = pattern.strip_prefix("*.").unwrap_or(pattern);
        let label = |label: &str| {
            (1..=LONGEST_LABEL).contains(&label.len())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        };
        // The last label distinguishes a name from a malformed address.
        let named = name.rsplit('.').next().is_some_and(|last| !last.bytes().all(|byte| byte.is_ascii_digit()));
        if text == "*" || (name.len() <= LONGEST_NAME && name.split('.').all(label) && named) {
            Ok(Self(pattern.to_ascii_lowercase()))
        } else {
            Err(InvalidDomain(text.to_owned()))
        }
    }
}

impl Domain {
    pub fn matches(&self, name: &str) -> bool {
        matches(&self.0, name)
    }

    /// Increases with fewer matching names.
    pub(crate) fn exactness(&self) -> (bool, usize) {
        (!self.0.starts_with('*'), self.0.len())
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether `name` matches `pattern`.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let pattern = pattern.strip_suffix('.').unwrap_or(pattern);
    if pattern == "*" {
        return !name.is_empty();
    }
    let Some(suffix) = pattern.strip_prefix("*.") else { return name.eq_ignore_ascii_case(pattern) };
    name.len().checked_sub(suffix.len()).and_then(|start| Some((name.get(..start)?, name.get(start..)?))).is_some_and(
        |(labels, rest)| {
            labels.len() > 1
                && labels.ends_with('.')
                // A server that takes another character for the end of a name would serve another
                // one.
                && labels.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
                && rest.eq_ignore_ascii_case(suffix)
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_exactly_or_below_a_star() {
        for (pattern, names) in [
            ("registry.corp", &["registry.corp", "Registry.CORP."][..]),
            ("*.Internal.example.", &["a.internal.example", "a.b.internal.EXAMPLE."]),
            ("*", &["a", "a.example."]),
        ] {
            let domain: Domain = pattern.parse().unwrap();
            for name in names {
                assert!(domain.matches(name) && matches(pattern, name), "{pattern} {name}");
            }
        }
        for pattern in ["registry.corp", "*.internal.example"] {
            for name in [
                "a.registry.corp",
                "registry.corp.evil",
                "xregistry.corp",
                "internal.example",
                ".internal.example",
                "evilinternal.example",
                "",
                ".",
                "é.example",
                "evil.example\0.internal.example",
                "evil.example,a.internal.example",
                "evil.example/.internal.example",
            ] {
                assert!(!matches(pattern, name), "{pattern} {name}");
            }
        }
        assert!(!matches("*", "") && !matches("*", "."));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let long = format!("{}.example", "a".repeat(64));
        for text in
            ["", ".", "*.", "a..b", "*.*.b", "a.*.b", "*a.b", "a b", "1.2.3.4", "1.2.3", "exämple.org", "a/b", &long]
        {
            assert_eq!(text.parse::<Domain>(), Err(InvalidDomain(text.to_owned())), "{text}");
        }
        for text in ["localhost", "a-b.c_d.example", "*.example", "xn--exmple-cua.org", "3com.example"] {
            assert!(text.parse::<Domain>().is_ok(), "{text}");
        }
    }
}
