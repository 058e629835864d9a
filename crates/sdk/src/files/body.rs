//! Upload bodies: known length, chunks that are not copied, and progress reports.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};

use crate::transport::Progress;

/// Bytes per frame: small enough that a frame indicates progress, large enough to add no overhead.
const STEP: usize = 256 * 1024;
/// Smaller chunks are merged, because each costs a write.
const SMALL: usize = 16 * 1024;

/// Collects chunks of bytes, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Pieces {
    whole: Vec<Bytes>,
    gathered: BytesMut,
}

impl Pieces {
    pub(super) fn push(&mut self, piece: &Bytes) {
        if piece.len() < SMALL {
            self.push_slice(piece);
        } else {
            self.close();
            self.whole.push(piece.clone());
        }
    }

    pub(super) fn push_slice(&mut self, piece: &[u8]) {
        self.gathered.extend_from_slice(piece);
        if self.gathered.len() >= STEP {
            self.close();
        }
    }

    fn close(&mut self) {
        if !self.gathered.is_empty() {
            self.whole.push(self.gathered.split().freeze());
        }
    }

    pub(super) fn finish(mut self) -> Vec<Bytes> {
        self.close();
        self.whole
    }
}

/// A body made of chunks.
#[derive(Debug)]
pub(super) struct Upload {
    rest: VecDeque<Bytes>,
    left: u64,
    progress: Progress,
}

impl Upload {
    pub(super) fn new(pieces: impl IntoIterator<Item = Bytes>, progress: Progress) -> Self {
        let rest: VecDeque<Bytes> = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
        let left = rest.iter().map(|piece| piece.len() as u64).sum();
        Self { rest, left, progress }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(mut piece) = self.rest.pop_front() else { return Poll::Ready(None) };
        if piece.len() > STEP {
            let more = piece.split_off(STEP);
            self.rest.push_front(more);
        }
        self.left -= piece.len() as u64;
        self.progress.note();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
