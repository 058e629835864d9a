//! What can go wrong with an authority, by what can be done about it.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("cannot keep a certificate authority in {}", directory.display())]
    Directory { directory: PathBuf, source: io::Error },
    #[error("another process has held {} for too long; end it and try again", lock.display())]
    Busy { lock: PathBuf },
    /// Never repaired silently: whoever trusted the old authority must be asked to trust a new one.
    #[error("the certificate authority in {} cannot be used: {reason}; remove that directory to have a new one made, and trust it anew", directory.display())]
    Unusable { directory: PathBuf, reason: String },
    #[error("{name:?} is neither a DNS name nor an address, so there is no certificate for it")]
    Name { name: String },
    #[error("cannot sign a certificate")]
    Sign(#[source] rcgen::Error),
    #[error("a certificate that was just signed cannot be used")]
    Leaf(#[source] rustls::Error),
}
