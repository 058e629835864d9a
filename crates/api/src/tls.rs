//! TLS on the listener. A connection that begins with a handshake's first byte is one; every other is plain HTTP.
//!
//! Certificates are signed when somebody asks for a name of ours, and for no others: whoever trusts our authority trusts it
//! with the names it was made for.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use authority::Authority;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::server::{Acceptor, ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::server::TlsStream;
use tracing::debug;

/// The first byte of a TLS connection: a record of the handshake. No HTTP method begins with it.
pub(crate) const HANDSHAKE: u8 = 0x16;

/// For a handshake.
const PATIENCE: Duration = Duration::from_secs(10);
/// For a place among those under way, in handshakes of others that come to nothing.
const TURNS: u32 = 3;
/// Handshakes under way at once; further connections wait and cost no more than their sockets. Each may hold 64 KB that a
/// stranger sent.
const MOST_HANDSHAKES: usize = 256;

const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

pub(crate) struct Tls {
    authority: Arc<Authority>,
    by_name: Arc<ServerConfig>,
    places: Semaphore,
    patience: Duration,
}

impl Tls {
    /// For `localhost`, `domains` (a port behind one is left aside) and every name below them.
    pub(crate) fn new<'a>(authority: Arc<Authority>, domains: impl IntoIterator<Item = &'a str>) -> Self {
        let name = |domain: &'a str| domain.rsplit_once(':').map_or(domain, |(host, _)| host).to_ascii_lowercase();
        let domains = domains.into_iter().map(name).collect();
        let by_name = Shown::ByName { authority: Arc::clone(&authority), domains };
        let by_name = Arc::new(authority::server_config(Arc::new(by_name), &PROTOCOLS));
        Self { authority, by_name, places: Semaphore::new(MOST_HANDSHAKES), patience: PATIENCE }
    }

    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let _place =
            tokio::time::timeout(self.patience * TURNS, self.places.acquire()).await?.map_err(io::Error::other)?;
        tokio::time::timeout(self.patience, self.shake_hands(stream)).await?
    }

    async fn shake_hands(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let local = stream.local_addr()?.ip().to_canonical();
        let start = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        let config = match start.client_hello().server_name() {
            Some(_) => Arc::clone(&self.by_name),
            None => self.by_address(local)?,
        };
        start.into_stream(config).await
    }

    /// For clients that call us by an address: they name none, so they mean the one they reached.
    fn by_address(&self, local: IpAddr) -> io::Result<Arc<ServerConfig>> {
        let leaf = self.authority.certified(&local.to_string()).map_err(io::Error::other)?;
        let mut config = ServerConfig::clone(&self.by_name);
        config.cert_resolver = Arc::new(Shown::Address(leaf));
        Ok(Arc::new(config))
    }
}

/// Which certificate a client is shown.
enum Shown {
    ByName { authority: Arc<Authority>, domains: Vec<String> },
    Address(Arc<CertifiedKey>),
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        match self {
            Self::ByName { authority, domains } => {
                let ours = |name: &&str| is_ours(name, domains);
                let name = hello.server_name().filter(ours)?;
                let leaf = authority.certified(name);
                leaf.inspect_err(|error| debug!(%error, "no certificate for a name of ours")).ok()
            }
            Self::Address(leaf) => Some(Arc::clone(leaf)),
        }
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown")
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

    /// A connection as both sides have it.
    async fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let address = listener.local_addr().expect("an address");
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        (client.expect("a connection"), accepted.expect("a connection").0)
    }

    #[tokio::test]
    async fn those_who_do_not_go_on_wait_for_no_longer_than_they_may_and_hold_no_more_places_than_there_are() {
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Arc::new(Authority::open(directory.path(), "Sandbar test", &[]).expect("an authority"));
        let mut tls = Tls::new(authority, ["localhost:1"]);
        tls.places = Semaphore::new(2);
        tls.patience = Duration::from_millis(200);
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
        assert!(tls.places.available_permits() <= 2);
        while let Some(ended) = accepting.join_next().await {
            assert_eq!(ended.expect("no panic"), io::ErrorKind::TimedOut);
        }
        assert_eq!(tls.places.available_permits(), 2, "every place is free again");
        for mut client in clients {
            // Closed: with an end, or by a reset for what was not read.
            assert!(matches!(client.read(&mut [0; 64]).await, Ok(0) | Err(_)));
        }
    }

    #[test]
    fn only_names_of_ours_are_signed_for() {
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
