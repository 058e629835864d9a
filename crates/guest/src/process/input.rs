//! Input of a process: its standard input or its terminal.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::AsyncWriteExt;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::sync::Mutex;

use super::inflate::InflateWriter;

/// The writing end. Writers are served in the order of their calls.
pub(super) enum Input {
    /// [`None`]: closed, or never open.
    Pipe(Mutex<Option<pipe::Sender>>),
    /// Like `Pipe`, for compressed input.
    Inflated(Mutex<Option<InflateWriter>>),
    Terminal {
        master: Arc<AsyncFd<OwnedFd>>,
        write_lock: Mutex<()>,
    },
}

#[derive(Debug)]
pub(crate) enum InputError {
    /// Addressed to standard input, but the process has a terminal.
    IsTerminal,
    /// Addressed to the terminal, but the process has none.
    NoTerminal,
    Closed,
    Io(std::io::Error),
}

impl std::fmt::Display for InputError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::IsTerminal => f.write_str("the process runs in a terminal; send pty input instead of stdin"),
            Self::NoTerminal => f.write_str("the process does not run in a terminal"),
            Self::Closed => f.write_str("stdin is closed or was not enabled"),
            Self::Io(error) => write!(f, "cannot write to the process: {error}"),
        }
    }
}

impl Input {
    pub(super) async fn write_stdin(&self, bytes: &[u8]) -> Result<(), InputError> {
        match self {
            Self::Pipe(pipe) => {
                let mut pipe = pipe.lock().await;
                pipe.as_mut().ok_or(InputError::Closed)?.write_all(bytes).await.map_err(InputError::Io)
            }
            Self::Inflated(inflating) => {
                let mut open = inflating.lock().await;
                let Err(failed) = open.as_mut().ok_or(InputError::Closed)?.push(bytes).await else { return Ok(()) };
                *open = None;
                Err(InputError::Io(failed))
            }
            Self::Terminal { .. } => Err(InputError::IsTerminal),
        }
    }

    pub(super) async fn write_terminal(&self, mut bytes: &[u8]) -> Result<(), InputError> {
        let Self::Terminal { master, write_lock } = self else { return Err(InputError::NoTerminal) };
        let _writing = write_lock.lock().await;
        while !bytes.is_empty() {
            let mut ready = master.writable().await.map_err(InputError::Io)?;
            match ready.try_io(|master| Ok(rustix::io::write(master, bytes)?)) {
                Ok(written) => bytes = &bytes[written.map_err(InputError::Io)?..],
                Err(_would_block) => {}
            }
        }
        Ok(())
    }

    /// Closes the input, so that the process reads EOF. Idempotent.
    pub(super) async fn close(&self) -> Result<(), InputError> {
        match self {
            Self::Pipe(pipe) => *pipe.lock().await = None,
            Self::Inflated(inflating) => *inflating.lock().await = None,
            Self::Terminal { .. } => return Err(InputError::IsTerminal),
        }
        Ok(())
    }

    pub(super) fn resize(&self, cols: u16, rows: u16) -> Result<(), InputError> {
        let Self::Terminal { master, .. } = self else { return Err(InputError::NoTerminal) };
        tcsetwinsize(master.get_ref(), window(cols, rows)).map_err(|errno| InputError::Io(errno.into()))
    }
}

pub(super) fn window(cols: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 }
}
