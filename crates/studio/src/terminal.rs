//! A terminal in the running sandbox of a job.

use bytes::Bytes;

use crate::error::StudioError;

/// Two halves, so that one task may read while another writes. Dropping the output ends the shell.
#[derive(Debug)]
pub struct Terminal {
    pub input: TerminalInput,
    pub output: TerminalOutput,
}

#[derive(Debug, Clone)]
pub struct TerminalInput {}

#[derive(Debug)]
pub struct TerminalOutput {}

impl TerminalInput {
    /// # Errors
    /// The shell or its sandbox is gone.
    pub async fn send(&self, _bytes: Bytes) -> Result<(), StudioError> {
        Err(StudioError::Asleep)
    }

    /// # Errors
    /// The shell or its sandbox is gone.
    pub async fn resize(&self, _cols: u16, _rows: u16) -> Result<(), StudioError> {
        Err(StudioError::Asleep)
    }
}

impl TerminalOutput {
    /// The next piece; nothing after the shell's end. Safe to cancel.
    pub async fn next(&mut self) -> Option<Bytes> {
        None
    }
}
