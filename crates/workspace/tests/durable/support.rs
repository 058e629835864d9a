//! Two real servers as two providers, records and objects in a directory, and a server that can be
//! killed and restarted.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use checkpoint::Checkpoints;
use futures::TryStreamExt;
use parking_lot::Mutex;
use sandbar_workspace::config::{
    BudgetConfig, DeploymentMode, PlanConfig, PriceConfig, ProviderConfig, ProviderKind, WorkspaceConfig,
};
use sandbar_workspace::events::{EventKind, Observer, WorkspaceEvent};
use sandbar_workspace::ledger::Ledger;
use sandbar_workspace::provider::{LocalEndpoint, LocalServer, NoLocalServer, Orchestrator};
use sandbar_workspace::records::{MemoryRecords, Records};
use sandbar_workspace::setup::{Prepare, PreparedFile, Setup};
use sandbar_workspace::{OwnServer, Parts, Settings, Workspace, WorkspaceName, Workspaces};
use sdk::{Client, ListQuery, SandboxId};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use testing::{RunningServer, Server, ServerLaunch};
pub(crate) use text::error_chain;

use testing::trees::tree_of;
pub(crate) use testing::trees::{assert_same, run};

/// The metadata key that identifies sandboxes of workspaces.
pub(crate) const METADATA: &str = "sandbar.workspace";
/// The metadata key of the id of the workspace that a sandbox was created for.
pub(crate) const WORKSPACE_ID: &str = "sandbar.workspace.id";

/// The configuration of a test, which can be passed to a child process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Fixture {
    /// Name, URL and key, in order of preference.
    pub(crate) providers: Vec<(String, String, String)>,
    pub(crate) directory: String,
    pub(crate) plan: PlanConfig,
    pub(crate) price: PriceConfig,
    pub(crate) budget: Option<f64>,
}

/// Records all events.
#[derive(Debug, Default)]
pub(crate) struct Recorder(Mutex<Vec<WorkspaceEvent>>);

#[async_trait]
impl Observer for Recorder {
    async fn event(&self, event: &WorkspaceEvent) {
        self.0.lock().push(event.clone());
    }
}

impl Recorder {
    pub(crate) fn events(&self) -> Vec<EventKind> {
        self.0.lock().iter().map(|event| event.kind.clone()).collect()
    }

    pub(crate) fn count(&self, is: impl Fn(&EventKind) -> bool) -> usize {
        self.events().iter().filter(|event| is(event)).count()
    }
}

/// Provides no local server.
pub(crate) struct NoLocal;

#[async_trait]
impl LocalServer for NoLocal {
    async fn endpoint(&self) -> Result<LocalEndpoint, NoLocalServer> {
        Err(NoLocalServer("there is none in this test".into()))
    }
}

/// Shortened timeouts.
pub(crate) fn settings() -> Settings {
    Settings {
        lease: Duration::from_secs(2),
        lease_timeout: Duration::from_secs(60),
        drain_timeout: Duration::from_secs(10),
        resume_backoff: Duration::from_millis(200),
        rotate_backoff: Duration::from_secs(1),
        commit_check_delay: Duration::from_millis(200),
        // Background saves would interfere with every step.
        first_checkpoint_for: Duration::ZERO,
        save_interval: Duration::ZERO,
        ..Settings::default()
    }
}

impl Fixture {
    fn config(&self) -> WorkspaceConfig {
        let provider = |(name, url, _): &(String, String, String)| ProviderConfig {
            deployment_mode: Some(DeploymentMode::SelfHosted),
            api_key_env: Some(name.to_uppercase()),
            api_url: Some(url.clone()),
            sandbox_url: Some(url.clone()),
            plan: self.plan,
            price: self.price,
            ..ProviderConfig::new(name.parse().expect("a name"), ProviderKind::E2b)
        };
        let budgets = self.budget.map(|usd| BudgetConfig { project: None, usd, period: Default::default() });
        let config = WorkspaceConfig {
            providers: self.providers.iter().map(provider).collect(),
            budgets: budgets.into_iter().collect(),
            ..WorkspaceConfig::default()
        };
        config.resolve(Path::new(&self.directory), &|name| self.variable(name)).expect("a good configuration")
    }

    fn variable(&self, name: &str) -> Option<String> {
        let mine = self.providers.iter().find(|(provider, _, _)| provider.to_uppercase() == name);
        mine.map(|(_, _, key)| key.clone())
    }

    pub(crate) async fn workspaces(&self, settings: Settings, observer: Arc<dyn Observer>) -> Workspaces {
        let (config, local): (_, Arc<dyn LocalServer>) = (self.config(), Arc::new(NoLocal));
        let variables = |name: &str| self.variable(name);
        Workspaces::from_config(&config, &variables, &local, observer, settings).await.expect("workspaces")
    }

