//! Runs commands in a sandbox through its guest, as clients do. The server itself runs only build
//! steps and start commands of templates.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, Bytes, BytesMut};
use http::{Request, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use protocol::headers::ACCESS_TOKEN;
use serde::Deserialize;
use serde_json::json;

use crate::guest_call::{Connection, GuestError, connect};
use crate::id::Token;

/// A guest starts a process within milliseconds.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// An honest guest sends at most 32 KiB per message.
const MOST_MESSAGE_BYTES: usize = 1 << 20;
/// Flag of the last envelope of a stream.
const END_OF_STREAM: u8 = 2;

/// A command line for a login shell, as the SDKs run it.
#[derive(Clone, Copy)]
pub(crate) struct Script<'a> {
    pub(crate) user: &'a str,
    pub(crate) line: &'a str,
    /// Absent: the user's home.
    pub(crate) workdir: Option<&'a str>,
    pub(crate) env: &'a BTreeMap<String, String>,
}

/// Output of a process, or its end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Stdout(Bytes),
    Stderr(Bytes),
    Ended { exit_code: i32, status: String },
}

/// A process in a sandbox. If it is dropped, the process continues without a reader.
pub(crate) struct Process {
    _connection: Connection,
    body: Incoming,
    received: BytesMut,
}

/// Starts `script` and returns as soon as it runs.
pub(crate) async fn start(socket: &Path, token: Option<&Token>, script: Script<'_>) -> Result<Process, GuestError> {
    tokio::time::timeout(START_TIMEOUT, start_unbounded(socket, token, script)).await.map_err(|_| GuestError::Late)?
}

async fn start_unbounded(socket: &Path, token: Option<&Token>, script: Script<'_>) -> Result<Process, GuestError> {
    let Script { user, line, workdir, env } = script;
    let mut process = json!({ "cmd": "/bin/bash", "args": ["-l", "-c", line], "envs": env });
    if let Some(workdir) = workdir {
        process["cwd"] = json!(workdir);
    }
    let message = serde_json::to_vec(&json!({ "process": process, "stdin": false })).map_err(GuestError::broken)?;
    let length = u32::try_from(message.len()).map_err(GuestError::broken)?;
    let mut envelope = vec![0];
    envelope.extend(length.to_be_bytes());
    envelope.extend(message);
    let mut request = Request::post("/process.Process/Start")
        .header(header::HOST, "guest")
        .header(header::CONTENT_TYPE, "application/connect+json")
        .header("connect-protocol-version", "1")
        .header(header::AUTHORIZATION, format!("Basic {}", STANDARD.encode(format!("{user}:"))));
    if let Some(token) = token {
        request = request.header(ACCESS_TOKEN, token.reveal());
    }
    let request = request.body(Full::from(envelope)).map_err(GuestError::broken)?;
    let mut connection = connect(socket).await?;
    let response = connection.sender.send_request(request).await.map_err(GuestError::broken)?;
    if !response.status().is_success() {
        return Err(GuestError::Status(response.status()));
    }
    let mut process = Process { _connection: connection, body: response.into_body(), received: BytesMut::new() };
    // The first message confirms the start; an error is sent instead of it.
    match process.next_event().await? {
        Some(Event { start: Some(_), .. }) => Ok(process),
        _ => Err(GuestError::broken("the process did not start")),
    }
}

impl Process {
    /// Returns the next output; `None` after the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Output>, GuestError> {
        while let Some(event) = self.next_event().await? {
            let decode = |text: String| STANDARD.decode(text).map(Bytes::from).map_err(GuestError::broken);
            match event {
                Event { end: Some(End { exit_code, status }), .. } => {
                    return Ok(Some(Output::Ended { exit_code, status }));
                }
                Event { data: Some(Data { stdout: Some(text), .. }), .. } => {
                    return decode(text).map(|bytes| Some(Output::Stdout(bytes)));
                }
                Event { data: Some(Data { stderr: Some(text), .. }), .. } => {
                    return decode(text).map(|bytes| Some(Output::Stderr(bytes)));
                }
                // A keepalive.
                _ => {}
            }
        }
        Ok(None)
    }

    async fn next_event(&mut self) -> Result<Option<Event>, GuestError> {
        let Some((flags, message)) = self.next_message().await? else { return Ok(None) };
        if flags & END_OF_STREAM != 0 {
            let end: EndOfStream = serde_json::from_slice(&message).map_err(GuestError::broken)?;
            return match end.error {
                Some(Refusal { code, message }) => Err(GuestError::Refused { code, message }),
                None => Ok(None),
            };
        }
        let Message { event } = serde_json::from_slice(&message).map_err(GuestError::broken)?;
        Ok(Some(event.unwrap_or_default()))
    }

    async fn next_message(&mut self) -> Result<Option<(u8, Bytes)>, GuestError> {
        loop {
            if let Some((flags, length)) = parse_header(&self.received) {
                if length > MOST_MESSAGE_BYTES {
                    return Err(GuestError::broken("the guest sent a message that is too long"));
                }
                if self.received.len() >= 5 + length {
                    self.received.advance(5);
                    return Ok(Some((flags, self.received.split_to(length).freeze())));
                }
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(data) = frame.map_err(GuestError::broken)?.into_data() {
                        self.received.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

fn parse_header(received: &[u8]) -> Option<(u8, usize)> {
    let (&[flags, a, b, c, d], _) = received.split_first_chunk::<5>()?;
    Some((flags, u32::from_be_bytes([a, b, c, d]) as usize))
}

#[derive(Deserialize)]
struct Message {
    event: Option<Event>,
}

#[derive(Default, Deserialize)]
struct Event {
    start: Option<serde::de::IgnoredAny>,
    data: Option<Data>,
    end: Option<End>,
}

#[derive(Deserialize)]
struct Data {
    stdout: Option<String>,
    stderr: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct End {
    exit_code: i32,
    status: String,
}

#[derive(Deserialize)]
struct EndOfStream {
    error: Option<Refusal>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Refusal {
    code: String,
    message: String,
}
