//! The tools on a workspace, whose sandbox may change between calls: the session moves along, what
//! is lost is reported once, and secrets of the workspace are never shown.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbar_agent::workspace_tools;
use serde_json::{Value, json};
use tempfile::TempDir;
use testing::Server;
use tools::{SandboxToolDispatcher, ToolDispatcher, ToolResult};
use workspace::config::{DeploymentMode, ProviderConfig, ProviderKind, WorkspaceConfig};
use workspace::events::{Observer, WorkspaceEvent};
use workspace::provider::{LocalEndpoint, LocalServer, NoLocalServer};
use workspace::setup::{Prepare, PreparedFile, Setup};
use workspace::{MoveOptions, Settings, Workspace, Workspaces};

const SECRET: &str = "the-hidden-value";

struct NoObserver;

#[async_trait]
impl Observer for NoObserver {
    async fn event(&self, _event: &WorkspaceEvent) {}
}

#[async_trait]
impl LocalServer for NoObserver {
    async fn endpoint(&self) -> Result<LocalEndpoint, NoLocalServer> {
        Err(NoLocalServer("there is none in this test".into()))
    }
}

/// A workspace with two providers: our server, and our server as plain E2B.
struct WorkspaceFixture {
    workspace: Workspace,
    tools: SandboxToolDispatcher,
    _workspaces: Workspaces,
    _servers: [Arc<Server>; 2],
    _directory: TempDir,
}

impl WorkspaceFixture {
    async fn build(name: &str) -> Self {
        let servers = [Server::shared(&[]), Server::shared(&["--no-extensions"])];
        let directory = tempfile::tempdir().expect("a directory");
        let provider = |name: &str, server: &Server| ProviderConfig {
            deployment_mode: Some(DeploymentMode::SelfHosted),
            api_key_env: Some(name.to_uppercase()),
            api_url: Some(server.url()),
            sandbox_url: Some(server.url()),
            ..ProviderConfig::new(name.parse().expect("a name"), ProviderKind::E2b)
        };
        let config = WorkspaceConfig {
            providers: vec![provider("one", &servers[0]), provider("two", &servers[1])],
            ..WorkspaceConfig::default()
        };
        let keys = [servers[0].key().to_owned(), servers[1].key().to_owned()];
        let variable = |name: &str| match name {
            "ONE" => Some(keys[0].clone()),
            "TWO" => Some(keys[1].clone()),
            _ => None,
        };
        let config = config.resolve(Path::new(directory.path()), &variable).expect("a good configuration");
        let local: Arc<dyn LocalServer> = Arc::new(NoObserver);
        let workspaces =
            Workspaces::from_config(&config, &variable, &local, Arc::new(NoObserver), Settings::default()).await;
        let workspaces = workspaces.expect("workspaces");
        let file = PreparedFile { path: "notes/first.txt".into(), content: "hello\n".into(), mode: None };
        let setup = Setup {
            prepare: Prepare { files: vec![file], commands: vec!["mkdir -p src".to_owned()] },
            env: [("TOKEN".to_owned(), SECRET.into())].into(),
            ..Setup::default()
        };
        let created = workspaces.create(&name.parse().expect("a name"), setup).await.expect("a workspace");
        let workspace = created.workspace;
        let tools = workspace_tools(workspace.clone());
        Self { workspace, tools, _workspaces: workspaces, _servers: servers, _directory: directory }
    }

    async fn call(&self, tool: &str, input: Value) -> ToolResult {
        self.tools.dispatch(tool, input).await
    }

