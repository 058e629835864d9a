//! Leaf certificates: signed on first request, cached while in use.
//!
//! Each leaf covers exactly one name. A wildcard would cover a whole domain, but OpenSSL and Node
//! reject `*.localhost` because they require two dots in a wildcard name.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::pki_types::{DnsName, PrivatePkcs8KeyDer};
use rustls::sign::{CertifiedKey, SigningKey};

use crate::AuthorityError;

/// Some clients reject leaves valid for more than 398 days.
pub(crate) const LIFETIME: Duration = Duration::from_secs(60 * 24 * 3600);
/// A leaf with less remaining validity than this is signed again. Open connections keep theirs.
pub(crate) const RENEWAL_THRESHOLD: Duration = Duration::from_secs(20 * 24 * 3600);
/// Tolerated clock skew: clocks of clients and of paused sandboxes may be behind ours.
const CLOCK_SKEW: Duration = Duration::from_secs(24 * 3600);
/// Clients choose the names, so the cache is bounded: about 2 KB per leaf.
pub(crate) const MAX_LEAVES: usize = 1024;

struct Leaf {
    key: Arc<CertifiedKey>,
    ends: SystemTime,
    /// The cache's call counter at the last lookup (LRU order).
    used: u64,
}

#[derive(Default)]
struct Cache {
    leaves: HashMap<String, Leaf>,
    calls: u64,
}

#[derive(Default)]
pub(crate) struct Leaves {
    cache: Mutex<Cache>,
}

impl Leaves {
    pub(crate) fn issue_leaf(
        &self,
        issuer: &Issuer<'_, KeyPair>,
        name: &str,
        now: SystemTime,
    ) -> Result<Arc<CertifiedKey>, AuthorityError> {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        if let Some(key) = self.with(|cache| cache.find(&name, now)) {
            return Ok(key);
        }
        // Signs outside the lock so that other lookups do not wait. Two threads that sign the same
        // name both get a valid leaf.
        let leaf = sign(issuer, &name, now)?;
        let key = Arc::clone(&leaf.key);
        self.with(|cache| cache.insert(name, leaf));
        Ok(key)
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.with(|cache| cache.leaves.len())
    }

    fn with<T>(&self, act: impl FnOnce(&mut Cache) -> T) -> T {
        // A panicking thread leaves only complete leaves in the cache.
        act(&mut self.cache.lock())
    }
}

impl Cache {
    fn find(&mut self, name: &str, now: SystemTime) -> Option<Arc<CertifiedKey>> {
        self.calls += 1;
        let leaf = self.leaves.get_mut(name).filter(|leaf| now + RENEWAL_THRESHOLD < leaf.ends)?;
        leaf.used = self.calls;
        Some(Arc::clone(&leaf.key))
    }

    fn insert(&mut self, name: String, leaf: Leaf) {
        if self.leaves.len() >= MAX_LEAVES && !self.leaves.contains_key(&name) {
            let oldest = self.leaves.iter().min_by_key(|(_, leaf)| leaf.used).map(|(name, _)| name.clone());
            oldest.and_then(|name| self.leaves.remove(&name));
        }
        self.leaves.insert(name, Leaf { used: self.calls, ..leaf });
    }
}

fn sign(issuer: &Issuer<'_, KeyPair>, name: &str, now: SystemTime) -> Result<Leaf, AuthorityError> {
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![alternative_name(name)?];
    // No common name: it is limited to 64 characters, so the name goes into the SAN only.
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "Sandbar");
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, now, LIFETIME);
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(AuthorityError::Sign)?;
    let certificate = params.signed_by(&key, issuer).map_err(AuthorityError::Sign)?;
    let signer = sign_with(&key).map_err(AuthorityError::Leaf)?;
    Ok(Leaf { key: Arc::new(CertifiedKey::new(vec![certificate.into()], signer)), ends: now + LIFETIME, used: 0 })
}

fn alternative_name(name: &str) -> Result<SanType, AuthorityError> {
    let bad = || AuthorityError::Name { name: name.to_owned() };
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    DnsName::try_from(name.strip_prefix("*.").unwrap_or(name)).map_err(|_| bad())?;
    name.try_into().map(SanType::DnsName).map_err(|_| bad())
}

pub(crate) fn sign_with(key: &KeyPair) -> Result<Arc<dyn SigningKey>, rustls::Error> {
    let der = PrivatePkcs8KeyDer::from(key.serialized_der()).into();
    rustls::crypto::aws_lc_rs::sign::any_ecdsa_type(&der)
}

/// Sets the validity period, which starts [`CLOCK_SKEW`] in the past.
pub(crate) fn set_validity(params: &mut CertificateParams, now: SystemTime, lifetime: Duration) {
    let moment = |time: SystemTime| {
        rcgen::date_time_ymd(1970, 1, 1) + time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
    };
    params.not_before = moment(now - CLOCK_SKEW);
    params.not_after = moment(now + lifetime);
}
