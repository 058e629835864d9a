//! The object keys of checkpoints.
//!
//! ```text
//! projects/{project}/snapshots/{YYYYMMDDTHHMMSSZ}.tar.gz         the files
//! projects/{project}/snapshots/{YYYYMMDDTHHMMSSZ}.manifest.json  their listing
//! projects/{project}/checks/{YYYYMMDDTHHMMSSZ}.json              the verification result
//! projects/{project}/{name}                                      project metadata
//! ```
//!
//! Storing the manifest commits the checkpoint.

use std::fmt;
use std::str::FromStr;

use jiff::{SignedDuration, Timestamp};
use object_store::path::Path as Key;
use serde::{Deserialize, Serialize};

const LONGEST: usize = 128;
const FORM: &str = "%Y%m%dT%H%M%SZ";
const ARCHIVE: &str = ".tar.gz";
const MANIFEST: &str = ".manifest.json";

/// Identifies the owner of checkpoints; part of object keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProjectId(String);

/// Not a valid project id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a project id: use 1 to 128 letters, digits, `-`, `_` and `.`, beginning with a letter or digit")]
pub struct InvalidProjectId(String);

impl ProjectId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ProjectId {
    type Error = InvalidProjectId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let begins = text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric());
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if begins && plain && text.len() <= LONGEST { Ok(Self(text)) } else { Err(InvalidProjectId(text)) }
    }
}

impl FromStr for ProjectId {
    type Err = InvalidProjectId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::try_from(text.to_owned())
    }
}

impl From<ProjectId> for String {
    fn from(id: ProjectId) -> Self {
        id.0
    }
}

impl fmt::Display for ProjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The creation time of a checkpoint in whole seconds, which is also its name. Stamps of a project
/// increase strictly, even when the clock is set back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Stamp(Timestamp);

/// Not a valid stamp.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the stamp of a snapshot: those are like 20261116T000937Z")]
pub struct InvalidStamp(String);

impl Stamp {
    /// The next stamp of a project: now, or a second after the last one.
    pub(crate) fn after(last: Option<Self>, now: Timestamp) -> Self {
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        match last {
            Some(Self(last)) if now <= last => {
                Self(last.saturating_add(SignedDuration::from_secs(1)).unwrap_or(Timestamp::MAX))
            }
            _ => Self(now),
        }
    }

    pub fn time(self) -> Timestamp {
        self.0
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.strftime(FORM))
    }
}

impl FromStr for Stamp {
    type Err = InvalidStamp;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidStamp(text.to_owned());
        let time = jiff::civil::DateTime::strptime(FORM, text).map_err(|_| invalid())?;
        let stamp = Self(time.to_zoned(jiff::tz::TimeZone::UTC).map_err(|_| invalid())?.timestamp());
        // One text per stamp: `strptime` accepts variants.
        if stamp.to_string() == text { Ok(stamp) } else { Err(invalid()) }
    }
}

impl TryFrom<String> for Stamp {
    type Error = InvalidStamp;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Stamp> for String {
    fn from(stamp: Stamp) -> Self {
        stamp.to_string()
    }
}

/// The prefix of all projects.
pub(crate) fn root() -> Key {
    Key::from("projects")
}

/// The prefix of all objects of a project.
pub(crate) fn project_root(project: &ProjectId) -> Key {
    Key::from_iter(["projects", project.as_str()])
}

/// The prefix of a project's checkpoints.
pub(crate) fn checkpoint_folder(project: &ProjectId) -> Key {
    project_root(project).join("snapshots")
}

pub(crate) fn archive(project: &ProjectId, stamp: Stamp) -> Key {
    checkpoint_folder(project).join(format!("{stamp}{ARCHIVE}"))
}

pub(crate) fn manifest(project: &ProjectId, stamp: Stamp) -> Key {
    checkpoint_folder(project).join(format!("{stamp}{MANIFEST}"))
}

/// The result of verifying an archive. Outside the prefix of checkpoints: it is not one of their
/// objects.
pub(crate) fn check(project: &ProjectId, stamp: Stamp) -> Key {
    project_root(project).join("checks").join(format!("{stamp}.json"))
}

/// An object that belongs to no checkpoint.
pub(crate) fn metadata(project: &ProjectId, name: &str) -> Key {
    Key::from_iter(["projects", project.as_str(), name])
}

/// One of the two objects of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObjectPart {
    Archive,
    Manifest,
}

/// Parses the key of an object; [`None`] for an unknown one.
pub(crate) fn parse(key: &Key) -> Option<(Stamp, ObjectPart)> {
    let name = key.filename()?;
    let (stamp, part) = match name.strip_suffix(ARCHIVE) {
        Some(stamp) => (stamp, ObjectPart::Archive),
        None => (name.strip_suffix(MANIFEST)?, ObjectPart::Manifest),
    };
    Some((stamp.parse().ok()?, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    #[test]
    fn keys_have_the_documented_form() {
        let project: ProjectId = "shop-1".parse().expect("an id");
        let stamp = Stamp::after(None, time("2026-11-16T00:09:37.062Z"));
        let (files, listing) = (archive(&project, stamp), manifest(&project, stamp));
        assert_eq!(files.as_ref(), "projects/shop-1/snapshots/20261116T000937Z.tar.gz");
        assert_eq!(listing.as_ref(), "projects/shop-1/snapshots/20261116T000937Z.manifest.json");
        assert_eq!(parse(&files), Some((stamp, ObjectPart::Archive)));
        assert_eq!(parse(&listing), Some((stamp, ObjectPart::Manifest)));
        for stranger in ["x.tar.gz", "20261116T000937Z.tar", "20261116T000937Z", "20261316T000937Z.tar.gz"] {
            assert_eq!(parse(&Key::from(stranger)), None, "{stranger}");
        }
    }

    #[test]
    fn stamps_increase_when_the_clock_is_set_back() {
        let first = Stamp::after(None, time("2026-11-16T00:09:37.9Z"));
        let same = Stamp::after(Some(first), time("2026-11-16T00:09:37.95Z"));
        assert_eq!(same.to_string(), "20261116T000938Z");
        let back = Stamp::after(Some(same), time("2020-01-01T00:00:00Z"));
        assert_eq!(back.to_string(), "20261116T000939Z");
        let later = Stamp::after(Some(back), time("2026-11-17T00:00:00Z"));
        assert_eq!(later.to_string(), "20261117T000000Z");
    }

    #[test]
    fn ids_cannot_escape_their_prefix() {
        for bad in ["", ".", "..", ".a", "a/b", "a\\b", "a b", "a%2fb", "ü", &"x".repeat(129)] {
            assert!(bad.parse::<ProjectId>().is_err(), "{bad:?}");
        }
        for bad in ["", "2026-11-16", "20261116T000937", "20261116T000937z", "+20261116T000937Z", "20261116T000960Z"] {
            assert!(bad.parse::<Stamp>().is_err(), "{bad:?}");
        }
    }
}
