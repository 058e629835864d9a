//! `sandbar tool`: one tool call from the command line, printed as a model would see it.
//!
//! Without `--sandbox` the calls of a session share a sandbox: the first call creates one with the
//! session's name in its metadata, by which later calls find it, also from other machines.

use crate::endpoint::Endpoint;
use crate::screenshots::ScreenshotService;
use crate::workspace::app::{DueScreenshots, Wait, WorkspaceApp};
use crate::{logging, runtime};
use anyhow::Context as _;
use clap::Args;
use cli::Connect as _;
use cli::interrupt::{Stop, Stops};
use cli::{keep, sandbox::explain};
use futures::TryStreamExt as _;
use sdk::model::{ListedSandbox, SandboxState};
use sdk::{Client, Connect, Create, ListQuery, Order, Sandbox, SandboxId};
use serde_json::Value;
use std::io::{Read as _, Write as _, stdout};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;
use tokio::task::JoinSet;
use tools::{Block, Image, SandboxToolDispatcher, ToolDispatcher as _, ToolOutput, ToolResult, Watch};
use workspace::WorkspaceName;

/// Metadata key of sandboxes that this command created. Its value is the session's name.
const MARK: &str = "sandbar-tool";
const DEFAULT_SESSION: &str = "default";
/// From a call until the sandbox is paused; the next call resumes it.
const SANDBOX_TIMEOUT: Duration = Duration::from_secs(300);

/// Call one of the tools, and print what a model would see.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar tool bash '{\"command\": \"uname -a\"}'
  sandbar tool write_file @input.json --sandbox iabc123
  echo '{\"pattern\": \"TODO\"}' | sandbar tool grep - --json
  sandbar tool take_screenshot '{\"port\": 3000}' --save-images pictures
  sandbar tool bash '{\"command\": \"git log\"}' --workspace shop
  sandbar tools                                            which tools there are

Calls of one session share directory, exported variables, what was read and background tasks. Without --sandbox, a
session has a sandbox of its own: the first call makes it, later ones find it again. It is paused five minutes after
the last call and woken by the next; its id is told on stderr. In a workspace, a session goes along from sandbox to
sandbox.

Exit codes: 0 done, 1 the result is an error or there is none, 2 not understood.")]
pub(crate) struct Tool {
    /// The tool
    name: String,
    /// Its input as JSON, @FILE to read that, or - to read this program's input
    #[arg(default_value = "{}", allow_hyphen_values = true)]
    input: String,
    /// The sandbox [default: the session's own]
    #[arg(long, value_name = "ID", env = "SANDBAR_SANDBOX")]
    sandbox: Option<SandboxId>,
    /// The workspace to work in, whichever sandbox it is in
    #[arg(long, value_name = "NAME", conflicts_with = "sandbox")]
    workspace: Option<WorkspaceName>,
    #[command(flatten)]
    wait: Wait,
    /// Whose directory, variables and background tasks the call shares
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SESSION)]
    session: String,
    /// Print {is_error, code, content, structured} instead of text
    #[arg(long)]
    json: bool,
    /// Write the pictures of the result into this directory
    #[arg(long, value_name = "DIR")]
    save_images: Option<PathBuf>,
    #[command(flatten)]
    endpoint: Endpoint,
}

