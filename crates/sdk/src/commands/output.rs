//! What a command says and how it ends.

use std::borrow::Cow;

use buffa::MessageView;
use bytes::Bytes;
use protocol::rpc::process::__buffa::view::oneof::process_event::Event as EventView;
use protocol::rpc::process::__buffa::view::oneof::process_event::data_event::Output as DataView;
use protocol::rpc::process::__buffa::view::process_event::EndEventView;
use protocol::rpc::process::StartResponseView;

/// A piece of output. A multi-byte character may be cut between two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunk {
    Stdout(Bytes),
    Stderr(Bytes),
    /// What a terminal shows, both outputs in one.
    Pty(Bytes),
}

impl Chunk {
    /// The bytes, whichever output they are of.
    pub fn bytes(&self) -> &Bytes {
        match self {
            Self::Stdout(bytes) | Self::Stderr(bytes) | Self::Pty(bytes) => bytes,
        }
    }
}

/// What a running command does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Output(Chunk),
    /// The last one.
    Exit(Exit),
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// What it returned; -1 when a signal ended it.
    pub code: i32,
    /// It ended by itself, and by no signal.
    pub exited: bool,
    /// In words: `exit status 1`, `signal: killed`.
    pub status: String,
    /// The same words unless it succeeded.
    pub error: Option<String>,
}

impl Exit {
    /// It returned 0.
    pub fn success(&self) -> bool {
        self.exited && self.code == 0
    }
}

/// All that a command said, and how it ended. A terminal's output is in `stdout`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    pub stdout: Bytes,
    pub stderr: Bytes,
    pub exit: Exit,
}

impl Output {
    /// It returned 0.
    pub fn success(&self) -> bool {
        self.exit.success()
    }

    /// The standard output as text; what is not UTF-8 is replaced.
    pub fn stdout_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.stdout)
    }

    /// The standard error as text; what is not UTF-8 is replaced.
    pub fn stderr_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.stderr)
    }
}

/// One message of a process's stream.
pub(super) enum Said {
    Start(u32),
    Output(Chunk),
    End(Exit),
    /// A sign of life, or something that newer servers say.
    Nothing,
}

/// Takes a message apart. Output stays where it is: the chunk is a slice of the message.
///
/// The answers of `Start` and `Connect` are the same on the wire.
pub(super) fn decode(message: &Bytes) -> Result<Said, String> {
    let answer = StartResponseView::decode_view(message).map_err(|error| error.to_string())?;
    let Some(event) = answer.event.as_option().and_then(|event| event.event.as_ref()) else { return Ok(Said::Nothing) };
    Ok(match event {
        EventView::Start(start) => Said::Start(start.pid),
        EventView::Data(data) => match data.output {
            Some(DataView::Stdout(bytes)) => Said::Output(Chunk::Stdout(message.slice_ref(bytes))),
            Some(DataView::Stderr(bytes)) => Said::Output(Chunk::Stderr(message.slice_ref(bytes))),
            Some(DataView::Pty(bytes)) => Said::Output(Chunk::Pty(message.slice_ref(bytes))),
            None => Said::Nothing,
        },
        EventView::End(end) => Said::End(exit(end)),
        EventView::Keepalive(_) => Said::Nothing,
    })
}

fn exit(end: &EndEventView<'_>) -> Exit {
    let EndEventView { exit_code, exited, status, error, .. } = end;
    Exit { code: *exit_code, exited: *exited, status: (*status).to_owned(), error: error.map(str::to_owned) }
}
