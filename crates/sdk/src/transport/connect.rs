//! The Connect protocol as envd speaks it: unary calls, streams of envelopes, and their errors.
//! Binary messages.
//!
//! An envelope is a flag byte, a big-endian length of four bytes, and the message. The last one of
//! a stream has the flag [`END`] and contains its result as JSON.

use std::time::Duration;

use buffa::Message;
use bytes::{Buf, Bytes, BytesMut};
use serde::Deserialize;

use super::connection_pool::StreamPermit;
use super::http::Call;
use super::response::{Failure, Refusal};

pub(crate) const UNARY: &str = "application/proto";
pub(crate) const STREAM: &str = "application/connect+proto";

const HEAD: usize = 5;
const COMPRESSED: u8 = 1;
const END: u8 = 2;
/// Far above what a daemon sends at once (32 KiB of output); a larger length is a framing error.
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// Limit of a unary response; the largest is a directory list.
const MAX_UNARY_BYTES: usize = 256 * 1024 * 1024;
/// How long to wait for the end of a response after its last message.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// Encodes one message in an envelope.
pub(crate) fn envelope<M: Message>(message: &M) -> Bytes {
    let payload = message.encode_to_vec();
    let mut whole = Vec::with_capacity(HEAD + payload.len());
    whole.push(0);
    whole.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes());
    whole.extend_from_slice(&payload);
    whole.into()
}

/// Reads the response of a unary call.
pub(crate) async fn read_unary<M: Message + Default>(
    mut response: reqwest::Response,
    call: &Call,
) -> Result<M, Failure> {
    expect_type(&response, UNARY, call)?;
    let mut body = BytesMut::new();
    loop {
        match tokio::time::timeout_at(call.deadline(), response.chunk()).await {
            Err(_) => return Err(Failure::Call(call.deadline_exceeded())),
            Ok(Err(error)) => return Err(Failure::Call(call.lost(&error))),
            Ok(Ok(None)) => break,
            Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
        }
        if body.len() > MAX_UNARY_BYTES {
            return Err(Failure::Call(call.protocol_error(format!("more than {MAX_UNARY_BYTES} bytes"))));
        }
    }
    M::decode_from_slice(&body).map_err(|error| Failure::Call(call.protocol_error(error.to_string())))
}

fn expect_type(response: &reqwest::Response, expected: &str, call: &Call) -> Result<(), Failure> {
    let got = response.headers().get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    if got.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(expected)) {
        return Ok(());
    }
    Err(Failure::Call(call.protocol_error(format!("the content type is {got:?} where {expected:?} is due"))))
}

/// The next frame of a stream.
#[derive(Debug)]
pub(crate) enum Frame {
    Message(Bytes),
    /// The end of the stream: clean, or with an error.
    End(Option<Refusal>),
}

/// Why a stream broke.
#[derive(Debug)]
pub(crate) enum StreamError {
    /// The connection ended or failed before the last envelope.
    Lost(String),
    /// No data arrived, not even a keepalive.
    Silent(Duration),
    /// The data is not a valid envelope.
    Garbled(String),
}

/// The envelopes of one response. Dropping it closes the stream.
///
/// An envelope within one chunk is a slice of it; only envelopes split across chunks are copied.
#[derive(Debug)]
pub(crate) struct EnvelopeStream {
    response: reqwest::Response,
    /// The unparsed rest of the last chunk.
    chunk: Bytes,
    /// The beginning of an incomplete envelope.
    begun: BytesMut,
    _permit: Option<StreamPermit>,
}

impl EnvelopeStream {
    /// Checks the content type of a stream response.
    pub(crate) fn new(response: reqwest::Response, permit: Option<StreamPermit>, call: &Call) -> Result<Self, Failure> {
        expect_type(&response, STREAM, call)?;
        Ok(Self { response, chunk: Bytes::new(), begun: BytesMut::new(), _permit: permit })
    }

