//! Errors of a certificate authority, one variant per remedy.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("cannot keep a certificate authority in {}", directory.display())]
    Directory { directory: PathBuf, source: io::Error },
    #[error("another process has held {} for too long; end it and try again", lock.display())]
    Busy { lock: PathBuf },
    /// Never repaired silently: clients that trust the old authority would have to trust a new one.
    #[error("the certificate authority in {} cannot be used: {reason}; remove that directory to have a new one made, and trust the new one", directory.display())]
    Unusable { directory: PathBuf, reason: String },
    #[error("{name:?} is neither a DNS name nor an address, so there is no certificate for it")]
    Name { name: String },
    #[error("cannot sign a certificate")]
    Sign(#[source] rcgen::Error),
    #[error("a certificate that was just signed cannot be used")]
    Leaf(#[source] rustls::Error),
}
