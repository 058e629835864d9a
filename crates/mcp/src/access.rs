//! Who may talk to the server over HTTP: whoever has the token, and no page of the web on behalf of somebody's browser.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::{HeaderMap, StatusCode, Uri};
use subtle::ConstantTimeEq;
use url::{Host, Url};
use uuid::Uuid;

/// What a client has to send as `Authorization: Bearer …`.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// 244 random bits, in hexadecimal digits.
    pub fn random() -> Self {
        Self(format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple()))
    }

    /// One of the caller's choice: at least 16 characters that a header can carry.
    pub fn new(text: &str) -> Option<Self> {
        let fits = text.len() >= 16 && text.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then(|| Self(text.to_owned()))
    }

    /// For showing it to the person who started the server.
    pub fn expose(&self) -> &str {
        &self.0
    }

    fn is(&self, given: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(given).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

/// Whom the server answers.
#[derive(Debug, Clone)]
pub struct Access {
    token: Token,
    /// Without ports.
    hosts: Vec<String>,
}

impl Access {
    /// For a server at `address`: it answers to that address and to the names of this machine's loopback.
    pub fn new(token: Token, address: SocketAddr) -> Self {
        let mut access = Self { token, hosts: Vec::new() };
        for loopback in ["localhost", "127.0.0.1", "[::1]"] {
            access = access.host(loopback);
        }
        if address.ip().is_unspecified() {
            return access;
        }
        access.host(&match address.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        })
    }

    /// Answers to this name as well; a port is not looked at.
    #[must_use]
    pub fn host(mut self, name: &str) -> Self {
        self.hosts.push(name.to_ascii_lowercase());
        self
    }

    /// Whether a request may pass, else the status that refuses it.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), StatusCode> {
        if !self.knows_host(uri, headers) || !self.knows_origin(headers) {
            return Err(StatusCode::FORBIDDEN);
        }
        let given = headers.get(AUTHORIZATION).map_or(&[][..], |value| value.as_bytes());
        match given.split_at_checked("Bearer ".len()) {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"Bearer ") && self.token.is(token) => Ok(()),
            _ => Err(StatusCode::UNAUTHORIZED),
        }
    }

    /// A name that leads here by somebody else's doing (DNS rebinding) is not one of ours.
    fn knows_host(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(HOST).iter();
        let (first, more) = (values.next().and_then(|value| value.to_str().ok()), values.next());
        let host = first.or(uri.authority().map(|authority| authority.as_str()));
        more.is_none()
            && host.and_then(|host| Url::parse(&format!("http://{host}/")).ok()).is_some_and(|url| self.knows(&url))
    }

    fn knows_origin(&self, headers: &HeaderMap) -> bool {
        headers.get_all(ORIGIN).iter().all(|value| {
            let url = value.to_str().ok().and_then(|origin| Url::parse(origin).ok());
            url.is_some_and(|url| matches!(url.scheme(), "http" | "https") && self.knows(&url))
        })
    }

    fn knows(&self, url: &Url) -> bool {
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
    fn a_page_of_the_web_and_a_wrong_token_are_told_apart() {
        let token = Token::new("0123456789abcdef").expect("a token");
        let access = Access::new(token, "10.1.2.3:80".parse().expect("an address")).host("Box.example");
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
    fn tokens_are_not_shown_and_not_trivial() {
        let token = Token::random();
        assert_eq!(token.expose().len(), 64);
        assert!(!format!("{token:?}").contains(token.expose()));
        assert!(Token::new("short").is_none() && Token::new("has a space in it!").is_none());
    }
}
