//! TLS on the listener. A connection that begins with the first byte of a handshake is TLS; every
//! other is plain HTTP.
//!
//! The authority signs certificates on demand, and only for names that this server serves: clients
//! trust the authority with those names.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ca::Authority;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::server::{Acceptor, ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::server::TlsStream;
use tracing::debug;

/// The first byte of a TLS connection: a handshake record. No HTTP method begins with it.
pub(crate) const HANDSHAKE: u8 = 0x16;

/// Longest time of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for a permit, in handshake timeouts.
const QUEUE_TIMEOUTS: u32 = 3;
/// Handshakes in progress at once; further connections wait and cost no more than their sockets.
/// Each may hold 64 KB that an unauthenticated client sent.
const MOST_HANDSHAKES: usize = 256;

const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

pub(crate) struct Tls {
    authority: Arc<Authority>,
    by_name: Arc<ServerConfig>,
    permits: Semaphore,
    handshake_timeout: Duration,
}

impl Tls {
    /// Serves `localhost`, `domains` (ports in them are ignored) and every name below them.
    pub(crate) fn new<'a>(authority: Arc<Authority>, domains: impl IntoIterator<Item = &'a str>) -> Self {
        let name = |domain: &'a str| domain.rsplit_once(':').map_or(domain, |(host, _)| host).to_ascii_lowercase();
        let domains = domains.into_iter().map(name).collect();
        let by_name = CertificateResolver::ByName { authority: Arc::clone(&authority), domains };
        let by_name = Arc::new(ca::server_config(Arc::new(by_name), &PROTOCOLS));
        Self { authority, by_name, permits: Semaphore::new(MOST_HANDSHAKES), handshake_timeout: HANDSHAKE_TIMEOUT }
    }

    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let _permit = tokio::time::timeout(self.handshake_timeout * QUEUE_TIMEOUTS, self.permits.acquire())
            .await?
            .map_err(io::Error::other)?;
        tokio::time::timeout(self.handshake_timeout, self.handshake(stream)).await?
    }

    async fn handshake(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let local = stream.local_addr()?.ip().to_canonical();
        let start = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        let config = match start.client_hello().server_name() {
            Some(_) => Arc::clone(&self.by_name),
            None => self.by_address(local)?,
        };
        start.into_stream(config).await
    }

    /// For clients that connect by address: they send no name, so the certificate has the address
    /// they reached.
    fn by_address(&self, local: IpAddr) -> io::Result<Arc<ServerConfig>> {
        let leaf = self.authority.issue_leaf(&local.to_string()).map_err(io::Error::other)?;
        let mut config = ServerConfig::clone(&self.by_name);
        config.cert_resolver = Arc::new(CertificateResolver::Address(leaf));
        Ok(Arc::new(config))
    }
}

/// Resolves the certificate for a client.
enum CertificateResolver {
    ByName { authority: Arc<Authority>, domains: Vec<String> },
    Address(Arc<CertifiedKey>),
}

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        match self {
            Self::ByName { authority, domains } => {
                let ours = |name: &&str| is_ours(name, domains);
                let name = hello.server_name().filter(ours)?;
                let leaf = authority.issue_leaf(name);
                leaf.inspect_err(|error| debug!(%error, "no certificate for a name of ours")).ok()
            }
            Self::Address(leaf) => Some(Arc::clone(leaf)),
        }
    }
}

impl fmt::Debug for CertificateResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CertificateResolver")
    }
}

fn is_ours(name: &str, domains: &[String]) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    domains.iter().map(String::as_str).chain(["localhost"]).any(|ours| {
        let below = name.strip_suffix(ours);
        !ours.is_empty() && below.is_some_and(|below| below.is_empty() || below.ends_with('.'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;

    /// Both ends of a connection.
    async fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let address = listener.local_addr().expect("an address");
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        (client.expect("a connection"), accepted.expect("a connection").0)
    }

    #[tokio::test]
    async fn stalled_handshakes_time_out_and_are_limited() {
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Arc::new(Authority::open(directory.path(), "Sandbar test", &[]).expect("an authority"));
        let mut tls = Tls::new(authority, ["localhost:1"]);
        tls.permits = Semaphore::new(2);
        tls.handshake_timeout = Duration::from_millis(200);
        let tls = Arc::new(tls);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let (mut clients, mut accepting) = (Vec::new(), JoinSet::new());
        for _ in 0..6 {
            let (mut client, server) = pair(&listener).await;
            client.write_all(&[HANDSHAKE, 3, 1, 2, 0, 1]).await.expect("half a record's head");
            clients.push(client);
            let tls = Arc::clone(&tls);
            accepting.spawn(async move { tls.accept(server).await.expect_err("half a handshake").kind() });
        }
        tokio::task::yield_now().await;
        assert!(tls.permits.available_permits() <= 2);
        while let Some(ended) = accepting.join_next().await {
            assert_eq!(ended.expect("no panic"), io::ErrorKind::TimedOut);
        }
        assert_eq!(tls.permits.available_permits(), 2, "every place is free again");
        for mut client in clients {
            // Closed: with an end of stream, or by a reset because of unread bytes.
            assert!(matches!(client.read(&mut [0; 64]).await, Ok(0) | Err(_)));
        }
    }

    #[test]
    fn certificates_are_signed_for_served_names_only() {
        let ours = ["sandbox.test".to_owned(), "dash.example".to_owned()];
        for name in [
            "localhost",
            "dash.example",
            "8000-iabc.localhost",
            "LOCALHOST",
            "a.b.localhost",
            "sandbox.test",
            "api.sandbox.test.",
        ] {
            assert!(is_ours(name, &ours), "{name}");
        }
        for name in
            ["", "test", "xsandbox.test", "sandbox.test.evil", "notlocalhost", "example.com", "localhost.example"]
        {
            assert!(!is_ours(name, &ours), "{name}");
        }
        assert!(!is_ours("anything", &[String::new()]));
    }
}
