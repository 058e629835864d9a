//! An E2B server in the process of a test, for tests of programs that use the client.
//!
//! It implements the protocol and runs no processes: commands return scripted output, files live in
//! memory. It listens on a free loopback port, records its requests, and injects faults.
//!
//! ```
//! # tokio_test(async {
//! use sandbar_fake::{FakeServer, Fault, Script};
//!
//! let server = FakeServer::start().await;
//! server.on_command("git status", Script::stdout("nothing to commit\n"));
//! let client = server.client();
//! let sandbox = client.create("base").await.expect("the fake makes sandboxes");
//!
//! let output = sandbox.commands().run("git status").await.expect("it is scripted");
//! assert_eq!(output.stdout_text(), "nothing to commit\n");
//!
//! // The next request fails once, and the client retries.
//! server.fail_next("GET /sandboxes/*", 1, Fault::status(503));
//! client.info(sandbox.id()).await.expect("the second try succeeds");
//! assert_eq!(server.requests_to("GET /sandboxes/*").len(), 2);
//! # });
//! # fn tokio_test(test: impl Future<Output = ()>) {
//! #     let mut runtime = tokio::runtime::Builder::new_current_thread();
//! #     runtime.enable_all().build().expect("a runtime").block_on(test);
//! # }
//! ```

mod control;
mod envd;
mod exchange;
mod listener;
mod process;
mod secrets;
mod state;
mod templates;
mod volumes;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use parking_lot::{Mutex, MutexGuard};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use exchange::{FakeRequest, FaultRule};
use protocol::SandboxId;
use sdk::{Client, ClientBuilder};
use state::FakeState;

pub use process::Script;

/// The API key that the server accepts.
const KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";

/// A fake server for tests. Dropping it closes the port and every connection.
#[derive(Debug)]
pub struct FakeServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    address: SocketAddr,
    state: Mutex<FakeState>,
    controls: Mutex<TestControls>,
}

/// Faults and scripts set by the test, and the recorded requests.
#[derive(Debug, Default)]
struct TestControls {
    lacking: Vec<FaultRule>,
    faults: Vec<(FaultRule, u32, Fault)>,
    seen: Vec<RecordedRequest>,
}

/// A recorded request.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecordedRequest {
    pub method: Method,
    /// Encoded path with the query.
    pub target: String,
    /// Includes keys and tokens, so that a test can check them.
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// A fault to inject.
#[derive(Debug, Clone)]
pub struct Fault {
    kind: Kind,
    delay: Duration,
}

#[derive(Debug, Clone)]
enum Kind {
    Status {
        status: u16,
        message: String,
        headers: HeaderMap,
    },
    Answer {
        status: u16,
        body: Bytes,
    },
    /// Closes the connection before processing.
    CutConnection,
    /// Processes the request, and closes the connection without a response.
    LoseAnswer,
    Pass,
}

impl Fault {
    /// Responds with this status and an error body, without processing.
    pub fn status(status: u16) -> Self {
        let kind = Kind::Status { status, message: "this fault was request for".into(), headers: HeaderMap::new() };
        Self { kind, delay: Duration::ZERO }
    }

    /// Responds with this status and JSON body, without processing: for responses that the fake
    /// would not send.
    pub fn answer(status: u16, body: impl Into<Bytes>) -> Self {
        Self { kind: Kind::Answer { status, body: body.into() }, delay: Duration::ZERO }
    }

    /// Closes the connection without processing.
    pub fn cut() -> Self {
        Self { kind: Kind::CutConnection, delay: Duration::ZERO }
    }

    /// Processes the request and closes the connection without a response.
    pub fn lose_answer() -> Self {
        Self { kind: Kind::LoseAnswer, delay: Duration::ZERO }
    }

    /// Processes the request after a delay.
    pub fn slow(delay: Duration) -> Self {
        Self { kind: Kind::Pass, delay }
    }

    /// Adds a response header, such as `retry-after` or `should-retry`.
    ///
    /// # Panics
    /// When the name or value is invalid.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        if let Kind::Status { headers, .. } = &mut self.kind {
            let name: HeaderName = name.parse().expect("a test names a header");
            headers.insert(name, HeaderValue::from_str(value).expect("a test gives a header's value"));
        }
        self
    }

    /// Sets the message of the error body.
    #[must_use]
    pub fn message(mut self, text: impl Into<String>) -> Self {
        if let Kind::Status { message, .. } = &mut self.kind {
            *message = text.into();
        }
        self
    }
}

