//! Encoded paths and queries of the control plane.

use std::fmt::{Display, Write as _};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Leaves RFC 3986's unreserved characters as they are.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Encodes `text` as one path segment, or as a name or value of a query.
pub(crate) fn encode(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// A path with a query under construction.
#[derive(Debug)]
pub(crate) struct Path(String);

impl Path {
    /// `path` is already encoded.
    pub(crate) fn new(path: impl Into<String>) -> Self {
        Self(path.into())
    }

    /// Adds the pair if `value` is present.
    pub(crate) fn with(mut self, name: &str, value: Option<impl Display>) -> Self {
        if let Some(value) = value {
            let separator = if self.0.contains('?') { '&' } else { '?' };
            write!(self.0, "{separator}{name}={}", encode(&value.to_string())).expect("a String takes everything");
        }
        self
    }
}

impl From<Path> for String {
    fn from(path: Path) -> Self {
        path.0
    }
}

/// A metadata filter as the official clients send it: keys and values are encoded, then joined as a
/// form, which encodes again. [`Path::with`] adds the third layer.
pub(crate) fn metadata_filter<'a>(pairs: impl IntoIterator<Item = (&'a String, &'a String)>) -> Option<String> {
    let twice = |text: &str| encode(&encode(text));
    let pairs: Vec<String> = pairs.into_iter().map(|(key, value)| format!("{}={}", twice(key), twice(value))).collect();
    (!pairs.is_empty()).then(|| pairs.join("&"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn metadata_is_encoded_three_times() {
        let pairs = BTreeMap::from([("a b".to_owned(), "c&d".to_owned())]);
        let path = Path::new("/v2/sandboxes").with("metadata", metadata_filter(&pairs)).with("limit", Some(5));
        assert_eq!(String::from(path), "/v2/sandboxes?metadata=a%252520b%3Dc%252526d&limit=5");
        assert_eq!(metadata_filter(&BTreeMap::new()), None);
    }

    #[test]
    fn a_template_reference_is_one_segment() {
        assert_eq!(encode("team/alias:v1.0"), "team%2Falias%3Av1.0");
    }
}
