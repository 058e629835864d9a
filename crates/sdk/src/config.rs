//! Endpoints of the services. Resolved once: an explicit option overrides its environment variable.

use std::time::Duration;

use url::Url;

use protocol::SandboxId;
use secret::Secret;

/// Default deadline of a response; the official SDKs use the same.
pub(crate) const REQUEST_DEADLINE: Duration = Duration::from_secs(60);
/// Silence after which a server sends a keepalive on a stream. After two silent intervals the
/// client checks the sandbox.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(20);

const DOMAIN: &str = "e2b.app";
/// Domains of E2B's clouds: their sandboxes share one host and are distinguished by headers.
const HOSTED: [&str; 7] =
    ["e2b.app", "e2b.dev", "e2b.pro", "e2b-staging.dev", "e2b-tango.dev", "e2b-juliett.dev", "foxtrot-2.e2b.dev"];

/// An invalid client configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    #[error("E2B API key not configured")]
    NoApiKey,
    #[error("the API key has characters that no header may carry")]
    UnusableKey,
    #[error("{what} {value:?} is not an http or https URL: {cause}")]
    BadUrl { what: &'static str, value: String, cause: String },
    #[error("{value:?} is not a domain")]
    BadDomain { value: String },
    #[error("the keepalive interval is {0:?}, but whole seconds from 1 on are what a server takes")]
    BadKeepalive(Duration),
    #[error("cannot set up the HTTP client: {0}")]
    Http(String),
}

/// The URLs of the services.
#[derive(Debug, Clone)]
pub(crate) struct Endpoints {
    pub(crate) api_key: Secret,
    pub(crate) api_url: Url,
    pub(crate) sandbox_url: Option<Url>,
    volume_url: Option<Url>,
    pub(crate) domain: String,
}

impl Endpoints {
    pub(crate) fn new(
        api_key: Secret,
        api_url: Option<&str>,
        sandbox_url: Option<&str>,
        volume_url: Option<&str>,
        domain: Option<&str>,
    ) -> Result<Self, ConfigError> {
        let domain = domain.unwrap_or(DOMAIN).to_owned();
        if domain.is_empty() || domain.contains(['/', '@', '?', '#', ' ']) {
            return Err(ConfigError::BadDomain { value: domain });
        }
        if api_key.expose().is_empty() {
            return Err(ConfigError::NoApiKey);
        }
        http::HeaderValue::from_str(api_key.expose()).map_err(|_| ConfigError::UnusableKey)?;
        let default = format!("https://api.{domain}");
        Ok(Self {
            api_url: base_url("the API URL", api_url.unwrap_or(&default))?,
            sandbox_url: sandbox_url.map(|url| base_url("the sandbox URL", url)).transpose()?,
            volume_url: volume_url.map(|url| base_url("the volume API URL", url)).transpose()?,
            api_key,
            domain,
        })
    }

    /// The URL of a sandbox's daemon; `domain` is from the response of create or connect.
    pub(crate) fn envd_url(&self, id: &SandboxId, domain: Option<&str>) -> Result<Url, ConfigError> {
        if let Some(url) = &self.sandbox_url {
            return Ok(url.clone());
        }
        let domain = domain.unwrap_or(&self.domain);
        if HOSTED.contains(&domain) {
            return base_url("the sandbox URL", &format!("https://sandbox.{domain}"));
        }
        self.direct_url(id, Some(domain), protocol::guest::ENVD_PORT)
    }

    /// The URL of a volume's content API; `domain` is from the control plane's response.
    pub(crate) fn volume_url(&self, domain: Option<&str>) -> Result<Url, ConfigError> {
        match &self.volume_url {
            Some(url) => Ok(url.clone()),
            None => base_url("the volume API URL", &format!("https://api.{}", domain.unwrap_or(&self.domain))),
        }
    }

    /// The base of a sandbox's signed links: never the shared host of a cloud, which requires
    /// headers.
    pub(crate) fn link_url(&self, id: &SandboxId, domain: Option<&str>) -> Result<Url, ConfigError> {
        match &self.sandbox_url {
            Some(url) => Ok(url.clone()),
            None => self.direct_url(id, domain, protocol::guest::ENVD_PORT),
        }
    }

    /// The public host of a port.
    pub(crate) fn host(&self, id: &SandboxId, domain: Option<&str>, port: u16) -> String {
        format!("{port}-{id}.{}", domain.unwrap_or(&self.domain))
    }

    /// The public URL of a port. A service without TLS serves its ports without TLS too, except on
    /// port 443.
    pub(crate) fn port_url(&self, id: &SandboxId, domain: Option<&str>, port: u16) -> String {
        let host = self.host(id, domain, port);
        let plain = match host.rsplit_once(':') {
            Some((_, port)) => port != "443",
            None => self.is_plain(domain.unwrap_or(&self.domain)),
        };
        let scheme = if plain && self.api_url.scheme() == "http" { "http" } else { "https" };
        format!("{scheme}://{host}")
    }

