//! The addresses that the server itself may connect to for an untrusted caller: those that every
//! sandbox may connect to.

use std::net::IpAddr;
use std::sync::Arc;

use crate::host::Guard;
use crate::{EgressConfig, Policy, Rules};

/// Whether `address` is public and not one of this machine. Ranges that the configuration allows to
/// sandboxes are not included.
pub fn is_public(address: IpAddr) -> bool {
    let guard = Guard::new(Arc::new(EgressConfig::default()), Policy::unheard(Rules::default()), None);
    guard.check_service(address).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_and_its_surroundings_are_not_public() {
        for address in ["127.0.0.1", "::1", "0.0.0.0", "10.0.0.1", "169.254.169.254", "::ffff:127.0.0.1", "fe80::1"] {
            assert!(!is_public(address.parse().expect("an address")), "{address}");
        }
    }
}
