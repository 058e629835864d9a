//! Access control of the HTTP server: a bearer token authenticates clients, and the `Host` and
//! `Origin` headers are checked so that a web page cannot use a browser to reach the server.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::{HeaderMap, StatusCode, Uri};
use subtle::ConstantTimeEq;
use url::{Host, Url};
use uuid::Uuid;

/// Bearer token that clients send as `Authorization: Bearer …`.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// Generates 244 random bits, written as hexadecimal digits.
    pub fn random() -> Self {
        Self(format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple()))
    }

    /// Accepts a token chosen by the caller: at least 16 characters that a header can carry.
    pub fn new(text: &str) -> Option<Self> {
        let fits = text.len() >= 16 && text.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then(|| Self(text.to_owned()))
    }

    /// The token in plain text, for the person who started the server.
    pub fn expose(&self) -> &str {
        &self.0
    }

    fn matches(&self, given: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(given).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

/// Decides which requests the server accepts.
#[derive(Debug, Clone)]
pub struct Access {
    token: Token,
    /// Host names without ports, in lower case.
    hosts: Vec<String>,
}

impl Access {
    /// Accepts requests to `address` and to the loopback names of this machine.
    pub fn new(token: Token, address: SocketAddr) -> Self {
        let mut access = Self { token, hosts: Vec::new() };
        for loopback in ["localhost", "127.0.0.1", "[::1]"] {
            access = access.with_host(loopback);
        }
        if address.ip().is_unspecified() {
            return access;
        }
        access.with_host(&match address.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        })
    }

    /// Accepts requests to `name` as well, on any port.
    #[must_use]
    pub fn with_host(mut self, name: &str) -> Self {
        self.hosts.push(name.to_ascii_lowercase());
        self
    }

    /// Accepts a request, or returns the status that refuses it.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), StatusCode> {
        if !self.allows_host(uri, headers) || !self.allows_origin(headers) {
            return Err(StatusCode::FORBIDDEN);
        }
        let given = headers.get(AUTHORIZATION).map_or(&[][..], |value| value.as_bytes());
        match given.split_at_checked("Bearer ".len()) {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"Bearer ") && self.token.matches(token) => Ok(()),
            _ => Err(StatusCode::UNAUTHORIZED),
        }
    }

    /// Defends against DNS rebinding: a foreign name that resolves to this server is refused.
    fn allows_host(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(HOST).iter();
        let (first, more) = (values.next().and_then(|value| value.to_str().ok()), values.next());
        let host = first.or(uri.authority().map(|authority| authority.as_str()));
        more.is_none()
            && host.and_then(|host| Url::parse(&format!("http://{host}/")).ok()).is_some_and(|url| self.allows(&url))
    }

    fn allows_origin(&self, headers: &HeaderMap) -> bool {
        headers.get_all(ORIGIN).iter().all(|value| {
            let url = value.to_str().ok().and_then(|origin| Url::parse(origin).ok());
            url.is_some_and(|url| matches!(url.scheme(), "http" | "https") && self.allows(&url))
        })
    }

    fn allows(&self, url: &Url) -> bool {
        let bare = url.username().is_empty() && url.password().is_none();
        let host = url.host().map(|host: Host<&str>| host.to_string());
        bare && host.is_some_and(|host| self.hosts.contains(&host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(access: &Access, headers: &[(&str, &str)]) -> Result<(), u16> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: http::HeaderName = name.parse().expect("a name");
            map.append(name, value.parse().expect("a value"));
        }
        access.check(&Uri::from_static("/mcp"), &map).map_err(|status| status.as_u16())
    }

    #[test]
    fn foreign_origin_gets_403_and_wrong_token_401() {
        let token = Token::new("0123456789abcdef").expect("a token");
        let access = Access::new(token, "10.1.2.3:80".parse().expect("an address")).with_host("Box.example");
        let right = ("authorization", "Bearer 0123456789abcdef");
        for host in ["localhost:1", "127.0.0.1", "[::1]:80", "10.1.2.3:80", "BOX.example", "box.EXAMPLE:9"] {
            assert_eq!(check(&access, &[("host", host), right]), Ok(()), "{host}");
        }
        for host in ["evil.test", "localhost.evil.test", "localhost@evil.test", "", "a b"] {
            assert_eq!(check(&access, &[("host", host), right]), Err(403), "{host}");
        }
        assert_eq!(check(&access, &[right]), Err(403), "no host at all");
        assert_eq!(check(&access, &[("host", "localhost"), ("host", "evil.test"), right]), Err(403));
        for origin in ["http://localhost:6274", "https://box.example"] {
            assert_eq!(check(&access, &[("host", "localhost"), ("origin", origin), right]), Ok(()), "{origin}");
        }
        for origin in
            ["http://evil.test", "null", "file:///x", "http://localhost@evil.test", "http://localhost.evil.test"]
        {
            assert_eq!(check(&access, &[("host", "localhost"), ("origin", origin), right]), Err(403), "{origin}");
        }
        for wrong in [
            "",
            "Bearer ",
            "Bearer 0123456789abcdeg",
            "Bearer 0123456789abcdef0",
            "Basic 0123456789abcdef",
            "0123456789abcdef",
        ] {
            assert_eq!(check(&access, &[("host", "localhost"), ("authorization", wrong)]), Err(401), "{wrong}");
        }
        assert_eq!(check(&access, &[("host", "localhost")]), Err(401));
        assert_eq!(check(&access, &[("host", "localhost"), ("authorization", "bearer 0123456789abcdef")]), Ok(()));
    }

    #[test]
    fn debug_hides_tokens_and_short_tokens_are_refused() {
        let token = Token::random();
        assert_eq!(token.expose().len(), 64);
        assert!(!format!("{token:?}").contains(token.expose()));
        assert!(Token::new("short").is_none() && Token::new("has a space in it!").is_none());
    }
}
