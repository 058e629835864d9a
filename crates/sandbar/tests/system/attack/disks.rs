//! Attacks on the pool: nested subvolumes, quotas, leftovers.
