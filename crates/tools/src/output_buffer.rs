//! Collects a command's output in order of arrival and in bounded memory: the first and the last 4
//! MiB.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::port::Stream;

const SIDE: usize = 4 * 1024 * 1024;

/// Collected output. Chunks never end inside a character, so that two streams can be shown as one
/// text.
#[derive(Debug, Default)]
pub(crate) struct OutputBuffer {
    head: Vec<(Stream, Bytes)>,
    head_length: usize,
    tail: VecDeque<(Stream, Bytes)>,
    tail_length: usize,
    /// Incomplete characters of both streams.
    open: [BytesMut; 2],
    total: u64,
    dropped: u64,
}

impl OutputBuffer {
    pub(crate) fn push(&mut self, stream: Stream, bytes: &Bytes) {
        self.total += bytes.len() as u64;
        let open = &mut self.open[stream as usize];
        let bytes = if open.is_empty() {
            bytes.clone()
        } else {
            open.extend_from_slice(bytes);
            std::mem::take(open).freeze()
        };
        let whole = bytes.len() - incomplete_suffix(&bytes);
        self.open[stream as usize] = BytesMut::from(&bytes[whole..]);
        self.keep(stream, bytes.slice(..whole));
    }

    /// Ends the output: incomplete characters are kept as bytes.
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
            let mut space = bytes.len().min(SIDE - self.head_length);
            // Not inside a character.
            while space < bytes.len() && bytes[space] & 0xc0 == 0x80 && space > 0 {
                space -= 1;
            }
            let part = bytes.split_to(space);
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

    /// Number of bytes received.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Number of bytes dropped from the middle.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Both streams in order of arrival.
    pub(crate) fn all(&self) -> Vec<u8> {
        self.gather(|_| true)
    }

    /// One of the two streams.
    pub(crate) fn stream(&self, wanted: Stream) -> Vec<u8> {
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

    /// The last line so far, for progress reports.
    pub(crate) fn last_line(&self) -> String {
        const ENOUGH: usize = 4096;
        let last = self.tail.back().or(self.head.last());
        let bytes = last.map_or(&[][..], |(_, bytes)| &bytes[bytes.len().saturating_sub(ENOUGH)..]);
        let text = text::strip_escapes(&text::readable(bytes));
        let line = text.trim_end_matches(['\n', '\r']).rsplit(['\n', '\r']).next().unwrap_or_default();
        line.chars().take(200).collect()
    }
}

/// Number of last bytes that begin an incomplete character.
fn incomplete_suffix(bytes: &[u8]) -> usize {
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
    fn split_characters_stay_whole_across_streams() {
        let text = "a→😀é";
        for cut in 0..=text.len() {
            let mut capture = OutputBuffer::default();
            capture.push(Stream::Stdout, &Bytes::copy_from_slice(&text.as_bytes()[..cut]));
            capture.push(Stream::Stderr, &Bytes::from_static(b"!"));
            capture.push(Stream::Stdout, &Bytes::copy_from_slice(&text.as_bytes()[cut..]));
            capture.finish();
            assert!(std::str::from_utf8(&capture.all()).is_ok(), "cut at {cut}");
            assert_eq!(capture.stream(Stream::Stdout), text.as_bytes());
            assert_eq!(capture.stream(Stream::Stderr), b"!");
        }
    }

    #[test]
    fn middle_of_endless_output_is_dropped() {
        let mut capture = OutputBuffer::default();
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
        fn streams_keep_their_bytes_in_order(pieces: Vec<(bool, Vec<u8>)>) {
            let mut capture = OutputBuffer::default();
            let (mut out, mut err) = (Vec::new(), Vec::new());
            for (to_out, bytes) in &pieces {
                let (stream, all) = if *to_out { (Stream::Stdout, &mut out) } else { (Stream::Stderr, &mut err) };
                capture.push(stream, &Bytes::copy_from_slice(bytes));
                all.extend_from_slice(bytes);
            }
            capture.finish();
            prop_assert_eq!(capture.stream(Stream::Stdout), out);
            prop_assert_eq!(capture.stream(Stream::Stderr), err);
        }
    }
}
