//! Pictures: what they are, from their bytes, and whether a model can take them.

use bytes::Bytes;

use crate::result::Image;

/// What providers take as it is: one side, and the file. What is larger they shrink, each in its own way, or refuse.
pub(crate) const MOST_PIXELS: u32 = 1568;
pub(crate) const MOST_BYTES: usize = 3_932_160;

#[derive(Debug)]
pub(crate) struct Picture {
    pub(crate) image: Image,
    pub(crate) width: u32,
    pub(crate) height: u32,
}

/// The media type of a picture that models can see.
pub(crate) fn kind(bytes: &[u8]) -> Option<&'static str> {
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        Some("image/png")
    } else if bytes.starts_with(b"\xff\xd8\xff") {
        Some("image/jpeg")
    } else if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") {
        Some("image/gif")
    } else if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        Some("image/webp")
    } else {
        None
    }
}

/// The picture as a block, or why it must not become one: a picture that a provider refuses spoils the whole conversation.
pub(crate) fn prepare(kind: &'static str, bytes: &Bytes) -> Result<Picture, String> {
    let Some((width, height)) = size(kind, bytes) else {
        return Err("it is damaged: its size cannot be read".into());
    };
    if width == 0 || height == 0 {
        return Err("it has no pixels".into());
    }
    if !is_complete(kind, bytes) {
        return Err("it is damaged: its end is missing".into());
    }
    if width > MOST_PIXELS || height > MOST_PIXELS {
        return Err(format!("it has {width}x{height} pixels and {MOST_PIXELS} are the most on a side"));
    }
    if bytes.len() > MOST_BYTES {
        return Err(format!("it has {} bytes and {MOST_BYTES} are the most", bytes.len()));
    }
    Ok(Picture { image: Image { media_type: kind, bytes: bytes.clone() }, width, height })
}

/// Width and height.
pub(crate) fn size(kind: &str, bytes: &[u8]) -> Option<(u32, u32)> {
    let be16 = |at: usize| Some(u32::from(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?)));
    let le16 = |at: usize| Some(u32::from(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?)));
    let be32 = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let le24 = |at: usize| Some(le16(at)? | u32::from(*bytes.get(at + 2)?) << 16);
    match kind {
        "image/png" => (bytes.get(12..16)? == b"IHDR").then_some((be32(16)?, be32(20)?)),
        "image/gif" => Some((le16(6)?, le16(8)?)),
        "image/webp" => match bytes.get(12..16)? {
            b"VP8 " => Some((le16(26)? & 0x3fff, le16(28)? & 0x3fff)),
            b"VP8L" => {
                let bits = u32::from_le_bytes(bytes.get(21..25)?.try_into().ok()?);
                Some(((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1))
            }
            b"VP8X" => Some((le24(24)? + 1, le24(27)? + 1)),
            _ => None,
        },
        "image/jpeg" => {
            let mut at = 2;
            loop {
                // Segments are marked by 0xff and a kind; frames other than tables carry the size.
                while *bytes.get(at)? == 0xff && *bytes.get(at + 1)? == 0xff {
                    at += 1;
                }
                let (mark, kind) = (*bytes.get(at)?, *bytes.get(at + 1)?);
                if mark != 0xff {
                    return None;
                }
                if matches!(kind, 0xc0..=0xcf) && !matches!(kind, 0xc4 | 0xc8 | 0xcc) {
                    return Some((be16(at + 7)?, be16(at + 5)?));
                }
                at += if matches!(kind, 0x01 | 0xd0..=0xd8) { 2 } else { 2 + be16(at + 2)? as usize };
            }
        }
        _ => None,
    }
}

/// Whether the end of the picture is there.
fn is_complete(kind: &str, bytes: &[u8]) -> bool {
    match kind {
        "image/png" => bytes.windows(4).rev().take(64).any(|part| part == b"IEND"),
        "image/jpeg" => bytes.windows(2).rev().take(4096).any(|part| part == b"\xff\xd9"),
        "image/gif" => bytes.iter().rev().take(64).any(|byte| *byte == 0x3b),
        "image/webp" => {
            let told = bytes.get(4..8).and_then(|size| size.try_into().ok()).map(u32::from_le_bytes);
            told.is_some_and(|told| bytes.len() >= told as usize + 8)
        }
        _ => true,
    }
}

/// What a file that is not text probably is.
pub(crate) fn name_of_binary(bytes: &[u8]) -> &'static str {
    const NAMES: [(&[u8], &str); 12] = [
        (b"\x7fELF\x02", "ELF 64-bit"),
        (b"\x7fELF", "ELF"),
        (b"%PDF", "PDF; pdftotext gives its text"),
        (b"PK\x03\x04", "zip archive"),
        (b"\x1f\x8b", "gzip"),
        (b"BZh", "bzip2"),
        (b"\xfd7zXZ", "xz"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"SQLite format 3", "SQLite database"),
        (b"\0asm", "WebAssembly"),
        (b"\xca\xfe\xba\xbe", "Java class"),
        (b"MZ", "Windows executable"),
    ];
    NAMES.iter().find(|(magic, _)| bytes.starts_with(magic)).map_or("unknown format", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn png(width: u32, height: u32) -> Bytes {
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        bytes.extend(width.to_be_bytes());
        bytes.extend(height.to_be_bytes());
        bytes.extend(b"\x08\x06\0\0\0....\0\0\0\0IEND\xaeB`\x82");
        bytes.into()
    }

    #[test]
    fn sizes_come_from_the_bytes() {
        assert_eq!(size("image/png", &png(3, 4)), Some((3, 4)));
        assert_eq!(size("image/gif", b"GIF89a\x05\0\x06\0"), Some((5, 6)));
        assert_eq!(size("image/jpeg", b"\xff\xd8\xff\xe0\0\x04ab\xff\xc0\0\x11\x08\0\x07\0\x09"), Some((9, 7)));
        assert_eq!(size("image/webp", b"RIFF....WEBPVP8X....\0\0\0\0\x04\0\0\x05\0\0"), Some((5, 6)));
        assert_eq!(size("image/jpeg", b"\xff\xd8\xff"), None);
    }

    #[test]
    fn what_a_provider_would_refuse_never_becomes_a_block() {
        assert!(prepare("image/png", &png(10, 10)).is_ok());
        assert!(prepare("image/png", &png(9000, 10)).expect_err("too wide").contains("9000x10"));
        assert!(prepare("image/png", &png(0, 10)).is_err());
        assert!(prepare("image/png", &png(10, 10).slice(..30)).expect_err("cut").contains("damaged"));
        let heavy = [png(10, 10).to_vec(), vec![0; MOST_BYTES], png(1, 1).to_vec()].concat();
        assert!(prepare("image/png", &heavy.into()).expect_err("too heavy").contains("bytes"));
    }
}
