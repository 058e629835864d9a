//! What a command says while it runs, for those who watch: whole lines, a few times a second, in bounded memory. The answer
//! has everything; this may leave out what nobody could read at such a speed.
//!
//! Lines are never told before their end has come: whoever hides values in them must see the values whole.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::port::Stream;
use crate::text::{readable, strip_escapes};

/// Between two times that something is told.
const PAUSE: Duration = Duration::from_millis(100);
/// Most that waits to be told.
const ROOM: usize = 16 * 1024;

/// A piece of a command's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    pub stream: Stream,
    /// Whole lines; the last one of all may have no end.
    pub text: String,
}

/// Output on its way to those who watch.
#[derive(Debug)]
pub(crate) struct Live {
    /// Lines of both streams whose end has not come.
    open: [Line; 2],
    ready: VecDeque<(Stream, Vec<u8>)>,
    length: usize,
    left_out: usize,
    told: Instant,
}

#[derive(Debug, Default)]
struct Line {
    bytes: Vec<u8>,
    /// It is too long to be told, and this much of it was thrown away.
    lost: usize,
}

impl Live {
    pub(crate) fn new() -> Self {
        let open = [Line::default(), Line::default()];
        Self { open, ready: VecDeque::new(), length: 0, left_out: 0, told: Instant::now() - PAUSE }
    }

    pub(crate) fn push(&mut self, stream: Stream, bytes: &Bytes) {
        for piece in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let line = &mut self.open[stream as usize];
            if line.lost > 0 || line.bytes.len() + piece.len() > ROOM {
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

    /// No more comes: a line without an end is told as it is.
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
            // Lines in a row go together, but not so many that the oldest could not be left out.
            Some((last, lines)) if *last == stream && lines.len() + bytes.len() <= ROOM / 8 => {
                lines.extend_from_slice(&bytes);
            }
            _ => self.ready.push_back((stream, bytes)),
        }
        while self.length > ROOM
            && let Some((_, oldest)) = self.ready.pop_front()
        {
            self.length -= oldest.len();
            self.left_out += oldest.len();
        }
    }

    /// When something is to be told, if there is something.
    pub(crate) fn due(&self) -> Option<Instant> {
        let waits = !self.ready.is_empty() || self.left_out > 0;
        waits.then(|| self.told + PAUSE)
    }

    /// What is to be told now.
    pub(crate) fn take(&mut self) -> Vec<Said> {
        self.told = Instant::now();
        self.length = 0;
        let mut all: Vec<Said> = Vec::new();
        let left_out = std::mem::take(&mut self.left_out);
        if left_out > 0 {
            all.push(Said { stream: Stream::Stdout, text: format!("[… {left_out} bytes not shown]\n") });
        }
        for (stream, lines) in self.ready.drain(..) {
            let text = strip_escapes(&readable(&lines));
            match all.last_mut() {
                Some(last) if last.stream == stream => last.text.push_str(&text),
                _ => all.push(Said { stream, text }),
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(stream: Stream, text: &str) -> Said {
        Said { stream, text: text.into() }
    }

    #[tokio::test]
    async fn lines_are_told_whole_and_in_order() {
        let mut live = Live::new();
        live.push(Stream::Stdout, &Bytes::from_static(b"one\ntw"));
        assert!(live.due().is_some());
        live.push(Stream::Stderr, &Bytes::from_static("\u{1b}[31mgr\u{fc}n\u{1b}[0m\n".as_bytes()));
        live.push(Stream::Stdout, &Bytes::from_static(b"o\nthree"));
        let told = [said(Stream::Stdout, "one\n"), said(Stream::Stderr, "grün\n"), said(Stream::Stdout, "two\n")];
        assert_eq!(live.take(), told);
        assert_eq!((live.due(), live.take()), (None, Vec::new()));
        live.finish();
        assert_eq!(live.take(), [said(Stream::Stdout, "three")]);
    }

    #[tokio::test]
    async fn what_is_too_much_is_counted() {
        let mut live = Live::new();
        for _ in 0..1000 {
            live.push(Stream::Stdout, &Bytes::from(vec![b'y'; 1000]));
        }
        assert_eq!(live.due(), None);
        live.push(Stream::Stdout, &Bytes::from_static(b"\nnext\n"));
        assert_eq!(live.take(), [said(Stream::Stdout, "[… 1000001 bytes not shown]\nnext\n")]);
        for number in 0..100_000 {
            live.push(Stream::Stdout, &Bytes::from(format!("{number}\n")));
        }
        let told = live.take();
        let [Said { text, .. }] = told.as_slice() else { panic!("one piece: {told:?}") };
        assert!(text.len() < 2 * ROOM && text.starts_with("[… ") && text.ends_with("\n99998\n99999\n"), "{text}");
    }
}