    fn direct_url(&self, id: &SandboxId, domain: Option<&str>, port: u16) -> Result<Url, ConfigError> {
        let scheme = if self.is_plain(domain.unwrap_or(&self.domain)) { "http" } else { "https" };
        base_url("the sandbox URL", &format!("{scheme}://{}", self.host(id, domain, port)))
    }

    /// No certificate exists for `localhost`: where the local control plane uses plain HTTP,
    /// sandboxes do too.
    fn is_plain(&self, domain: &str) -> bool {
        let name = domain.split(':').next().unwrap_or(domain);
        self.api_url.scheme() == "http" && (name == "localhost" || name.ends_with(".localhost"))
    }
}

/// Parses a URL that paths are appended to.
fn base_url(what: &'static str, value: &str) -> Result<Url, ConfigError> {
    let bad = |cause: &str| ConfigError::BadUrl { what, value: value.to_owned(), cause: cause.to_owned() };
    let url = Url::parse(value).map_err(|error| bad(&error.to_string()))?;
    match url.scheme() {
        "http" | "https" if url.has_host() => Ok(url),
        _ => Err(bad("the scheme must be http or https")),
    }
}

/// Appends `path` to the path of `base`. The caller encodes `path`.
pub(crate) fn join(base: &Url, path: &str) -> Url {
    let mut url = base.clone();
    let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
    let prefix = base.path().trim_end_matches('/');
    url.set_path(&format!("{prefix}{path}"));
    url.set_query(query);
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(sandbox_url: Option<&str>, domain: Option<&str>) -> Endpoints {
        Endpoints::new("e2b_00".into(), None, sandbox_url, None, domain).expect("valid options")
    }

    #[test]
    fn endpoints_resolve_like_the_official_clients() {
        let id: SandboxId = "iabc".parse().expect("an id");
        for (sandbox_url, configured, answered, expected) in [
            (Some("http://localhost:4980"), None, Some("localhost:4980"), "http://localhost:4980/"),
            (None, None, None, "https://sandbox.e2b.app/"),
            (None, None, Some("e2b.dev"), "https://sandbox.e2b.dev/"),
            (None, Some("box.example"), None, "https://49983-iabc.box.example/"),
            (None, Some("box.example"), Some("other.example:8443"), "https://49983-iabc.other.example:8443/"),
        ] {
            let url = endpoints(sandbox_url, configured).envd_url(&id, answered).expect("a URL");
            assert_eq!(url.as_str(), expected);
        }
        let here = Endpoints::new("e2b_00".into(), Some("http://127.0.0.1:4980"), None, None, Some("localhost:4980"));
        let here = here.expect("valid options");
        assert_eq!(here.envd_url(&id, None).expect("a URL").as_str(), "http://49983-iabc.localhost:4980/");
        assert_eq!(here.envd_url(&id, Some("box.example")).expect("a URL").scheme(), "https");
        let link = endpoints(None, None).link_url(&id, None).expect("a URL");
        assert_eq!(link.as_str(), "https://49983-iabc.e2b.app/");
    }

    #[test]
    fn ports_use_plain_http_where_the_service_does() {
        let id: SandboxId = "iabc".parse().expect("an id");
        for (api_url, domain, expected) in [
            ("https://api.e2b.app", "e2b.app", "https://3000-iabc.e2b.app"),
            ("https://api.box.example:8443", "box.example:8443", "https://3000-iabc.box.example:8443"),
            ("http://127.0.0.1:4980", "localhost:4980", "http://3000-iabc.localhost:4980"),
            ("http://127.0.0.1:80", "localhost", "http://3000-iabc.localhost"),
            ("http://127.0.0.1:4980", "box.example:4980", "http://3000-iabc.box.example:4980"),
            ("http://127.0.0.1:443", "box.example", "https://3000-iabc.box.example"),
            ("http://127.0.0.1:4980", "box.example:443", "https://3000-iabc.box.example:443"),
        ] {
            let endpoints = Endpoints::new("e2b_00".into(), Some(api_url), None, None, None).expect("valid options");
            assert_eq!(endpoints.port_url(&id, Some(domain), 3000), expected, "{api_url}");
        }
    }

    #[test]
    fn a_base_url_keeps_its_path() {
        let base = Url::parse("http://proxy.example/e2b/").expect("a URL");
        assert_eq!(join(&base, "/sandboxes?limit=1").as_str(), "http://proxy.example/e2b/sandboxes?limit=1");
        assert_eq!(join(&base, "/templates/a%2Fb").as_str(), "http://proxy.example/e2b/templates/a%2Fb");
    }

    #[test]
    fn invalid_settings_are_refused() {
        let build = |key: &str, url: &str, domain: &str| {
            Endpoints::new(key.into(), Some(url), None, None, Some(domain)).map_err(|error| error.to_string())
        };
        assert_eq!(build("", "http://a", "b").unwrap_err(), "E2B API key not configured");
        assert!(build("k", "localhost:80", "b").unwrap_err().contains("the API URL \"localhost:80\""));
        assert!(build("k", "file:///x", "b").is_err());
        assert!(build("k", "http://a", "evil/@x").is_err());
        assert!(build("k\n", "http://a", "b").is_err());
    }
}
