//! Detects the encoding of a text file from its bytes, and encodes text in the same way.

use std::borrow::Cow;
use std::fmt;

use encoding_rs::WINDOWS_1252;
use schemars::JsonSchema;
use serde::Serialize;

const UTF8_BOM: &[u8] = b"\xef\xbb\xbf";

/// Number of first bytes that decide whether a file is text.
const SAMPLE: usize = 8 * 1024;

/// Encoding of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Utf8,
    Utf16Le,
    Utf16Be,
    /// The fallback for files that are neither UTF-8 nor marked: it gives every byte a meaning.
    Windows1252,
}

/// Line endings of a file; `None` if its text has no line end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LineEnding {
    Lf,
    Crlf,
    Cr,
    Mixed,
    None,
}

/// The text of a file, and what is needed to write it again.
#[derive(Debug, Clone)]
pub struct Decoded<'a> {
    pub text: Cow<'a, str>,
    pub encoding: Encoding,
    /// The file begins with a byte order mark, which is not part of the text.
    pub bom: bool,
    /// Number of bytes that are not UTF-8, if it was decoded as windows-1252.
    pub strange_bytes: usize,
}

/// The encoding lacks the character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unencodable(pub char);

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Utf8 => "utf-8",
            Self::Utf16Le => "utf-16le",
            Self::Utf16Be => "utf-16be",
            Self::Windows1252 => "windows-1252",
        })
    }
}

impl LineEnding {
    /// Detects the line endings of a text.
    pub fn detect(text: &str) -> Self {
        // Most files have no carriage return, which one scan shows.
        if memchr::memchr(b'\r', text.as_bytes()).is_none() {
            return if memchr::memchr(b'\n', text.as_bytes()).is_some() { Self::Lf } else { Self::None };
        }
        let all = text.matches('\n').count();
        let crlf = text.matches("\r\n").count();
        let returns = text.matches('\r').count();
        match (all, crlf, returns) {
            (0, 0, _) => Self::Cr,
            (all, crlf, returns) if all == crlf && returns == crlf => Self::Crlf,
            _ => Self::Mixed,
        }
    }
}

impl Encoding {
    /// Detects the encoding, and the length of the byte order mark.
    pub fn detect(bytes: &[u8]) -> (Self, usize) {
        if bytes.starts_with(UTF8_BOM) && std::str::from_utf8(bytes).is_ok() {
            (Self::Utf8, UTF8_BOM.len())
        } else if bytes.starts_with(b"\xff\xfe") && bytes.len().is_multiple_of(2) {
            (Self::Utf16Le, 2)
        } else if bytes.starts_with(b"\xfe\xff") && bytes.len().is_multiple_of(2) {
            (Self::Utf16Be, 2)
        } else if std::str::from_utf8(bytes).is_ok() {
            (Self::Utf8, 0)
        } else {
            (Self::Windows1252, 0)
        }
    }

    /// Encodes text, without a byte order mark.
    pub fn encode(self, text: &str) -> Result<Vec<u8>, Unencodable> {
        match self {
            Self::Utf8 => Ok(text.as_bytes().to_vec()),
            Self::Utf16Le => Ok(text.encode_utf16().flat_map(u16::to_le_bytes).collect()),
            Self::Utf16Be => Ok(text.encode_utf16().flat_map(u16::to_be_bytes).collect()),
            Self::Windows1252 => {
                let mut bytes = Vec::with_capacity(text.len());
                for letter in text.chars() {
                    let mut one = [0; 4];
                    let (encoded, _, unmappable) = WINDOWS_1252.encode(letter.encode_utf8(&mut one));
                    if unmappable {
                        return Err(Unencodable(letter));
                    }
                    bytes.extend_from_slice(&encoded);
                }
                Ok(bytes)
            }
        }
    }

