//! SHA-256 as a value type.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A SHA-256 digest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

/// Not a SHA-256 in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this is not the SHA-256 of anything: 64 lower-case hexadecimal digits are")]
pub struct InvalidDigest;

impl Digest {
    pub fn hash(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub(crate) fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Hashes bytes incrementally.
#[derive(Clone, Default)]
pub(crate) struct DigestHasher(Sha256);

impl DigestHasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

/// An order-independent digest of a set of texts: the sum of their SHA-256 as 256-bit numbers.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SetHasher([u64; 4]);

impl SetHasher {
    pub(crate) fn add(&mut self, text: &[u8]) {
        let Digest(one) = Digest::hash(text);
        let mut carry = false;
        for (sum, part) in self.0.iter_mut().zip(one.chunks_exact(8)) {
            let part = u64::from_le_bytes(part.try_into().expect("eight bytes"));
            let (with_part, over) = sum.overflowing_add(part);
            let (with_carry, over_again) = with_part.overflowing_add(u64::from(carry));
            *sum = with_carry;
            carry = over || over_again;
        }
    }

    pub(crate) fn finish(self) -> Digest {
        let mut digest = [0; 32];
        for (bytes, part) in digest.chunks_exact_mut(8).zip(self.0) {
            bytes.copy_from_slice(&part.to_le_bytes());
        }
        Digest(digest)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Digest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            _ => Err(InvalidDigest),
        };
        if text.len() != 64 {
            return Err(InvalidDigest);
        }
        let mut digest = [0; 32];
        for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Ok(Self(digest))
    }
}

impl TryFrom<String> for Digest {
    type Error = InvalidDigest;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}
