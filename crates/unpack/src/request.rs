//! What travels between the server and the unpacker.

use std::io;

use serde::{Deserialize, Serialize};

use crate::archive::{Contents, Place};
use crate::config::MOST_BYTES;
use crate::error::ImageError;
use crate::tree::{Limits, Owners, Unpacked};

/// Longest answer: a configuration, which may be all variables, and the places of its layers.
pub const MOST_ANSWER: usize = 2 * MOST_BYTES as usize;
/// Longest text of an error, in characters.
const MOST_TEXT: usize = 1000;

/// What the unpacker is asked for. Open files travel with it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    /// What the first file, an archive, says it holds.
    Contents,
    /// To unpack these layers, lowest first, into its root.
    Unpack { layers: Vec<Layer>, owners: Owners, limits: Limits },
}

/// Where a layer is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Layer {
    /// The number of its file.
    pub file: usize,
    /// None: all of the file, which is not used again.
    pub place: Option<Place>,
    /// The digest of its content. None: it is a plain tree of files, in which no name means a
    /// deletion.
    pub diff_id: Option<String>,
}

/// What it answers.
pub type Answer = Result<Completed, Failure>;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Completed {
    Contents(Contents),
    Unpacked(Unpacked),
}

/// An [`ImageError`] of the unpacker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Failure {
    Platform { found: String, wanted: String },
    Malformed(String),
    Digest { what: String, expected: String, found: String },
    Hostile(String),
    TooLarge(u64),
    TooMany(u64),
    Io { what: String, errno: Option<i32>, text: String },
}

impl From<ImageError> for Failure {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::Platform { found, wanted } => {
                Self::Platform { found: bounded(&found), wanted: bounded(&wanted) }
            }
            ImageError::Malformed(why) => Self::Malformed(bounded(&why)),
            ImageError::Digest { what, expected, found } => {
                Self::Digest { what: bounded(&what), expected: bounded(&expected), found: bounded(&found) }
            }
            ImageError::Hostile(what) => Self::Hostile(bounded(&what)),
            ImageError::TooLarge(most) => Self::TooLarge(most),
            ImageError::TooMany(most) => Self::TooMany(most),
            ImageError::Io { what, source } => {
                Self::Io { what: bounded(&what), errno: source.raw_os_error(), text: bounded(&source.to_string()) }
            }
            // Those of registries and of the server's side.
            other => Self::Malformed(bounded(&other.to_string())),
        }
    }
}

impl From<Failure> for ImageError {
    /// Bounds and escapes the text once more: a process that was taken over sent it.
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Platform { found, wanted } => Self::Platform { found: bounded(&found), wanted: bounded(&wanted) },
            Failure::Malformed(why) => Self::Malformed(bounded(&why)),
            Failure::Digest { what, expected, found } => {
                Self::Digest { what: bounded(&what), expected: bounded(&expected), found: bounded(&found) }
            }
            Failure::Hostile(what) => Self::Hostile(bounded(&what)),
            Failure::TooLarge(most) => Self::TooLarge(most),
            Failure::TooMany(most) => Self::TooMany(most),
            Failure::Io { what, errno, text } => {
                let source = errno.map_or_else(|| io::Error::other(bounded(&text)), io::Error::from_raw_os_error);
                Self::Io { what: bounded(&what), source }
            }
        }
    }
}

/// The beginning of `text`, with what would move a terminal's cursor or hide other text escaped.
fn bounded(text: &str) -> String {
    let plain = |letter: &char| {
        !letter.is_control()
            && !matches!(letter, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut shown = String::new();
    for letter in text.chars().take(MOST_TEXT) {
        if plain(&letter) {
            shown.push(letter);
        } else {
            shown.extend(letter.escape_unicode());
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_arrives_as_it_was_sent() {
        for error in [
            ImageError::Platform { found: "linux/s390x".to_owned(), wanted: "linux/amd64".to_owned() },
            ImageError::Malformed("'a' is missing in it".to_owned()),
            ImageError::Digest { what: "layer 1 of 2".to_owned(), expected: "a".to_owned(), found: "b".to_owned() },
            ImageError::Hostile("'x' is a device".to_owned()),
            ImageError::TooLarge(7),
            ImageError::TooMany(8),
            ImageError::Io { what: "write 'a'".to_owned(), source: io::Error::from_raw_os_error(28) },
            ImageError::Io { what: "read 'a'".to_owned(), source: io::Error::other("corrupt deflate stream") },
        ] {
            let text = format!("{error:?} {error}");
            let sent = serde_json::to_vec(&Failure::from(error)).unwrap();
            let come = ImageError::from(serde_json::from_slice::<Failure>(&sent).unwrap());
            assert_eq!(format!("{come:?} {come}"), text);
        }
    }

    #[test]
    fn text_of_a_process_that_was_taken_over_is_bounded_and_plain() {
        let come = ImageError::from(Failure::Hostile(format!("\u{1b}[2J\u{202e}{}", "x".repeat(5000)))).to_string();
        assert!(come.starts_with("refused: \\u{1b}[2J\\u{202e}xx") && come.len() < 1100, "{come}");
    }
}
