//! The backends of the contract: memory, our server, our server without its extensions, that
//! without ripgrep, and that with only find and grep.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use sandbar_tools::{
    ErrorCode, InMemoryToolDispatcher, SandboxToolDispatcher, ScreenshotError, ScreenshotProvider, ScreenshotRequest,
    ScreenshotSet, ToolDispatcher, ToolResult, Watch,
};
use sdk::{Command, Sandbox};
use serde_json::Value;
use testing::Server;

/// Prepared screenshots.
#[derive(Default)]
pub(crate) struct PreparedScreenshots {
    pub(crate) next: parking_lot::Mutex<Option<Result<ScreenshotSet, ScreenshotError>>>,
    pub(crate) asked: parking_lot::Mutex<Vec<ScreenshotRequest>>,
}

#[async_trait]
impl ScreenshotProvider for PreparedScreenshots {
    async fn capture(&self, capture: ScreenshotRequest) -> Result<ScreenshotSet, ScreenshotError> {
        self.asked.lock().push(capture);
        self.next.lock().take().expect("a test prepares what it asks for")
    }
}

/// Makes our server a plain E2B server.
const WITHOUT_EXTENSIONS: &[&str] = &["--no-extensions"];

pub(crate) struct Fixture {
    backend: Backend,
    pub(crate) prepared: Arc<PreparedScreenshots>,
}

enum Backend {
    Memory(Box<InMemoryToolDispatcher>),
    Sandbox { tools: Box<SandboxToolDispatcher>, sandbox: Sandbox, _server: Arc<Server> },
}

impl Fixture {
    pub(crate) async fn memory() -> Self {
        let prepared = Arc::new(PreparedScreenshots::default());
        let tools = InMemoryToolDispatcher::new().screenshots(Arc::clone(&prepared) as Arc<dyn ScreenshotProvider>);
        Self { backend: Backend::Memory(Box::new(tools)), prepared }
    }

    pub(crate) async fn server() -> Self {
        Self::on(&[]).await
    }

    pub(crate) async fn plain() -> Self {
        Self::on(WITHOUT_EXTENSIONS).await
    }

    pub(crate) async fn without_ripgrep() -> Self {
        let fixture = Self::on(WITHOUT_EXTENSIONS).await;
        let removed = fixture.sandbox().commands().run(Command::new("rm $(command -v rg)").user("root")).await;
        assert!(removed.expect("rm runs").success());
        fixture
    }

    /// Our helper cannot be uploaded either: a file blocks its directory.
    pub(crate) async fn without_engines() -> Self {
        let fixture = Self::without_ripgrep().await;
        let barred = fixture.sandbox().commands().run("mkdir -p /tmp/.sandbar && touch /tmp/.sandbar/bin").await;
        assert!(barred.expect("mkdir runs").success());
        fixture
    }

    async fn on(flags: &'static [&'static str]) -> Self {
        let server = Server::shared(flags);
        let sandbox = server.sandbox().await;
        let prepared = Arc::new(PreparedScreenshots::default());
        let tools = SandboxToolDispatcher::new(sandbox.clone())
            .screenshots(Arc::clone(&prepared) as Arc<dyn ScreenshotProvider>);
        Self { backend: Backend::Sandbox { tools: Box::new(tools), sandbox, _server: server }, prepared }
    }

    /// Kills the sandbox after the case.
    pub(crate) async fn end(self) {
        self.tools().close().await;
        if let Backend::Sandbox { sandbox, .. } = &self.backend {
            sandbox.kill().await.expect("the sandbox ends");
        }
    }

    pub(crate) fn tools(&self) -> &dyn ToolDispatcher {
        match &self.backend {
            Backend::Memory(tools) => &**tools,
            Backend::Sandbox { tools, .. } => &**tools,
        }
    }

    pub(crate) fn is_memory(&self) -> bool {
        matches!(self.backend, Backend::Memory(_))
    }

    /// Panics in memory.
    pub(crate) fn sandbox(&self) -> &Sandbox {
        match &self.backend {
            Backend::Memory(_) => panic!("there is no sandbox"),
            Backend::Sandbox { sandbox, .. } => sandbox,
        }
    }

    pub(crate) fn in_memory(&self) -> Option<&InMemoryToolDispatcher> {
        match &self.backend {
            Backend::Memory(tools) => Some(tools),
            Backend::Sandbox { .. } => None,
        }
    }

    pub(crate) async fn call(&self, tool: &str, input: Value) -> ToolResult {
        self.call_watched(tool, input, Watch::default()).await
    }

    /// Calls a tool, and checks that its result matches the tool's definition.
    pub(crate) async fn call_watched(&self, tool: &str, input: Value, watch: Watch) -> ToolResult {
        let result = self.tools().dispatch_watched(tool, input, watch).await;
        assert_eq!(result.is_error, result.code.is_some(), "{result:?}");
        assert!(!result.content.is_empty(), "{result:?}");
        if let Some(definition) = sandbar_tools::definitions().into_iter().find(|known| known.name == tool) {
            assert_fits(&result.structured.to_value(), &definition.output_schema, tool);
        }
        result
    }

    /// The text of a call that must succeed.
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

    /// The text of a call that must fail with `code`.
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

    /// Bypasses the tools.
    pub(crate) async fn put(&self, path: &str, content: impl Into<Bytes>) {
        match &self.backend {
            Backend::Memory(tools) => tools.put(path, content),
            Backend::Sandbox { sandbox, .. } => {
                sandbox.files().write(path, content).await.expect("the file is written");
            }
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Bytes {
        match &self.backend {
            Backend::Memory(tools) => tools.get(path).unwrap_or_else(|| panic!("{path} is missing")),
            Backend::Sandbox { sandbox, .. } => {
                sandbox.files().read(path).await.unwrap_or_else(|error| panic!("{path}: {error}"))
            }
        }
    }

    pub(crate) async fn link(&self, path: &str, target: &str) {
        match &self.backend {
            Backend::Memory(tools) => tools.link(path, target),
            Backend::Sandbox { .. } => self.outside(&["ln", "-s", target, path]).await,
        }
    }

    pub(crate) async fn set_mode(&self, path: &str, mode: u32) {
        match &self.backend {
            Backend::Memory(tools) => tools.set_mode(path, mode),
            Backend::Sandbox { .. } => self.outside(&["chmod", &format!("{mode:o}"), path]).await,
        }
    }

    pub(crate) async fn mode(&self, path: &str) -> u32 {
        match &self.backend {
            Backend::Memory(tools) => tools.mode(path).expect("a file"),
            Backend::Sandbox { sandbox, .. } => sandbox.files().stat(path).await.expect("a file").mode & 0o7777,
        }
    }

    /// Sets the modification time, so that the order is known.
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

    /// Number of processes with this in their command line; in memory, of all processes.
    pub(crate) async fn processes(&self, part: &str) -> usize {
        match &self.backend {
            Backend::Memory(tools) => tools.processes(),
            Backend::Sandbox { sandbox, .. } => {
                let command = Command::exec("pgrep", ["-c", "-f", "--", part]);
                let output = sandbox.commands().run(command).await.expect("pgrep runs");
                output.stdout_text().trim().parse().expect("a number")
            }
        }
    }
}

/// Validates the part of JSON Schema that the definitions use. Fields that no schema names are
/// errors.
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
