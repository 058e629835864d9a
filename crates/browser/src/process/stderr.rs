//! The browser's last words.

use std::io;
use std::process::ChildStderr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio_util::task::AbortOnDropHandle;

use crate::error::BrowserError;

const STDERR_TAIL_BYTES: usize = 2048;

pub(super) type StderrTail = Arc<Mutex<Vec<u8>>>;

/// Reads stderr so that the pipe never fills, and keeps its tail.
pub(super) fn drain(stderr: ChildStderr) -> io::Result<(StderrTail, AbortOnDropHandle<()>)> {
    let mut stderr = pipe::Receiver::from_owned_fd(stderr.into())?;
    let tail = StderrTail::default();
    let kept = Arc::clone(&tail);
    let task = tokio::spawn(async move {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = stderr.read(&mut buffer).await {
            let mut tail = kept.lock();
            tail.extend_from_slice(&buffer[..length]);
            let surplus = tail.len().saturating_sub(STDERR_TAIL_BYTES);
            tail.drain(..surplus);
        }
    });
    Ok((tail, AbortOnDropHandle::new(task)))
}

pub(super) fn explain_exit(tail: &StderrTail) -> BrowserError {
    let tail = tail.lock();
    let text = String::from_utf8_lossy(&tail).trim().to_owned();
    match text.contains("No usable sandbox") {
        true => BrowserError::NoSandbox,
        false => BrowserError::Exited { last_words: text },
    }
}
