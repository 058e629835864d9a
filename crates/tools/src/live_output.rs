//! Streams a command's output to watchers: whole lines, a few times per second, in bounded memory.
//! The result has everything; the stream may omit output that is too fast to read.
//!
//! A line is sent only when it is complete, so that masking sees secrets whole.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::port::Stream;
use text::{readable, strip_escapes};

/// Interval between two flushes.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);
/// Most bytes that wait for a flush.
const MAX_PENDING: usize = 16 * 1024;

/// A part of a command's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputChunk {
    pub stream: Stream,
    /// Whole lines; only the last one of all may lack its end.
    pub text: String,
}

/// Output that waits for the next flush.
#[derive(Debug)]
pub(crate) struct LiveOutput {
    /// Incomplete lines of both streams.
    open: [Line; 2],
    ready: VecDeque<(Stream, Vec<u8>)>,
    length: usize,
    left_out: usize,
    last_flush: Instant,
}

#[derive(Debug, Default)]
struct Line {
    bytes: Vec<u8>,
    /// Dropped bytes of a line that is too long to be sent.
    lost: usize,
}

impl LiveOutput {
    pub(crate) fn new() -> Self {
        let open = [Line::default(), Line::default()];
        Self { open, ready: VecDeque::new(), length: 0, left_out: 0, last_flush: Instant::now() - FLUSH_INTERVAL }
    }

    pub(crate) fn push(&mut self, stream: Stream, bytes: &Bytes) {
        for piece in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let line = &mut self.open[stream as usize];
            if line.lost > 0 || line.bytes.len() + piece.len() > MAX_PENDING {
                line.lost += line.bytes.len() + piece.len();
                line.bytes.clear();
            } else {
                line.bytes.extend_from_slice(piece);
            }
            if piece.ends_with(b"\n") || piece.ends_with(b"\r") {
                self.close(stream);
            }
        }
    }

    /// Ends the output: an incomplete line is sent as it is.
    pub(crate) fn finish(&mut self) {
        self.close(Stream::Stdout);
        self.close(Stream::Stderr);
    }

    fn close(&mut self, stream: Stream) {
        let Line { bytes, lost } = std::mem::take(&mut self.open[stream as usize]);
        self.left_out += lost;
        if bytes.is_empty() {
            return;
        }
        self.length += bytes.len();
        match self.ready.back_mut() {
            // Consecutive lines are merged, but into chunks small enough to be dropped one by one.
            Some((last, lines)) if *last == stream && lines.len() + bytes.len() <= MAX_PENDING / 8 => {
                lines.extend_from_slice(&bytes);
            }
            _ => self.ready.push_back((stream, bytes)),
        }
        while self.length > MAX_PENDING
            && let Some((_, oldest)) = self.ready.pop_front()
        {
            self.length -= oldest.len();
            self.left_out += oldest.len();
        }
    }

    /// Time of the next flush, if anything waits.
    pub(crate) fn due(&self) -> Option<Instant> {
        let waits = !self.ready.is_empty() || self.left_out > 0;
        waits.then(|| self.last_flush + FLUSH_INTERVAL)
    }

    /// Takes what waits for the flush.
    pub(crate) fn take(&mut self) -> Vec<OutputChunk> {
        self.last_flush = Instant::now();
        self.length = 0;
        let mut all: Vec<OutputChunk> = Vec::new();
        let left_out = std::mem::take(&mut self.left_out);
        if left_out > 0 {
            all.push(OutputChunk { stream: Stream::Stdout, text: format!("[… {left_out} bytes not shown]\n") });
        }
        for (stream, lines) in self.ready.drain(..) {
            let text = strip_escapes(&readable(&lines));
            match all.last_mut() {
                Some(last) if last.stream == stream => last.text.push_str(&text),
                _ => all.push(OutputChunk { stream, text }),
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(stream: Stream, text: &str) -> OutputChunk {
        OutputChunk { stream, text: text.into() }
    }

    #[tokio::test]
    async fn lines_are_flushed_whole_and_in_order() {
        let mut live = LiveOutput::new();
        live.push(Stream::Stdout, &Bytes::from_static(b"one\ntw"));
        assert!(live.due().is_some());
        live.push(Stream::Stderr, &Bytes::from_static("\u{1b}[31mgr\u{fc}n\u{1b}[0m\n".as_bytes()));
        live.push(Stream::Stdout, &Bytes::from_static(b"o\nthree"));
        let chunks = [chunk(Stream::Stdout, "one\n"), chunk(Stream::Stderr, "grün\n"), chunk(Stream::Stdout, "two\n")];
        assert_eq!(live.take(), chunks);
        assert_eq!((live.due(), live.take()), (None, Vec::new()));
        live.finish();
        assert_eq!(live.take(), [chunk(Stream::Stdout, "three")]);
    }

    #[tokio::test]
    async fn dropped_output_is_counted() {
        let mut live = LiveOutput::new();
        for _ in 0..1000 {
            live.push(Stream::Stdout, &Bytes::from(vec![b'y'; 1000]));
        }
        assert_eq!(live.due(), None);
        live.push(Stream::Stdout, &Bytes::from_static(b"\nnext\n"));
        assert_eq!(live.take(), [chunk(Stream::Stdout, "[… 1000001 bytes not shown]\nnext\n")]);
        for number in 0..100_000 {
            live.push(Stream::Stdout, &Bytes::from(format!("{number}\n")));
        }
        let chunks = live.take();
        let [OutputChunk { text, .. }] = chunks.as_slice() else { panic!("one piece: {chunks:?}") };
        assert!(
            text.len() < 2 * MAX_PENDING && text.starts_with("[… ") && text.ends_with("\n99998\n99999\n"),
            "{text}"
        );
    }
}
