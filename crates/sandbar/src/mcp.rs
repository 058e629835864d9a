//! `sandbar mcp`: the tools for MCP clients, over this program's standard streams or over HTTP.
//!
//! Over standard streams stdout belongs to the protocol; everything for people goes to stderr.

use crate::logging;
use crate::sandbox::endpoint::Endpoint;
use crate::sandbox::interrupt::Stops;
use crate::sandbox::keep;
use crate::screenshots::Pictures;
use anyhow::{Context as _, bail};
use async_trait::async_trait;
use bytes::BytesMut;
use clap::Args;
use futures::StreamExt as _;
use mcp::{Access, Contents, EnterError, Entered, ReadError, Server, Settings, Token, Workplace, Workplaces};
use sdk::model::SandboxState;
use sdk::{Client, Connect, Create, FileError, Pause, Sandbox, SandboxError, SandboxId};
use std::io::{Write as _, stdout};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tools::{SandboxToolDispatcher, ToolDispatcher};

/// What a sandbox is given whenever it is entered; it is kept alive while somebody works in it, and paused after that.
const LIFE: Duration = Duration::from_secs(300);
/// The mark of sandboxes that were made here.
const MARK: &str = "sandbar-mcp";
/// A token of the user's own choice.
const TOKEN: &str = "SANDBAR_MCP_TOKEN";

/// Offer the tools to an MCP client, in a sandbox.
#[derive(Args)]
#[command(after_help = "\
Examples:
  claude mcp add sandbar -- sandbar mcp         for Claude Code; other clients run `sandbar mcp` likewise
  sandbar mcp --sandbox iabc123                 in a sandbox that exists
  sandbar mcp --http 127.0.0.1:4981             for clients that connect; prints the URL and the token

Without --sandbox, one is made at the first call; the answer names it, and it is paused when the client leaves. One that
exists is left as it was found: running, or paused again.

Over HTTP every request needs `Authorization: Bearer TOKEN`. The token is a new one at each start, unless --token-file
or $SANDBAR_MCP_TOKEN says it.")]
pub(crate) struct Mcp {
    /// Work in this sandbox
    #[arg(long, value_name = "ID", env = "SANDBAR_SANDBOX")]
    sandbox: Option<SandboxId>,
    /// What a new sandbox is made from
    #[arg(long, value_name = "TEMPLATE", default_value = "base")]
    template: String,
    /// A session that lives on when the client leaves: directory, variables, background tasks [default: a new one]
    #[arg(long, value_name = "NAME")]
    session: Option<String>,
    /// Serve HTTP at this address instead of standard streams
    #[arg(long, value_name = "ADDR")]
    http: Option<SocketAddr>,
    /// A file that holds the token for HTTP
    #[arg(long, value_name = "FILE", requires = "http")]
    token_file: Option<PathBuf>,
    /// A name by which clients reach the HTTP server besides its address; may be repeated
    #[arg(long, value_name = "NAME", requires = "http")]
    allow_host: Vec<String>,
    #[command(flatten)]
    endpoint: Endpoint,
}

impl Mcp {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        logging::start_if_wanted()?;
        let runtime =
            tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")?;
        let done = runtime.block_on(self.serve());
        // A read of this program's own input may be under way and never end.
        runtime.shutdown_background();
        done
    }

    async fn serve(self) -> anyhow::Result<()> {
        let stop = stop_on_signals()?;
        let pictures = Pictures::new(&self.endpoint.config()?);
        let stay = Stay {
            endpoint: self.endpoint,
            pictures: Arc::clone(&pictures),
            template: self.template,
            given: self.sandbox,
            state: Mutex::default(),
        };
        let server = Server::new(Arc::new(stay), Settings { session: self.session, ..Settings::default() });
        let done = match self.http {
            None => server.stdio(stop).await,
            Some(address) => listen(server, address, &self.allow_host, self.token_file.as_deref(), stop).await?,
        };
        pictures.close().await;
        Ok(done?)
    }
}

async fn listen(
    server: Server,
    address: SocketAddr,
    names: &[String],
    token_file: Option<&Path>,
    stop: CancellationToken,
) -> anyhow::Result<Result<(), mcp::ServeError>> {
    let token = token(token_file)?;
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let address = listener.local_addr().context("cannot tell the address")?;
    if !address.ip().is_loopback() {
        eprintln!(
            "sandbar: {address} can be reached from elsewhere, and HTTP is not encrypted: others may read the token"
        );
    }
    let access = names.iter().fold(Access::new(token.clone(), address), |access, name| access.host(name));
    writeln!(stdout(), "URL: http://{address}{}\nAuthorization: Bearer {}", Server::PATH, token.expose())?;
    stdout().flush()?;
    Ok(server.http(listener, access, stop).await)
}

fn token(file: Option<&Path>) -> anyhow::Result<Token> {
    let text = match file {
        Some(file) => {
            std::fs::read_to_string(file).with_context(|| format!("cannot read the token in {}", file.display()))?
        }
        None => match std::env::var(TOKEN) {
            Ok(text) if !text.is_empty() => text,
            _ => return Ok(Token::random()),
        },
    };
    match Token::new(text.trim()) {
        Some(token) => Ok(token),
        None => bail!("the token must have 16 characters or more, and no spaces in it"),
    }
}

/// A token that the first signal cancels. The task ends with the program.
fn stop_on_signals() -> anyhow::Result<CancellationToken> {
    let mut stops = Stops::install()?;
    let stop = CancellationToken::new();
    let cancel = stop.clone();
    tokio::spawn(async move {
        stops.next().await;
        cancel.cancel();
        // Whoever asks again does not want to wait.
        let again = stops.next().await;
        std::process::exit(i32::from(again.code()));
    });
    Ok(stop)
}

/// The one sandbox that this program's clients work in.
struct Stay {
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
        let failed = |error: FileError| match error {
            FileError::NotFound { .. } => ReadError::NotFound,
            other => ReadError::Failed(other.to_string()),
        };
        let mut pieces = self.sandbox.files().read_stream(path).await.map_err(failed)?;
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
}
