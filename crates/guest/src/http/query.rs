//! The query part of a URL, as forms encode it: `+` is a space.

use percent_encoding::percent_decode;

pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn of(uri: &http::Uri) -> Self {
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

    /// The same, where an empty value means nothing was said.
    pub(crate) fn given(&self, name: &str) -> Option<&str> {
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
    fn values_are_decoded_as_forms_are() {
        let query = Query::of(&"/files?path=%2Fa+b%2Bc&username=&x".parse().expect("a URI"));
        assert_eq!(query.get("path"), Some("/a b+c"));
        assert_eq!((query.get("username"), query.given("username")), (Some(""), None));
        assert_eq!((query.get("x"), query.get("y")), (Some(""), None));
    }
}
