//! The query of a URL in form encoding: `+` is a space.

use percent_encoding::percent_decode;

pub(crate) struct QueryString(Vec<(String, String)>);

impl QueryString {
    pub(crate) fn from_uri(uri: &http::Uri) -> Self {
        let pairs = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(name), decode(value))
                })
                .collect(),
        )
    }

    /// The first value of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|pair| pair.0 == name).map(|pair| pair.1.as_str())
    }

    /// The first value of this name, unless it is empty.
    pub(crate) fn non_empty(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }
}

fn decode(text: &str) -> String {
    let spaced = text.replace('+', " ");
    percent_decode(spaced.as_bytes()).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_use_form_encoding() {
        let query = QueryString::from_uri(&"/files?path=%2Fa+b%2Bc&username=&x".parse().expect("a URI"));
        assert_eq!(query.get("path"), Some("/a b+c"));
        assert_eq!((query.get("username"), query.non_empty("username")), (Some(""), None));
        assert_eq!((query.get("x"), query.get("y")), (Some(""), None));
    }
}
