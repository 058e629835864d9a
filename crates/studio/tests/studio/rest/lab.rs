//! The studio behind its real listener, on either database. Nothing is built: ready builds are
//! written into the records.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agent::model::ChoiceError;
use agent::model::scripted::Scripted;
use async_trait::async_trait;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use sandbar_studio::records::{Change, Precondition};
use sandbar_studio::rest::{self, RestOptions};
use sandbar_studio::token::{TokenDigest, new_token};
use sandbar_studio::{
    CapturedScreenshot, ChosenModel, EventBody, JobId, ScreenshotFailed, Settings, Status, Studio, StudioHost,
};
use sdk::Secret;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tools::ToolDispatcher;
use workspace::config::{ProviderConfig, ProviderKind, WorkspaceConfig};
use workspace::events::{NoopObserver, Observer};
use workspace::provider::{LocalEndpoint, LocalServer, NoLocalServer};
use workspace::{Workspace, Workspaces};

/// For any condition.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
const SCRIPT: &str = r#"{"turns": [{"text": "Done."}]}"#;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Database {
    Sqlite,
    Postgres,
}

/// A provider without a server.
struct NoServer;

#[async_trait]
impl LocalServer for NoServer {
    async fn endpoint(&self) -> Result<LocalEndpoint, NoLocalServer> {
        Err(NoLocalServer("there is none in this test".into()))
    }
}

/// A host without workers.
struct Idle {
    workspaces: Workspaces,
    /// Access to workspaces panics.
    broken: AtomicBool,
}

#[async_trait]
impl StudioHost for Idle {
    fn workspaces(&self) -> &Workspaces {
        assert!(!self.broken.load(Ordering::Relaxed), "as the test wants it");
        &self.workspaces
    }

    fn observe(&self, _: Arc<dyn Observer>) {}

    fn tools(&self, _: &Workspace, _: u16) -> Arc<dyn ToolDispatcher> {
        panic!("nothing is built here")
    }

    fn model(&self, wanted: Option<&str>) -> Result<ChosenModel, ChoiceError> {
        let name = wanted.unwrap_or("scripted:here");
        if name != "scripted:here" {
            return Err(ChoiceError::Unknown(name.to_owned()));
        }
        Ok(ChosenModel { name: name.to_owned(), model: Arc::new(Scripted::new(name, SCRIPT)?) })
    }

    fn models(&self) -> Vec<String> {
        vec!["scripted:here".to_owned()]
    }

    async fn take_screenshots(&self, _: &Workspace, _: u16) -> Result<Vec<CapturedScreenshot>, ScreenshotFailed> {
        Err(ScreenshotFailed("nothing is built here".to_owned()))
    }
}

pub(crate) struct Lab {
    pub(crate) studio: Studio,
    host: Arc<Idle>,
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
    client: reqwest::Client,
    _directory: TempDir,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Runs a test on both databases.
pub(crate) async fn on_both(face: RestOptions, test: impl AsyncFn(Lab)) {
    for database in [Database::Sqlite, Database::Postgres] {
        eprintln!("on {database:?}");
        test(Lab::open(database, face.clone()).await).await;
    }
}

/// A user's token.
#[derive(Clone)]
pub(crate) struct Person {
    pub(crate) token: String,
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {} {:?}", self.status, self.text))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    /// Fails unless the status is `status` and an error has an error body.
    #[track_caller]
    pub(crate) fn is(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        if self.text.is_empty() {
            return Value::Null;
        }
        let body = self.json();
        if status >= 400 {
            assert_eq!(body["code"], status, "{body}");
            assert!(body["message"].as_str().is_some_and(|text| !text.is_empty()), "{body}");
        }
        body
    }
}

impl Lab {
    pub(crate) async fn open(database: Database, face: RestOptions) -> Self {
        let directory = TempDir::new().expect("a directory");
        let url = match database {
            Database::Sqlite => format!("sqlite://{}?mode=rwc", directory.path().join("records.db").display()),
            Database::Postgres => testing::postgres::database(),
        };
        let provider = ProviderConfig::new("nowhere".parse().expect("a name"), ProviderKind::Local);
        let config = WorkspaceConfig { providers: vec![provider], ..WorkspaceConfig::default() };
        let config = config.resolve(directory.path(), &|_| None).expect("a configuration");
        let local: Arc<dyn LocalServer> = Arc::new(NoServer);
        let opened =
            Workspaces::from_config(&config, &|_| None, &local, Arc::new(NoopObserver), Default::default()).await;
        let host = Arc::new(Idle { workspaces: opened.expect("workspaces"), broken: AtomicBool::new(false) });
        let settings = Settings::default();
        let studio = Studio::open(&Secret::from(url), Arc::clone(&host) as Arc<dyn StudioHost>, settings).await;
        let studio = studio.expect("a studio");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr().expect("an address");
        let stop = CancellationToken::new();
        let router = rest::router(studio.clone(), &face, stop.clone());
        tokio::spawn(rest::serve(listener, router, stop.clone()));
        let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
        Self { studio, host, address, stop, client: client.build().expect("a client"), _directory: directory }
    }

