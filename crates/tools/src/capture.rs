//! What a command says, kept in order of arrival and in bounded memory: the first and the last 4 MiB.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::port::Stream;

const SIDE: usize = 4 * 1024 * 1024;

/// Collected output. Pieces never end inside a character, so that two streams can be shown as one text.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    head: Vec<(Stream, Bytes)>,
    head_length: usize,
    tail: VecDeque<(Stream, Bytes)>,
    tail_length: usize,
    /// Unfinished characters of both streams.
    open: [BytesMut; 2],
    total: u64,
    dropped: u64,
}

impl Capture {
    pub(crate) fn push(&mut self, stream: Stream, bytes: &Bytes) {
        self.total += bytes.len() as u64;
        let open = &mut self.open[stream as usize];
        let bytes = if open.is_empty() {
            bytes.clone()
        } else {
            open.extend_from_slice(bytes);
            std::mem::take(open).freeze()
        };
        let whole = bytes.len() - unfinished(&bytes);
        self.open[stream as usize] = BytesMut::from(&bytes[whole..]);
        self.keep(stream, bytes.slice(..whole));
    }

    /// No more comes: what is unfinished stays so.
    pub(crate) fn finish(&mut self) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let rest = std::mem::take(&mut self.open[stream as usize]).freeze();
            self.keep(stream, rest);
        }
    }

    fn keep(&mut self, stream: Stream, mut bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        if self.head_length < SIDE {
            let mut room = bytes.len().min(SIDE - self.head_length);
            // Not inside a character.
            while room < bytes.len() && bytes[room] & 0xc0 == 0x80 && room > 0 {
                room -= 1;
            }
            let part = bytes.split_to(room);
            self.head_length += part.len();
            if bytes.is_empty() {
                self.head.push((stream, part));
                return;
            }
            self.head_length = SIDE;
            self.head.push((stream, part));
        }
        self.tail_length += bytes.len();
        self.tail.push_back((stream, bytes));
        while let Some((_, front)) = self.tail.front() {
            if self.tail_length - front.len() < SIDE {
                break;
            }
            self.tail_length -= front.len();
            self.dropped += front.len() as u64;
            self.tail.pop_front();
        }
    }

    /// How many bytes came in all.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// How many bytes of the middle were not kept.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Both outputs as they came.
    pub(crate) fn all(&self) -> Vec<u8> {
        self.gather(|_| true)
    }

    /// One of the two outputs.
    pub(crate) fn of(&self, wanted: Stream) -> Vec<u8> {
        self.gather(|stream| stream == wanted)
    }

    fn gather(&self, wanted: impl Fn(Stream) -> bool) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.head_length + self.tail_length);
        for (stream, bytes) in &self.head {
            if wanted(*stream) {
                all.extend_from_slice(bytes);
            }
        }
        if self.dropped > 0 {
            all.extend_from_slice(format!("\n[… {} bytes in the middle were not kept]\n", self.dropped).as_bytes());
        }
        for (stream, bytes) in &self.tail {
            if wanted(*stream) {
                all.extend_from_slice(bytes);
            }
        }
        all
    }

    /// The last line so far, to tell whoever waits.
    pub(crate) fn last_line(&self) -> String {
        const ENOUGH: usize = 4096;
        let last = self.tail.back().or(self.head.last());
        let bytes = last.map_or(&[][..], |(_, bytes)| &bytes[bytes.len().saturating_sub(ENOUGH)..]);
        let text = crate::text::strip_escapes(&crate::text::readable(bytes));
        let line = text.trim_end_matches(['\n', '\r']).rsplit(['\n', '\r']).next().unwrap_or_default();
        line.chars().take(200).collect()
    }
}

/// How many last bytes begin a character that is not finished.
fn unfinished(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let byte = bytes[bytes.len() - back];
        let length = match byte {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            0x80..=0xbf => continue,
            _ => return 0,
        };
        return if back < length { back } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_character_cut_anywhere_stays_whole_between_two_streams() {
        let text = "a→😀é";
        for cut in 0..=text.len() {
            let mut capture = Capture::default();
            capture.push(Stream::Stdout, &Bytes::copy_from_slice(&text.as_bytes()[..cut]));
            capture.push(Stream::Stderr, &Bytes::from_static(b"!"));
            capture.push(Stream::Stdout, &Bytes::copy_from_slice(&text.as_bytes()[cut..]));
            capture.finish();
            assert!(std::str::from_utf8(&capture.all()).is_ok(), "cut at {cut}");
            assert_eq!(capture.of(Stream::Stdout), text.as_bytes());
            assert_eq!(capture.of(Stream::Stderr), b"!");
        }
    }

    #[test]
    fn the_middle_of_endless_output_is_counted_and_dropped() {
        let mut capture = Capture::default();
        let piece = Bytes::from(vec![b'y'; 1 << 20]);
        for _ in 0..20 {
            capture.push(Stream::Stdout, &piece);
        }
        capture.finish();
        assert_eq!(capture.total(), 20 << 20);
        assert!(capture.all().len() < 10 << 20);
        let notice = format!("\n[… {} bytes in the middle were not kept]\n", capture.dropped());
        let kept = capture.all().len() as u64 - notice.len() as u64;
        assert_eq!(kept + capture.dropped(), capture.total());
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_reordered_within_a_stream(pieces: Vec<(bool, Vec<u8>)>) {
            let mut capture = Capture::default();
            let (mut out, mut err) = (Vec::new(), Vec::new());
            for (to_out, bytes) in &pieces {
                let (stream, all) = if *to_out { (Stream::Stdout, &mut out) } else { (Stream::Stderr, &mut err) };
                capture.push(stream, &Bytes::copy_from_slice(bytes));
                all.extend_from_slice(bytes);
            }
            capture.finish();
            prop_assert_eq!(capture.of(Stream::Stdout), out);
            prop_assert_eq!(capture.of(Stream::Stderr), err);
        }
    }
}
