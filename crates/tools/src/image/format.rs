//! Detects the format of a file by its bytes, and the size of an image without decoding it.

/// The media type of an image that models accept.
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
                // Segments start with 0xff and a kind; the frame headers carry the size.
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

/// Whether the file contains the end of the image.
pub(super) fn is_complete(kind: &str, bytes: &[u8]) -> bool {
    match kind {
        "image/png" => bytes.windows(4).rev().take(64).any(|part| part == b"IEND"),
        "image/jpeg" => bytes.windows(2).rev().take(4096).any(|part| part == b"\xff\xd9"),
        "image/gif" => bytes.iter().rev().take(64).any(|byte| *byte == 0x3b),
        "image/webp" => {
            let length = bytes.get(4..8).and_then(|size| size.try_into().ok()).map(u32::from_le_bytes);
            length.is_some_and(|length| bytes.len() >= length as usize + 8)
        }
        _ => true,
    }
}

/// A description of a file that is not text.
pub(crate) fn describe_binary(bytes: &[u8]) -> &'static str {
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