impl FakeServer {
    /// Starts on a free loopback port, with only the template `base`.
    ///
    /// # Panics
    /// When no loopback port is free.
    pub async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("the loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared { address, state: Mutex::default(), controls: Mutex::default() });
        let serving = tokio::spawn(listener::serve(listener, Arc::clone(&shared)));
        Self { address, shared, serving }
    }

    /// Its base URL, for the control plane, sandboxes and volumes.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The API key that the server accepts.
    pub fn api_key(&self) -> &'static str {
        KEY
    }

    /// Options of a client of this server, ignoring the environment.
    pub fn builder(&self) -> ClientBuilder {
        let url = self.url();
        Client::builder().ignore_environment().api_key(KEY).api_url(&url).sandbox_url(&url).volume_url(&url)
    }

    /// A client of this server.
    ///
    /// # Panics
    /// Never: the options are valid.
    pub fn client(&self) -> Client {
        self.builder().build().expect("the options are its own")
    }

    /// From now on it supports only version 1 of create and connect.
    pub fn only_api_v1(&self) -> &Self {
        self.lacks("POST /v2/sandboxes").lacks("POST /v2/sandboxes/*/connect")
    }

    /// Removes a call from now on: `METHOD /path`, where `*` matches one segment.
    ///
    /// # Panics
    /// When the rule is malformed.
    pub fn lacks(&self, rule: &str) -> &Self {
        self.shared.controls().lacking.push(FaultRule::parse(rule));
        self
    }

    /// Injects `fault` into the next `times` requests that match: `METHOD /path`, where `*` matches
    /// one segment.
    ///
    /// # Panics
    /// When the rule is malformed.
    pub fn fail_next(&self, rule: &str, times: u32, fault: Fault) -> &Self {
        self.shared.controls().faults.push((FaultRule::parse(rule), times, fault));
        self
    }

    /// Scripts a command: a shell line as passed to [`sdk::Command::new`], or a program and its
    /// arguments joined by spaces. Applies to template builds too. An unscripted command exits with
    /// 127, as in a shell; in builds it succeeds.
    pub fn on_command(&self, line: impl Into<String>, script: impl Into<Script>) -> &Self {
        self.shared.state().scripts.insert(line.into(), script.into());
        self
    }

    /// Advances the server's clock, to simulate clock skew.
    pub fn set_clock_ahead(&self, by: jiff::SignedDuration) -> &Self {
        self.shared.state().clock.put_ahead(by);
        self
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.shared.controls().seen.clone()
    }

    /// Requests so far that match: `METHOD /path`, where `*` matches one segment.
    ///
    /// # Panics
    /// When the rule is malformed.
    pub fn requests_to(&self, rule: &str) -> Vec<RecordedRequest> {
        let rule = FaultRule::parse(rule);
        let matches = |seen: &&RecordedRequest| {
            let path = seen.target.split('?').next().unwrap_or_default();
            rule.matches(&seen.method, path)
        };
        self.shared.controls().seen.iter().filter(matches).cloned().collect()
    }

    /// Ids of running and paused sandboxes.
    pub fn sandboxes(&self) -> Vec<SandboxId> {
        self.shared.state().sandbox_ids()
    }

    /// Loses the files of a sandbox and keeps its record: from now on, resuming it or connecting to
    /// it while paused is refused with 410 `sandbox_files_missing`.
    pub fn lose_files(&self, sandbox: &SandboxId) -> &Self {
        if let Some(held) = self.shared.state().sandboxes.get_mut(sandbox.as_str()) {
            held.files_missing = true;
            held.files.clear();
        }
        self
    }

    /// A file of a sandbox, by its absolute path.
    pub fn file(&self, sandbox: &SandboxId, path: &str) -> Option<Bytes> {
        self.shared.state().file(sandbox.as_str(), path)
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock()
    }

    fn controls(&self) -> MutexGuard<'_, TestControls> {
        self.controls.lock()
    }

    /// Records the request, and returns the fault to inject.
    fn record(&self, request: &FakeRequest) -> Option<Fault> {
        let mut controls = self.controls();
        controls.seen.push(RecordedRequest {
            method: request.method.clone(),
            target: request.target.clone(),
            headers: request.headers.clone(),
            body: request.body.clone(),
        });
        if controls.lacking.iter().any(|rule| rule.matches(&request.method, request.path())) {
            let message = format!("path '{}' not found", request.path());
            return Some(Fault::status(404).message(message));
        }
        let faults = &mut controls.faults;
        let due =
            |(rule, left, _): &&mut (FaultRule, u32, Fault)| *left > 0 && rule.matches(&request.method, request.path());
        let (_, left, fault) = faults.iter_mut().find(due)?;
        *left -= 1;
        Some(fault.clone())
    }
}
