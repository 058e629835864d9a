//! A certificate authority of our own, kept in a directory: made on first use, it signs a leaf for whatever name is asked for.
//!
//! It knows neither sandboxes nor sockets. Which names may be asked for is its caller's decision: [`Authority::server_config`]
//! signs for every name a client sends.

#![forbid(unsafe_code)]

mod error;
mod keep;
mod leaves;
mod pem;

pub use error::AuthorityError;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use keep::Kept;
use leaves::Leaves;

/// Of the authority's certificate, in its directory.
pub const CERTIFICATE: &str = "certificate.pem";

/// A certificate authority kept in a directory (key 0600, certificate PEM), made on first use.
pub struct Authority {
    directory: PathBuf,
    kept: Kept,
    leaves: Leaves,
}

impl Authority {
    /// Loads the authority of `directory`, or makes it there. Of several that come at once, one makes it and the others load it;
    /// one that is killed on the way leaves nothing that the next would trip over.
    ///
    /// `common_name` is what people see in lists of trusted authorities. `only` are the DNS names that it can sign for, with all
    /// below them; whoever trusts it need not fear for others, even if its key is lost. Without any it can sign for all. Both
    /// count when the authority is made.
    ///
    /// # Errors
    /// [`AuthorityError::Directory`], [`AuthorityError::Busy`] and [`AuthorityError::Unusable`].
    pub fn open(directory: &Path, common_name: &str, only: &[&str]) -> Result<Self, AuthorityError> {
        let kept = keep::load_or_make(directory, common_name, only)?;
        Ok(Self { directory: directory.to_owned(), kept, leaves: Leaves::default() })
    }

    /// What others must trust. The key never leaves this object.
    pub fn certificate_pem(&self) -> &str {
        &self.kept.certificate_pem
    }

    pub fn certificate_der(&self) -> &[u8] {
        &self.kept.certificate
    }

    /// Where [`Self::certificate_pem`] is on disk.
    pub fn certificate_path(&self) -> PathBuf {
        self.directory.join(CERTIFICATE)
    }

    /// A leaf for this name (DNS name, wildcard or address), signed by us; cached, bounded, renewed before it ends.
    ///
    /// # Errors
    /// [`AuthorityError::Name`] if it is none of these.
    pub fn certified(&self, name: &str) -> Result<Arc<CertifiedKey>, AuthorityError> {
        self.leaves.certified(&self.kept.issuer, name, SystemTime::now())
    }

    /// A server that shows each client a leaf for the name it asks for (SNI), and refuses those that ask for none.
    pub fn server_config(self: &Arc<Self>, alpn: &[&[u8]]) -> Arc<ServerConfig> {
        Arc::new(server_config(Arc::new(BySni(Arc::clone(self))), alpn))
    }
}

/// The key is a secret.
impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("directory", &self.directory).finish_non_exhaustive()
    }
}

/// A server that shows what `resolver` chooses, without asking clients for certificates.
pub fn server_config(resolver: Arc<dyn ResolvesServerCert>, alpn: &[&[u8]]) -> ServerConfig {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for all versions")
        .with_no_client_auth()
        .with_cert_resolver(resolver);
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config
}

/// Named wherever it is used: with two in one program, rustls does not choose.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

#[derive(Debug)]
struct BySni(Arc<Authority>);

impl ResolvesServerCert for BySni {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name()?;
        self.0
            .certified(name)
            .inspect_err(|error| tracing::debug!(%error, "no certificate for a name that was asked for"))
            .ok()
    }
}

#[cfg(test)]
mod tests;
