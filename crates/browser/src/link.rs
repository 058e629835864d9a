//! Signed URLs of stored screenshots, for a store that nothing else publishes:
//! `KEY?expires=SECONDS&signature=HEX`.
//!
//! The signature is an HMAC-SHA256 over the screenshot's key and the time of expiry. Its secret
//! lies in the directory of the screenshots, so every process that uses the directory signs with
//! it, and the server verifies with it.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use sha2::Sha256;
use url::Url;

/// The longest lifetime of an S3 signature.
pub const LINK_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);
const SECRET_FILE: &str = ".link-secret";
const SECRET_BYTES: usize = 32;

/// Why a URL is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    #[error("the address has expired")]
    Expired,
    #[error("the address was not signed by this server")]
    Invalid,
}

/// Signs and verifies URLs of one screenshot directory.
#[derive(Clone)]
pub struct LinkSigner {
    secret: Vec<u8>,
}

impl LinkSigner {
    /// Reads the secret of a directory. Creates directory and secret if missing, readable by their
    /// owner only.
    ///
    /// # Errors
    /// The [`io::Error`] of a directory or secret that cannot be created or read.
    pub fn open(directory: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let file = directory.join(SECRET_FILE);
        if !file.exists() {
            let secret = rand::random::<[u8; SECRET_BYTES]>();
            let draft = directory.join(format!("{SECRET_FILE}.{:016x}", rand::random::<u64>()));
            let mut written = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&draft)?;
            written.write_all(&secret)?;
            written.sync_all()?;
            // A hard link appears whole, and only one of two concurrent processes creates it.
            let placed = fs::hard_link(&draft, &file);
            fs::remove_file(&draft)?;
            match placed {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        let secret = fs::read(&file)?;
        if secret.len() < SECRET_BYTES {
            let text = format!("{} is too short for a secret; remove it, and a new one is made", file.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(Self { secret })
    }

    /// The URL of a screenshot on the server at `base`, valid until `expires`.
    pub fn sign(&self, base: &Url, key: &str, expires: Timestamp) -> Option<Url> {
        let mut url = base.join(key).ok()?;
        let expires = expires.as_second();
        let signature = hex::encode(self.mac(key, expires).finalize().into_bytes());
        url.set_query(Some(&format!("expires={expires}&signature={signature}")));
        Some(url)
    }

    /// Verifies the query of a request for a screenshot.
    ///
    /// # Errors
    /// [`LinkError`] with the reason of the refusal.
    pub fn check(&self, key: &str, query: &str, now: Timestamp) -> Result<(), LinkError> {
        let value = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        let (Some(expires), Some(signature)) = (value("expires"), value("signature")) else {
            return Err(LinkError::Invalid);
        };
        let expires: i64 = expires.parse().map_err(|_| LinkError::Invalid)?;
        let signature = hex::decode(signature).map_err(|_| LinkError::Invalid)?;
        // Compared in constant time, and before the expiry is evaluated: a forger chose the expiry.
        self.mac(key, expires).verify_slice(&signature).map_err(|_| LinkError::Invalid)?;
        if expires > now.as_second() { Ok(()) } else { Err(LinkError::Expired) }
    }

    fn mac(&self, key: &str, expires: i64) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.secret).expect("HMAC takes keys of any length");
        mac.update(key.as_bytes());
        mac.update(format!("\n{expires}").as_bytes());
        mac
    }
}

impl fmt::Debug for LinkSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkSigner(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "screenshots/job/agent/20261116T000937062Z_mobile.webp";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn signed_url_is_valid_for_one_key_until_expiry() {
        let directory = tempfile::tempdir().expect("a directory");
        let signer = LinkSigner::open(directory.path()).expect("a secret");
        let base = Url::parse("http://127.0.0.1:4980/").expect("an address");
        let url = signer.sign(&base, KEY, at(1000)).expect("an address");
        assert_eq!(url.path(), format!("/{KEY}"));
        let query = url.query().expect("a signature");
        let check = |key: &str, query: &str, now| signer.check(key, query, at(now));
        assert_eq!(check(KEY, query, 999), Ok(()));
        assert_eq!(check(KEY, query, 1000), Err(LinkError::Expired));
        assert_eq!(check("screenshots/job/agent/other.webp", query, 999), Err(LinkError::Invalid));
        let later = query.replace("expires=1000", "expires=9999");
        for forged in
            [later.as_str(), "", "expires=1000", "expires=x&signature=00", "expires=1000&signature=é0", "signature="]
        {
            assert_eq!(check(KEY, forged, 999), Err(LinkError::Invalid), "{forged}");
        }
        // All processes of one directory share its secret; another directory has another.
        let again = LinkSigner::open(directory.path()).expect("a secret");
        assert_eq!(again.check(KEY, query, at(999)), Ok(()));
        let other = tempfile::tempdir().expect("a directory");
        let other = LinkSigner::open(other.path()).expect("a secret");
        assert_eq!(other.check(KEY, query, at(999)), Err(LinkError::Invalid));
        assert_eq!(format!("{signer:?}"), "LinkSigner(hidden)");
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(directory.path().join(SECRET_FILE)).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
