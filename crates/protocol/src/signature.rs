//! Signed file URLs: prove that the URL's author held the access token, without containing it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The operation a signed URL permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// The signed fields, each exactly as the query carries it after decoding.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    pub path: &'a str,
    pub operation: Operation,
    /// Empty when the query names no user.
    pub username: &'a str,
    /// Unix seconds.
    pub expiration: Option<i64>,
}

impl Claim<'_> {
    /// Signs this claim with `token`.
    pub fn sign(&self, token: &str) -> String {
        let Self { path, operation, username, expiration } = self;
        let mut hash = Sha256::new();
        hash.update(format!("{path}:{}:{username}:{token}", operation.as_str()));
        if let Some(seconds) = expiration {
            hash.update(format!(":{seconds}"));
        }
        format!("v1_{}", STANDARD_NO_PAD.encode(hash.finalize()))
    }

    /// Whether `signature` was made with `token`, compared in constant time. The caller checks
    /// expiry afterwards: a forged signature must be indistinguishable from a forged and expired
    /// one.
    ///
    /// No signature is valid for a user whose name has a colon, which separates the fields: a part
    /// of another claim's path could be such a name.
    pub fn is_signed_by(&self, token: &str, signature: &str) -> bool {
        !self.username.contains(':') && bool::from(self.sign(token).as_bytes().ct_eq(signature.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIM: Claim<'static> =
        Claim { path: "/home/user/a.txt", operation: Operation::Read, username: "", expiration: None };
    const SIGNATURE: &str = "v1_RXoTfv8fZov6wEk3x1MtXvBzDRAir30QpELBhgDwaYY";

    #[test]
    fn signatures_match_the_official_clients() {
        assert_eq!(CLAIM.sign("envdtok"), SIGNATURE);
        assert!(CLAIM.is_signed_by("envdtok", SIGNATURE));
    }

    #[test]
    fn the_signature_covers_every_field() {
        let others = [
            Claim { path: "/home/user/b.txt", ..CLAIM },
            Claim { operation: Operation::Write, ..CLAIM },
            Claim { username: "root", ..CLAIM },
            Claim { expiration: Some(1), ..CLAIM },
        ];
        for claim in others {
            assert!(!claim.is_signed_by("envdtok", SIGNATURE), "{claim:?}");
        }
        let (longer, shorter) =
            (Claim { path: "/a:read:b", ..CLAIM }, Claim { path: "/a", username: "b:read:", ..CLAIM });
        assert_eq!(longer.sign("envdtok"), shorter.sign("envdtok"));
        assert!(longer.is_signed_by("envdtok", &longer.sign("envdtok")));
        assert!(!shorter.is_signed_by("envdtok", &longer.sign("envdtok")));
        assert!(!CLAIM.is_signed_by("other", SIGNATURE));
        assert!(!CLAIM.is_signed_by("envdtok", ""));
    }
}
