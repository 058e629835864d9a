//! Inflates loose objects of Git repositories, so that the search for values sees what a commit
//! holds: a file that was committed and deleted is still in `.git/objects`.
//!
//! Code in the sandbox wrote the objects, and a small one may inflate to a thousand times its size:
//! of each only the first bytes are inflated, and of all in an archive no more than the archive may
//! hold itself. Packs are not inflated: most of their content is differences to other objects.

use flate2::{Decompress, FlushDecompress, Status};

/// The most bytes of one object that are inflated.
const MOST_BYTES: u64 = 64 * 1024 * 1024;
const BUFFER: usize = 16 * 1024;
/// Digits of an object's name after those of its folder: SHA-1, SHA-256.
const NAME_DIGITS: [usize; 2] = [38, 62];

/// A loose object whose compressed content arrives in chunks.
pub(crate) struct LooseObject {
    inflate: Decompress,
    left: u64,
}

impl LooseObject {
    /// [`None`] unless the path ends as that of a loose object. `left` is what may be inflated of
    /// the whole archive.
    pub(crate) fn for_path(path: &[u8], left: u64) -> Option<Self> {
        let mut parts = path.rsplit(|byte| *byte == b'/');
        let (name, folder, objects) = (parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |text: &[u8]| text.iter().all(u8::is_ascii_hexdigit);
        let named = NAME_DIGITS.contains(&name.len()) && is_hex(name) && folder.len() == 2 && is_hex(folder);
        let left = left.min(MOST_BYTES);
        (named && objects == b"objects" && left > 0).then(|| Self { inflate: Decompress::new(true), left })
    }

    /// Passes what a chunk inflates to. Ignores what follows a damaged part.
    pub(crate) fn push(&mut self, mut piece: &[u8], mut take: impl FnMut(&[u8])) {
        let mut buffer = [0; BUFFER];
        while self.left > 0 {
            let before = (self.inflate.total_in(), self.inflate.total_out());
            let status = self.inflate.decompress(piece, &mut buffer, FlushDecompress::None);
            let read = usize::try_from(self.inflate.total_in() - before.0).unwrap_or(piece.len());
            let made = self.inflate.total_out() - before.1;
            take(&buffer[..usize::try_from(made).unwrap_or(BUFFER)]);
            piece = &piece[read..];
            self.left = match status {
                Ok(Status::Ok) => self.left.saturating_sub(made),
                // The rest waits for the next chunk.
                Ok(Status::BufError) => return,
                Ok(Status::StreamEnd) | Err(_) => 0,
            };
        }
    }

    /// How much was inflated.
    pub(crate) fn inflated(&self) -> u64 {
        self.inflate.total_out()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;

    use super::*;

    const PATH: &[u8] = b"project/.git/objects/ab/0123456789abcdef0123456789abcdef012345";

    fn object(content: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(content).expect("memory");
        encoder.finish().expect("memory")
    }

    fn inflate(compressed: &[u8], chunk: usize, left: u64) -> Vec<u8> {
        let mut object = LooseObject::for_path(PATH, left).expect("an object's path");
        let mut inflated = Vec::new();
        compressed.chunks(chunk).for_each(|piece| object.push(piece, |piece| inflated.extend_from_slice(piece)));
        assert_eq!(object.inflated(), inflated.len() as u64);
        inflated
    }

    #[test]
    fn objects_are_known_by_their_path() {
        let is_object = |path: &[u8]| LooseObject::for_path(path, 1).is_some();
        assert!(is_object(PATH) && is_object(&PATH[b"project/.git/".len()..]));
        assert!(!is_object(b"objects/pack/0123456789abcdef0123456789abcdef012345"));
        assert!(!is_object(b".git/objects/ab/0123") && !is_object(b"ab/0123456789abcdef0123456789abcdef012345"));
        assert!(LooseObject::for_path(PATH, 0).is_none());
    }

    #[test]
    fn objects_are_inflated_from_any_chunks_within_limits() {
        let content: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
        let compressed = object(&content);
        for chunk in [1, 7, 4096, compressed.len()] {
            assert!(inflate(&compressed, chunk, u64::MAX) == content, "{chunk}");
        }
        let few = inflate(&object(&vec![0; 10_000_000]), 4096, 100_000);
        assert!((100_000..100_000 + BUFFER).contains(&few.len()), "{}", few.len());
        assert_eq!(inflate(b"no object", 3, u64::MAX), b"");
        let mut damaged = compressed;
        damaged.truncate(500);
        assert!(content.starts_with(&inflate(&damaged, 50, u64::MAX)));
    }
}
