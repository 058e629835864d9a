//! The host of a request.

use http::uri::Authority;
use http::{Request, header};

/// The request names two hosts, or one that does not parse.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AmbiguousHost;

/// The host of a request in lower case, without port and trailing dot; [`None`] if it names none.
pub(super) fn from_request<B>(request: &Request<B>) -> Result<Option<String>, AmbiguousHost> {
    let mut headers = request.headers().get_all(header::HOST).iter();
    let (first, second) = (headers.next(), headers.next());
    if second.is_some() {
        return Err(AmbiguousHost);
    }
    let read = |authority: &Authority| match authority.as_str().contains('@') {
        true => Err(AmbiguousHost),
        false => Ok(authority.host().trim_end_matches('.').to_ascii_lowercase()),
    };
    let header = match first.map(|value| value.as_bytes()) {
        None | Some(b"") => None,
        Some(text) => Some(read(&Authority::try_from(text).map_err(|_| AmbiguousHost)?)?),
    };
    let target = request.uri().authority().map(read).transpose()?;
    match (header, target) {
        (Some(header), Some(target)) if header != target => Err(AmbiguousHost),
        (Some(host), _) | (None, Some(host)) => Ok(Some(host)),
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ambiguous_hosts_are_refused() {
        for (uri, hosts, expected) in [
            ("/x", &["Api.Example.com:8443"][..], Ok(Some("api.example.com"))),
            ("/x", &["api.example.com."], Ok(Some("api.example.com"))),
            ("http://api.example.com/x", &["api.example.com:80"], Ok(Some("api.example.com"))),
            ("http://evil.example/x", &["api.example.com"], Err(AmbiguousHost)),
            ("/x", &["a.example", "b.example"], Err(AmbiguousHost)),
            ("/x", &["a.example", "a.example"], Err(AmbiguousHost)),
            ("/x", &["user@evil.example"], Err(AmbiguousHost)),
            ("/x", &["a b"], Err(AmbiguousHost)),
            ("/x", &[""], Ok(None)),
            ("/x", &[], Ok(None)),
        ] {
            let mut request = Request::get(uri);
            for host in hosts {
                request = request.header(header::HOST, *host);
            }
            let found = from_request(&request.body(()).expect("a request"));
            assert_eq!(found.as_ref().map(Option::as_deref), expected.as_ref().copied(), "{uri} {hosts:?}");
        }
    }
}