impl Tool {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        logging::start_if_wanted()?;
        let input = read_input(&self.input)?;
        runtime::block_on(self.call(input))
    }

    async fn call(self, input: Value) -> anyhow::Result<ExitCode> {
        if !tools::NAMES.contains(&self.name.as_str()) {
            // No sandbox is created or resumed for it.
            return self.print_result(&ToolResult::for_unknown_tool(&self.name));
        }
        let mut stops = Stops::install()?;
        if let Some(name) = &self.workspace {
            let app = WorkspaceApp::for_endpoint(&self.endpoint, self.wait.wait).await?;
            let done = self.call_in(&app, name, input, &mut stops).await;
            app.close(DueScreenshots::Take).await;
            return done;
        }
        let client = self.endpoint.connect()?;
        let sandbox = match &self.sandbox {
            Some(id) => connect(&client, id).await?,
            None => find_or_create(&client, &self.session).await?,
        };
        let screenshots = ScreenshotService::new(&self.endpoint.config()?);
        let dispatcher = SandboxToolDispatcher::new(sandbox.clone())
            .session(&self.session)
            .screenshots(screenshots.for_sandbox(sandbox.clone()));
        let mut keep_alive = JoinSet::new();
        keep_alive.spawn(keep::alive(sandbox));
        let (result, stopped) = dispatch_until_stopped(&dispatcher, &self.name, input, &mut stops).await;
        keep_alive.shutdown().await;
        screenshots.close().await;
        let code = self.print_result(&result)?;
        Ok(stopped.map_or(code, Stop::exit))
    }

    async fn call_in(
        &self,
        app: &WorkspaceApp,
        name: &WorkspaceName,
        input: Value,
        stops: &mut Stops,
    ) -> anyhow::Result<ExitCode> {
        let view = app.inspect(name).await?;
        let workspace = tokio::select! {
            entered = app.enter(name) => entered?,
            stop = stops.next() => return Ok(stop.exit()),
        };
        let tools = app.tools(&workspace, view.dev_server.map(|server| server.port)).session(&self.session);
        let (result, stopped) = dispatch_until_stopped(&tools, &self.name, input, stops).await;
        let code = self.print_result(&result)?;
        Ok(stopped.map_or(code, Stop::exit))
    }

    /// Prints the result, and returns its exit code.
    fn print_result(&self, result: &ToolResult) -> anyhow::Result<ExitCode> {
        let saved = match &self.save_images {
            Some(directory) => save(result, &self.name, directory)?,
            None => Vec::new(),
        };
        if self.json {
            writeln!(stdout(), "{}", serde_json::to_string_pretty(result)?)?;
        } else {
            print(result, &saved)?;
        }
        Ok(if result.is_error { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// Calls the tool and cancels the call at a signal. Returns the result and that signal.
async fn dispatch_until_stopped(
    dispatcher: &SandboxToolDispatcher,
    name: &str,
    input: Value,
    stops: &mut Stops,
) -> (ToolResult, Option<Stop>) {
    let watch = Watch::default();
    let cancel = watch.cancel.clone();
    let mut work = pin!(dispatcher.dispatch_watched(name, input, watch));
    tokio::select! {
        result = &mut work => (result, None),
        stop = stops.next() => {
            cancel.cancel();
            (work.await, Some(stop))
        }
    }
}

/// Reads the input. Text that is not JSON is passed as a string, for which the tool returns an
/// error.
fn read_input(argument: &str) -> anyhow::Result<Value> {
    let text = if argument == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read the tool's input from this program's input")?;
        text
    } else if let Some(file) = argument.strip_prefix('@') {
        std::fs::read_to_string(file).with_context(|| format!("cannot read the tool's input from {file}"))?
    } else {
        argument.to_owned()
    };
    Ok(serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// Connects to a sandbox. A paused one is resumed by the tool call, whose result says so.
async fn connect(client: &Client, id: &SandboxId) -> anyhow::Result<Sandbox> {
    let detail = client.info(id).await.map_err(explain)?;
    match detail.listed.state {
        SandboxState::Paused => Ok(client.attach(&detail)?),
        SandboxState::Running => client.connect(id, Connect::timeout(SANDBOX_TIMEOUT)).await.map_err(explain),
    }
}

/// Finds the sandbox of a session, or creates it.
async fn find_or_create(client: &Client, session: &str) -> anyhow::Result<Sandbox> {
    if let Some(id) = oldest(client, session).await? {
        eprintln!("sandbar: sandbox {id}");
        return connect(client, &id).await;
    }
    let create = Create::template("base").timeout(SANDBOX_TIMEOUT).pause_on_timeout().metadata(MARK, session);
    let made = client.create(create).await.context("cannot make a sandbox")?;
    // A concurrent call may have created one too: the older one is used, the other killed.
    match oldest(client, session).await? {
        Some(id) if id != *made.id() => {
            made.kill().await.context("cannot remove a superfluous sandbox")?;
            eprintln!("sandbar: sandbox {id}");
            connect(client, &id).await
        }
        _ => {
            eprintln!("sandbar: sandbox {} (created)", made.id());
            Ok(made)
        }
    }
}

async fn oldest(client: &Client, session: &str) -> anyhow::Result<Option<SandboxId>> {
    let query = ListQuery::new()
        .metadata(MARK, session)
        .state(SandboxState::Running)
        .state(SandboxState::Paused)
        .order(Order::OldestFirst);
    let all: Vec<ListedSandbox> =
        client.list(query).try_collect().await.context("cannot look for the session's sandbox")?;
    let first = all.into_iter().min_by(|a, b| (&a.started_at, &a.sandbox_id).cmp(&(&b.started_at, &b.sandbox_id)));
    first.map(|sandbox| sandbox.sandbox_id.parse().context("the service named a sandbox that cannot be")).transpose()
}

/// Writes images to files, and returns their paths.
fn save(result: &ToolResult, tool: &str, directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let mut saved = Vec::new();
    for (number, image) in result.images().enumerate() {
        let path = directory.join(name(result, tool, number, image));
        std::fs::write(&path, &image.bytes).with_context(|| format!("cannot write {}", path.display()))?;
        saved.push(path);
    }
    Ok(saved)
}

/// The name of an image's file: its name in the store, if it is stored.
fn name(result: &ToolResult, tool: &str, number: usize, image: &Image) -> String {
    let key = match &result.structured.output {
        ToolOutput::TakeScreenshot(taken) => taken.screenshots.get(number).map(|shot| shot.key.as_str()),
        _ => None,
    };
    let stored = key.and_then(|key| key.rsplit('/').next()).filter(|name| name.ends_with(".webp"));
    match stored {
        Some(name) => name.to_owned(),
        None => format!("{tool}-{}.{}", number + 1, image.media_type.rsplit('/').next().unwrap_or("image")),
    }
}

fn print(result: &ToolResult, saved: &[PathBuf]) -> anyhow::Result<()> {
    let mut images = 0;
    for block in &result.content {
        match block {
            Block::Text(text) => writeln!(stdout(), "{text}")?,
            Block::Image(image) => {
                let place = saved.get(images).map_or_else(String::new, |path| format!(", {}", path.display()));
                writeln!(stdout(), "[{}, {} bytes{place}]", image.media_type, image.bytes.len())?;
                images += 1;
            }
        }
    }
    Ok(())
}
