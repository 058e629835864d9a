//! For which host a request is.

use http::uri::Authority;
use http::{Request, header};

/// It says two hosts, or one that cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unclear;

/// The host of a request in lower case, without port and final dot; `None` if it names none.
pub(crate) fn of<B>(request: &Request<B>) -> Result<Option<String>, Unclear> {
    let mut headers = request.headers().get_all(header::HOST).iter();
    let (first, second) = (headers.next(), headers.next());
    if second.is_some() {
        return Err(Unclear);
    }
    let read = |authority: &Authority| match authority.as_str().contains('@') {
        true => Err(Unclear),
        false => Ok(authority.host().trim_end_matches('.').to_ascii_lowercase()),
    };
    let header = match first.map(|value| value.as_bytes()) {
        None | Some(b"") => None,
        Some(text) => Some(read(&Authority::try_from(text).map_err(|_| Unclear)?)?),
    };
    let target = request.uri().authority().map(read).transpose()?;
    match (header, target) {
        (Some(header), Some(target)) if header != target => Err(Unclear),
        (Some(host), _) | (None, Some(host)) => Ok(Some(host)),
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_is_read_and_two_are_refused() {
        for (uri, hosts, expected) in [
            ("/x", &["Api.Example.com:8443"][..], Ok(Some("api.example.com"))),
            ("/x", &["api.example.com."], Ok(Some("api.example.com"))),
            ("http://api.example.com/x", &["api.example.com:80"], Ok(Some("api.example.com"))),
            ("http://evil.example/x", &["api.example.com"], Err(Unclear)),
            ("/x", &["a.example", "b.example"], Err(Unclear)),
            ("/x", &["a.example", "a.example"], Err(Unclear)),
            ("/x", &["user@evil.example"], Err(Unclear)),
            ("/x", &["a b"], Err(Unclear)),
            ("/x", &[""], Ok(None)),
            ("/x", &[], Ok(None)),
        ] {
            let mut request = Request::get(uri);
            for host in hosts {
                request = request.header(header::HOST, *host);
            }
            let found = of(&request.body(()).expect("a request"));
            assert_eq!(found.as_ref().map(Option::as_deref), expected.as_ref().copied(), "{uri} {hosts:?}");
        }
    }
}
