//! An E2B server in this process, for tests of programs that use the client. Feature `testing`.
//!
//! It follows the protocol and runs nothing: commands answer what a test has scripted, files live in memory. It listens on
//! a free port of the loopback, keeps what it was asked, and fails on demand.
//!
//! ```
//! # tokio_test(async {
//! use sandbar_sdk::testing::{FakeServer, Fault, Script};
//!
//! let server = FakeServer::start().await;
//! server.on_command("git status", Script::stdout("nothing to commit\n"));
//! let client = server.client();
//! let sandbox = client.create("base").await.expect("the fake makes sandboxes");
//!
//! let output = sandbox.commands().run("git status").await.expect("it is scripted");
//! assert_eq!(output.stdout_text(), "nothing to commit\n");
//!
//! // The next look fails once in passing, and the client asks again.
//! server.fail_next("GET /sandboxes/*", 1, Fault::status(503));
//! client.info(sandbox.id()).await.expect("the second try succeeds");
//! assert_eq!(server.requests_to("GET /sandboxes/*").len(), 2);
//! # });
//! # fn tokio_test(test: impl Future<Output = ()>) {
//! #     tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test);
//! # }
//! ```

mod control;
mod envd;
mod exchange;
mod listener;
mod process;
mod secrets;
mod templates;
mod volumes;
mod world;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::client::{Client, ClientBuilder};
use crate::id::SandboxId;
use exchange::{Asked, Rule};
use world::World;

pub use process::Script;

/// The key it takes.
const KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";

/// A server for tests. Dropping it closes the port and every connection.
#[derive(Debug)]
pub struct FakeServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    address: SocketAddr,
    world: Mutex<World>,
    switches: Mutex<Switches>,
}

/// What a test has told the server to do, and what the server has seen.
#[derive(Debug, Default)]
struct Switches {
    lacking: Vec<Rule>,
    faults: Vec<(Rule, u32, Fault)>,
    seen: Vec<RecordedRequest>,
}

/// A request the server received.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecordedRequest {
    pub method: Method,
    /// Encoded, with the query.
    pub target: String,
    /// Keys and tokens included, so that a test can see that they were sent.
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// A failure to be played.
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
    /// Nothing was done.
    Cut,
    /// It was done, and nobody is told.
    LoseAnswer,
    Pass,
}

impl Fault {
    /// Answers with this status and an error body, and does nothing.
    pub fn status(status: u16) -> Self {
        let kind = Kind::Status { status, message: "this fault was asked for".into(), headers: HeaderMap::new() };
        Self { kind, delay: Duration::ZERO }
    }

    /// Answers with this status and body, taken for JSON, and does nothing: for answers that the fake would not give.
    pub fn answer(status: u16, body: impl Into<Bytes>) -> Self {
        Self { kind: Kind::Answer { status, body: body.into() }, delay: Duration::ZERO }
    }

    /// Closes the connection without doing anything.
    pub fn cut() -> Self {
        Self { kind: Kind::Cut, delay: Duration::ZERO }
    }

    /// Does what is asked and closes the connection without an answer.
    pub fn lose_answer() -> Self {
        Self { kind: Kind::LoseAnswer, delay: Duration::ZERO }
    }

    /// Does what is asked, after a while.
    pub fn slow(delay: Duration) -> Self {
        Self { kind: Kind::Pass, delay }
    }

    /// A header of the answer, such as `retry-after` or `should-retry`.
    ///
    /// # Panics
    /// When the name or value cannot be one.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        if let Kind::Status { headers, .. } = &mut self.kind {
            let name: HeaderName = name.parse().expect("a test names a header");
            headers.insert(name, HeaderValue::from_str(value).expect("a test gives a header's value"));
        }
        self
    }

    /// The message of the answer.
    #[must_use]
    pub fn message(mut self, text: impl Into<String>) -> Self {
        if let Kind::Status { message, .. } = &mut self.kind {
            *message = text.into();
        }
        self
    }
}

