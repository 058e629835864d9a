//! The authority on disk: `key.pem` (0600) and `certificate.pem`, created under a file lock.
//!
//! Invariants: each file appears by atomic rename. A certificate never exists before its key, and a
//! key is replaced only while no certificate exists. A killed process therefore leaves nothing, a
//! key alone, or both files.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, GeneralSubtree, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, NameConstraints, PKCS_ECDSA_P256_SHA256,
};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use crate::leaves::{set_validity, sign_with};
use crate::{AuthorityError, CERTIFICATE, pem};

const KEY: &str = "key.pem";
const LOCK: &str = "lock";

/// A replaced authority must be trusted again by every client, so it outlives the machine.
const LIFETIME: Duration = Duration::from_secs(20 * 365 * 24 * 3600);
/// Creating an authority takes milliseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(20);
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// X.509's upper bound for a common name, in characters.
const MAX_COMMON_NAME: usize = 64;

pub(crate) struct StoredAuthority {
    pub certificate: CertificateDer<'static>,
    pub certificate_pem: String,
    pub issuer: Issuer<'static, KeyPair>,
}

pub(crate) fn load_or_create(
    directory: &Path,
    common_name: &str,
    only: &[&str],
) -> Result<StoredAuthority, AuthorityError> {
    let failed = |source| AuthorityError::Directory { directory: directory.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    let _lock = lock(directory)?;
    let key = read(&directory.join(KEY)).map_err(failed)?;
    match (key, read(&directory.join(CERTIFICATE)).map_err(failed)?) {
        (Some(key), Some(certificate)) => load(&key, certificate)
            .map_err(|reason| AuthorityError::Unusable { directory: directory.to_owned(), reason }),
        // A certificate without its key is useless and must not be paired with another key.
        (None, Some(_)) => {
            Err(AuthorityError::Unusable { directory: directory.to_owned(), reason: format!("{KEY} is missing") })
        }
        (_, None) => create(directory, common_name, only),
    }
}

fn create(directory: &Path, common_name: &str, only: &[&str]) -> Result<StoredAuthority, AuthorityError> {
    let failed = |source| AuthorityError::Directory { directory: directory.to_owned(), source };
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(AuthorityError::Sign)?;
    let mut params = params(common_name);
    if !only.is_empty() {
        let permitted_subtrees = only.iter().map(|name| GeneralSubtree::DnsName((*name).to_owned())).collect();
        params.name_constraints = Some(NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() });
    }
    let certificate = params.self_signed(&key).map_err(AuthorityError::Sign)?;
    let certificate_pem = pem::encode("CERTIFICATE", certificate.der());
    let key_pem = pem::encode("PRIVATE KEY", key.serialized_der());
    durable::write(&directory.join(KEY), key_pem.as_bytes(), 0o600).map_err(failed)?;
    durable::write(&directory.join(CERTIFICATE), certificate_pem.as_bytes(), 0o644).map_err(failed)?;
    tracing::info!(directory = %directory.display(), "created a certificate authority");
    Ok(StoredAuthority { certificate: certificate.into(), certificate_pem, issuer: Issuer::new(params, key) })
}

fn params(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, clip(common_name));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, SystemTime::now(), LIFETIME);
    params
}

fn clip(name: &str) -> &str {
    &name[..name.floor_char_boundary(MAX_COMMON_NAME)]
}

/// The error text tells an operator which file is wrong and why.
fn load(key: &[u8], certificate: Vec<u8>) -> Result<StoredAuthority, String> {
    let bad = |file: &str, error: &dyn std::fmt::Display| format!("{file}: {error}");
    let der = CertificateDer::from_pem_slice(&certificate).map_err(|error| bad(CERTIFICATE, &error))?;
    let key = PrivatePkcs8KeyDer::from_pem_slice(key).map_err(|error| bad(KEY, &error))?;
    let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ECDSA_P256_SHA256).map_err(|error| bad(KEY, &error))?;
    let signer = sign_with(&key).map_err(|error| bad(KEY, &error))?;
    CertifiedKey::new(vec![der.clone()], signer)
        .keys_match()
        .map_err(|_| format!("{KEY} does not belong to {CERTIFICATE}"))?;
    let mut roots = RootCertStore::empty();
    roots.add(der.clone()).map_err(|error| bad(CERTIFICATE, &error))?;
    let subject = roots.roots.first().map_or(&[][..], |anchor| anchor.subject.as_ref());
    let name = common_name(subject).ok_or_else(|| format!("{CERTIFICATE} was not made by Sandbar"))?;
    let certificate_pem = String::from_utf8(certificate).map_err(|error| bad(CERTIFICATE, &error))?;
    Ok(StoredAuthority { certificate: der, certificate_pem, issuer: Issuer::new(params(name), key) })
}

/// Reads the common name from a subject as [`create`] encodes it: one set, one attribute, one short
/// UTF-8 string.
fn common_name(subject: &[u8]) -> Option<&str> {
    // SET, SEQUENCE, OBJECT IDENTIFIER 2.5.4.3, UTF8String; lengths between them.
    let [0x31, _, 0x30, _, 0x06, 3, 0x55, 4, 3, 0x0c, length, name @ ..] = subject else { return None };
    (usize::from(*length) == name.len()).then(|| std::str::from_utf8(name).ok()).flatten()
}

/// Acquires the file lock that serializes processes opening the same directory.
fn lock(directory: &Path) -> Result<File, AuthorityError> {
    let path = directory.join(LOCK);
    let failed = |source| AuthorityError::Directory { directory: directory.to_owned(), source };
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path).map_err(failed)?;
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(fs::TryLockError::Error(error)) => return Err(failed(error)),
            Err(fs::TryLockError::WouldBlock) if Instant::now() > deadline => {
                return Err(AuthorityError::Busy { lock: path });
            }
            Err(fs::TryLockError::WouldBlock) => std::thread::sleep(LOCK_RETRY_INTERVAL),
        }
    }
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_subject_preserves_the_common_name() {
        for name in ["Sandbar", "Sandbar – ä", &"x".repeat(64)] {
            let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
            let certificate = params(name).self_signed(&key).expect("a certificate");
            let mut roots = RootCertStore::empty();
            roots.add(certificate.der().clone()).expect("an authority");
            assert_eq!(common_name(&roots.roots[0].subject), Some(name));
        }
        assert_eq!(clip(&"ä".repeat(40)).len(), 64);
        assert_eq!(common_name(b""), None);
    }
}
