//! The Connect protocol as envd speaks it: unary calls, streams of envelopes, and their errors. Binary messages.
//!
//! An envelope is a flag byte, a length of four bytes, big end first, and the message. The last one of a stream has the
//! flag [`END`] and says in JSON how it ended.

use buffa::Message;
use bytes::{Buf, Bytes, BytesMut};
use serde::Deserialize;

use super::answer::{Failure, Refusal};
use super::http::Call;

pub(crate) const UNARY: &str = "application/proto";
pub(crate) const STREAM: &str = "application/connect+proto";

const HEAD: usize = 5;
const COMPRESSED: u8 = 1;
const END: u8 = 2;
/// Far above what a daemon sends at once (32 KiB of output); a length beyond it is not an envelope.
const LONGEST: usize = 16 * 1024 * 1024;

/// One message in an envelope.
pub(crate) fn envelope<M: Message>(message: &M) -> Bytes {
    let payload = message.encode_to_vec();
    let mut whole = Vec::with_capacity(HEAD + payload.len());
    whole.push(0);
    whole.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes());
    whole.extend_from_slice(&payload);
    whole.into()
}

/// Reads the answer of a unary call.
pub(crate) async fn read_unary<M: Message + Default>(
    mut response: reqwest::Response,
    call: &Call,
) -> Result<M, Failure> {
    expect_type(&response, UNARY, call)?;
    let mut body = BytesMut::new();
    loop {
        match tokio::time::timeout_at(call.deadline(), response.chunk()).await {
            Err(_) => return Err(Failure::Call(call.out_of_time())),
            Ok(Err(error)) => return Err(Failure::Call(call.lost(&error))),
            Ok(Ok(None)) => break,
            Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
        }
    }
    M::decode_from_slice(&body).map_err(|error| Failure::Call(call.misunderstood(error.to_string())))
}

fn expect_type(response: &reqwest::Response, expected: &str, call: &Call) -> Result<(), Failure> {
    let got = response.headers().get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    if got.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(expected)) {
        return Ok(());
    }
    Err(Failure::Call(call.misunderstood(format!("the content type is {got:?} where {expected:?} is due"))))
}

/// What a stream brings next.
#[derive(Debug)]
pub(crate) enum Frame {
    Message(Bytes),
    /// The server's last word: a clean end, or a refusal.
    End(Option<Refusal>),
}

/// Why a stream brings nothing more.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The connection ended or failed before the last envelope.
    Lost(String),
    /// These are not envelopes.
    Garbled(String),
}

/// The envelopes of one answer. Dropping it closes the stream.
#[derive(Debug)]
pub(crate) struct Frames {
    response: reqwest::Response,
    pending: BytesMut,
}

impl Frames {
    /// Takes the answer of a stream call, checked to be one.
    pub(crate) fn new(response: reqwest::Response, call: &Call) -> Result<Self, Failure> {
        expect_type(&response, STREAM, call)?;
        Ok(Self { response, pending: BytesMut::new() })
    }

    /// The next envelope. Safe to cancel: what has arrived is kept for the next call.
    pub(crate) async fn next(&mut self) -> Result<Frame, Broken> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(frame);
            }
            match self.response.chunk().await {
                Ok(Some(chunk)) => self.pending.extend_from_slice(&chunk),
                Ok(None) => return Err(Broken::Lost("it ended before its last message".into())),
                Err(error) => return Err(Broken::Lost(super::http::cause(&error))),
            }
        }
    }

    fn take(&mut self) -> Result<Option<Frame>, Broken> {
        if self.pending.len() < HEAD {
            return Ok(None);
        }
        let flag = self.pending[0];
        let length = u32::from_be_bytes([self.pending[1], self.pending[2], self.pending[3], self.pending[4]]) as usize;
        if length > LONGEST {
            return Err(Broken::Garbled(format!("a message of {length} bytes")));
        }
        if self.pending.len() < HEAD + length {
            return Ok(None);
        }
        self.pending.advance(HEAD);
        let payload = self.pending.split_to(length).freeze();
        match flag {
            0 => Ok(Some(Frame::Message(payload))),
            END => end(&payload).map(|refusal| Some(Frame::End(refusal))),
            COMPRESSED => Err(Broken::Garbled("a compressed message that nobody asked for".into())),
            other => Err(Broken::Garbled(format!("the unknown flag {other}"))),
        }
    }
}

#[derive(Deserialize)]
struct EndOfStream {
    error: Option<EndError>,
}

#[derive(Deserialize)]
struct EndError {
    code: String,
    #[serde(default)]
    message: String,
}

fn end(payload: &[u8]) -> Result<Option<Refusal>, Broken> {
    let end: EndOfStream = serde_json::from_slice(payload).map_err(|error| Broken::Garbled(error.to_string()))?;
    Ok(end.error.map(|EndError { code, message }| Refusal::of_code(&code, message)))
}