impl FakeServer {
    /// Starts on a free port of the loopback, with the template `base` and nothing else.
    ///
    /// # Panics
    /// When the loopback has no free port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("the loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared { address, world: Mutex::default(), switches: Mutex::default() });
        let serving = tokio::spawn(listener::serve(listener, Arc::clone(&shared)));
        Self { address, shared, serving }
    }

    /// Its base URL, for both planes and volumes.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The key it takes.
    pub fn api_key(&self) -> &'static str {
        KEY
    }

    /// Options of a client of this server, with nothing from the environment.
    pub fn builder(&self) -> ClientBuilder {
        let url = self.url();
        Client::builder().ignore_environment().api_key(KEY).api_url(&url).sandbox_url(&url).volume_url(&url)
    }

    /// A client of this server.
    ///
    /// # Panics
    /// Never: the options are its own.
    pub fn client(&self) -> Client {
        self.builder().build().expect("the options are its own")
    }

    /// From now on it has only the first generation of create and connect.
    pub fn first_generation(&self) -> &Self {
        self.lacks("POST /v2/sandboxes").lacks("POST /v2/sandboxes/*/connect")
    }

    /// From now on it does not have a call: `METHOD /path`, where `*` stands for one segment.
    ///
    /// # Panics
    /// When the rule has another form.
    pub fn lacks(&self, rule: &str) -> &Self {
        self.shared.switches().lacking.push(Rule::parse(rule));
        self
    }

    /// Plays `fault` on the next `times` requests that match: `METHOD /path`, where `*` stands for one segment.
    ///
    /// # Panics
    /// When the rule has another form.
    pub fn fail_next(&self, rule: &str, times: u32, fault: Fault) -> &Self {
        self.shared.switches().faults.push((Rule::parse(rule), times, fault));
        self
    }

    /// What a command does: a shell line as [`crate::Command::new`] takes it, or a program and its arguments with spaces
    /// between. In builds of templates too. What is not scripted ends with 127, as in a shell; in builds it succeeds.
    pub fn on_command(&self, line: impl Into<String>, script: impl Into<Script>) -> &Self {
        self.shared.world().scripts.insert(line.into(), script.into());
        self
    }

    /// From now on its clock is so far ahead of what it was, as a provider's may be.
    pub fn set_clock_ahead(&self, by: jiff::SignedDuration) -> &Self {
        self.shared.world().clock.put_ahead(by);
        self
    }

    /// Every request so far.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.shared.switches().seen.clone()
    }

    /// Requests so far that match: `METHOD /path`, where `*` stands for one segment.
    ///
    /// # Panics
    /// When the rule has another form.
    pub fn requests_to(&self, rule: &str) -> Vec<RecordedRequest> {
        let rule = Rule::parse(rule);
        let matches = |seen: &&RecordedRequest| {
            let path = seen.target.split('?').next().unwrap_or_default();
            rule.matches(&seen.method, path)
        };
        self.shared.switches().seen.iter().filter(matches).cloned().collect()
    }

    /// Ids of sandboxes that run or are paused.
    pub fn sandboxes(&self) -> Vec<SandboxId> {
        self.shared.world().sandbox_ids()
    }

    /// Loses the files of a sandbox and keeps its record: connecting to it while it is paused, or
    /// resuming it, is refused with 410 `sandbox_files_missing` from now on.
    pub fn lose_files(&self, sandbox: &SandboxId) -> &Self {
        if let Some(held) = self.shared.world().sandboxes.get_mut(sandbox.as_str()) {
            held.files_missing = true;
            held.files.clear();
        }
        self
    }

    /// A file of a sandbox, by its absolute path.
    pub fn file(&self, sandbox: &SandboxId, path: &str) -> Option<Bytes> {
        self.shared.world().file(sandbox.as_str(), path)
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Shared {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn switches(&self) -> MutexGuard<'_, Switches> {
        self.switches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fault to be played on a request, if there is one; notes the request.
    fn notice(&self, asked: &Asked) -> Option<Fault> {
        let mut switches = self.switches();
        switches.seen.push(RecordedRequest {
            method: asked.method.clone(),
            target: asked.target.clone(),
            headers: asked.headers.clone(),
            body: asked.body.clone(),
        });
        if switches.lacking.iter().any(|rule| rule.matches(&asked.method, asked.path())) {
            let message = format!("path '{}' not found", asked.path());
            return Some(Fault::status(404).message(message));
        }
        let faults = &mut switches.faults;
        let due = |(rule, left, _): &&mut (Rule, u32, Fault)| *left > 0 && rule.matches(&asked.method, asked.path());
        let (_, left, fault) = faults.iter_mut().find(due)?;
        *left -= 1;
        Some(fault.clone())
    }
}
