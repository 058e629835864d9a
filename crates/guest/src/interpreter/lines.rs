//! Response lines: one JSON object per line, all ASCII. Clients that split at any Unicode line
//! break, or decode each chunk separately, still parse them.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde_json::{Value, json};

pub(super) fn line(value: &Value) -> Bytes {
    let text = value.to_string();
    let mut line = String::with_capacity(text.len() + 1);
    for character in text.chars() {
        if character.is_ascii() {
            line.push(character);
        } else {
            // Non-ASCII occurs only in strings, where the escape is equivalent.
            for unit in character.encode_utf16(&mut [0; 2]) {
                let _infallible = write!(line, "\\u{unit:04x}");
            }
        }
    }
    line.push('\n');
    line.into()
}

/// stdout or stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

/// Decodes a text stream whose chunks may split characters.
#[derive(Default)]
pub(super) struct Text {
    rest: Vec<u8>,
}

impl Text {
    /// Appends bytes and returns the decodable text.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        self.rest.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.rest) {
            // An incomplete character, not an invalid one.
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(error) => last_start(&self.rest, error.valid_up_to()),
            Ok(_) => self.rest.len(),
        };
        let rest = self.rest.split_off(whole);
        let text = std::mem::replace(&mut self.rest, rest);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Returns the trailing incomplete bytes, replaced.
    pub(super) fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.rest)).into_owned()
    }
}

/// The start of a trailing incomplete character; the end if there is none.
fn last_start(bytes: &[u8], from: usize) -> usize {
    let tail = bytes.len().saturating_sub(3).max(from);
    (tail..bytes.len())
        .find(|&at| {
            std::str::from_utf8(&bytes[at..])
                .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
        })
        .unwrap_or(bytes.len())
}

pub(super) fn printed(stream: Stream, text: &str) -> Value {
    let kind = match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    json!({"type": kind, "text": text, "timestamp": u64::try_from(now).unwrap_or(u64::MAX)})
}

pub(super) fn error(name: &str, value: &str, traceback: &str) -> Value {
    json!({"type": "error", "name": name, "value": value, "traceback": traceback})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_ascii_and_equivalent() {
        let value = json!({"text": "ä\u{2028}😀\n\""});
        let line = line(&value);
        assert!(line.is_ascii() && line.iter().filter(|&&byte| byte == b'\n').count() == 1, "{line:?}");
        assert_eq!(serde_json::from_slice::<Value>(&line).expect("JSON"), value);
    }

    #[test]
    fn split_characters_are_reassembled() {
        let whole = "aä😀\u{2028}z";
        for cut in 0..=whole.len() {
            let mut text = Text::default();
            let shown = text.push(&whole.as_bytes()[..cut]) + &text.push(&whole.as_bytes()[cut..]) + &text.finish();
            assert_eq!(shown, whole, "cut at {cut}");
        }
        let mut text = Text::default();
        assert_eq!(
            text.push(b"a\xffb\xf0\x9f") + &text.push(b"\x98\x80") + &text.push(b"\xe4") + &text.finish(),
            "a\u{fffd}b😀\u{fffd}"
        );
    }
}
