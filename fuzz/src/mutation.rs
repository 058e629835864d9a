//! Changes inputs at random, for runs without coverage.

use crate::target::Target;

/// SplitMix64: the same numbers from the same seed everywhere.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not zero.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// Numbers at which lengths and offsets go wrong.
const EDGES: [u64; 10] = [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];

/// Applies one to eight changes to `input`. `other` is another input of the corpus.
pub(crate) fn mutate(random: &mut Random, target: &Target, input: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=random.below(8) {
        change(random, target, input, other);
        input.truncate(target.longest);
    }
}

fn change(random: &mut Random, target: &Target, input: &mut Vec<u8>, other: &[u8]) {
    let at = random.below(input.len() + 1);
    match random.below(10) {
        0 | 1 if at < input.len() => input[at] ^= 1 << random.below(8),
        2 if at < input.len() => input[at] = random.next() as u8,
        3 => drop(input.drain(at..at + random.below(input.len() - at + 1))),
        4 => insert(input, at, &[random.next() as u8]),
        5 if !target.words.is_empty() => {
            insert(input, at, target.words[random.below(target.words.len())].as_bytes());
        }
        6 => {
            // A piece of this input once more.
            let piece = input[at..at + random.below((input.len() - at).min(64) + 1)].to_vec();
            let times = 1 + random.below(4);
            insert(input, at, &piece.repeat(times));
        }
        7 => {
            let start = random.below(other.len() + 1);
            let piece = &other[start..start + random.below(other.len() - start + 1)];
            insert(input, at, piece);
        }
        8 => {
            // A number at an edge, of any width.
            let bytes = EDGES[random.below(EDGES.len())].to_be_bytes();
            let width = 1 << random.below(4);
            let end = (at + width).min(input.len());
            input[at..end].copy_from_slice(&bytes[8 - (end - at)..]);
        }
        _ => {
            let digits = EDGES[random.below(EDGES.len())].to_string();
            insert(input, at, digits.as_bytes());
        }
    }
}

fn insert(input: &mut Vec<u8>, at: usize, piece: &[u8]) {
    input.splice(at..at, piece.iter().copied());
}
