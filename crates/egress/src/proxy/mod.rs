//! Tunnels through a proxy of the sandbox's owner: SOCKS5 or HTTP CONNECT, with credentials,
//! optionally over TLS. A failing proxy is an error; no traffic bypasses it.

mod connect;
mod socks;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::stream::Outside;
use crate::trust::{Trust, add_pem, client_config};

/// From the connection to the proxy to the established tunnel.
const TUNNEL_TIMEOUT: Duration = Duration::from_secs(30);
/// SOCKS5's length limit.
const MAX_CREDENTIAL_BYTES: usize = 255;
const MAX_NAME_BYTES: usize = 253;
const MAX_CERTIFICATE_BYTES: usize = 8192;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Socks5,
    Connect,
}

/// A validated proxy configuration. Only the proxy receives the credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    kind: Kind,
    host: String,
    port: u16,
    credentials: Option<Credentials>,
    tls: Option<ProxyTls>,
}

#[derive(Clone, PartialEq, Eq)]
struct Credentials {
    username: String,
    password: String,
}

/// How TLS with a proxy is verified.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProxyTls {
    /// Replaces the proxy's own name.
    pub server_name: Option<String>,
    /// PEM certificates that replace the host's roots.
    pub certificates: Option<String>,
}

/// The target of a tunnel. The proxy resolves a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Destination {
    Name(String),
    Address(IpAddr),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidProxy {
    #[error("address: '{0}' is not host:port, nor that after socks5://, http:// or https://")]
    Address(String),
    #[error("{0} is longer than {MAX_CREDENTIAL_BYTES} bytes or has control characters")]
    Credential(&'static str),
    #[error("a password needs a username")]
    PasswordAlone,
    #[error("tls.serverName: '{0}' is not a name or an address")]
    ServerName(String),
    #[error("tls.caCert needs 1 to {MAX_CERTIFICATE_BYTES} bytes of PEM certificates")]
    Certificates,
}

/// A tunnel that could not be established.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyError {
    #[error("it cannot be verified: {0}")]
    Tls(String),
    #[error("it does not speak {0}")]
    NotAProxy(&'static str),
    #[error("it does not take the credentials")]
    Credentials,
    #[error("it refuses the connection: {0}")]
    Refused(String),
    #[error("it did not answer in time")]
    Late,
    #[error("it ended the connection")]
    Io(#[from] std::io::Error),
}

impl Proxy {
    /// # Errors
    /// The variant of [`InvalidProxy`] for the invalid part; the message repeats no credential.
    pub fn new(
        address: &str,
        username: Option<&str>,
        password: Option<&str>,
        tls: Option<ProxyTls>,
    ) -> Result<Self, InvalidProxy> {
        let wrong = || InvalidProxy::Address(strip_credentials(address));
        let (scheme, place) = address.split_once("://").unwrap_or(("socks5", address));
        let (kind, implied) = match scheme.to_ascii_lowercase().as_str() {
            "socks5" | "socks5h" => (Kind::Socks5, None),
            "http" => (Kind::Connect, None),
            "https" => (Kind::Connect, Some(ProxyTls::default())),
            _ => return Err(wrong()),
        };
        let (host, port) = place.trim_end_matches('/').rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if !is_host(host) {
            return Err(wrong());
        }
        let credential = |what, text: &str| {
            let fits = text.len() <= MAX_CREDENTIAL_BYTES && !text.chars().any(char::is_control);
            fits.then(|| text.to_owned()).ok_or(InvalidProxy::Credential(what))
        };
        let credentials = match (username.filter(|name| !name.is_empty()), password.filter(|word| !word.is_empty())) {
            (None, Some(_)) => return Err(InvalidProxy::PasswordAlone),
            (None, None) => None,
            (Some(username), password) => Some(Credentials {
                username: credential("username", username)?,
                password: credential("password", password.unwrap_or(""))?,
            }),
        };
        let tls = tls.or(implied);
        if let Some(ProxyTls { server_name, certificates }) = &tls {
            if let Some(name) = server_name.as_ref().filter(|name| name.len() > MAX_NAME_BYTES || !is_host(name)) {
                return Err(InvalidProxy::ServerName(name.clone()));
            }
            if let Some(text) = certificates {
                let fits = text.len() <= MAX_CERTIFICATE_BYTES;
                let readable = fits && add_pem(&mut RootCertStore::empty(), text.as_bytes()).is_some();
                readable.then_some(()).ok_or(InvalidProxy::Certificates)?;
            }
        }
        Ok(Self { kind, host: host.to_owned(), port, credentials, tls })
    }

    /// A host name or IP address.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Establishes a tunnel over `stream`, a fresh connection to the proxy.
    ///
    /// # Errors
    /// [`ProxyError::Late`] after 30 seconds, or the variant for the proxy's refusal.
    pub(crate) async fn tunnel(
        &self,
        stream: TcpStream,
        trust: &Arc<Trust>,
        to: &Destination,
        port: u16,
    ) -> Result<Outside, ProxyError> {
        timeout(TUNNEL_TIMEOUT, self.open_tunnel(stream, trust, to, port)).await.map_err(|_| ProxyError::Late)?
    }

    async fn open_tunnel(
        &self,
        mut stream: TcpStream,
        trust: &Arc<Trust>,
        to: &Destination,
        port: u16,
    ) -> Result<Outside, ProxyError> {
        let Some(tls) = &self.tls else {
            self.request_tunnel(&mut stream, to, port).await?;
            return Ok(Outside::Tcp(stream));
        };
        let wrong = |what: &dyn fmt::Display| ProxyError::Tls(what.to_string());
        let name = tls.server_name.as_ref().unwrap_or(&self.host).clone();
        let server = ServerName::try_from(name).map_err(|error| wrong(&error))?;
        let config = match &tls.certificates {
            Some(text) => {
                let mut roots = RootCertStore::empty();
                add_pem(&mut roots, text.as_bytes()).ok_or_else(|| wrong(&InvalidProxy::Certificates))?;
                client_config(roots, &[])
            }
            None => {
                let trust = Arc::clone(trust);
                let loaded =
                    tokio::task::spawn_blocking(move || trust.client()).await.map_err(|error| wrong(&error))?;
                let mut config = (*loaded.map_err(|error| wrong(&error))?).clone();
                config.alpn_protocols.clear();
                config
            }
        };
        let connected = TlsConnector::from(Arc::new(config)).connect(server, stream).await;
        let mut stream = connected.map_err(|error| wrong(&error))?;
        self.request_tunnel(&mut stream, to, port).await?;
        Ok(Outside::Tls(Box::new(stream)))
    }

    async fn request_tunnel<S>(&self, stream: &mut S, to: &Destination, port: u16) -> Result<(), ProxyError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        match self.kind {
            Kind::Socks5 => socks::request_tunnel(stream, self.credentials.as_ref(), to, port).await,
            Kind::Connect => connect::request_tunnel(stream, self.credentials.as_ref(), to, port).await,
        }
    }
}

/// Strips credentials from the address, because errors show it.
fn strip_credentials(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").map_or(("", address), |(scheme, rest)| (scheme, rest));
    let place = rest.rsplit('@').next().unwrap_or(rest);
    if scheme.is_empty() { place.to_owned() } else { format!("{scheme}://{place}") }
}

fn is_host(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    IpAddr::from_str(text).is_ok() || text.len() <= MAX_NAME_BYTES && text.split('.').all(label)
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("kind", &self.kind).field("host", &self.host).field("port", &self.port).finish()
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

#[cfg(test)]
mod tests;