    #[track_caller]
    fn ok(&self, tool: &str, input: Value) -> impl Future<Output = String> {
        let place = std::panic::Location::caller();
        let tool = tool.to_owned();
        async move {
            let result = self.call(&tool, input).await;
            assert!(!result.is_error, "{place}: {result:?}");
            result.text()
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn session_moves_with_its_workspace() {
    let fixture = WorkspaceFixture::build("moving").await;
    assert_eq!(fixture.ok("bash", json!({ "command": "pwd" })).await, "/home/user/project\n[exit 0]");
    fixture.ok("bash", json!({ "command": "cd src; export A=1" })).await;
    fixture.ok("read_file", json!({ "path": "/home/user/project/notes/first.txt" })).await;
    let task = fixture.call("bash", json!({ "command": "echo up; sleep 1000", "run_in_background": true })).await;
    assert_eq!(task.structured.to_value()["background"]["task_id"], "b1", "{task:?}");

    let other = workspace_tools(fixture.workspace.clone()).session("other");
    other.dispatch("bash", json!({ "command": "true" })).await;

    fixture.workspace.rotate().await.expect("a new sandbox");
    let first = fixture.call("glob", json!({ "pattern": "*.txt", "path": "/home/user/project/notes" })).await;
    let text = first.text();
    assert!(!first.is_error, "{first:?}");
    assert!(text.starts_with("[This workspace continues in a new sandbox"), "{text}");
    assert_eq!(text.matches("did not survive: the sandbox was paused or replaced").count(), 1, "{text}");
    assert!(text.ends_with("/home/user/project/notes/first.txt"), "{text}");
    assert_eq!(first.structured.to_value()["notices"].as_array().map(Vec::len), Some(1), "{first:?}");
    let lost = &first.structured.to_value()["finished_tasks"][0];
    assert_eq!((&lost["task_id"], &lost["survived"], &lost["exit_code"]), (&json!("b1"), &json!(false), &Value::Null));

    // Notices are tracked per session.
    let heard = other.dispatch("bash", json!({ "command": "echo heard" })).await.text();
    assert!(heard.starts_with("[This workspace continues in a new sandbox"), "{heard}");
    assert_eq!(other.dispatch("bash", json!({ "command": "echo heard" })).await.text(), "heard\n[exit 0]");

    // The session's state moved along, and the losses are not reported again.
    let carried = fixture.ok("bash", json!({ "command": "pwd; echo $A; cat ~/.sandbar/default/bg/b1.log" })).await;
    assert_eq!(carried, "/home/user/project/src\n1\nup\n[exit 0]");
    let written = json!({ "path": "/home/user/project/notes/first.txt", "content": "hello again\n" });
    assert_eq!(fixture.ok("write_file", written).await, "Overwrote /home/user/project/notes/first.txt (1 → 1 line).");
    assert_eq!(fixture.ok("grep", json!({ "pattern": "again", "path": "/home/user" })).await.lines().count(), 2);

    // The other provider is plain E2B: what was detected about the first does not hold there.
    fixture.workspace.move_to(&"two".parse().expect("a name"), MoveOptions::default()).await.expect("it moves");
    let moved = fixture.ok("bash", json!({ "command": "pwd; echo $A" })).await;
    assert!(moved.starts_with("[This workspace continues in a sandbox of another provider."), "{moved}");
    assert!(moved.ends_with("/home/user/project/src\n1\n[exit 0]"), "{moved}");
    let edit = json!({ "path": "../notes/first.txt", "old_string": "again", "new_string": "once more" });
    assert!(
        fixture.ok("edit_file", edit).await.starts_with("Edited /home/user/project/notes/first.txt: 1 replacement")
    );
    fixture.tools.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_wait_for_rotation_and_resume_a_pause() {
    let fixture = WorkspaceFixture::build("waiting").await;
    fixture.ok("bash", json!({ "command": "true" })).await;
    let write = async |number: usize| {
        fixture.ok("bash", json!({ "command": format!("echo {number} >>/home/user/project/log") })).await;
    };
    let work = async {
        for number in 0..6 {
            write(number).await;
        }
    };
    let (rotated, ()) = tokio::join!(fixture.workspace.rotate(), work);
    rotated.expect("a new sandbox");
    let log = fixture.ok("bash", json!({ "command": "cat /home/user/project/log" })).await;
    assert!(log.ends_with("0\n1\n2\n3\n4\n5\n[exit 0]"), "{log}");

    fixture.workspace.pause().await.expect("it is paused");
    let resumed = fixture.call("read_file", json!({ "path": "/home/user/project/log" })).await;
    assert_eq!(resumed.structured.to_value()["sandbox_resumed"], true, "{resumed:?}");
    assert!(resumed.structured.to_value()["sandbox_waited_ms"].is_u64(), "{resumed:?}");
    let again = fixture.call("read_file", json!({ "path": "/home/user/project/log" })).await;
    assert!(again.structured.to_value().get("sandbox_resumed").is_none(), "{again:?}");

    // Paused behind the workspace's back: a call notices and resumes it.
    let pass = fixture.workspace.enter().await.expect("it runs");
    let sandbox = pass.sandbox().clone();
    drop(pass);
    sandbox.client().pause(sandbox.id(), sdk::Pause::default()).await.expect("it pauses");
    let resumed = fixture.call("bash", json!({ "command": "echo here" })).await;
    assert!(resumed.text().ends_with("here\n[exit 0]"), "{resumed:?}");
    assert_eq!(resumed.structured.to_value()["sandbox_resumed"], true, "{resumed:?}");
    fixture.tools.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workspace_secrets_are_masked_everywhere() {
    let fixture = WorkspaceFixture::build("hiding").await;
    let received = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let kept = Arc::clone(&received);
    let progress = move |progress: tools::Progress| kept.lock().push(progress.last_line);
    let watch = tools::Watch { progress: Some(Arc::new(progress)), ..Default::default() };
    let command = json!({ "command": "echo \"<$TOKEN>\"; echo \"$TOKEN\" >seen.txt; sleep 1.5" });
    let run = fixture.tools.dispatch_watched("bash", command, watch).await;
    assert_eq!(run.text(), "<***>\n[exit 0]");
    assert_eq!(run.structured.to_value()["stdout"], "<***>\n");
    let read = fixture.call("read_file", json!({ "path": "seen.txt" })).await;
    assert_eq!(read.text(), "1\t***");
    let found = fixture.call("grep", json!({ "pattern": "hidden", "path": "/home/user/project" })).await;
    assert!(found.text().contains("seen.txt:1:***"), "{found:?}");
    let whole = format!("{:?}{:?}{:?}{:?}", run, read, found, received.lock());
    assert!(!whole.contains(SECRET), "{whole}");
    assert!(!received.lock().is_empty());
    tokio::time::timeout(Duration::from_secs(60), fixture.tools.close()).await.expect("it closes");
}

/// Checkpoints contain the session's files, so a secret in one would be stored with them.
#[tokio::test(flavor = "multi_thread")]
async fn session_files_contain_no_workspace_secret() {
    let fixture = WorkspaceFixture::build("writing-none").await;
    let check = "echo \"${#TOKEN} $A $B ${PAGER-none}\"";
    fixture.ok("bash", json!({ "command": "export A=1 B=$'x\\ny'; unset PAGER" })).await;
    let length = SECRET.len();
    let wanted = format!("{length} 1 x\ny none\n[exit 0]");
    assert_eq!(fixture.ok("bash", json!({ "command": check })).await, wanted);
    let background = json!({ "command": "sleep 1000", "run_in_background": true });
    fixture.ok("bash", background).await;
    let files = fixture.workspace.exec("grep -rl \"$TOKEN\" ~/.sandbar; grep -c '' ~/.sandbar/default/env").await;
    let files = files.expect("it runs").stdout_text().trim().to_owned();
    assert!(files.parse::<usize>().is_ok_and(|lines| lines > 2), "no file has it: {files}");

    // The workspace provides the value again, in a new sandbox too.
    fixture.workspace.rotate().await.expect("a new sandbox");
    let moved = fixture.ok("bash", json!({ "command": check })).await;
    assert!(moved.contains(wanted.trim_end_matches("[exit 0]")), "{moved}");
    // A value that the session has changed belongs to the session.
    fixture.ok("bash", json!({ "command": "export TOKEN=changed" })).await;
    assert_eq!(fixture.ok("bash", json!({ "command": "echo $TOKEN" })).await, "changed\n[exit 0]");
    fixture.tools.close().await;
}
