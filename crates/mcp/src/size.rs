//! Limits the size of messages, so that every client accepts them. Images are exempt: they have
//! their own limits.

use std::io;

use serde::Serialize;
use serde_json::Value;

/// Largest message, without its images.
pub(crate) const MAX_MESSAGE_BYTES: usize = 1024 * 1024;
/// Reserve for JSON around the content.
pub(crate) const ENVELOPE_BYTES: usize = 16 * 1024;

/// Length of a value as JSON.
pub(crate) fn serialized_len(value: &impl Serialize) -> usize {
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
    // Writing to the counter cannot fail, and a value that does not serialise fails again when it
    // is sent.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// Shortens the longest strings and arrays until the value fits. Types stay the same, so the value
/// still matches its schema. Returns whether it shortened anything.
pub(crate) fn shrink_to_fit(value: &mut Value, budget: usize) -> bool {
    let mut longest = budget;
    let mut shortened = false;
    while serialized_len(value) > budget && longest > 0 {
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
            let mut remaining = longest;
            let kept = items.iter().take_while(|item| {
                let size = serialized_len(item);
                let fits = size <= remaining;
                remaining = remaining.saturating_sub(size);
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
    fn values_within_the_budget_stay_unchanged() {
        let mut value = json!({ "stdout": "x".repeat(100), "list": [1, 2, 3] });
        let before = value.clone();
        assert!(!shrink_to_fit(&mut value, 1000));
        assert_eq!(value, before);
    }

    #[test]
    fn only_long_strings_and_arrays_are_shortened() {
        let mut value = json!({
            "stdout": "\u{1}é".repeat(50_000),
            "matches": vec![json!({ "path": "/a/b", "text": "t".repeat(50) }); 9000],
            "exit_code": 3,
            "short": "kept",
        });
        assert!(shrink_to_fit(&mut value, 100_000));
        assert!(serialized_len(&value) <= 100_000);
        assert_eq!(value["exit_code"], 3);
        assert_eq!(value["short"], "kept");
        assert!(value["stdout"].as_str().is_some_and(|text| text.len() > 1000));
        assert!(value["matches"].as_array().is_some_and(|list| !list.is_empty() && list[0]["path"] == "/a/b"));
    }
}