    /// The next envelope; fails when no byte arrives for `idle_timeout`. Cancel safe: received
    /// bytes are kept for the next call.
    pub(crate) async fn next(&mut self, idle_timeout: Duration) -> Result<Frame, StreamError> {
        loop {
            if let Some((flag, payload)) = self.take()? {
                return frame(flag, payload);
            }
            match tokio::time::timeout(idle_timeout, self.response.chunk()).await {
                Ok(Ok(Some(chunk))) => self.chunk = chunk,
                Ok(Ok(None)) => return Err(StreamError::Lost("it ended before its last message".into())),
                Ok(Err(error)) => return Err(StreamError::Lost(super::http::cause(&error))),
                Err(_) => return Err(StreamError::Silent(idle_timeout)),
            }
        }
    }

    /// Drains the response after the last message, so that the connection can be reused. A server
    /// that does not end its response costs the connection, not time.
    pub(crate) async fn finish(mut self) {
        let rest = async { while let Ok(Some(_)) = self.response.chunk().await {} };
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, rest).await;
    }

    fn take(&mut self) -> Result<Option<(u8, Bytes)>, StreamError> {
        if self.begun.is_empty()
            && let Some(length) = length(&self.chunk)?
            && self.chunk.len() >= HEAD + length
        {
            let flag = self.chunk[0];
            self.chunk.advance(HEAD);
            return Ok(Some((flag, self.chunk.split_to(length))));
        }
        // At most twice: once for the rest of the header, once for the rest of the message.
        while !self.chunk.is_empty() {
            let wanted = length(&self.begun)?.map_or(HEAD, |length| HEAD + length);
            self.begun.reserve(wanted - self.begun.len());
            let more = self.chunk.split_to(self.chunk.len().min(wanted - self.begun.len()));
            self.begun.extend_from_slice(&more);
            if let Some(length) = length(&self.begun)?
                && self.begun.len() == HEAD + length
            {
                let mut whole = self.begun.split().freeze();
                let flag = whole[0];
                whole.advance(HEAD);
                return Ok(Some((flag, whole)));
            }
        }
        Ok(None)
    }
}

/// The length of the message in the envelope that begins here, once its header is complete.
fn length(bytes: &[u8]) -> Result<Option<usize>, StreamError> {
    let Some(&[_, a, b, c, d]) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
    match u32::from_be_bytes([a, b, c, d]) as usize {
        length if length > MAX_MESSAGE_BYTES => Err(StreamError::Garbled(format!("a message of {length} bytes"))),
        length => Ok(Some(length)),
    }
}

