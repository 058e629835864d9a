//! What people type for values: lifetimes, pairs, and places on either side of a copy.

use sdk::SandboxId;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// `90`, `90s`, `5m`, `1h30m`, `2d`: seconds unless a unit is named.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a time; write for example 90, 90s, 5m, 1h30m or 2d");
    let mut total: u64 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        let unit = rest[digits..].chars().next();
        let seconds = match unit {
            None | Some('s') => 1,
            Some('m') => 60,
            Some('h') => 3600,
            Some('d') => 86400,
            Some(_) => return Err(wrong()),
        };
        total = number.checked_mul(seconds).and_then(|part| total.checked_add(part)).ok_or_else(wrong)?;
        rest = &rest[digits + unit.map_or(0, char::len_utf8)..];
    }
    if text.is_empty() { Err(wrong()) } else { Ok(Duration::from_secs(total)) }
}

/// As [`duration`], for what would end before it begins.
pub(crate) fn wait(text: &str) -> Result<Duration, String> {
    duration(text)
        .and_then(|time| if time.is_zero() { Err("it must be a second at least".to_owned()) } else { Ok(time) })
}

/// `KEY=VALUE`; the value may be empty and may hold further `=`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    pub key: String,
    pub value: String,
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok(Self { key: key.to_owned(), value: value.to_owned() }),
            // Not repeated in full: what stands there may be a secret.
            _ => Err("it must be KEY=VALUE, with a key".to_owned()),
        }
    }
}

/// One side of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Here(PathBuf),
    Sandbox(RemotePath),
}

/// `ID:PATH`. An empty path is the user's home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemotePath {
    pub id: SandboxId,
    pub path: String,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err("a path must not be empty".to_owned());
        }
        match text.split_once(':') {
            // As with scp: a slash before the colon makes it a path of this machine.
            Some((id, path)) if !id.contains('/') => {
                let id = id.parse().map_err(|error| format!("{error}; for a file with a colon write ./{text}"))?;
                Ok(Self::Sandbox(RemotePath { id, path: path.to_owned() }))
            }
            _ => Ok(Self::Here(PathBuf::from(text))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_unless_a_unit_is_named() {
        for (text, seconds) in [("90", 90), ("90s", 90), ("5m", 300), ("1h30m", 5400), ("2d", 172_800), ("0", 0)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "m", "5 m", "-1", "1.5h", "5x", "99999999999999999999", "300000000000000000d", "5é"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(wait("0").is_err() && wait("1").is_ok());
    }

    #[test]
    fn pairs_split_at_the_first_sign() {
        let pair = |text: &str| text.parse::<Pair>().map(|pair| (pair.key, pair.value)).ok();
        assert_eq!(pair("a=b=c"), Some(("a".into(), "b=c".into())));
        assert_eq!(pair("a="), Some(("a".into(), String::new())));
        assert_eq!((pair("a"), pair("=b")), (None, None));
    }

    #[test]
    fn a_colon_makes_it_a_path_in_a_sandbox() {
        let place = |text: &str| text.parse::<Place>();
        assert_eq!(place("./a:b"), Ok(Place::Here("./a:b".into())));
        assert_eq!(place("a"), Ok(Place::Here("a".into())));
        let Ok(Place::Sandbox(remote)) = place("iabc:/etc/a:b") else { panic!("a path in a sandbox") };
        assert_eq!((remote.id.as_str(), remote.path.as_str()), ("iabc", "/etc/a:b"));
        assert!(place("C:\\x").is_err() && place("").is_err());
    }
}
