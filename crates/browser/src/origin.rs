//! The origin that a page may use, and the upstream that serves it.

use std::fmt;
use std::str::FromStr;

use http::HeaderMap;
use url::{Host, Url};

/// Scheme, host and port of a sandbox's preview, for example `http://3000-ID.localhost:4980`.
///
/// The proxy serves an `http` origin and adds the upstream's headers. An `https` origin passes
/// through it in a tunnel: the page keeps its real address, and the browser verifies the
/// certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin(Url);

/// The text is not an origin of a preview.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0:?} is not an origin: expected http:// or https://, a host, perhaps a port, and nothing else")]
pub struct InvalidOrigin(String);

impl FromStr for Origin {
    type Err = InvalidOrigin;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidOrigin(text.to_owned());
        let url = Url::parse(text).map_err(|_| invalid())?;
        let bare = url.path() == "/"
            && url.query().is_none()
            && url.fragment().is_none()
            && url.username().is_empty()
            && url.password().is_none();
        let speaks_http = matches!(url.scheme(), "http" | "https");
        if speaks_http && bare && url.host().is_some() { Ok(Self(url)) } else { Err(invalid()) }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.origin().ascii_serialization())
    }
}

impl Origin {
    pub(crate) fn is_https(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// The URL of `path`, if it stays within the origin: `//other/x`, `/\other` and `file:///x` do
    /// not.
    pub(crate) fn page(&self, path: &str) -> Option<Url> {
        let url = match Url::parse(path) {
            Ok(whole) => whole,
            Err(_) if path.starts_with('/') => self.0.join(path).ok()?,
            Err(_) => self.0.join(&format!("/{path}")).ok()?,
        };
        // CDP opens any URL it is given, whatever the scheme.
        (matches!(url.scheme(), "http" | "https") && self.covers(&url)).then_some(url)
    }

    /// Whether `url` belongs to this origin, over HTTP or as a WebSocket.
    pub(crate) fn covers(&self, url: &Url) -> bool {
        let scheme = match url.scheme() {
            "ws" => "http",
            "wss" => "https",
            other => other,
        };
        scheme == self.0.scheme()
            && url.host() == self.0.host()
            && url.port_or_known_default() == self.0.port_or_known_default()
    }

    /// Whether `authority` (`host:port`) is the one of this origin.
    pub(crate) fn is_authority(&self, authority: &http::uri::Authority) -> bool {
        let Ok(host) = Host::parse(authority.host()) else { return false };
        let wanted = self.0.host().map(|host| host.to_owned());
        wanted == Some(host) && authority.port_u16() == self.0.port_or_known_default()
    }

    /// Value of the `Host` header: without the scheme's default port.
    pub(crate) fn host_header(&self) -> String {
        let host = self.0.host_str().unwrap_or_default();
        self.0.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
    }
}

/// Where the proxy forwards the origin's traffic.
#[derive(Clone)]
pub struct Upstream {
    /// `host:port`, dialled by this process on the host.
    pub address: String,
    /// Added to every request of the page, for example to name the sandbox or to pass its traffic
    /// token. A page can neither set nor see them. Through a tunnel (`https`) the browser itself
    /// sends them.
    pub headers: HeaderMap,
}

impl Upstream {
    pub fn new(address: impl Into<String>) -> Self {
        Self { address: address.into(), headers: HeaderMap::new() }
    }

    /// The origin's own host and port. Names under `localhost` mean this machine, whatever the
    /// resolver says.
    pub fn direct(origin: &Origin) -> Self {
        let host = origin.0.host_str().unwrap_or_default();
        let port = origin.0.port_or_known_default().unwrap_or_default();
        let is_local = host == "localhost" || host.ends_with(".localhost");
        Self::new(format!("{}:{port}", if is_local { "127.0.0.1" } else { host }))
    }
}

/// Shows only the names of headers, because values may be tokens.
impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.headers.keys().collect();
        f.debug_struct("Upstream").field("address", &self.address).field("headers", &names).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(text: &str) -> Origin {
        text.parse().expect("the test's origin is valid")
    }

    #[test]
    fn only_bare_http_origins_are_accepted() {
        for bad in ["file:///etc", "http://a/x", "http://a/?q", "http://u@a", "ftp://a", "a:80", "http://", ""] {
            assert!(bad.parse::<Origin>().is_err(), "{bad}");
        }
        assert_eq!(origin("http://3000-i.localhost:80").to_string(), "http://3000-i.localhost");
        assert_eq!(origin("http://3000-i.localhost:4980").host_header(), "3000-i.localhost:4980");
    }

    #[test]
    fn a_path_cannot_leave_the_origin() {
        let origin = origin("http://3000-i.localhost");
        let page = |path| origin.page(path).map(String::from);
        assert_eq!(page("/a?b=c").as_deref(), Some("http://3000-i.localhost/a?b=c"));
        assert_eq!(page("a").as_deref(), Some("http://3000-i.localhost/a"));
        assert_eq!(page("").as_deref(), Some("http://3000-i.localhost/"));
        assert_eq!(page("http://3000-i.localhost/x").as_deref(), Some("http://3000-i.localhost/x"));
        for foreign in [
            "//evil.test/",
            "/\\evil.test/",
            "///evil.test",
            "/\t/evil.test",
            "http://evil.test/",
            "file:///etc/passwd",
            "javascript:alert(1)",
            "ws://3000-i.localhost/",
            "view-source:http://3000-i.localhost/",
        ] {
            assert_eq!(page(foreign), None, "{foreign:?}");
        }
    }

    #[test]
    fn scheme_host_and_port_must_all_match() {
        let origin = origin("http://3000-i.localhost");
        for (url, inside) in [
            ("http://3000-i.localhost/x", true),
            ("http://3000-I.LOCALHOST:80/x", true),
            ("ws://3000-i.localhost/live", true),
            ("wss://3000-i.localhost/live", false),
            ("https://3000-i.localhost/", false),
            ("http://3000-i.localhost:81/", false),
            ("http://3001-i.localhost/", false),
            ("http://localhost/", false),
            ("file:///etc/passwd", false),
        ] {
            assert_eq!(origin.covers(&Url::parse(url).expect("valid")), inside, "{url}");
        }
        assert!(origin.is_authority(&"3000-i.localhost:80".parse().expect("valid")));
        for foreign in ["3000-i.localhost", "3000-i.localhost:443", "127.0.0.1:80", "x.3000-i.localhost:80"] {
            assert!(!origin.is_authority(&foreign.parse().expect("valid")), "{foreign}");
        }
    }

    #[test]
    fn upstream_defaults_to_the_origin() {
        for (text, address) in [
            ("http://3000-i.localhost:4980", "127.0.0.1:4980"),
            ("http://localhost", "127.0.0.1:80"),
            ("https://3000-i.e2b.app", "3000-i.e2b.app:443"),
            ("http://[::1]:8080", "[::1]:8080"),
        ] {
            assert_eq!(Upstream::direct(&origin(text)).address, address);
        }
    }

    #[test]
    fn debug_hides_header_values() {
        let mut upstream = Upstream::new("127.0.0.1:1");
        upstream.headers.insert("e2b-traffic-access-token", "secret-value".parse().expect("valid"));
        let shown = format!("{upstream:?}");
        assert!(shown.contains("e2b-traffic-access-token") && !shown.contains("secret-value"), "{shown}");
    }
}
