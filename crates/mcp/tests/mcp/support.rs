//! An in-memory sandbox provider, and clients for the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use rmcp::ClientHandler;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest, JsonObject, ProgressNotificationParam,
    ServerResult,
};
use rmcp::service::{ClientLifecycleMode, ClientServiceExt, NotificationContext, RoleClient, RunningService};
use sandbar_mcp::{
    AcquiredSandbox, FileContents, ReadError, SandboxHandle, SandboxProvider, ServeError, Server, Settings,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tools::{
    AcquireError, InMemoryToolDispatcher, Screenshot, ScreenshotError, ScreenshotProvider, ScreenshotRequest,
    ScreenshotSet, ToolDispatcher,
};

/// A WebP image of one pixel.
pub(crate) const PIXEL: &[u8] = &[
    0x52, 0x49, 0x46, 0x46, 0x1a, 0, 0, 0, 0x57, 0x45, 0x42, 0x50, 0x56, 0x50, 0x38, 0x4c, 0x0d, 0, 0, 0, 0x2f, 0, 0,
    0, 0x10, 0x07, 0x10, 0x11, 0x11, 0x88, 0x88, 0xfe, 0x07, 0,
];

/// One in-memory sandbox that counts acquisitions and releases.
pub(crate) struct Memory {
    pub(crate) tools: Arc<InMemoryToolDispatcher>,
    pub(crate) acquired: AtomicUsize,
    pub(crate) released: AtomicUsize,
    pub(crate) sessions: Mutex<Vec<String>>,
}

impl Memory {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            tools: Arc::new(InMemoryToolDispatcher::new().screenshots(Arc::new(Pixels))),
            acquired: AtomicUsize::new(0),
            released: AtomicUsize::new(0),
            sessions: Mutex::default(),
        })
    }

    pub(crate) fn acquisitions(&self) -> (usize, usize) {
        (self.acquired.load(Ordering::SeqCst), self.released.load(Ordering::SeqCst))
    }
}

struct MemoryProvider(Arc<Memory>);

#[async_trait]
impl SandboxProvider for MemoryProvider {
    async fn acquire(&self) -> Result<AcquiredSandbox, AcquireError> {
        self.0.acquired.fetch_add(1, Ordering::SeqCst);
        let handle = Arc::new(MemoryHandle(Arc::clone(&self.0)));
        Ok(AcquiredSandbox { handle, notice: Some("[Sandbox imem was created.]".into()) })
    }

    async fn release(&self) {
        self.0.released.fetch_add(1, Ordering::SeqCst);
    }
}

struct MemoryHandle(Arc<Memory>);

#[async_trait]
impl SandboxHandle for MemoryHandle {
    fn sandbox_id(&self) -> &str {
        "imem"
    }

    fn tools(&self, session: &str) -> Arc<dyn ToolDispatcher> {
        self.0.sessions.lock().push(session.to_owned());
        Arc::clone(&self.0.tools) as _
    }

    async fn read(&self, path: &str, limit: usize) -> Result<FileContents, ReadError> {
        let bytes = self.0.tools.get(path).ok_or(ReadError::NotFound)?;
        let whole = bytes.len() <= limit;
        Ok(FileContents { bytes: bytes.slice(..limit.min(bytes.len())), whole })
    }
}

/// A provider whose acquisitions fail.
pub(crate) struct FailingProvider;

#[async_trait]
impl SandboxProvider for FailingProvider {
    async fn acquire(&self) -> Result<AcquiredSandbox, AcquireError> {
        Err(AcquireError("No sandbox: E2B API key not configured.".into()))
    }

    async fn release(&self) {
        panic!("no sandbox was acquired");
    }
}

struct Pixels;

#[async_trait]
impl ScreenshotProvider for Pixels {
    async fn capture(&self, _capture: ScreenshotRequest) -> Result<ScreenshotSet, ScreenshotError> {
        let shot = |viewport: &str| Screenshot {
            viewport: viewport.into(),
            width: 1,
            height: 1,
            webp: Bytes::from_static(PIXEL),
            key: format!("screenshots/j/agent/x_{viewport}.webp"),
            url: Some(format!("https://cdn.example/x_{viewport}.webp")),
            blank: false,
        };
        Ok(ScreenshotSet { screenshots: vec![shot("desktop"), shot("mobile")], ..ScreenshotSet::default() })
    }
}