    /// With checkpoints in another store.
    pub(crate) fn workspaces_with(&self, checkpoints: Checkpoints, observer: Arc<dyn Observer>) -> Workspaces {
        let (config, local): (_, Arc<dyn LocalServer>) = (self.config(), Arc::new(NoLocal));
        let records: Arc<dyn Records> = Arc::new(MemoryRecords::default());
        let variables = |name: &str| self.variable(name);
        let orchestrator = Orchestrator::from_config(&config, &variables, &local, Arc::clone(&records));
        let orchestrator = orchestrator.expect("two providers");
        let ledger = Ledger::new(Arc::clone(&records), &config);
        Workspaces::new(Parts { orchestrator, records, checkpoints, ledger, observer, settings: settings() })
    }
}

/// Two servers and a directory.
pub(crate) struct World {
    pub(crate) one: Arc<Server>,
    pub(crate) two: Arc<Server>,
    pub(crate) directory: TempDir,
    pub(crate) events: Arc<Recorder>,
}

impl World {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        // The second is plain E2B.
        let (one, two) = (Server::shared(&[]), Server::shared(&["--no-extensions"]));
        Self { one, two, directory, events: Arc::default() }
    }

    pub(crate) fn fixture(&self) -> Fixture {
        let provider = |name: &str, server: &Server| (name.to_owned(), server.url(), server.key().to_owned());
        Fixture {
            providers: vec![provider("one", &self.one), provider("two", &self.two)],
            directory: self.directory.path().to_str().expect("a path of text").to_owned(),
            plan: PlanConfig::default(),
            price: PriceConfig::default(),
            budget: None,
        }
    }

    pub(crate) async fn workspaces(&self) -> Workspaces {
        self.fixture().workspaces(settings(), Arc::clone(&self.events) as Arc<dyn Observer>).await
    }

    /// A workspace with a few files.
    pub(crate) async fn workspace(&self, of: &str) -> (Workspaces, Workspace) {
        let workspaces = self.workspaces().await;
        let workspace = workspaces.create(&name(of), setup()).await.expect("a workspace").workspace;
        (workspaces, workspace)
    }

    /// The sandboxes of a workspace at both providers.
    pub(crate) async fn sandboxes(&self, of: &str) -> Vec<String> {
        let mut found = Vec::new();
        for client in [self.one.client(), self.two.client()] {
            found.extend(sandboxes(&client, of).await);
        }
        found
    }
}

pub(crate) async fn sandboxes(client: &Client, of: &str) -> Vec<String> {
    let rows: Vec<_> = client.list(ListQuery::new().metadata(METADATA, of)).try_collect().await.expect("a list");
    rows.into_iter().map(|row| row.sandbox_id).collect()
}

pub(crate) fn name(text: &str) -> WorkspaceName {
    text.parse().expect("a name")
}

/// A project with a file, a generated folder, and a commit.
pub(crate) fn setup() -> Setup {
    let file = PreparedFile { path: "notes/first.txt".into(), content: "hello\n".into(), mode: Some(0o640) };
    let commands = vec![
        "git init -q . && git -c user.name=t -c user.email=t@example.com commit -q --allow-empty -m first".to_owned(),
        "mkdir -p src && for i in $(seq 40); do head -c 2000 /dev/urandom >src/$i; done; ln -s notes link".to_owned(),
    ];
    Setup {
        prepare: Prepare { files: vec![file], commands },
        env: [("TOKEN".to_owned(), "the-hidden-value".into())].into(),
        ..Setup::default()
    }
}

/// The metadata and digest of every file of a workspace, one line each.
pub(crate) async fn tree(workspace: &Workspace) -> Vec<String> {
    let pass = workspace.enter().await.expect("the workspace is usable");
    tree_of(pass.sandbox()).await
}

/// A server that can be killed and restarted at the same address, with its sandboxes.
pub(crate) struct KillableServer {
    running: Option<RunningServer>,
    address: String,
    key: String,
    /// Last: removed after the server has exited.
    data: TempDir,
}

impl KillableServer {
    pub(crate) fn start() -> Self {
        let data = tempfile::Builder::new().prefix("sandbar-test-").tempdir().expect("a directory");
        let running = launch("127.0.0.1:0", data.path());
        let (address, key) = (running.address.clone(), running.key.clone());
        Self { running: Some(running), address, key, data }
    }

    /// As a provider of that name.
    pub(crate) fn provider(&self, name: &str) -> (String, String, String) {
        (name.to_owned(), format!("http://{}", self.address), self.key.clone())
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.end_by("KILL");
        }
    }

    pub(crate) fn come_back(&mut self) {
        if self.running.is_none() {
            self.running = Some(launch(&self.address, self.data.path()));
        }
    }
}

impl Drop for KillableServer {
    /// A graceful shutdown ends its sandboxes.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.come_back();
        }
        self.running = None;
    }
}

fn launch(listen: &str, data: &Path) -> RunningServer {
    let launch =
        ServerLaunch { program: &testing::program(), data, arguments: &["--ephemeral"], umask: "022", user: None };
    RunningServer::launch_at(listen, launch)
}

/// The only server: every sandbox is its own.
pub(crate) struct OnlyServer;

impl OwnServer for OnlyServer {
    fn is(&self, _server_id: &str) -> bool {
        true
    }

    fn has(&self, _sandbox: &SandboxId) -> bool {
        true
    }
}
