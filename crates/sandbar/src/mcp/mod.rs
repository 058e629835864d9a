//! `sandbar mcp`: serves the tools to MCP clients, over this program's standard streams or over
//! HTTP.
//!
//! Over standard streams stdout carries the protocol; messages for people go to stderr.

mod shared_server;
mod single_sandbox;
mod workspace_source;

pub(crate) use shared_server::SharedMcpServer;

use crate::endpoint::Endpoint;
use crate::screenshots::ScreenshotService;
use crate::workspace::app::{DueScreenshots, EndAction, Wait, WorkspaceApp};
use crate::{logging, runtime};
use anyhow::{Context as _, bail};
use clap::Args;
use cli::interrupt::Stops;
use mcp::{Access, SandboxProvider, Server, Settings, Token};
use sdk::SandboxId;
use single_sandbox::SingleSandbox;
use std::io::{Write as _, stdout};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use workspace::WorkspaceName;
use workspace::setup::PROJECT_DIRECTORY;
use workspace_source::WorkspaceSource;

/// The variable with a token that the user chose.
const TOKEN: &str = "SANDBAR_MCP_TOKEN";

/// Offer the tools to an MCP client, in a sandbox.
#[derive(Args)]
#[command(after_help = "\
Examples:
  claude mcp add sandbar -- sandbar mcp         for Claude Code; other clients run `sandbar mcp` likewise
  sandbar mcp --sandbox iabc123                 in a sandbox that exists
  sandbar mcp --workspace shop                  in a workspace, whichever sandbox it is in
  sandbar mcp --http 127.0.0.1:4981             for clients that connect; prints the URL and the token

Without --sandbox, one is made at the first call; the answer names it, and it is paused when the client leaves. One that
exists is left as it was found: running, or paused again. A workspace is this program's own while a client works there, and
is paused when the client has left, unless --keep-running says otherwise.

Over HTTP every request needs `Authorization: Bearer TOKEN`. The token is a new one at each start, unless --token-file
or $SANDBAR_MCP_TOKEN says it.")]
pub(crate) struct Mcp {
    /// Work in this sandbox
    #[arg(long, value_name = "ID", env = "SANDBAR_SANDBOX")]
    sandbox: Option<SandboxId>,
    /// Work in this workspace
    #[arg(long, value_name = "NAME", conflicts_with_all = ["sandbox", "template"])]
    workspace: Option<WorkspaceName>,
    #[command(flatten)]
    wait: Wait,
    /// Leave the workspace running when the client has left; it is paused otherwise
    #[arg(long, requires = "workspace")]
    keep_running: bool,
    /// What a new sandbox is made from
    #[arg(long, value_name = "TEMPLATE", default_value = "base")]
    template: String,
    /// A session that lives on when the client leaves: directory, variables, background tasks
    /// [default: a new one]
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
        runtime::block_on(self.serve())
    }

    async fn serve(self) -> anyhow::Result<()> {
        let stop = stop_on_signals()?;
        let Self { sandbox, workspace, wait, keep_running, template, session, http, token_file, allow_host, endpoint } =
            self;
        let serve = async |provider: Arc<dyn SandboxProvider>, notes: Option<String>| {
            let server = Server::new(provider, Settings { session, notes, ..Settings::default() });
            match http {
                None => anyhow::Ok(server.serve_stdio(stop).await?),
                Some(address) => Ok(listen(server, address, &allow_host, token_file.as_deref(), stop).await??),
            }
        };
        let Some(name) = workspace else {
            let screenshots = ScreenshotService::new(&endpoint.config()?);
            let done =
                serve(Arc::new(SingleSandbox::new(endpoint, Arc::clone(&screenshots), template, sandbox)), None).await;
            screenshots.close().await;
            return done;
        };
        let app = Arc::new(WorkspaceApp::for_endpoint(&endpoint, wait.wait).await?);
        let notes = describe_workspace(&app, &name).await;
        let end_action = EndAction::new(keep_running);
        let done = serve(Arc::new(WorkspaceSource::new(Arc::clone(&app), name, end_action)), Some(notes)).await;
        app.close(DueScreenshots::Take).await;
        done
    }
}

/// Tells an agent what it has to know of a workspace: the first directory, what checkpoints keep,
/// and the provider's limits.
async fn describe_workspace(app: &WorkspaceApp, name: &WorkspaceName) -> String {
    let limits = match app.workspaces().show(name).await {
        Ok(view) => app.workspaces().orchestrator().provider(&view.provider).ok().map(|found| found.limits()),
        Err(_) => None,
    };
    let limits = limits.map_or_else(String::new, |limits| format!(" Limits of its provider: {limits}."));
    format!(
        "This is workspace {name}: the shell begins in {PROJECT_DIRECTORY}. Snapshots keep /home/user and bring it into another \
         sandbox when this one ends; running processes, files elsewhere and folders that are seen to be generated \
         (node_modules, target) are not in them.{limits}"
    )
}

async fn listen(
    server: Server,
    address: SocketAddr,
    names: &[String],
    token_file: Option<&Path>,
    stop: CancellationToken,
) -> anyhow::Result<Result<(), mcp::ServeError>> {
    let HttpListener { listener, access, message } = open_listener(address, names, token_file).await?;
    writeln!(stdout(), "{message}")?;
    stdout().flush()?;
    Ok(server.serve_http(listener, access, stop).await)
}

/// A listener for HTTP clients.
struct HttpListener {
    listener: TcpListener,
    access: Access,
    /// The URL and the token, in two lines.
    message: String,
}

async fn open_listener(
    address: SocketAddr,
    names: &[String],
    token_file: Option<&Path>,
) -> anyhow::Result<HttpListener> {
    let token = token(token_file)?;
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let address = listener.local_addr().context("cannot tell the address")?;
    if !address.ip().is_loopback() {
        eprintln!(
            "sandbar: {address} can be reached from elsewhere, and HTTP is not encrypted: others may read the token"
        );
    }
    let access = names.iter().fold(Access::new(token.clone(), address), |access, name| access.with_host(name));
    let message = format!("URL: http://{address}{}\nAuthorization: Bearer {}", Server::PATH, token.expose());
    Ok(HttpListener { listener, access, message })
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

/// A token that the first signal cancels. The second signal exits the process.
fn stop_on_signals() -> anyhow::Result<CancellationToken> {
    let mut stops = Stops::install()?;
    let stop = CancellationToken::new();
    let cancel = stop.clone();
    tokio::spawn(async move {
        stops.next().await;
        cancel.cancel();
        // The user sent a second signal: exit without waiting.
        let again = stops.next().await;
        std::process::exit(i32::from(again.code()));
    });
    Ok(stop)
}
