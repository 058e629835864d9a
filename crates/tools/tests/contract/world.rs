//! Where a case runs: in memory, on our server, on our server without what it adds to E2B, there without ripgrep,
//! and there with nothing but find and grep.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt as _;
use sandbar_tools::{
    Capture, CaptureError, ErrorCode, InMemoryToolDispatcher, SandboxToolDispatcher, Screenshots, Shots,
    ToolDispatcher, ToolResult, Watch,
};
use sdk::{Command, Sandbox};
use serde_json::Value;
use testing::Server;

/// Pictures that a test prepared.
#[derive(Default)]
pub(crate) struct Album {
    pub(crate) next: std::sync::Mutex<Option<Result<Shots, CaptureError>>>,
    pub(crate) asked: std::sync::Mutex<Vec<Capture>>,
}

#[async_trait]
impl Screenshots for Album {
    async fn capture(&self, capture: Capture) -> Result<Shots, CaptureError> {
        self.asked.lock().expect("unpoisoned").push(capture);
        self.next.lock().expect("unpoisoned").take().expect("a test prepares what it asks for")
    }
}

/// Our server as any other of E2B's kind.
const WITHOUT_EXTENSIONS: &[&str] = &["--no-extensions"];

pub(crate) struct World {
    place: Place,
    pub(crate) album: Arc<Album>,
}

enum Place {
    Memory(Box<InMemoryToolDispatcher>),
    Sandbox { tools: Box<SandboxToolDispatcher>, sandbox: Sandbox, _server: Arc<Server> },
}

impl World {
    pub(crate) async fn memory() -> Self {
        let album = Arc::new(Album::default());
        let tools = InMemoryToolDispatcher::new().screenshots(Arc::clone(&album) as Arc<dyn Screenshots>);
        Self { place: Place::Memory(Box::new(tools)), album }
    }

    pub(crate) async fn server() -> Self {
        Self::on(&[]).await
    }

    pub(crate) async fn plain() -> Self {
        Self::on(WITHOUT_EXTENSIONS).await
    }

    pub(crate) async fn without_ripgrep() -> Self {
        let world = Self::on(WITHOUT_EXTENSIONS).await;
        let removed = world.sandbox().commands().run(Command::new("rm $(command -v rg)").user("root")).await;
        assert!(removed.expect("rm runs").success());
        world
    }

    /// Nor can our own helper be sent: a file stands where its directory would be.
    pub(crate) async fn without_engines() -> Self {
        let world = Self::without_ripgrep().await;
        let barred = world.sandbox().commands().run("mkdir -p /tmp/.sandbar && touch /tmp/.sandbar/bin").await;
        assert!(barred.expect("mkdir runs").success());
        world
    }

