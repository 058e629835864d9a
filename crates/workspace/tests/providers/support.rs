//! Providers for tests: fakes, servers that do not answer, and a real server.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fake::FakeServer;
use sandbar_workspace::ProviderName;
use sandbar_workspace::config::{DeploymentMode, ProviderConfig, ProviderKind, WorkspaceConfig};
use sandbar_workspace::provider::{
    CreateRequest, LocalEndpoint, LocalServer, NoLocalServer, Orchestrator, Placed, Provider, Resources,
};
use sandbar_workspace::records::{MemoryRecords, Payer, Records};
use sdk::Secret;

pub(crate) fn name(text: &str) -> ProviderName {
    text.parse().expect("a name")
}

pub(crate) fn request() -> CreateRequest {
    CreateRequest {
        template: None,
        resources: Resources::default(),
        env: BTreeMap::from([("TOKEN".to_owned(), Secret::from("hidden"))]),
        metadata: BTreeMap::from([("sandbar.workspace".to_owned(), "shop".to_owned())]),
        lifetime: Duration::from_secs(3600),
        provider: None,
        prefer: None,
        payer: Payer { project: "shop".into(), job: None },
    }
}

/// A service at this URL, with its key in the variable `KEY`.
pub(crate) fn service(of: &str, url: &str) -> ProviderConfig {
    ProviderConfig {
        deployment_mode: Some(DeploymentMode::SelfHosted),
        api_key_env: Some("KEY".into()),
        api_url: Some(url.to_owned()),
        ..ProviderConfig::new(name(of), ProviderKind::E2b)
    }
}

pub(crate) fn local() -> ProviderConfig {
    ProviderConfig::new(name("local"), ProviderKind::Local)
}

/// A local server at a given endpoint, or none.
pub(crate) struct Local(pub(crate) Result<LocalEndpoint, NoLocalServer>);

#[async_trait]
impl LocalServer for Local {
    async fn endpoint(&self) -> Result<LocalEndpoint, NoLocalServer> {
        self.0.clone()
    }
}

pub(crate) fn no_local() -> Arc<dyn LocalServer> {
    Arc::new(Local(Err(NoLocalServer("sandboxes cannot run on this machine".into()))))
}

pub(crate) fn local_at(url: &str, key: &str) -> Arc<dyn LocalServer> {
    Arc::new(Local(Ok(LocalEndpoint { url: url.to_owned(), api_key: Secret::from(key) })))
}

/// An orchestrator and its records.
pub(crate) struct Placement {
    pub(crate) orchestrator: Orchestrator,
    pub(crate) records: Arc<dyn Records>,
}

impl Placement {
    /// The variable `KEY` holds the key of every fake.
    pub(crate) async fn new(providers: Vec<ProviderConfig>, local: &Arc<dyn LocalServer>) -> Self {
        let key = FakeServer::start().await.api_key();
        Self::with_key(providers, local, Some(key))
    }

    pub(crate) fn with_key(providers: Vec<ProviderConfig>, local: &Arc<dyn LocalServer>, key: Option<&str>) -> Self {
        let variables = |name: &str| key.filter(|_| name == "KEY").map(ToOwned::to_owned);
        let config = WorkspaceConfig { providers, ..WorkspaceConfig::default() };
        let config = config.resolve("/nowhere".as_ref(), &variables).expect("a good configuration");
        let records: Arc<dyn Records> = Arc::new(MemoryRecords::default());
        let providers =
            config.providers.into_iter().map(|provider| Provider::new(provider, &variables, local)).collect();
        Self { orchestrator: Orchestrator::new(providers, Arc::clone(&records)), records }
    }

    pub(crate) async fn place(&self) -> Placed {
        self.orchestrator.create(&request()).await.expect("a provider takes it")
    }
}

/// The provider, and why others were skipped.
pub(crate) fn outcome(placed: &Placed) -> (String, Vec<(String, String)>) {
    let skipped = placed.skipped.iter().map(|it| (it.provider.to_string(), it.reason.clone())).collect();
    (placed.provider.to_string(), skipped)
}

/// Answers a create with a trickling response, and everything else with 404.
pub(crate) struct TricklingServer(String);

impl TricklingServer {
    pub(crate) fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback has a free port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || drip(stream));
            }
        });
        Self(url)
    }

    pub(crate) fn url(&self) -> &str {
        &self.0
    }
}

fn drip(mut stream: TcpStream) {
    let mut request = [0; 64 * 1024];
    let Ok(length) = stream.read(&mut request) else { return };
    if !request[..length].starts_with(b"POST") {
        let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}");
        return;
    }
    let _ = stream.write_all(b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n");
    // Ends when the client disconnects.
    while stream.write_all(b" ").is_ok() {
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Accepts connections and never answers.
pub(crate) struct SilentServer(TcpListener);

impl SilentServer {
    pub(crate) fn open() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").expect("the loopback has a free port"))
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().expect("it is bound"))
    }
}
