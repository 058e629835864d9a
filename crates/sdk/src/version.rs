//! What a sandbox's daemon can do, by the version it reports. A daemon that lacks something is told apart by a typed
//! error and never by a silent difference.

use crate::error::CallError;
use crate::sandbox::Sandbox;

/// The first version that has something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32, u32);

/// Something that not every daemon has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feature {
    RecursiveWatch,
    /// A process without a standard input.
    NoStdin,
    /// The daemon chooses the user when none is named.
    DefaultUser,
    CloseStdin,
    /// Uploads that are nothing but the file.
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

/// `0.6.13`, perhaps with a `v` before and more behind. What cannot be read is taken for the newest: a server that
/// names its versions otherwise is asked and may refuse.
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

    /// Goes on only where the daemon has it.
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

    /// The user to name to the daemon: old ones have no default of their own.
    pub(crate) fn user_to_name<'a>(&self, user: Option<&'a str>) -> Option<&'a str> {
        user.or(if self.has(Feature::DefaultUser) { None } else { Some("user") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_come_with_their_versions() {
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