    async fn on(flags: &'static [&'static str]) -> Self {
        let server = Server::shared(flags);
        let sandbox = server.sandbox().await;
        let album = Arc::new(Album::default());
        let tools = SandboxToolDispatcher::new(sandbox.clone()).screenshots(Arc::clone(&album) as Arc<dyn Screenshots>);
        Self { place: Place::Sandbox { tools: Box::new(tools), sandbox, _server: server }, album }
    }

    /// After the case: nothing is left to the server's own end.
    pub(crate) async fn end(self) {
        self.tools().close().await;
        if let Place::Sandbox { sandbox, .. } = &self.place {
            sandbox.kill().await.expect("the sandbox ends");
        }
    }

    pub(crate) fn tools(&self) -> &dyn ToolDispatcher {
        match &self.place {
            Place::Memory(tools) => &**tools,
            Place::Sandbox { tools, .. } => &**tools,
        }
    }

    pub(crate) fn is_memory(&self) -> bool {
        matches!(self.place, Place::Memory(_))
    }

    /// Only for cases that know they are not in memory.
    pub(crate) fn sandbox(&self) -> &Sandbox {
        match &self.place {
            Place::Memory(_) => panic!("there is no sandbox"),
            Place::Sandbox { sandbox, .. } => sandbox,
        }
    }

    pub(crate) fn in_memory(&self) -> Option<&InMemoryToolDispatcher> {
        match &self.place {
            Place::Memory(tools) => Some(tools),
            Place::Sandbox { .. } => None,
        }
    }

    pub(crate) async fn call(&self, tool: &str, input: Value) -> ToolResult {
        self.call_watched(tool, input, Watch::default()).await
    }

    /// Every answer of every case is what the tool's definition says.
    pub(crate) async fn call_watched(&self, tool: &str, input: Value, watch: Watch) -> ToolResult {
        let result = self.tools().dispatch_watched(tool, input, watch).await;
        assert_eq!(result.is_error, result.code.is_some(), "{result:?}");
        assert!(!result.content.is_empty(), "{result:?}");
        if let Some(definition) = sandbar_tools::definitions().into_iter().find(|known| known.name == tool) {
            assert_fits(&result.structured, &definition.output_schema, tool);
        }
        result
    }

    /// The text of a call that must work.
    #[track_caller]
    pub(crate) fn ok(&self, tool: &'static str, input: Value) -> impl Future<Output = String> {
        let place = std::panic::Location::caller();
        async move {
            let result = self.call(tool, input).await;
            assert!(!result.is_error, "{place}: {tool} failed: {result:?}");
            assert_eq!(result.code, None, "{place}");
            result.text()
        }
    }

    /// The text of a call that must fail in a certain way.
    #[track_caller]
    pub(crate) fn fails(&self, tool: &'static str, input: Value, code: ErrorCode) -> impl Future<Output = String> {
        let place = std::panic::Location::caller();
        async move {
            let result = self.call(tool, input).await;
            assert!(result.is_error, "{place}: {tool} did not fail: {result:?}");
            assert_eq!(result.code, Some(code), "{place}: {result:?}");
            result.text()
        }
    }

    /// As somebody else would, past the tools.
    pub(crate) async fn put(&self, path: &str, content: impl Into<Bytes>) {
        match &self.place {
            Place::Memory(tools) => tools.put(path, content),
            Place::Sandbox { sandbox, .. } => {
                sandbox.files().write(path, content).await.expect("the file is written");
            }
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Bytes {
        match &self.place {
            Place::Memory(tools) => tools.get(path).unwrap_or_else(|| panic!("{path} is missing")),
            Place::Sandbox { sandbox, .. } => {
                sandbox.files().read(path).await.unwrap_or_else(|error| panic!("{path}: {error}"))
            }
        }
    }

    pub(crate) async fn link(&self, path: &str, target: &str) {
        match &self.place {
            Place::Memory(tools) => tools.link(path, target),
            Place::Sandbox { .. } => self.outside(&["ln", "-s", target, path]).await,
        }
    }

    pub(crate) async fn set_mode(&self, path: &str, mode: u32) {
        match &self.place {
            Place::Memory(tools) => tools.set_mode(path, mode),
            Place::Sandbox { .. } => self.outside(&["chmod", &format!("{mode:o}"), path]).await,
        }
    }

    pub(crate) async fn mode(&self, path: &str) -> u32 {
        match &self.place {
            Place::Memory(tools) => tools.mode(path).expect("a file"),
            Place::Sandbox { sandbox, .. } => sandbox.files().stat(path).await.expect("a file").mode & 0o7777,
        }
    }

    /// Sets the time of the last change, so that order is known.
    pub(crate) async fn set_time(&self, path: &str, seconds: u32) {
        if !self.is_memory() {
            self.outside(&["touch", "-d", &format!("@{seconds}"), path]).await;
        }
    }

    async fn outside(&self, words: &[&str]) {
        let (program, arguments) = words.split_first().expect("a command has a name");
        let command = Command::exec(*program, arguments.iter().copied()).user("root");
        let output = self.sandbox().commands().run(command).await.expect("it runs");
        assert!(output.success(), "{words:?}: {}", output.stderr_text());
    }

    /// How many processes have this in their command line; in memory, how many there are.
    pub(crate) async fn processes(&self, part: &str) -> usize {
        match &self.place {
            Place::Memory(tools) => tools.processes(),
            Place::Sandbox { sandbox, .. } => {
                let command = Command::exec("pgrep", ["-c", "-f", "--", part]);
                let output = sandbox.commands().run(command).await.expect("pgrep runs");
                output.stdout_text().trim().parse().expect("a number")
            }
        }
    }
}

/// Asks again until it is so; the wait has a deadline and names what it waited for.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut ready: impl FnMut() -> F) {
    testing::eventually_async(what, Duration::from_secs(20), || ready().map(|done| done.then_some(()))).await;
}

/// The part of JSON Schema that the definitions use. Fields that no schema names are mistakes here.
#[track_caller]
fn assert_fits(value: &Value, schema: &Value, place: &str) {
    if let Some(allowed) = schema["enum"].as_array() {
        assert!(allowed.contains(value), "{place} is {value}");
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    match &schema["type"] {
        Value::String(wanted) => assert_eq!(kind, wanted, "{place} is {value}"),
        Value::Array(wanted) => assert!(wanted.iter().any(|wanted| wanted == kind), "{place} is {value}"),
        _ => {}
    }
    if let (Value::Object(fields), Value::Object(known)) = (value, &schema["properties"]) {
        for (name, value) in fields {
            let schema = known.get(name).unwrap_or_else(|| panic!("{place} has an unknown field {name}"));
            assert_fits(value, schema, &format!("{place}.{name}"));
        }
    }
    if let Value::Array(items) = value {
        items.iter().for_each(|item| assert_fits(item, &schema["items"], place));
    }
}
