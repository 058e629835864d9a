//! Features of a sandbox's daemon by its version. A missing feature is a typed error, never a
//! silent difference.

use crate::error::CallError;
use crate::sandbox::Sandbox;

/// A daemon version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32, u32);

/// A feature that not every daemon has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feature {
    RecursiveWatch,
    /// Processes without a standard input.
    NoStdin,
    /// The daemon chooses the default user.
    DefaultUser,
    CloseStdin,
    /// Uploads of raw bytes.
    PlainUpload,
    Metadata,
    WatchedEntry,
    NetworkMounts,
}

impl Feature {
    fn since(self) -> Version {
        match self {
            Self::RecursiveWatch => Version(0, 1, 4),
            Self::NoStdin => Version(0, 3, 0),
            Self::DefaultUser => Version(0, 4, 0),
            Self::CloseStdin => Version(0, 5, 2),
            Self::PlainUpload => Version(0, 5, 7),
            Self::Metadata => Version(0, 6, 2),
            Self::WatchedEntry => Version(0, 6, 3),
            Self::NetworkMounts => Version(0, 6, 4),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::RecursiveWatch => "watching a directory with everything below it",
            Self::NoStdin => "a command without a standard input (keep it open with `Command::stdin`)",
            Self::DefaultUser => "choosing a user",
            Self::CloseStdin => "closing a command's standard input",
            Self::PlainUpload => "plain uploads",
            Self::Metadata => "metadata of files",
            Self::WatchedEntry => "entries in watch events",
            Self::NetworkMounts => "watching network mounts",
        }
    }
}

/// Parses `0.6.13`, with an optional `v` prefix and suffix. An unparsable version counts as the
/// newest: the server may still refuse.
fn parse(text: &str) -> Option<Version> {
    let mut parts = text.trim().trim_start_matches('v').splitn(3, '.').map(|part| {
        let digits = part.find(|c: char| !c.is_ascii_digit()).map_or(part, |end| &part[..end]);
        digits.parse().ok()
    });
    Some(Version(parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0)))
}

fn has(version: &str, feature: Feature) -> bool {
    parse(version).is_none_or(|version| version >= feature.since())
}

impl Sandbox {
    pub(crate) fn has(&self, feature: Feature) -> bool {
        has(self.envd_version(), feature)
    }

    /// Fails with [`CallError::Unsupported`] when the daemon lacks the feature.
    pub(crate) fn require(&self, feature: Feature, call: &str) -> Result<(), CallError> {
        if self.has(feature) {
            return Ok(());
        }
        let Version(major, minor, patch) = feature.since();
        let message = format!(
            "{} needs envd {major}.{minor}.{patch}, and this sandbox has {}: make it from a newer template",
            feature.name(),
            self.envd_version()
        );
        Err(CallError::Unsupported { call: call.to_owned(), message })
    }

    /// The user to send to the daemon: old daemons have no default user.
    pub(crate) fn user_for_daemon<'a>(&self, user: Option<&'a str>) -> Option<&'a str> {
        user.or(if self.has(Feature::DefaultUser) { None } else { Some("user") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_depend_on_the_version() {
        for (version, feature, expected) in [
            ("0.6.13", Feature::NetworkMounts, true),
            ("0.5.7", Feature::PlainUpload, true),
            ("0.5.6", Feature::PlainUpload, false),
            ("v0.5.10-beta", Feature::CloseStdin, true),
            ("0.10.0", Feature::NetworkMounts, true),
            ("0.2", Feature::NoStdin, false),
            ("1.0.0", Feature::Metadata, true),
            ("nightly", Feature::Metadata, true),
        ] {
            assert_eq!(has(version, feature), expected, "{version} {feature:?}");
        }
    }
}