fn frame(flag: u8, payload: Bytes) -> Result<Frame, StreamError> {
    match flag {
        0 => Ok(Frame::Message(payload)),
        END => end(&payload).map(Frame::End),
        COMPRESSED => Err(StreamError::Garbled("an unrequested compressed message".into())),
        other => Err(StreamError::Garbled(format!("the unknown flag {other}"))),
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

fn end(payload: &[u8]) -> Result<Option<Refusal>, StreamError> {
    let end: EndOfStream = serde_json::from_slice(payload).map_err(|error| StreamError::Garbled(error.to_string()))?;
    Ok(end.error.map(|EndError { code, message }| Refusal::from_code(&code, message)))
}

/// The messages of `chunks` up to the first error, whether there was one, and the most memory held
/// for an envelope.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn take_all(chunks: &[&[u8]]) -> (Vec<(u8, Bytes)>, bool, usize) {
    let response = http::Response::builder().header("content-type", STREAM).body(reqwest::Body::from(""));
    let response = response.expect("the header is valid").into();
    let mut frames = EnvelopeStream { response, chunk: Bytes::new(), begun: BytesMut::new(), _permit: None };
    let (mut found, mut most) = (Vec::new(), 0);
    for chunk in chunks {
        frames.chunk = Bytes::copy_from_slice(chunk);
        loop {
            match frames.take() {
                Ok(Some((flag, payload))) => {
                    // Any payload is a frame or an error, never a panic.
                    let _ = frame(flag, payload.clone());
                    found.push((flag, payload));
                }
                Ok(None) => break,
                Err(_) => return (found, true, most),
            }
            most = most.max(frames.begun.capacity());
        }
    }
    (found, false, most)
}

/// The most bytes that [`take_all`] may report.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) const MAX_HELD_BYTES: usize = 2 * (HEAD + MAX_MESSAGE_BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn framed(payload: &[u8]) -> Vec<u8> {
        let mut whole = vec![0];
        whole.extend_from_slice(&u32::try_from(payload.len()).expect("short").to_be_bytes());
        whole.extend_from_slice(payload);
        whole
    }

    /// The same messages result however the bytes are split into chunks.
    #[tokio::test]
    async fn envelopes_parse_across_any_chunk_boundary() {
        let messages: [&[u8]; 4] = [b"start", b"", &[7; 300], b"last"];
        let mut wire: Vec<u8> = messages.iter().flat_map(|message| framed(message)).collect();
        wire.extend_from_slice(&[END, 0, 0, 0, 2, b'{', b'}']);
        for size in 1..wire.len() {
            let chunks: Vec<_> = wire.chunks(size).map(|chunk| Ok::<_, std::io::Error>(chunk.to_vec())).collect();
            let body = reqwest::Body::wrap_stream(futures::stream::iter(chunks));
            let response = http::Response::builder().header("content-type", STREAM).body(body).expect("an answer");
            let call = Call::new("test", crate::transport::Idempotency::NotIdempotent, Duration::from_secs(5));
            let mut frames = EnvelopeStream::new(response.into(), None, &call).expect("a stream");
            for message in messages {
                match frames.next(Duration::from_secs(5)).await {
                    Ok(Frame::Message(got)) => assert_eq!(got, message, "chunks of {size}"),
                    other => panic!("chunks of {size}: {other:?}"),
                }
            }
            assert!(matches!(frames.next(Duration::from_secs(5)).await, Ok(Frame::End(None))), "chunks of {size}");
        }
    }

    #[test]
    fn invalid_envelopes_are_errors() {
        assert!(matches!(length(b"HTTP/1.1 200"), Err(StreamError::Garbled(_))));
        assert!(matches!(frame(1, Bytes::new()), Err(StreamError::Garbled(_))));
        assert!(matches!(frame(2, Bytes::from_static(b"not json")), Err(StreamError::Garbled(_))));
        let refused = br#"{"error":{"code":"not_found","message":"no"}}"#;
        assert!(matches!(frame(2, Bytes::from_static(refused)), Ok(Frame::End(Some(Refusal { status: 404, .. })))));
    }

    /// Random bytes that resemble envelopes: headers with short, huge and wrong lengths.
    fn hostile() -> impl Strategy<Value = Vec<u8>> {
        let head =
            (any::<u8>(), prop_oneof![0_u32..40, any::<u32>(), Just(u32::MAX), Just(MAX_MESSAGE_BYTES as u32 + 1)]);
        let head = head.prop_map(|(flag, length)| [&[flag][..], &length.to_be_bytes()].concat());
        let json =
            prop_oneof![Just(&b"{}"[..]), Just(&b"{\"error\":{\"code\":\"x\"}}"[..]), Just(&b"{\"error\":1"[..])];
        let piece = prop_oneof![head, vec(any::<u8>(), 0..40), json.prop_map(<[u8]>::to_vec)];
        vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn hostile_streams_parse_alike_for_any_chunk_size(wire in hostile(), size in 1_usize..64) {
            let (whole, failed, _) = take_all(&[&wire]);
            let chunks: Vec<&[u8]> = wire.chunks(size).collect();
            let (cut, failed_cut, most) = take_all(&chunks);
            prop_assert_eq!((whole, failed), (cut, failed_cut));
            prop_assert!(most <= MAX_HELD_BYTES, "{most} bytes are kept");
        }
    }
}
