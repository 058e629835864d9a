//! Messages stay under a size that every client takes. Pictures are not counted: they have limits of their own.

use std::io;

use serde::Serialize;
use serde_json::Value;

/// Most bytes of a message, apart from pictures.
pub(crate) const MOST: usize = 1024 * 1024;
/// For what is around the content.
pub(crate) const ENVELOPE: usize = 16 * 1024;

/// How long a value is on the wire.
pub(crate) fn of(value: &impl Serialize) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Counting cannot fail, and what serialises once serialises again when it is sent.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// Shortens the longest texts and lists until the value fits. Types stay what they are, so a schema that held still holds.
/// Says whether anything was shortened.
pub(crate) fn fit(value: &mut Value, budget: usize) -> bool {
    let mut longest = budget;
    let mut shortened = false;
    while of(value) > budget && longest > 0 {
        longest /= 2;
        shorten(value, longest);
        shortened = true;
    }
    shortened
}

fn shorten(value: &mut Value, longest: usize) {
    match value {
        Value::String(text) if text.len() > longest => {
            let end = text.floor_char_boundary(longest);
            text.truncate(end);
        }
        Value::Array(items) => {
            items.iter_mut().for_each(|item| shorten(item, longest));
            let mut room = longest;
            let kept = items.iter().take_while(|item| {
                let size = of(item);
                let fits = size <= room;
                room = room.saturating_sub(size);
                fits
            });
            let kept = kept.count();
            items.truncate(kept);
        }
        Value::Object(fields) => fields.values_mut().for_each(|field| shorten(field, longest)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_fits_is_left_alone() {
        let mut value = json!({ "stdout": "x".repeat(100), "list": [1, 2, 3] });
        let before = value.clone();
        assert!(!fit(&mut value, 1000));
        assert_eq!(value, before);
    }

    #[test]
    fn long_texts_and_lists_are_shortened_and_nothing_else() {
        let mut value = json!({
            "stdout": "\u{1}é".repeat(50_000),
            "matches": vec![json!({ "path": "/a/b", "text": "t".repeat(50) }); 9000],
            "exit_code": 3,
            "short": "kept",
        });
        assert!(fit(&mut value, 100_000));
        assert!(of(&value) <= 100_000);
        assert_eq!(value["exit_code"], 3);
        assert_eq!(value["short"], "kept");
        assert!(value["stdout"].as_str().is_some_and(|text| text.len() > 1000));
        assert!(value["matches"].as_array().is_some_and(|list| !list.is_empty() && list[0]["path"] == "/a/b"));
    }
}
