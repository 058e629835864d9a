//! Certificates: the host's roots verify upstreams, the caller's authority signs for the sandbox.
//!
//! Both are loaded when a connection first needs them; most sandboxes have no such rule.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// HTTP/1.1 only: the proxy handles one request at a time.
const ALPN: &[u8] = b"http/1.1";

#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("the authority of the egress cannot be used")]
    Authority(#[source] Box<dyn Error + Send + Sync>),
    #[error("this host has no certificates of authorities; install ca-certificates")]
    NoRoots,
    #[error("{0} holds no certificates that can be read")]
    Roots(PathBuf),
}

/// What signs for the names of connections whose TLS is read.
#[derive(Debug, Clone)]
pub struct InspectionAuthority {
    /// What sandboxes must trust.
    pub certificate_pem: String,
    /// Presents a leaf for the name in the client's SNI.
    pub server_config: Arc<ServerConfig>,
}

type OpenAuthority = dyn Fn() -> Result<InspectionAuthority, Box<dyn Error + Send + Sync>> + Send + Sync;

/// Certificates of both sides. Loading blocks.
pub struct Trust {
    open: Box<OpenAuthority>,
    extra_roots: Vec<PathBuf>,
    inside: Mutex<Option<InspectionAuthority>>,
    outside: Mutex<Option<Arc<ClientConfig>>>,
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust").field("extra_roots", &self.extra_roots).finish_non_exhaustive()
    }
}

impl Trust {
    /// Calls `open` on first use, and again on the next use while it fails. Trusts the host's roots
    /// plus those in the PEM files `extra_roots`.
    pub fn new<E: Into<Box<dyn Error + Send + Sync>>>(
        open: impl Fn() -> Result<InspectionAuthority, E> + Send + Sync + 'static,
        extra_roots: Vec<PathBuf>,
    ) -> Self {
        let open = Box::new(move || open().map_err(Into::into));
        Self { open, extra_roots, inside: Mutex::default(), outside: Mutex::default() }
    }

    /// The certificate that sandboxes must trust so that the proxy can terminate their TLS.
    ///
    /// # Errors
    /// [`TrustError::Authority`].
    pub fn certificate_pem(&self) -> Result<String, TrustError> {
        Ok(self.inside()?.certificate_pem)
    }

    /// Server configuration that presents a leaf for the requested name.
    pub(crate) fn server(&self) -> Result<Arc<ServerConfig>, TrustError> {
        Ok(self.inside()?.server_config)
    }

    fn inside(&self) -> Result<InspectionAuthority, TrustError> {
        let mut inside = self.inside.lock();
        if let Some(inside) = &*inside {
            return Ok(inside.clone());
        }
        let mut authority = (self.open)().map_err(TrustError::Authority)?;
        Arc::make_mut(&mut authority.server_config).alpn_protocols = vec![ALPN.to_vec()];
        Ok(inside.insert(authority).clone())
    }

    /// Client configuration that verifies upstreams.
    pub(crate) fn client(&self) -> Result<Arc<ClientConfig>, TrustError> {
        let mut outside = self.outside.lock();
        if let Some(config) = &*outside {
            return Ok(Arc::clone(config));
        }
        let mut roots = RootCertStore::empty();
        // Unparsable system certificates are skipped, as other TLS clients do.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        for file in &self.extra_roots {
            let unreadable = || TrustError::Roots(file.clone());
            let text = std::fs::read(file).map_err(|_| unreadable())?;
            let added = add_pem(&mut roots, &text).ok_or_else(unreadable)?;
            tracing::debug!(file = %file.display(), added, "loaded extra egress roots");
        }
        if roots.is_empty() {
            return Err(TrustError::NoRoots);
        }
        Ok(Arc::clone(outside.insert(Arc::new(client_config(roots, &[ALPN])))))
    }
}

/// Adds the certificates of a PEM text and returns their number; [`None`] if it does not parse or
/// is empty.
pub(crate) fn add_pem(roots: &mut RootCertStore, text: &[u8]) -> Option<usize> {
    let certificates: Vec<CertificateDer<'_>> = CertificateDer::pem_slice_iter(text).collect::<Result<_, _>>().ok()?;
    for certificate in &certificates {
        roots.add(certificate.clone()).ok()?;
    }
    (!certificates.is_empty()).then_some(certificates.len())
}

pub(crate) fn client_config(roots: RootCertStore, alpn: &[&[u8]]) -> ClientConfig {
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for all versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config
}
