//! A server that speaks Anthropic's Messages API over real HTTP and SSE: it sends prepared replies
//! in pieces of a given size, and refuses what the real service refuses.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;
use url::Url;

use crate::valid::wrong_with;

/// What the server does with one request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// A whole response in pieces of this many bytes.
    Stream {
        body: String,
        pieces: usize,
    },
    /// The connection ends after this many bytes of the stream.
    Cut {
        body: String,
        after: usize,
    },
    Status {
        status: u16,
        headers: &'static str,
        body: String,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) headers: String,
    pub(crate) body: String,
}

pub(crate) struct WireServer {
    pub(crate) url: Url,
    asked: Arc<Mutex<Vec<Asked>>>,
    _task: AbortOnDropHandle<()>,
}

impl WireServer {
    pub(crate) async fn start(replies: Vec<Reply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = Url::parse(&format!("http://{}", listener.local_addr().expect("an address"))).expect("a URL");
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let log = Arc::clone(&asked);
        let task = tokio::spawn(async move {
            let mut replies = replies.into_iter();
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                // One request per connection, so that each reply has a known request.
                serve(stream, &mut replies, &log).await;
            }
        });
        Self { url, asked, _task: AbortOnDropHandle::new(task) }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().clone()
    }

    pub(crate) fn bodies(&self) -> Vec<Value> {
        self.asked().iter().map(|asked| serde_json::from_str(&asked.body).expect("a request is JSON")).collect()
    }
}

async fn serve(mut stream: TcpStream, replies: &mut impl Iterator<Item = Reply>, log: &Mutex<Vec<Asked>>) {
    let Some(asked) = read(&mut stream).await else { return };
    let is_turn = asked.path.ends_with("/messages");
    let body: Value = serde_json::from_str(&asked.body).unwrap_or_default();
    log.lock().push(asked);
    if is_turn && let Some(problem) = refuses(&body) {
        let error = json!({ "type": "error", "error": { "type": "invalid_request_error", "message": problem } });
        let _ = stream.write_all(plain(400, "", &error.to_string()).as_bytes()).await;
        return;
    }
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    match replies.next() {
        None => {
            let _ = stream.write_all(plain(500, "", "{}").as_bytes()).await;
        }
        Some(Reply::Status { status, headers, body }) => {
            let _ = stream.write_all(plain(status, headers, &body).as_bytes()).await;
        }
        Some(Reply::Stream { body, pieces }) => {
            let _ = stream.set_nodelay(true);
            let _ = stream.write_all(head.as_bytes()).await;
            for piece in body.as_bytes().chunks(pieces) {
                if stream.write_all(piece).await.is_err() {
                    return;
                }
                tokio::task::yield_now().await;
            }
            let _ = stream.shutdown().await;
        }
        Some(Reply::Cut { body, after }) => {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 1000000\r\n\r\n";
            let _ = stream.write_all(head.as_bytes()).await;
            let _ = stream.write_all(&body.as_bytes()[..after]).await;
            let _ = stream.shutdown().await;
        }
    }
}

fn plain(status: u16, headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

async fn read(stream: &mut TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    let (end, length) = loop {
        let mut buffer = [0; 16 * 1024];
        let count = stream.read(&mut buffer).await.ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&buffer[..count]);
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
            let length =
                head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse::<usize>().ok());
            break (end, length.unwrap_or(0));
        }
    };
    while bytes.len() < end + 4 + length {
        let mut buffer = [0; 64 * 1024];
        let count = stream.read(&mut buffer).await.ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&buffer[..count]);
    }
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let path = head.split(' ').nth(1)?.to_owned();
    let body = String::from_utf8(bytes[end + 4..].to_vec()).ok()?;
    Some(Asked { path, headers: head, body })
}

fn refuses(body: &Value) -> Option<String> {
    if body["max_tokens"].as_u64().is_none_or(|tokens| tokens == 0) {
        return Some("max_tokens: Field required".into());
    }
    let marks = body.to_string().matches("\"cache_control\"").count();
    if marks > 4 {
        return Some(format!("A maximum of 4 blocks with cache_control may be provided. Found {marks}."));
    }
    wrong_with(&body["messages"])
}

/// A stream with these blocks.
pub(crate) fn answer(blocks: &[Value], stop_reason: &str) -> String {
    answer_with(blocks, stop_reason, 100)
}

pub(crate) fn answer_with(blocks: &[Value], stop_reason: &str, prompt: u64) -> String {
    let mut text = String::new();
    let mut event = |value: Value| {
        let name = value["type"].as_str().expect("a type").to_owned();
        text.push_str(&format!("event: {name}\ndata: {value}\n\n"));
    };
    event(json!({ "type": "message_start", "message": {
        "id": "msg_1", "role": "assistant", "content": [],
        "usage": { "input_tokens": prompt, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 3, "output_tokens": 1 },
    } }));
    event(json!({ "type": "ping" }));
    for (index, block) in blocks.iter().enumerate() {
        let delta = |delta: Value| json!({ "type": "content_block_delta", "index": index, "delta": delta });
        let mut start = block.clone();
        let mut pieces = Vec::new();
        match block["type"].as_str() {
            Some("text") => {
                start["text"] = "".into();
                for word in block["text"].as_str().expect("text").split_inclusive(' ') {
                    pieces.push(delta(json!({ "type": "text_delta", "text": word })));
                }
            }
            Some("thinking") => {
                start["thinking"] = "".into();
                start["signature"] = "".into();
                pieces.push(delta(json!({ "type": "thinking_delta", "thinking": block["thinking"] })));
                pieces.push(delta(json!({ "type": "signature_delta", "signature": block["signature"] })));
            }
            Some("tool_use") => {
                // A test that needs an invalid input gives it as raw text.
                let json = block["json"].as_str().map_or_else(|| block["input"].to_string(), str::to_owned);
                start["input"] = json!({});
                start.as_object_mut().expect("an object").remove("json");
                let chars: Vec<char> = json.chars().collect();
                for piece in chars.chunks(5) {
                    let piece: String = piece.iter().collect();
                    pieces.push(delta(json!({ "type": "input_json_delta", "partial_json": piece })));
                }
            }
            _ => {}
        }
        event(json!({ "type": "content_block_start", "index": index, "content_block": start }));
        pieces.into_iter().for_each(&mut event);
        event(json!({ "type": "content_block_stop", "index": index }));
    }
    event(
        json!({ "type": "message_delta", "delta": { "stop_reason": stop_reason }, "usage": { "output_tokens": 25 } }),
    );
    event(json!({ "type": "message_stop" }));
    text
}

pub(crate) fn whole(body: String) -> Reply {
    Reply::Stream { body, pieces: usize::MAX }
}
