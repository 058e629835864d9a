//! Output and exit of a command.

use std::borrow::Cow;

use buffa::MessageView;
use bytes::Bytes;
use protocol::rpc::process::__buffa::view::oneof::process_event::Event as EventView;
use protocol::rpc::process::__buffa::view::oneof::process_event::data_event::Output as DataView;
use protocol::rpc::process::__buffa::view::process_event::EndEventView;
use protocol::rpc::process::StartResponseView;

/// A chunk of output. A multi-byte character may be split between two chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunk {
    Stdout(Bytes),
    Stderr(Bytes),
    /// Output of a terminal, which merges both outputs.
    Pty(Bytes),
}

impl Chunk {
    /// The bytes of any variant.
    pub fn bytes(&self) -> &Bytes {
        match self {
            Self::Stdout(bytes) | Self::Stderr(bytes) | Self::Pty(bytes) => bytes,
        }
    }
}

/// An event of a running command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Output(Chunk),
    /// Always the last event.
    Exit(Exit),
}

/// The exit of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// The exit code; -1 when a signal killed it.
    pub code: i32,
    /// Whether it exited by itself, not by a signal.
    pub exited: bool,
    /// As text: `exit status 1`, `signal: killed`.
    pub status: String,
    /// The same text; [`None`] on success.
    pub error: Option<String>,
}

impl Exit {
    /// Whether the exit code is 0.
    pub fn success(&self) -> bool {
        self.exited && self.code == 0
    }
}

/// The collected output and exit of a command. A terminal's output is in `stdout`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    pub stdout: Bytes,
    pub stderr: Bytes,
    pub exit: Exit,
}

impl Output {
    /// Whether the exit code is 0.
    pub fn success(&self) -> bool {
        self.exit.success()
    }

    /// The standard output as text; invalid UTF-8 is replaced.
    pub fn stdout_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.stdout)
    }

    /// The standard error as text; invalid UTF-8 is replaced.
    pub fn stderr_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.stderr)
    }
}

/// One message of a process stream.
pub(super) enum ProcessMessage {
    Start(u32),
    Output(Chunk),
    End(Exit),
    /// A keepalive, or an event unknown to this version.
    Other,
}

/// Decodes a message without copying: the chunk is a slice of the message.
///
/// The responses of `Start` and `Connect` are identical on the wire.
pub(super) fn decode(message: &Bytes) -> Result<ProcessMessage, String> {
    let answer = StartResponseView::decode_view(message).map_err(|error| error.to_string())?;
    let Some(event) = answer.event.as_option().and_then(|event| event.event.as_ref()) else {
        return Ok(ProcessMessage::Other);
    };
    Ok(match event {
        EventView::Start(start) => ProcessMessage::Start(start.pid),
        EventView::Data(data) => match data.output {
            Some(DataView::Stdout(bytes)) => ProcessMessage::Output(Chunk::Stdout(message.slice_ref(bytes))),
            Some(DataView::Stderr(bytes)) => ProcessMessage::Output(Chunk::Stderr(message.slice_ref(bytes))),
            Some(DataView::Pty(bytes)) => ProcessMessage::Output(Chunk::Pty(message.slice_ref(bytes))),
            None => ProcessMessage::Other,
        },
        EventView::End(end) => ProcessMessage::End(exit(end)),
        EventView::Keepalive(_) => ProcessMessage::Other,
    })
}

fn exit(end: &EndEventView<'_>) -> Exit {
    let EndEventView { exit_code, exited, status, error, .. } = end;
    Exit { code: *exit_code, exited: *exited, status: (*status).to_owned(), error: error.map(str::to_owned) }
}
