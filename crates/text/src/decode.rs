//! Decodes arbitrary bytes as text without loss.

/// Bytes that are not UTF-8 are shown as `\xNN`, and so is NUL, which many JSON parsers refuse.
pub fn readable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        if chunk.valid().contains('\0') {
            text.push_str(&chunk.valid().replace('\0', "\\x00"));
        } else {
            text.push_str(chunk.valid());
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_utf8_is_shown_as_escapes() {
        assert_eq!(readable("grün".as_bytes()), "grün");
        assert_eq!(readable(b"a\xffb\0c\xc3"), "a\\xffb\\x00c\\xc3");
    }
}
