//! Output of a process on its way to the listeners.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;

const PIPE_CHUNK: usize = 32 * 1024;
const TERMINAL_CHUNK: usize = 16 * 1024;

#[derive(Debug, Clone)]
pub(crate) enum Output {
    Stdout(Bytes),
    Stderr(Bytes),
    Terminal(Bytes),
}

/// The reading ends.
pub(super) enum Source {
    Pipes { stdout: Option<pipe::Receiver>, stderr: Option<pipe::Receiver> },
    Terminal(Option<Arc<AsyncFd<OwnedFd>>>),
}

impl Source {
    /// The next chunk of output; [`None`] once all writers are gone. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Output> {
        loop {
            match self {
                Self::Pipes { stdout: None, stderr: None } => return None,
                Self::Pipes { stdout, stderr } => tokio::select! {
                    chunk = read_pipe(stdout) => match chunk {
                        Some(bytes) => return Some(Output::Stdout(bytes)),
                        None => *stdout = None,
                    },
                    chunk = read_pipe(stderr) => match chunk {
                        Some(bytes) => return Some(Output::Stderr(bytes)),
                        None => *stderr = None,
                    },
                },
                Self::Terminal(terminal) => match read_terminal(terminal.as_ref()?).await {
                    Some(bytes) => return Some(Output::Terminal(bytes)),
                    None => *terminal = None,
                },
            }
        }
    }

    /// Output that is readable now, by a direct read: the runtime may not have polled it yet.
    pub(super) fn take_ready(&mut self) -> Option<Output> {
        fn take(from: Option<&impl AsFd>, size: usize) -> Option<Bytes> {
            read_chunk(from?, size).ok().filter(|bytes| !bytes.is_empty())
        }
        match self {
            Self::Pipes { stdout, stderr } => take(stdout.as_ref(), PIPE_CHUNK)
                .map(Output::Stdout)
                .or_else(|| take(stderr.as_ref(), PIPE_CHUNK).map(Output::Stderr)),
            Self::Terminal(terminal) => {
                take(terminal.as_ref().map(|terminal| terminal.get_ref()), TERMINAL_CHUNK).map(Output::Terminal)
            }
        }
    }
}

/// [`None`] at the end of the pipe; pending forever for a closed pipe.
async fn read_pipe(pipe: &Option<pipe::Receiver>) -> Option<Bytes> {
    let Some(pipe) = pipe else { return std::future::pending().await };
    loop {
        if pipe.readable().await.is_err() {
            return None;
        }
        match with_scratch(PIPE_CHUNK, |buffer| pipe.try_read(buffer)) {
            Ok(bytes) if bytes.is_empty() => return None,
            Ok(bytes) => return Some(bytes),
            Err(error) if is_transient(&error) => {}
            Err(_) => return None,
        }
    }
}

/// [`None`] when the terminal is gone, which Linux reports as EIO.
async fn read_terminal(terminal: &AsyncFd<OwnedFd>) -> Option<Bytes> {
    loop {
        let mut ready = terminal.readable().await.ok()?;
        match ready.try_io(|terminal| read_chunk(terminal, TERMINAL_CHUNK)) {
            Ok(Ok(bytes)) if bytes.is_empty() => return None,
            Ok(Ok(bytes)) => return Some(bytes),
            Ok(Err(error)) if is_transient(&error) => {}
            Ok(Err(_)) => return None,
            Err(_would_block) => {}
        }
    }
}

fn read_chunk(from: &impl AsFd, size: usize) -> io::Result<Bytes> {
    with_scratch(size, |buffer| Ok(rustix::io::read(from, buffer)?))
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Reads through one buffer per thread, so that a waiting process holds no buffer and a small
/// output costs only its size.
fn with_scratch(size: usize, read: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> io::Result<Bytes> {
    thread_local!(static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
    SCRATCH.with_borrow_mut(|scratch| {
        if scratch.is_empty() {
            scratch.resize(PIPE_CHUNK, 0);
        }
        let count = read(&mut scratch[..size])?;
        Ok(Bytes::copy_from_slice(&scratch[..count]))
    })
}
