//! A real client and a real agent loop in one workspace of a real server, which changes the sandbox
//! under both of them.

use std::sync::Arc;

use agent::approval::{ApprovalPolicy, DenyAll};
use agent::model::scripted::Scripted;
use agent::records::DatabaseRunRecords;
use agent::{Feed, Parts, Plan, Run, RunId, StopReason, WorkspaceCheckpointer, workspace_tools};
use async_trait::async_trait;
use sandbar_mcp::{AcquiredSandbox, FileContents, ReadError, SandboxHandle, SandboxProvider, Server, Settings};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tools::{AcquireError, ToolDispatcher};
use workspace::config::{ProviderConfig, ProviderKind, WorkspaceConfig};
use workspace::provider::{LocalEndpoint, LocalServer, NoLocalServer};
use workspace::setup::Setup;
use workspace::{Unsaved, Workspace, Workspaces};

use crate::support::{OnStreams, call, client, text};

const LINES: usize = 12;

struct Local(LocalEndpoint);

#[async_trait]
impl LocalServer for Local {
    async fn endpoint(&self) -> Result<LocalEndpoint, NoLocalServer> {
        Ok(self.0.clone())
    }
}

/// A workspace that an agent loop of the same process uses too, as in `sandbar run --mcp`.
struct Shared(Workspace);

#[async_trait]
impl SandboxProvider for Shared {
    async fn acquire(&self) -> Result<AcquiredSandbox, AcquireError> {
        Ok(AcquiredSandbox { handle: Arc::new(Self(self.0.clone())), notice: None })
    }

    async fn release(&self) {}
}

#[async_trait]
impl SandboxHandle for Shared {
    fn sandbox_id(&self) -> &str {
        self.0.name().as_str()
    }

    fn tools(&self, session: &str) -> Arc<dyn ToolDispatcher> {
        Arc::new(workspace_tools(self.0.clone()).session(session))
    }

    async fn read(&self, _path: &str, _limit: usize) -> Result<FileContents, ReadError> {
        Err(ReadError::NotFound)
    }
}

/// Appends a line and prints the writer's line count, so that a lost or doubled line shows at once.
fn add(who: &str, number: usize) -> Value {
    json!({ "command": format!("echo {who} {number} >> lines && sleep 0.2 && grep -c '^{who} ' lines") })
}

/// A script that appends lines and expects each before it writes the next.
fn script() -> Scripted {
    let turn = |number: usize| {
        let mut turn = json!({ "tool_calls": [{ "name": "bash", "input": add("loop", number) }] });
        if number > 1 {
            turn["expect"] = format!("{}\n", number - 1).into();
        }
        turn
    };
    let last = json!({ "expect": format!("{LINES}\n"), "text": "Done." });
    let turns: Vec<Value> = (1..=LINES).map(turn).chain([last]).collect();
    Scripted::new("scripted:lines", &json!({ "turns": turns }).to_string()).expect("a script")
}

fn run(workspace: &Workspace, records: DatabaseRunRecords) -> (Parts, Plan) {
    let parts = Parts {
        model: Arc::new(script()),
        tools: Arc::new(workspace_tools(workspace.clone())),
        checkpointer: Arc::new(WorkspaceCheckpointer(workspace.clone())),
        records: Arc::new(records),
        approver: Arc::new(DenyAll),
        feed: Feed::default(),
        cancel: CancellationToken::new(),
    };
    let plan = Plan {
        goal: "Add lines.".into(),
        phases: Vec::new(),
        model: "scripted:lines".into(),
        workspace: Some(workspace.name().to_string()),
        system: "You add lines.".into(),
        settings: agent::Settings::default(),
        policy: ApprovalPolicy::default(),
        details: Value::Null,
    };
    (parts, plan)
}

#[tokio::test(flavor = "multi_thread")]
async fn client_and_agent_loop_share_a_rotating_workspace() {
    let server = testing::Server::shared(&[]);
    let directory = tempfile::tempdir().expect("a directory");
    let provider = ProviderConfig::new("local".parse().expect("a name"), ProviderKind::Local);
    let config = WorkspaceConfig { providers: vec![provider], ..WorkspaceConfig::default() };
    let config = config.resolve(directory.path(), &|_| None).expect("a good configuration");
    let local = LocalEndpoint { url: server.url(), api_key: server.key().into() };
    let (local, observer): (Arc<dyn LocalServer>, _) =
        (Arc::new(Local(local)), Arc::new(workspace::events::NoopObserver));
    let settings = workspace::Settings::default();
    let workspaces = Workspaces::from_config(&config, &|_| None, &local, observer, settings).await.expect("they open");
    let created = workspaces.create(&"shared".parse().expect("a name"), Setup::default()).await.expect("it is made");
    let workspace = created.workspace;

    let mcp = Server::new(Arc::new(Shared(workspace.clone())), Settings::default());
    let (serving, stream) = OnStreams::start(mcp);
    let client = client(stream).await;
    let records = format!("sqlite://{}", directory.path().join("runs.sqlite").display());
    let records = DatabaseRunRecords::open(&records.as_str().into()).await.expect("they open");
    let (parts, plan) = run(&workspace, records);
    let looping = async {
        let report = Run::begin(parts, RunId::new(), plan).await.expect("begun").drive().await.expect("an end");
        assert_eq!(report.stop_reason, StopReason::Completed, "{}", report.message);
    };
    let calling = async {
        for number in 1..=LINES {
            let output = text(&call(&client, "bash", add("client", number)).await);
            // Notices about the change of sandbox come before the output.
            assert!(format!("\n{output}").ends_with(&format!("\n{number}\n[exit 0]")), "line {number}: {output}");
        }
    };
    let rotating = async {
        for _ in 0..2 {
            workspace.rotate().await.expect("it rotates");
        }
    };
    tokio::join!(looping, calling, rotating);

    let lines = workspace.read_file("project/lines").await.expect("the file");
    let lines = String::from_utf8(lines.to_vec()).expect("text");
    for who in ["loop", "client"] {
        let mine: Vec<&str> = lines.lines().filter(|line| line.starts_with(who)).collect();
        let wanted: Vec<String> = (1..=LINES).map(|number| format!("{who} {number}")).collect();
        assert_eq!(mine, wanted);
    }
    client.cancel().await.expect("the client leaves");
    serving.wait().await;
    workspace.destroy(Unsaved::Discard).await.expect("it ends");
}
