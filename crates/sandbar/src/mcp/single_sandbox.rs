//! Provides one sandbox to MCP clients: an existing one, or one that is created at the first call.

use crate::endpoint::Endpoint;
use crate::screenshots::ScreenshotService;
use async_trait::async_trait;
use bytes::BytesMut;
use cli::Connect as _;
use cli::keep;
use futures::StreamExt as _;
use mcp::{AcquiredSandbox, FileContents, ReadError, SandboxHandle, SandboxProvider};
use sdk::model::SandboxState;
use sdk::{Client, Connect, Create, FileError, Pause, Sandbox, SandboxError, SandboxId};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio_util::task::AbortOnDropHandle;
use tools::{AcquireError, SandboxToolDispatcher, ToolDispatcher};

/// Timeout of the sandbox at each acquire. It is extended while a client uses the sandbox, which is
/// paused after that.
const SANDBOX_TIMEOUT: Duration = Duration::from_secs(300);
/// Metadata key of sandboxes that this program created.
const MARK: &str = "sandbar-mcp";

/// The sandbox that all clients of this program share.
pub(super) struct SingleSandbox {
    /// Resolved at each acquire: clients may start this program before `sandbar up`.
    endpoint: Endpoint,
    screenshots: Arc<ScreenshotService>,
    template: String,
    given: Option<SandboxId>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Created by this program, and not known to be gone.
    made: Option<SandboxId>,
    used: Option<UsedSandbox>,
}

/// The sandbox while a client uses it.
struct UsedSandbox {
    sandbox: Sandbox,
    /// Pause it at release: this program created it, or it was paused before.
    pause: bool,
    _keep_alive: AbortOnDropHandle<()>,
}

impl SingleSandbox {
    pub(super) fn new(
        endpoint: Endpoint,
        screenshots: Arc<ScreenshotService>,
        template: String,
        given: Option<SandboxId>,
    ) -> Self {
        Self { endpoint, screenshots, template, given, state: Mutex::default() }
    }

    /// Connects to an existing sandbox. Returns whether it was paused.
    async fn find(client: &Client, id: &SandboxId) -> Result<(Sandbox, bool), SandboxError> {
        let was_paused = client.info(id).await?.listed.state == SandboxState::Paused;
        Ok((client.connect(id, Connect::timeout(SANDBOX_TIMEOUT)).await?, was_paused))
    }

    async fn make_sandbox(&self, client: &Client) -> Result<Sandbox, AcquireError> {
        // If this program is killed, the timeout pauses the sandbox.
        let create = Create::template(&self.template).timeout(SANDBOX_TIMEOUT).pause_on_timeout().metadata(MARK, "");
        let made = client.create(create).await;
        made.map_err(|error| AcquireError(format!("No sandbox could be made: {error}.")))
    }
}

#[async_trait]
impl SandboxProvider for SingleSandbox {
    async fn acquire(&self) -> Result<AcquiredSandbox, AcquireError> {
        let client = self.endpoint.connect();
        let client = client.map_err(|error| AcquireError(format!("There is no sandbox: {error:#}.")))?;
        let mut state = self.state.lock().await;
        let known = self.given.clone().or_else(|| state.made.clone());
        let found = match &known {
            None => None,
            Some(id) => match Self::find(&client, id).await {
                Ok((sandbox, was_paused)) => Some((sandbox, was_paused)),
                Err(SandboxError::NotFound { .. }) if self.given.is_none() => None,
                Err(error) => return Err(AcquireError(format!("The sandbox cannot be used: {error}."))),
            },
        };
        let (sandbox, pause, notice) = match found {
            Some((sandbox, was_paused)) => {
                let pause = self.given.is_none() || was_paused || state.used.as_ref().is_some_and(|used| used.pause);
                (sandbox, pause, None)
            }
            None => {
                let sandbox = self.make_sandbox(&client).await?;
                let id = sandbox.id();
                eprintln!("sandbar: sandbox {id} (created)");
                let gone = known.map(|old| format!("Sandbox {old} is gone with its files. ")).unwrap_or_default();
                let notice =
                    format!("[{gone}Sandbox {id} was created for this session; it is paused when the session ends.]");
                state.made = Some(id.clone());
                (sandbox, true, Some(notice))
            }
        };
        let keep_alive = AbortOnDropHandle::new(tokio::spawn(keep::alive(sandbox.clone())));
        state.used = Some(UsedSandbox { sandbox: sandbox.clone(), pause, _keep_alive: keep_alive });
        let handle = SingleSandboxHandle { screenshots: Arc::clone(&self.screenshots), sandbox };
        Ok(AcquiredSandbox { handle: Arc::new(handle), notice })
    }

    async fn release(&self) {
        let Some(UsedSandbox { sandbox, pause: true, .. }) = self.state.lock().await.used.take() else { return };
        let id = sandbox.id();
        match sandbox.pause(Pause::with_memory()).await {
            Ok(_) => eprintln!("sandbar: sandbox {id} is paused; `sandbar mcp --sandbox {id}` goes on with it"),
            Err(SandboxError::NotFound { .. }) => {}
            Err(error) => eprintln!("sandbar: sandbox {id} could not be paused: {error}"),
        }
    }
}

struct SingleSandboxHandle {
    screenshots: Arc<ScreenshotService>,
    sandbox: Sandbox,
}

#[async_trait]
impl SandboxHandle for SingleSandboxHandle {
    fn sandbox_id(&self) -> &str {
        self.sandbox.id().as_str()
    }

    fn tools(&self, session: &str) -> Arc<dyn ToolDispatcher> {
        let tools = SandboxToolDispatcher::new(self.sandbox.clone()).session(session);
        Arc::new(tools.screenshots(self.screenshots.for_sandbox(self.sandbox.clone())))
    }

    async fn read(&self, path: &str, most: usize) -> Result<FileContents, ReadError> {
        read(&self.sandbox, path, most).await
    }
}

/// Reads at most `most` bytes of a file.
pub(super) async fn read(sandbox: &Sandbox, path: &str, most: usize) -> Result<FileContents, ReadError> {
    let failed = |error: FileError| match error {
        FileError::NotFound { .. } => ReadError::NotFound,
        other => ReadError::Failed(other.to_string()),
    };
    let mut pieces = sandbox.files().read_stream(path).await.map_err(failed)?;
    let mut bytes = BytesMut::new();
    while let Some(piece) = pieces.next().await {
        bytes.extend_from_slice(&piece.map_err(failed)?);
        if bytes.len() > most {
            bytes.truncate(most);
            return Ok(FileContents { bytes: bytes.freeze(), whole: false });
        }
    }
    Ok(FileContents { bytes: bytes.freeze(), whole: true })
}
