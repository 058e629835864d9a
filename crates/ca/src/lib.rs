//! A certificate authority stored in a directory: created on first use, it signs a leaf for every
//! requested name.
//!
//! This crate knows neither sandboxes nor sockets. The caller decides which names may be requested:
//! [`Authority::server_config`] signs for every name a client sends.

#![forbid(unsafe_code)]

mod error;
mod leaves;
mod pem;
mod storage;

pub use error::AuthorityError;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use leaves::Leaves;
use storage::StoredAuthority;

/// File name of the authority's certificate in its directory.
pub const CERTIFICATE: &str = "certificate.pem";

/// A certificate authority stored in a directory (key 0600, certificate PEM), created on first use.
pub struct Authority {
    directory: PathBuf,
    stored: StoredAuthority,
    leaves: Leaves,
}

impl Authority {
    /// Loads the authority of `directory`, or creates it. Of several concurrent callers, one
    /// creates it and the others load it; a killed caller leaves nothing that blocks the next one.
    ///
    /// `common_name` is the name shown in lists of trusted authorities. `only` lists the DNS names,
    /// subdomains included, that the authority may sign for (name constraints): a leaked key then
    /// endangers no other name. An empty list permits all names. Both apply only when the authority
    /// is created.
    ///
    /// # Errors
    /// [`AuthorityError::Directory`] when the directory cannot be read or written,
    /// [`AuthorityError::Busy`] when another process holds the lock too long,
    /// [`AuthorityError::Unusable`] when the stored files do not match or do not parse.
    pub fn open(directory: &Path, common_name: &str, only: &[&str]) -> Result<Self, AuthorityError> {
        let stored = storage::load_or_create(directory, common_name, only)?;
        Ok(Self { directory: directory.to_owned(), stored, leaves: Leaves::default() })
    }

    /// The certificate that clients must trust. The key never leaves this object.
    pub fn certificate_pem(&self) -> &str {
        &self.stored.certificate_pem
    }

    pub fn certificate_der(&self) -> &[u8] {
        &self.stored.certificate
    }

    /// Path of [`Self::certificate_pem`] on disk.
    pub fn certificate_path(&self) -> PathBuf {
        self.directory.join(CERTIFICATE)
    }

    /// Issues a leaf for `name` (DNS name, wildcard or IP address). Leaves are cached in a bounded
    /// LRU cache and renewed before they expire.
    ///
    /// # Errors
    /// [`AuthorityError::Name`] when `name` is none of these.
    pub fn issue_leaf(&self, name: &str) -> Result<Arc<CertifiedKey>, AuthorityError> {
        self.leaves.issue_leaf(&self.stored.issuer, name, SystemTime::now())
    }

    /// TLS server configuration that presents a leaf for the name in the client's SNI, and refuses
    /// clients that send no SNI.
    pub fn server_config(self: &Arc<Self>, alpn: &[&[u8]]) -> Arc<ServerConfig> {
        Arc::new(server_config(Arc::new(BySni(Arc::clone(self))), alpn))
    }
}

/// Redacts the key.
impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("directory", &self.directory).finish_non_exhaustive()
    }
}

/// TLS server configuration with `resolver` and without client certificates.
pub fn server_config(resolver: Arc<dyn ResolvesServerCert>, alpn: &[&[u8]]) -> ServerConfig {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for all versions")
        .with_no_client_auth()
        .with_cert_resolver(resolver);
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config
}

/// Passed explicitly everywhere: rustls picks no default when two providers are linked.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

#[derive(Debug)]
struct BySni(Arc<Authority>);

impl ResolvesServerCert for BySni {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name()?;
        self.0
            .issue_leaf(name)
            .inspect_err(|error| tracing::debug!(%error, "cannot issue a certificate for the requested server name"))
            .ok()
    }
}

#[cfg(test)]
mod tests;
