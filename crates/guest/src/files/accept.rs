//! Negotiates the encoding of a download by the client's `Accept-Encoding`.

use http::HeaderMap;
use http::header::ACCEPT_ENCODING;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Identity,
    Gzip,
}

/// The client's quality value for one encoding, if named.
type Quality = Option<f32>;

struct Accepted {
    gzip: Quality,
    identity: Quality,
    any: Quality,
    /// Whether other encodings are named too: then the list is what an HTTP library supports, not a
    /// preference.
    others: bool,
}

impl Accepted {
    fn from_headers(headers: &HeaderMap) -> Self {
        let mut accepted = Self { gzip: None, identity: None, any: None, others: false };
        let values = headers.get_all(ACCEPT_ENCODING).into_iter().filter_map(|value| value.to_str().ok());
        for item in values.flat_map(|value| value.split(',')) {
            let mut parts = item.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default();
            let quality =
                parts.find_map(|part| part.strip_prefix("q=")).map_or(1.0, |q| q.trim().parse().unwrap_or(0.0));
            match name.to_ascii_lowercase().as_str() {
                "gzip" | "x-gzip" => accepted.gzip = Some(quality),
                "identity" => accepted.identity = Some(quality),
                "*" => accepted.any = Some(quality),
                "" => {}
                _ => accepted.others = true,
            }
        }
        accepted
    }

    fn identity_allowed(&self) -> bool {
        self.identity.or(self.any).is_none_or(|quality| quality > 0.0)
    }
}

/// The encoding to use; [`None`] when the client accepts neither.
pub(super) fn choose(headers: &HeaderMap) -> Option<Encoding> {
    let accepted = Accepted::from_headers(headers);
    let gzip = accepted.gzip.unwrap_or(0.0);
    // Naming only gzip is a preference. A list such as `gzip, deflate, br` is not: the connection
    // to a sandbox is fast, and compressing 256 MiB took clients thirty times as long as plain
    // bytes.
    if gzip > 0.0 && accepted.identity.map_or(!accepted.others, |identity| gzip > identity) {
        return Some(Encoding::Gzip);
    }
    if accepted.identity_allowed() {
        return Some(Encoding::Identity);
    }
    accepted.gzip.or(accepted.any).filter(|quality| *quality > 0.0).map(|_| Encoding::Gzip)
}

/// Whether identity encoding is acceptable, as ranges require.
pub(super) fn identity_allowed(headers: &HeaderMap) -> bool {
    Accepted::from_headers(headers).identity_allowed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_encoding_decides() {
        let cases = [
            (None, Some(Encoding::Identity)),
            (Some("gzip"), Some(Encoding::Gzip)),
            (Some("gzip;q=0.5"), Some(Encoding::Gzip)),
            (Some("zstd, gzip;q=0.5, br"), Some(Encoding::Identity)),
            (Some("gzip, deflate"), Some(Encoding::Identity)),
            (Some("gzip, deflate, identity;q=0"), Some(Encoding::Gzip)),
            (Some("gzip, identity"), Some(Encoding::Identity)),
            (Some("gzip;q=1.0, identity;q=0.5"), Some(Encoding::Gzip)),
            (Some("gzip;q=0.5, identity;q=1.0"), Some(Encoding::Identity)),
            (Some("identity"), Some(Encoding::Identity)),
            (Some("*"), Some(Encoding::Identity)),
            (Some("br"), Some(Encoding::Identity)),
            (Some("gzip;q=0"), Some(Encoding::Identity)),
            (Some("identity;q=0"), None),
            (Some("gzip;q=0, *;q=0"), None),
            (Some("identity;q=0, *;q=0.5"), Some(Encoding::Gzip)),
        ];
        for (value, expected) in cases {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert(ACCEPT_ENCODING, value.parse().expect("a header"));
            }
            assert_eq!(choose(&headers), expected, "{value:?}");
        }
    }
}
