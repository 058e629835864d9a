//! Filters hop-by-hop headers and framing: hyper writes its own, so that both sides agree where a
//! message ends.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// The protocol of an accepted upgrade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Upgrade(HeaderValue);

const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
];

/// The protocol upgrade that a request asks for, if permitted. HTTP/2, and HTTP inside TLS (RFC
/// 2817), would carry requests past the policy.
pub(super) fn requested_upgrade(headers: &HeaderMap) -> Option<Upgrade> {
    let wanted = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let wanted = wanted.flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
    let protocol = headers.get(header::UPGRADE).filter(|_| wanted)?;
    let text = protocol.to_str().ok()?;
    let hidden = text.split(',').any(|word| {
        let word = word.trim().to_ascii_lowercase();
        ["h2", "http", "tls"].iter().any(|protocol| word.starts_with(protocol))
    });
    (!hidden).then(|| Upgrade(protocol.clone()))
}

/// Removes hop-by-hop headers.
pub(super) fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|word| HeaderName::from_bytes(word.trim().as_bytes()).ok())
        // `Connection` must not remove headers that both ends need.
        .filter(|name| *name != header::HOST && *name != header::CONTENT_LENGTH)
        .collect();
    let chunked = headers.contains_key(header::TRANSFER_ENCODING);
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    if chunked {
        headers.remove(header::CONTENT_LENGTH);
    }
}

impl Upgrade {
    pub(super) fn insert_into(&self, headers: &mut HeaderMap) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, self.0.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn hop_by_hop_headers_are_removed() {
        let mut headers = map(&[
            ("connection", "close, x-mine"),
            ("connection", "Content-Length"),
            ("x-mine", "1"),
            ("transfer-encoding", "chunked"),
            ("content-length", "5"),
            ("te", "trailers"),
            ("x-other", "2"),
        ]);
        strip(&mut headers);
        assert_eq!(headers, map(&[("x-other", "2")]));
        let mut headers = map(&[("connection", "content-length"), ("content-length", "5")]);
        strip(&mut headers);
        assert_eq!(headers, map(&[("content-length", "5")]));
    }

    #[test]
    fn websocket_upgrades_pass_and_http2_upgrades_do_not() {
        let asked = map(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]);
        let mut headers = asked.clone();
        strip(&mut headers);
        requested_upgrade(&asked).expect("it is asked for").insert_into(&mut headers);
        assert_eq!(headers, map(&[("connection", "upgrade"), ("upgrade", "websocket")]));
        for hidden in ["h2c", "TLS/1.0", "websocket, HTTP/2.0"] {
            assert_eq!(requested_upgrade(&map(&[("connection", "upgrade"), ("upgrade", hidden)])), None, "{hidden}");
        }
        assert_eq!(requested_upgrade(&map(&[("upgrade", "websocket")])), None);
    }
}
