//! Compressed standard input: inflated before the process reads it.
//!
//! ```text
//! pieces ─► queue ─► inflate ─► the process's pipe
//! ```
//!
//! A piece is accepted as soon as the queue has space, so that the next one travels while the
//! process reads this one. An invalid piece therefore fails a later write. The task ends when the
//! input is closed and fully read, or when no reader is left.

use std::io::{self, Write};

use flate2::write::MultiGzDecoder;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Output per step, so that other tasks run in between, and a piece that inflates a thousandfold
/// does not fill the memory.
const STEP: usize = 32 * 1024;

/// The writing end. Dropping it ends the input.
pub(super) struct InflateWriter {
    /// Capacity one: a piece waits while the previous one is inflated.
    pieces: mpsc::Sender<Vec<u8>>,
    task: JoinHandle<io::Result<()>>,
}

impl InflateWriter {
    pub(super) fn new(process: pipe::Sender) -> Self {
        let (pieces, queue) = mpsc::channel(1);
        Self { pieces, task: tokio::spawn(inflate(queue, process)) }
    }

    /// Queues a piece. Must not be called again after an error.
    pub(super) async fn push(&mut self, piece: &[u8]) -> io::Result<()> {
        if self.pieces.send(piece.to_vec()).await.is_ok() {
            return Ok(());
        }
        match (&mut self.task).await {
            Ok(Err(error)) => Err(error),
            Ok(Ok(())) | Err(_) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

async fn inflate(mut queue: mpsc::Receiver<Vec<u8>>, mut process: pipe::Sender) -> io::Result<()> {
    let mut decoder = MultiGzDecoder::new(Vec::new());
    while let Some(piece) = queue.recv().await {
        for step in piece.chunks(STEP) {
            decoder.write_all(step)?;
            process.write_all(decoder.get_ref()).await?;
            decoder.get_mut().clear();
        }
    }
    // Flushes what the decoder held back.
    decoder.try_finish()?;
    process.write_all(decoder.get_ref()).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use tokio::io::AsyncReadExt;

    /// What the process reads from these pieces. Terminates for any input.
    fn inflated(pieces: &[Vec<u8>]) -> Vec<u8> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (process, mut reader) = pipe::pipe().expect("a pipe");
            let mut input = InflateWriter::new(process);
            let sending = async move {
                for piece in pieces {
                    if input.push(piece).await.is_err() {
                        break;
                    }
                }
            };
            let mut read = Vec::new();
            let reading = reader.read_to_end(&mut read);
            let ((), ended) = tokio::join!(sending, reading);
            ended.expect("the pipe is read");
            read
        })
    }

    fn compressed(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content).expect("memory");
        encoder.finish().expect("memory")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn streams_inflate_for_any_chunk_size(content in vec(any::<u8>(), 0..5000), size in 1_usize..600) {
            let pieces: Vec<Vec<u8>> = compressed(&content).chunks(size).map(<[u8]>::to_vec).collect();
            prop_assert_eq!(inflated(&pieces), content);
        }

        #[test]
        fn damaged_streams_end(content in vec(any::<u8>(), 0..2000), damage in vec((any::<usize>(), any::<u8>()), 1..8)) {
            let mut stream = compressed(&content);
            for (at, byte) in damage {
                let at = at % stream.len();
                stream[at] = byte;
            }
            let pieces: Vec<Vec<u8>> = stream.chunks(97).map(<[u8]>::to_vec).collect();
            prop_assert!(inflated(&pieces).len() <= 1032 * stream.len(), "deflate's own limit");
        }

        #[test]
        fn arbitrary_bytes_end(pieces in vec(vec(any::<u8>(), 0..200), 0..5)) {
            inflated(&pieces);
        }
    }
}
