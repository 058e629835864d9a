//! Query strings, with the several layers of encoding that clients use.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// Decodes the pairs of a form-encoded string once. Bytes that are not UTF-8 become replacement
/// characters.
pub(crate) fn pairs(text: &str) -> Vec<(String, String)> {
    text.split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (decode_form(name), decode_form(value)))
        .collect()
}

fn decode_form(text: &str) -> String {
    let spaced: Cow<'_, str> = if text.contains('+') { text.replace('+', " ").into() } else { text.into() };
    decode(&spaced)
}

/// Percent-decodes once.
pub(crate) fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// The value of the first pair with this name.
pub(crate) fn first<'a>(pairs: &'a [(String, String)], name: &str) -> Option<&'a str> {
    pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// Decodes a metadata filter. SDKs percent-encode keys and values, join them as a form, and encode
/// that as a query value; [`pairs`] has decoded the last layer already.
pub(crate) fn metadata(value: &str) -> impl Iterator<Item = (String, String)> {
    pairs(value).into_iter().map(|(key, value)| (decode(&key), decode(&value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_decoded_three_times() {
        let query = pairs("metadata=a%252520b%3Dc%252526d%26x%3Dy&limit=5");
        let found: Vec<_> = metadata(first(&query, "metadata").expect("it is there")).collect();
        assert_eq!(found, [("a b".to_owned(), "c&d".to_owned()), ("x".to_owned(), "y".to_owned())]);
        assert_eq!(first(&query, "limit"), Some("5"));
        assert_eq!(first(&query, "nextToken"), None);
    }

    #[test]
    fn forms_know_plus_and_missing_values() {
        assert_eq!(pairs("a+b=c%2Bd&e&&f="), [("a b", "c+d"), ("e", ""), ("f", "")].map(|(k, v)| (k.into(), v.into())));
    }
}
