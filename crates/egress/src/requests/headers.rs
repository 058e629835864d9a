//! Headers that a rule sets on requests, with secrets as `${e2b.secrets.NAME}`.

use std::fmt;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

const OPEN: &str = "${e2b.secrets.";
/// Prefix of all E2B placeholders.
const ANY: &str = "${e2b.";
const MAX_SECRET_NAME: usize = 128;

/// Framing and routing headers: a rule that set one would change the request after the policy
/// decided on it.
const FIXED: [HeaderName; 10] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    header::EXPECT,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("keep-alive"),
];

/// Validated headers to set. Their values are secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers {
    set: Vec<(HeaderName, Vec<Piece>)>,
    plaintext: bool,
}

#[derive(Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Secret(String),
}

/// A header that cannot be set. The message omits its value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHeader {
    #[error("'{0}' is not the name of a header")]
    Name(String),
    #[error("the header '{0}' cannot be set: it frames the request or names its target")]
    Fixed(String),
    #[error("the value of '{0}' holds characters that no header may have")]
    Value(String),
    #[error(
        "the value of '{0}' holds a placeholder that is none: ${{e2b.secrets.NAME}} needs a name of a-z, A-Z, 0-9, _ and -"
    )]
    Placeholder(String),
    #[error("the value of '{0}' holds a placeholder that this server does not fill; ${{e2b.secrets.NAME}} is filled")]
    Unserved(String),
}

impl Headers {
    /// # Errors
    /// The variant of [`InvalidHeader`] for the first header that cannot be set.
    pub fn new<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, InvalidHeader> {
        let headers = pairs.into_iter().map(|(name, value)| {
            let known = HeaderName::from_bytes(name.as_bytes()).map_err(|_| InvalidHeader::Name(name.to_owned()))?;
            if FIXED.contains(&known) {
                return Err(InvalidHeader::Fixed(name.to_owned()));
            }
            Ok((known, parse_pieces(name, value)?))
        });
        Ok(Self { set: headers.collect::<Result<_, _>>()?, plaintext: false })
    }

    /// Permits secrets in unencrypted requests.
    pub fn allow_plaintext(mut self, allowed: bool) -> Self {
        self.plaintext = allowed;
        self
    }

    pub fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    /// A header that requires TLS because it contains a secret.
    pub(super) fn needs_tls(&self) -> Option<&HeaderName> {
        let secret = |pieces: &[Piece]| pieces.iter().any(|piece| matches!(piece, Piece::Secret(_)));
        self.set.iter().find(|(_, pieces)| !self.plaintext && secret(pieces)).map(|(name, _)| name)
    }

    /// The header names, for the log.
    pub(super) fn names(&self) -> String {
        self.set.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Replaces the request's own headers, all or none.
    ///
    /// # Errors
    /// A message that names the missing secret or the invalid header.
    pub(super) fn apply(&self, to: &mut HeaderMap, secret: impl Fn(&str) -> Option<String>) -> Result<(), String> {
        let filled = self.set.iter().map(|(name, pieces)| {
            let mut value = String::new();
            for piece in pieces {
                match piece {
                    Piece::Text(text) => value.push_str(text),
                    Piece::Secret(secret_name) => value.push_str(
                        &secret(secret_name).ok_or_else(|| format!("the secret '{secret_name}' does not exist"))?,
                    ),
                }
            }
            let mut value = HeaderValue::from_bytes(value.as_bytes())
                .map_err(|_| format!("what '{name}' is filled with cannot be sent in a header"))?;
            value.set_sensitive(true);
            Ok((name.clone(), value))
        });
        for (name, value) in filled.collect::<Result<Vec<_>, String>>()? {
            to.insert(name, value);
        }
        Ok(())
    }
}

fn parse_pieces(name: &str, value: &str) -> Result<Vec<Piece>, InvalidHeader> {
    if HeaderValue::from_bytes(value.as_bytes()).is_err() {
        return Err(InvalidHeader::Value(name.to_owned()));
    }
    let (mut pieces, mut rest) = (Vec::new(), value);
    while let Some(start) = rest.find(ANY) {
        let (text, placeholder) = rest.split_at(start);
        if !text.is_empty() {
            pieces.push(Piece::Text(text.to_owned()));
        }
        let inner = placeholder.strip_prefix(OPEN).ok_or_else(|| InvalidHeader::Unserved(name.to_owned()))?;
        let wrong = || InvalidHeader::Placeholder(name.to_owned());
        let (secret, after) = inner.split_once('}').ok_or_else(wrong)?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if !(1..=MAX_SECRET_NAME).contains(&secret.len()) || !secret.bytes().all(plain) {
            return Err(wrong());
        }
        pieces.push(Piece::Secret(secret.to_owned()));
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.to_owned()));
    }
    Ok(pieces)
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.set.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_replace_the_headers_of_the_request() {
        let headers =
            Headers::new([("Authorization", "Bearer ${e2b.secrets.key}"), ("X-Plain", "a ${b} $")]).expect("headers");
        let mut map = HeaderMap::new();
        map.append("authorization", HeaderValue::from_static("one"));
        map.append("authorization", HeaderValue::from_static("two"));
        headers.apply(&mut map, |name| (name == "key").then(|| "k1".to_owned())).expect("it is filled");
        assert_eq!(map.get_all("authorization").iter().collect::<Vec<_>>(), ["Bearer k1"]);
        assert_eq!(map["x-plain"], "a ${b} $");
        assert!(!format!("{map:?} {headers:?}").contains("k1"));
    }

    #[test]
    fn secrets_need_tls_unless_the_rule_allows_plaintext() {
        let secret = Headers::new([("X-Plain", "a"), ("X-Key", "a ${e2b.secrets.key}")]).expect("headers");
        assert_eq!(secret.needs_tls().map(HeaderName::as_str), Some("x-key"));
        assert_eq!(secret.allow_plaintext(true).needs_tls(), None);
        assert_eq!(Headers::new([("X-Plain", "a")]).expect("headers").needs_tls(), None);
    }

    #[test]
    fn a_missing_secret_leaves_the_request_unchanged() {
        let headers = Headers::new([("x-a", "1"), ("x-b", "${e2b.secrets.gone}")]).expect("headers");
        let mut map = HeaderMap::new();
        assert_eq!(headers.apply(&mut map, |_| None), Err("the secret 'gone' does not exist".to_owned()));
        assert!(map.is_empty());
        assert!(headers.apply(&mut map, |_| Some("a\nb".to_owned())).is_err());
    }

    #[test]
    fn invalid_headers_are_named() {
        for (name, value, expected) in [
            ("a b", "x", InvalidHeader::Name("a b".into())),
            ("Host", "x", InvalidHeader::Fixed("Host".into())),
            ("transfer-encoding", "chunked", InvalidHeader::Fixed("transfer-encoding".into())),
            ("x", "a\r\nb", InvalidHeader::Value("x".into())),
            ("x", "${e2b.secrets.a b}", InvalidHeader::Placeholder("x".into())),
            ("x", "${e2b.secrets.a", InvalidHeader::Placeholder("x".into())),
            ("x", "${e2b.secrets.}", InvalidHeader::Placeholder("x".into())),
            ("x", "${e2b.identity.tokens.a}", InvalidHeader::Unserved("x".into())),
        ] {
            assert_eq!(Headers::new([(name, value)]), Err(expected), "{name}: {value}");
        }
    }
}
