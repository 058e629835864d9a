//! `x-request-id`: identifies a request in the server's log and in its response, so that a report
//! of one leads to the other. A client's own id is kept if it is fit for a log line.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, HeaderName, HeaderValue};

const NAME: HeaderName = HeaderName::from_static("x-request-id");
const MOST_BYTES: usize = 128;

/// Generates ids that no other server or start of this one is likely to generate.
#[derive(Default)]
pub(crate) struct RequestIds {
    random: RandomState,
    next: AtomicU64,
}

#[derive(Debug, Clone)]
pub(crate) struct RequestId(HeaderValue);

impl RequestIds {
    /// Returns the client's id, or a new one.
    pub(crate) fn id_for(&self, request: &HeaderMap) -> RequestId {
        if let Some(given) = request.get(NAME).filter(|given| is_sane(given.as_bytes())) {
            return RequestId(given.clone());
        }
        let number = self.random.hash_one(self.next.fetch_add(1, Ordering::Relaxed));
        RequestId(HeaderValue::try_from(format!("{number:016x}")).expect("hex digits"))
    }
}

impl RequestId {
    /// Sets the id of a response, unless a service in a sandbox has set its own.
    pub(crate) fn mark(self, response: &mut HeaderMap) {
        response.entry(NAME).or_insert(self.0);
    }

    pub(crate) fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or("")
    }
}

fn is_sane(id: &[u8]) -> bool {
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(byte);
    (1..=MOST_BYTES).contains(&id.len()) && id.iter().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sane_ids_are_kept_and_others_replaced() {
        let ids = RequestIds::default();
        let id = |given: &'static str| {
            let headers = HeaderMap::from_iter([(NAME, HeaderValue::from_static(given))]);
            ids.id_for(&headers).as_str().to_owned()
        };
        for sane in ["7", "6f9619ff-8b86-d011-b42d-00c04fc964ff", "Root=1-67891233-abcdef012345678912345678"] {
            assert_eq!(id(sane), sane);
        }
        let long: &'static str = "x".repeat(MOST_BYTES + 1).leak();
        for odd in ["", " ", "a b", "\"", "a\tb", long] {
            let made = id(odd);
            assert!(made.len() == 16 && made != odd, "{odd:?}: {made}");
        }
        assert_ne!(id(""), id(""));
    }
}
