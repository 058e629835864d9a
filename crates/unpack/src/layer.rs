//! A layer's bytes: decompressed, bounded, and hashed on the way.

use std::io::{self, BufReader, Read};

use flate2::read::MultiGzDecoder;
use sha2::{Digest, Sha256};

use crate::config::written;
use crate::error::ImageError;
use crate::tree::Tree;

/// Applies a layer to `tree`. With `diff_id`, its content must have that digest.
pub(crate) fn apply(source: impl Read, name: &str, diff_id: Option<&str>, tree: &mut Tree) -> Result<(), ImageError> {
    let mut content = Content { source: decompressed(source, name)?, hash: Sha256::new(), budget: tree.budget() };
    let applied = tree.apply_layer(&mut content, diff_id.is_some());
    // What follows the archive's end belongs to the digest, and to what may be too much.
    let drained = applied.and_then(|()| {
        io::copy(&mut content, &mut io::sink()).map(drop).map_err(ImageError::io(format!("read {name}")))
    });
    tree.spend(&content.budget);
    drained?;
    let found = written(&content.hash.finalize());
    match diff_id {
        Some(expected) if expected != found => {
            Err(ImageError::Digest { what: name.to_owned(), expected: expected.to_owned(), found })
        }
        _ => Ok(()),
    }
}

/// By its first bytes, whatever it claims to be.
fn decompressed<'a>(source: impl Read + 'a, name: &str) -> Result<Box<dyn Read + 'a>, ImageError> {
    let mut source = BufReader::with_capacity(1 << 16, source);
    let head = io::BufRead::fill_buf(&mut source).map_err(ImageError::io(format!("read {name}")))?;
    if head.starts_with(&[0x1f, 0x8b]) {
        return Ok(Box::new(MultiGzDecoder::new(source)));
    }
    if head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let decoder = ruzstd::decoding::StreamingDecoder::new(source);
        return Ok(Box::new(decoder.map_err(|error| ImageError::Malformed(format!("{name}: {error}")))?));
    }
    Ok(Box::new(source))
}

/// What may still be unpacked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnpackBudget {
    pub(crate) left: u64,
    pub(crate) all: u64,
}

struct Content<'a> {
    source: Box<dyn Read + 'a>,
    hash: Sha256,
    budget: UnpackBudget,
}

impl Read for Content<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        let Some(left) = self.budget.left.checked_sub(count as u64) else {
            return Err(io::Error::other(ImageError::TooLarge(self.budget.all)));
        };
        self.budget.left = left;
        self.hash.update(&buffer[..count]);
        Ok(count)
    }
}