    /// Decodes bytes; invalid ones become the replacement character.
    pub fn decode(self, bytes: &[u8]) -> Cow<'_, str> {
        match self {
            Self::Utf8 => String::from_utf8_lossy(bytes),
            Self::Utf16Le => utf16(bytes, u16::from_le_bytes).into(),
            Self::Utf16Be => utf16(bytes, u16::from_be_bytes).into(),
            Self::Windows1252 => WINDOWS_1252.decode_without_bom_handling(bytes).0,
        }
    }

    /// Size of a code unit: matches begin at multiples of it.
    pub fn unit(self) -> usize {
        match self {
            Self::Utf8 | Self::Windows1252 => 1,
            Self::Utf16Le | Self::Utf16Be => 2,
        }
    }
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> String {
    let units = bytes.chunks_exact(2).map(|pair| unit([pair[0], pair[1]]));
    char::decode_utf16(units).map(|letter| letter.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
}

/// Decodes a file.
pub fn decode(bytes: &[u8]) -> Decoded<'_> {
    let (encoding, mark) = Encoding::detect(bytes);
    let strange_bytes = match encoding {
        Encoding::Windows1252 => bytes.utf8_chunks().map(|chunk| chunk.invalid().len()).sum(),
        _ => 0,
    };
    Decoded { text: encoding.decode(&bytes[mark..]), encoding, bom: mark > 0, strange_bytes }
}

/// Whether the first bytes of a file are not text.
pub fn is_binary(bytes: &[u8]) -> bool {
    let sample = &bytes[..bytes.len().min(SAMPLE)];
    if sample.starts_with(b"\xff\xfe") || sample.starts_with(b"\xfe\xff") {
        return false;
    }
    let control = |byte: &&u8| **byte < 0x20 && !matches!(**byte, b'\n' | b'\r' | b'\t' | 0x0c | 0x1b | 0x08);
    sample.contains(&0) || sample.iter().filter(control).count() * 10 > sample.len() * 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn encoding_is_detected_from_bytes() {
        assert_eq!(Encoding::detect("grün".as_bytes()), (Encoding::Utf8, 0));
        assert_eq!(Encoding::detect(b"\xef\xbb\xbfhi"), (Encoding::Utf8, 3));
        assert_eq!(Encoding::detect(b"\xff\xfeh\0"), (Encoding::Utf16Le, 2));
        assert_eq!(Encoding::detect(b"gr\xfcn"), (Encoding::Windows1252, 0));
        let decoded = decode(b"gr\xfcn");
        assert_eq!((&*decoded.text, decoded.strange_bytes), ("grün", 1));
    }

    #[test]
    fn line_endings_are_detected() {
        for (text, expected) in [
            ("a", LineEnding::None),
            ("a\nb\n", LineEnding::Lf),
            ("a\r\nb\r\n", LineEnding::Crlf),
            ("a\rb", LineEnding::Cr),
            ("a\r\nb\n", LineEnding::Mixed),
            ("a\rb\n", LineEnding::Mixed),
        ] {
            assert_eq!(LineEnding::detect(text), expected, "{text:?}");
        }
    }

    #[test]
    fn binary_content_is_detected() {
        assert!(is_binary(b"\x7fELF\0\0"));
        assert!(is_binary(&[1, 2, 3, 4]));
        assert!(!is_binary(b"plain\ttext\r\n"));
        assert!(!is_binary(b"\xff\xfeh\0i\0"));
        assert!(!is_binary(b""));
    }

    #[test]
    fn unencodable_character_is_named() {
        assert_eq!(Encoding::Windows1252.encode("a→"), Err(Unencodable('→')));
    }

    proptest! {
        #[test]
        fn every_byte_of_a_single_byte_file_survives(bytes: Vec<u8>) {
            let text = Encoding::Windows1252.decode(&bytes).into_owned();
            prop_assert_eq!(Encoding::Windows1252.encode(&text), Ok(bytes));
        }

        #[test]
        fn text_survives_utf16(text: String) {
            for encoding in [Encoding::Utf16Le, Encoding::Utf16Be, Encoding::Utf8] {
                let encoded = encoding.encode(&text).expect("all of Unicode");
                prop_assert_eq!(encoding.decode(&encoded), text.as_str());
            }
        }
    }
}
