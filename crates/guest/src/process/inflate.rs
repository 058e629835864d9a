//! Standard input that travels compressed: it is inflated here before the process reads it.
//!
//! ```text
//! pieces ─► queue ─► inflate ─► the process's pipe
//! ```
//!
//! A piece is taken as soon as there is room for it, so that the next one travels while the process reads this one. What is wrong
//! with a piece is therefore told to whoever sends another. The task ends when the input is closed and all of it is read, or when
//! nobody is left to read it.

use std::io::{self, Write};

use flate2::write::MultiGzDecoder;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Inflated at once, so that others have their turn, and so that a piece which is a thousand times as long when it is inflated
/// does not fill the memory.
const STEP: usize = 32 * 1024;

/// The end that is written to. Dropping it is the end of the input.
pub(super) struct Inflating {
    /// Of one place: a piece waits while the one before is inflated.
    pieces: mpsc::Sender<Vec<u8>>,
    task: JoinHandle<io::Result<()>>,
}

impl Inflating {
    pub(super) fn new(process: pipe::Sender) -> Self {
        let (pieces, queue) = mpsc::channel(1);
        Self { pieces, task: tokio::spawn(inflate(queue, process)) }
    }

    /// Takes a piece. Not to be called again after an error.
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
    // What the decoder held back.
    decoder.try_finish()?;
    process.write_all(decoder.get_ref()).await
}
