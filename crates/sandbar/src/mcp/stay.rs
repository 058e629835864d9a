//! One sandbox for the clients: an existing one, or one that is made when it is first needed.

use crate::sandbox::endpoint::Endpoint;
use crate::sandbox::keep;
use crate::screenshots::Pictures;
use async_trait::async_trait;
use bytes::BytesMut;
use futures::StreamExt as _;
use mcp::{Contents, EnterError, Entered, ReadError, Workplace, Workplaces};
use sdk::model::SandboxState;
use sdk::{Client, Connect, Create, FileError, Pause, Sandbox, SandboxError, SandboxId};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio_util::task::AbortOnDropHandle;
use tools::{SandboxToolDispatcher, ToolDispatcher};

/// What a sandbox is given whenever it is entered; it is kept alive while somebody works in it, and paused after that.
const LIFE: Duration = Duration::from_secs(300);
/// The mark of sandboxes that were made here.
const MARK: &str = "sandbar-mcp";

/// The one sandbox that this program's clients work in.
pub(super) struct Stay {
    /// Looked at whenever the sandbox is entered: clients start this program early, perhaps before `sandbar up`.
    endpoint: Endpoint,
    pictures: Arc<Pictures>,
    template: String,
    given: Option<SandboxId>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Made by us, and not known to be gone.
    made: Option<SandboxId>,
    here: Option<Here>,
}

/// While somebody works in it.
struct Here {
    sandbox: Sandbox,
    /// To be paused in the end: it is ours, or it slept when we came.
    pause: bool,
    _keeper: AbortOnDropHandle<()>,
}

impl Stay {
    pub(super) fn new(endpoint: Endpoint, pictures: Arc<Pictures>, template: String, given: Option<SandboxId>) -> Self {
        Self { endpoint, pictures, template, given, state: Mutex::default() }
    }

    /// An existing sandbox, and whether it slept.
    async fn find(client: &Client, id: &SandboxId) -> Result<(Sandbox, bool), SandboxError> {
        let slept = client.info(id).await?.listed.state == SandboxState::Paused;
        Ok((client.connect(id, Connect::timeout(LIFE)).await?, slept))
    }

    async fn make(&self, client: &Client) -> Result<Sandbox, EnterError> {
        // Paused, should this program be killed.
        let create = Create::template(&self.template).timeout(LIFE).pause_on_timeout().metadata(MARK, "");
        let made = client.create(create).await;
        made.map_err(|error| EnterError(format!("No sandbox could be made: {error}.")))
    }
}

#[async_trait]
impl Workplaces for Stay {
    async fn enter(&self) -> Result<Entered, EnterError> {
        let client = self.endpoint.client();
        let client = client.map_err(|error| EnterError(format!("There is no sandbox: {error:#}.")))?;
        let mut state = self.state.lock().await;
        let known = self.given.clone().or_else(|| state.made.clone());
        let found = match &known {
            None => None,
            Some(id) => match Self::find(&client, id).await {
                Ok((sandbox, slept)) => Some((sandbox, slept)),
                Err(SandboxError::NotFound { .. }) if self.given.is_none() => None,
                Err(error) => return Err(EnterError(format!("The sandbox cannot be used: {error}."))),
            },
        };
        let (sandbox, pause, notice) = match found {
            Some((sandbox, slept)) => {
                let pause = self.given.is_none() || slept || state.here.as_ref().is_some_and(|here| here.pause);
                (sandbox, pause, None)
            }
            None => {
                let sandbox = self.make(&client).await?;
                let id = sandbox.id();
                eprintln!("sandbar: sandbox {id} (created)");
                let gone = known.map(|old| format!("Sandbox {old} is gone with its files. ")).unwrap_or_default();
                let notice =
                    format!("[{gone}Sandbox {id} was created for this session; it is paused when the session ends.]");
                state.made = Some(id.clone());
                (sandbox, true, Some(notice))
            }
        };
        let keeper = AbortOnDropHandle::new(tokio::spawn(keep::alive(sandbox.clone())));
        state.here = Some(Here { sandbox: sandbox.clone(), pause, _keeper: keeper });
        let bench = Bench { pictures: Arc::clone(&self.pictures), sandbox };
        Ok(Entered { workplace: Arc::new(bench), notice })
    }

    async fn leave(&self) {
        let Some(Here { sandbox, pause: true, .. }) = self.state.lock().await.here.take() else { return };
        let id = sandbox.id();
        match sandbox.pause(Pause::with_memory()).await {
            Ok(_) => eprintln!("sandbar: sandbox {id} is paused; `sandbar mcp --sandbox {id}` goes on with it"),
            Err(SandboxError::NotFound { .. }) => {}
            Err(error) => eprintln!("sandbar: sandbox {id} could not be paused: {error}"),
        }
    }
}

struct Bench {
    pictures: Arc<Pictures>,
    sandbox: Sandbox,
}

#[async_trait]
impl Workplace for Bench {
    fn sandbox(&self) -> &str {
        self.sandbox.id().as_str()
    }

    fn tools(&self, session: &str) -> Arc<dyn ToolDispatcher> {
        let tools = SandboxToolDispatcher::new(self.sandbox.clone()).session(session);
        Arc::new(tools.screenshots(self.pictures.of(self.sandbox.clone())))
    }

    async fn read(&self, path: &str, most: usize) -> Result<Contents, ReadError> {
        read(&self.sandbox, path, most).await
    }
}

/// A file's first bytes.
pub(super) async fn read(sandbox: &Sandbox, path: &str, most: usize) -> Result<Contents, ReadError> {
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
            return Ok(Contents { bytes: bytes.freeze(), whole: false });
        }
    }
    Ok(Contents { bytes: bytes.freeze(), whole: true })
}