    /// Stops the server.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// From now on access to workspaces panics, or no longer does.
    pub(crate) fn breaks(&self, broken: bool) {
        self.host.broken.store(broken, Ordering::Relaxed);
    }

    pub(crate) async fn person(&self, name: &str, credits: i64) -> Person {
        let token = new_token();
        let digest = TokenDigest::from_token(token.expose()).expect("a token");
        self.studio.records().add_user(name, &digest, credits).await.expect("a new user");
        Person { token: token.expose().to_owned() }
    }

    /// Sends a request as given.
    pub(crate) async fn open_raw(&self, line: &str, headers: &[(&str, &str)], body: String) -> reqwest::Response {
        let (method, path) = line.split_once(' ').expect("METHOD PATH");
        let method = method.parse().expect("a method");
        let mut request = self.client.request(method, format!("http://{}{path}", self.address)).body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        tokio::time::timeout(TIMEOUT, request.send()).await.expect("in time").expect("an answer")
    }

    pub(crate) async fn raw(&self, line: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let response = self.open_raw(line, headers, body.to_owned()).await;
        let (status, headers) = (response.status(), response.headers().clone());
        let text = tokio::time::timeout(TIMEOUT, response.bytes()).await.expect("in time").expect("a whole body");
        Answer { status, headers, text: String::from_utf8_lossy(&text).into_owned() }
    }

    /// Calls with a token and an optional JSON body.
    pub(crate) async fn call(&self, who: &Person, line: &str, body: Option<Value>) -> Answer {
        let bearer = format!("Bearer {}", who.token);
        let authorized = ("authorization", bearer.as_str());
        match body {
            Some(body) => self.raw(line, &[authorized, ("content-type", "application/json")], &body.to_string()).await,
            None => self.raw(line, &[authorized], "").await,
        }
    }

    pub(crate) async fn get(&self, who: &Person, path: &str) -> Answer {
        self.call(who, &format!("GET {path}"), None).await
    }

    pub(crate) async fn post(&self, who: &Person, path: &str, body: Value) -> Answer {
        self.call(who, &format!("POST {path}"), Some(body)).await
    }

    /// Queues a build, which no worker builds.
    pub(crate) async fn start(&self, who: &Person, name: &str) -> JobId {
        let asked = json!({"name": name, "goal": "Make a page."});
        let started = self.post(who, "/api/generation", asked).await.is(202);
        started["job_id"].as_str().expect("an id").parse().expect("the id of a job")
    }

    /// Records that a build is ready, with a sandbox of that id if given.
    pub(crate) async fn make_ready(&self, job: &JobId, sandbox: Option<&str>) {
        let steps = [(Status::Queued, Status::Provisioning), (Status::Provisioning, Status::Building)];
        for step in steps.into_iter().chain([(Status::Building, Status::Ready)]) {
            let change = Change {
                status: Some(step),
                sandbox_id: Some(sandbox.map(str::to_owned)),
                settled: Some(true),
                ..Change::default()
            };
            let changed = self.studio.records().change(job, Precondition::None, change, Vec::new()).await;
            changed.expect("the records work").expect("the job is there");
        }
    }

    /// The number of events of a job.
    pub(crate) async fn events(&self, job: &JobId) -> u64 {
        self.studio.records().job(job).await.expect("the records work").expect("the job is there").events
    }

    /// Writes an event as another process does, without notifying watchers.
    pub(crate) async fn write(&self, job: &JobId, event: EventBody) {
        let events = vec![(Timestamp::now(), event)];
        let written = self.studio.records().change(job, Precondition::None, Change::default(), events).await;
        written.expect("the records work").expect("the job is there");
    }

    /// The calls of the document, with path parameters in braces.
    pub(crate) async fn operations(&self) -> Vec<(String, String, Value)> {
        let document = self.raw("GET /api/openapi.json", &[], "").await.is(200);
        let mut operations = Vec::new();
        for (path, methods) in document["paths"].as_object().expect("paths") {
            for (method, operation) in methods.as_object().expect("methods") {
                operations.push((method.to_ascii_uppercase(), path.clone(), operation.clone()));
            }
        }
        assert!(operations.len() > 20, "{operations:?}");
        operations
    }
}

/// Fills in path parameters.
pub(crate) fn fill(path: &str, values: &HashMap<&str, String>) -> String {
    values.iter().fold(path.to_owned(), |path, (name, value)| path.replace(&format!("{{{name}}}"), value))
}