pub(crate) fn server(memory: &Arc<Memory>, settings: Settings) -> Server {
    Server::new(Arc::new(MemoryProvider(Arc::clone(memory))), settings)
}

/// A server on in-memory streams.
pub(crate) struct OnStreams {
    pub(crate) stop: CancellationToken,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl OnStreams {
    pub(crate) fn start(server: Server) -> (Self, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let (reader, writer) = tokio::io::split(theirs);
        let stop = CancellationToken::new();
        let serving = tokio::spawn(server.serve_streams(reader, writer, stop.clone()));
        (Self { stop, serving }, ours)
    }

    /// Waits until the server has ended.
    pub(crate) async fn wait(self) {
        let ended = tokio::time::timeout(Duration::from_secs(30), self.serving).await;
        ended.expect("the server ends").expect("without a panic").expect("in order");
    }
}

/// A client that records progress notifications.
#[derive(Clone, Default)]
pub(crate) struct RecordingClient {
    pub(crate) received: Arc<Mutex<Vec<ProgressNotificationParam>>>,
}

impl ClientHandler for RecordingClient {
    async fn on_progress(&self, word: ProgressNotificationParam, _context: NotificationContext<RoleClient>) {
        self.received.lock().push(word);
    }
}

pub(crate) type Client = RunningService<RoleClient, RecordingClient>;

/// Connects with a handshake, as most clients do today.
pub(crate) async fn client(stream: DuplexStream) -> Client {
    RecordingClient::default().serve_with_lifecycle(stream, ClientLifecycleMode::Initialize).await.expect("a handshake")
}

/// Calls a tool and asks for progress.
pub(crate) async fn call(client: &Client, tool: &str, input: Value) -> CallToolResult {
    let answer = client.send_request(request(tool, input)).await.expect("an answer");
    let ServerResult::CallToolResult(result) = answer else { panic!("not a result: {answer:?}") };
    result
}

pub(crate) fn request(tool: &str, input: Value) -> ClientRequest {
    let arguments: JsonObject = serde_json::from_value(input).expect("an object");
    ClientRequest::CallToolRequest(CallToolRequest::new(
        CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments),
    ))
}

/// All text blocks of a response.
pub(crate) fn text(result: &CallToolResult) -> String {
    let texts: Vec<&str> =
        result.content.iter().filter_map(|block| block.as_text().map(|text| text.text.as_str())).collect();
    texts.join("\n")
}

/// A field of the structured content.
pub(crate) fn field(result: &CallToolResult, pointer: &str) -> Value {
    let structured = result.structured_content.as_ref().expect("structured content");
    structured.pointer(pointer).cloned().unwrap_or(Value::Null)
}

/// Raw JSON-RPC lines.
pub(crate) struct Wire {
    reader: tokio::io::Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: WriteHalf<DuplexStream>,
}

impl Wire {
    pub(crate) fn new(stream: DuplexStream) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self { reader: BufReader::new(reader).lines(), writer }
    }

    pub(crate) async fn send(&mut self, line: &str) {
        self.writer.write_all(format!("{line}\n").as_bytes()).await.expect("sent");
    }

    /// Receives the next message.
    pub(crate) async fn next(&mut self) -> Value {
        let line = tokio::time::timeout(Duration::from_secs(120), self.reader.next_line()).await;
        let line = line.expect("a message in time").expect("readable").expect("a message");
        serde_json::from_str(&line).expect("JSON")
    }

    /// Sends a request and waits for its response; other messages are dropped.
    pub(crate) async fn ask(&mut self, id: u32, method: &str, params: Value) -> Value {
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()).await;
        loop {
            let message = self.next().await;
            if message["id"] == id {
                return message;
            }
        }
    }

    /// Performs the handshake and returns what the server agreed to.
    pub(crate) async fn handshake(&mut self, revision: &str) -> Value {
        let client = json!({ "name": "test", "version": "0" });
        let params = json!({ "protocolVersion": revision, "capabilities": {}, "clientInfo": client });
        let answer = self.ask(0, "initialize", params).await;
        self.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string()).await;
        answer["result"].clone()
    }
}
