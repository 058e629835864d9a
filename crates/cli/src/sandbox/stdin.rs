//! Reads this program's standard input in pieces.

use bytes::Bytes;
use std::io::Read;
use tokio::sync::mpsc;

const PIECE: usize = 64 * 1024;
/// Pieces that are read ahead; the channel's backpressure stops the reader.
const AHEAD: usize = 4;

/// Reads standard input on a separate thread, because a read from a terminal cannot be cancelled.
/// The thread ends with the input, with the receiver, or with the process, and is never joined.
pub(crate) fn pieces() -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    std::thread::spawn(move || {
        let mut input = std::io::stdin().lock();
        let mut piece = vec![0; PIECE];
        loop {
            match input.read(&mut piece) {
                Ok(0) => return,
                Ok(count) if sender.blocking_send(Bytes::copy_from_slice(&piece[..count])).is_ok() => {}
                Ok(_) => return,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    eprintln!("sandbar: cannot read the input any further: {error}");
                    return;
                }
            }
        }
    });
    receiver
}
