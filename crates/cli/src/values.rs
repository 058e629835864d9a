//! Parses the values of flags: durations, pairs, variables, and both sides of a copy.

use clap::error::ErrorKind;
use sdk::{SandboxId, Secret};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::env::VarError;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Parses a duration, in seconds unless a unit is named: `90`, `90s`, `5m`, `1h30m`, `2d`.
pub fn duration(text: &str) -> Result<Duration, String> {
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

/// As [`duration`], but refuses 0.
pub fn wait(text: &str) -> Result<Duration, String> {
    duration(text)
        .and_then(|time| if time.is_zero() { Err("it must be a second at least".to_owned()) } else { Ok(time) })
}

/// `KEY=VALUE`; the value may be empty and may hold further `=`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    pub key: String,
    pub value: String,
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok(Self { key: key.to_owned(), value: value.to_owned() }),
            // The error does not repeat the text, which may be a secret.
            _ => Err("it must be KEY=VALUE, with a key".to_owned()),
        }
    }
}

/// A variable for a program in a sandbox: `NAME=VALUE`, or `NAME` for the value in this program's
/// environment.
///
/// It is parsed after clap, whose errors would repeat the value, which may be a secret. Not `Debug`
/// for the same reason.
#[derive(Clone)]
pub struct Variable(String);

impl FromStr for Variable {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

impl Variable {
    /// Parses the variable, and reads the environment for a name without a value.
    ///
    /// # Errors
    /// [`ErrorKind::ValueValidation`] for an invalid name or an unset variable. The error shows no
    /// value.
    pub fn read(&self) -> Result<Pair, clap::Error> {
        let wrong = |problem: &str| clap::Error::raw(ErrorKind::ValueValidation, format!("--env {problem}\n"));
        let is_name = |name: &str| {
            let begins = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
            begins && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        match self.0.split_once('=') {
            Some((key, value)) if is_name(key) => Ok(Pair { key: key.to_owned(), value: value.to_owned() }),
            Some((key, _)) => {
                Err(wrong(&format!("{key:?}=…: a name has letters, digits and `_`, and does not begin with a digit")))
            }
            // The error does not repeat the text, which may be a value without its name.
            None if !is_name(&self.0) => Err(wrong("must be NAME=VALUE, or NAME for a variable that is set here")),
            None => match std::env::var(&self.0) {
                Ok(value) => Ok(Pair { key: self.0.clone(), value }),
                Err(VarError::NotPresent) => Err(wrong(&format!(
                    "{name}: no variable of that name is set here; write {name}=VALUE",
                    name = self.0
                ))),
                Err(VarError::NotUnicode(_)) => Err(wrong(&format!("{}: its value here is not text", self.0))),
            },
        }
    }
}

/// Reads the variables of a workspace as secrets, by name.
pub fn secrets(given: &[Variable]) -> Result<BTreeMap<String, Secret>, clap::Error> {
    given.iter().map(|variable| variable.read().map(|Pair { key, value }| (key, Secret::from(value)))).collect()
}

/// One side of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopySide {
    Here(PathBuf),
    Sandbox(RemotePath),
}

/// `ID:PATH`. An empty path is the user's home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemotePath {
    pub id: SandboxId,
    pub path: String,
}

impl FromStr for CopySide {
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
    fn variables_have_valid_names_and_errors_show_no_value() {
        let read = |text: &str| {
            let pair = text.parse::<Variable>().expect("anything").read();
            pair.map(|Pair { key, value }| (key, value)).map_err(|error| error.to_string())
        };
        assert_eq!(read("A_1=b=c"), Ok(("A_1".into(), "b=c".into())));
        assert_eq!(read("A="), Ok(("A".into(), String::new())));
        assert_eq!(read("PATH"), Ok(("PATH".into(), std::env::var("PATH").expect("it is set"))));
        for text in ["1A=hush", "=hush", "A-B=hush", "a b=hush", "hu sh", "SANDBAR_ABSENT_VARIABLE"] {
            let error = read(text).expect_err(text);
            assert!(error.contains("--env") && !error.contains("hush") && !error.contains("hu sh"), "{error}");
        }
    }

    #[test]
    fn a_colon_makes_it_a_path_in_a_sandbox() {
        let side = |text: &str| text.parse::<CopySide>();
        assert_eq!(side("./a:b"), Ok(CopySide::Here("./a:b".into())));
        assert_eq!(side("a"), Ok(CopySide::Here("a".into())));
        let Ok(CopySide::Sandbox(remote)) = side("iabc:/etc/a:b") else { panic!("a path in a sandbox") };
        assert_eq!((remote.id.as_str(), remote.path.as_str()), ("iabc", "/etc/a:b"));
        assert!(side("C:\\x").is_err() && side("").is_err());
    }
}
