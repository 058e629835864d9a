//! A studio whose sandboxes are on another server: refused requests and a killed process lose
//! nothing and leave nothing behind.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use reqwest::{Method, StatusCode};
use sandbar_studio::records::{JobRecord, Records};
use sandbar_studio::{JobId, Status, StudioEvent, TimelineEventKind};
use sdk::model::SandboxState;
use sdk::{SandboxId, Secret};
use serde_json::json;
use tempfile::TempDir;
use testing::{Server, eventually_async};
use tokio::sync::Notify;

use super::programs::{Alone, Caller, TIMEOUT, scripts};

const PAGE: &str = r#"{"turns": [
    {"tool_calls": [{"name": "bash", "input": {"command": "echo '<h1>Hello</h1>' > /home/user/project/index.html"}}]},
    {"text": "Done."}
]}"#;
const NOTES: &str = r#"{"turns": [
    {"tool_calls": [{"name": "bash", "input": {"command": "echo first > /home/user/project/notes.txt"}}]},
    {"text": "Done."}
]}"#;

/// What the proxy does with a request of that method whose path contains that text.
#[derive(Clone)]
enum Fault {
    Refuse(Method, &'static str),
    /// Neither forwards nor answers the request.
    Hold(Method, &'static str),
}

/// A proxy in front of the provider, which forwards every request that no fault matches.
struct Front {
    target: String,
    http: reqwest::Client,
    fault: Mutex<Option<Fault>>,
    refused: AtomicUsize,
    holds: Notify,
}

impl Front {
    async fn before(server: &Server) -> (Arc<Self>, String) {
        let http = reqwest::Client::builder().no_proxy().build().expect("a client");
        let (fault, refused) = (Mutex::default(), AtomicUsize::default());
        let front = Arc::new(Self { target: server.url(), http, fault, refused, holds: Notify::new() });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let router = axum::Router::new().fallback(pass).with_state(Arc::clone(&front));
        tokio::spawn(async move { axum::serve(listener, router).await });
        (front, url)
    }

    fn now(&self, fault: Option<Fault>) {
        *self.fault.lock() = fault;
    }
}

async fn pass(State(front): State<Arc<Front>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let is = |method: &Method, part: &str| parts.method == *method && parts.uri.path().contains(part);
    let fault = front.fault.lock().clone();
    match fault {
        Some(Fault::Refuse(method, part)) if is(&method, part) => {
            front.refused.fetch_add(1, Ordering::Relaxed);
            return (StatusCode::INTERNAL_SERVER_ERROR, r#"{"code": 500, "message": "not today"}"#).into_response();
        }
        Some(Fault::Hold(method, part)) if is(&method, part) => {
            front.holds.notify_one();
            return std::future::pending().await;
        }
        _ => {}
    }
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut headers = parts.headers;
    headers.remove("host");
    let body = reqwest::Body::wrap_stream(body.into_data_stream());
    let sent = front.http.request(parts.method, format!("{}{path}", front.target)).headers(headers).body(body).send();
    // The client may have disconnected.
    let Ok(answer) = sent.await else { return StatusCode::BAD_GATEWAY.into_response() };
    let mut passed = Response::builder().status(answer.status());
    if let Some(kind) = answer.headers().get("content-type") {
        passed = passed.header("content-type", kind);
    }
    passed.body(Body::from_stream(answer.bytes_stream())).expect("an answer")
}

/// A server, a proxy in front of it, and the configuration of a studio that uses it.
struct Remote {
    server: Server,
    front: Arc<Front>,
    database: Option<String>,
    config: PathBuf,
    scripts: PathBuf,
    directory: TempDir,
}

impl Remote {
    async fn new(database: Option<String>, files: &[(&str, &str)]) -> Self {
        let server = Server::start(&["--no-studio"]);
        let (front, url) = Front::before(&server).await;
        let directory = TempDir::new().expect("a directory");
        let scripts = scripts(directory.path(), files);
        let config = directory.path().join("config.toml");
        let port = server.address().rsplit(':').next().expect("a port");
        let objects = directory.path().join("objects");
        let text = format!(
            "[[providers]]\nname = \"remote\"\nkind = \"e2b\"\ndeployment_mode = \"self_hosted\"\napi_url = \"{url}\"\n\
             sandbox_url = \"{url}\"\ndomain = \"localhost:{port}\"\napi_key_env = \"TEST_KEY\"\n[objects]\nurl = \"file://{}\"\n",
            objects.display(),
        );
        std::fs::write(&config, text).expect("written");
        Self { server, front, database, config, scripts, directory }
    }

    /// A new process. The first one creates the first user.
    fn studio(&self) -> Alone {
        let plain = |path: &Path| path.to_str().expect("plain").to_owned();
        let (config, scripts) = (plain(&self.config), plain(&self.scripts));
        let mut variables = vec![("TEST_KEY", self.server.key())];
        variables.extend(self.database.as_deref().map(|url| ("SANDBAR_DATABASE", url)));
        Alone::start(self.directory.path(), &["--config", &config, "--scripts", &scripts], &variables)
    }

    async fn records(&self) -> Records {
        let file = self.directory.path().join("data/studio/records.sqlite");
        let url = self.database.clone().unwrap_or_else(|| format!("sqlite://{}", file.display()));
        Records::open(&Secret::from(url)).await.expect("the records")
    }

    fn objects(&self) -> PathBuf {
        self.directory.path().join("objects")
    }
}

/// Polls the record of a job until `wanted` holds.
async fn until(records: &Records, id: &JobId, what: &str, wanted: fn(&JobRecord) -> bool) -> JobRecord {
    let poll = || async { Some(records.job(id).await.expect("read").expect("a job")).filter(wanted) };
    eventually_async(what, TIMEOUT, poll).await
}

/// A failed automatic pause is only logged; a failed deletion is completed by the next worker.
async fn refused(database: Option<String>) {
    let remote = Remote::new(database, &[("page.json", PAGE)]).await;
    let (front, objects) = (&remote.front, remote.objects());
    let mut studio = remote.studio();
    let token = studio.token.clone().expect("the first user's");
    let user = Caller::new(&studio.address, &token);
    let records = remote.records().await;
    let client = remote.server.client();

    front.now(Some(Fault::Refuse(Method::POST, "/pause")));
    let job = user.build(&json!({ "name": "Far", "goal": "g", "model": "scripted:page.json" })).await;
    let id = job.parse().expect("an id");
    let record = async || records.job(&id).await.expect("read").expect("a job");
    let ready = until(&records, &id, "no worker has anything more to do", |job| job.settled).await;
    assert_eq!((ready.status, ready.sandbox_paused, ready.error_message), (Status::Ready, false, None));
    let log = studio.log();
    assert!(log.contains("cannot pause the preview; it keeps running"), "{log}");
    assert!(
        records
            .events(&id, 0)
            .await
            .expect("read")
            .iter()
            .all(|event| { !matches!(event.body.event, TimelineEventKind::Studio(StudioEvent::Paused { .. })) })
    );
    let sandbox: SandboxId = ready.sandbox_id.expect("a sandbox").parse().expect("an id");
    let state = async || client.info(&sandbox).await.expect("it is there").listed.state;
    assert_eq!(state().await, SandboxState::Running);
    let (preview, sleep) = (format!("/api/jobs/{job}/preview"), format!("/api/jobs/{job}/snapshot"));
    assert_eq!(user.get(&preview).await["state"], "active");
    assert!(user.get(&format!("/api/jobs/{job}")).await["preview_url"].is_string());
    let (status, refused) = user.post(&sleep, &json!({})).await;
    assert_eq!((status.as_u16(), record().await.sandbox_paused), (503, false), "{refused}");
    front.now(None);
    assert_eq!(user.post(&sleep, &json!({})).await, (StatusCode::OK, json!({ "job_id": job, "paused": true })));
    assert_eq!((state().await, record().await.sandbox_paused), (SandboxState::Paused, true));

    // A refused resume is retried once, and the sandbox stays paused.
    front.now(Some(Fault::Refuse(Method::POST, "/connect")));
    let (before, asked) = (front.refused.load(Ordering::Relaxed), Instant::now());
    let (status, refused) = user.post(&format!("/api/generation/{job}/resume"), &json!({})).await;
    assert_eq!((status.as_u16(), &refused["error_type"]), (503, &json!("sandbox_unreachable")), "{refused}");
    assert_eq!(front.refused.load(Ordering::Relaxed) - before, 2);
    assert!(asked.elapsed() >= Duration::from_secs(5), "{:?}", asked.elapsed());
    assert_eq!((state().await, record().await.sandbox_paused), (SandboxState::Paused, true));
    front.now(None);

    // A deleted job is hidden at once. A sandbox that the provider refuses to delete is deleted
    // later, also by another process.
    assert!(kept_in(&objects) > 0);
    front.now(Some(Fault::Refuse(Method::DELETE, "/sandboxes/")));
    let asked = Instant::now();
    let (status, _) = user.call(Method::DELETE, &format!("/api/jobs/{job}"), None).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let (status, _) = user.call(Method::GET, &format!("/api/jobs/{job}"), None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(user.get("/api/dashboard").await["jobs"], json!([]));
    eventually_async("it was tried", TIMEOUT, || async {
        studio.log().contains("interrupted; the next worker continues the job").then_some(())
    })
    .await;
    let tried = record().await;
    assert!(!tried.settled, "a worker still has to remove it");
    studio.process.end_by("KILL", TIMEOUT);
    front.now(None);
    let studio = remote.studio();
    let left = until(&records, &id, "all is removed", |job| job.settled).await;
    assert_eq!((left.deleted, left.spec.goal.as_str(), left.events), (true, "", 0));
    // The retry delay also holds for a process that has not seen the failure.
    assert!(left.attempt > tried.attempt);
    assert!(asked.elapsed() >= Duration::from_secs(5), "{:?}", asked.elapsed());
    assert!(matches!(client.info(&sandbox).await, Err(sdk::SandboxError::NotFound { .. })));
    assert_eq!(kept_in(&objects), 0, "no snapshot is left");
    // Its usage stays recorded.
    let user = Caller::new(&studio.address, &token);
    let project = user.get("/api/dashboard").await["projects"][0]["project_id"].as_str().expect("an id").to_owned();
    let used = user.get(&format!("/api/projects/{project}/usage")).await;
    assert!(used["lines"].as_array().is_some_and(|lines| !lines.is_empty()), "{used}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_restore_is_completed_by_the_next_worker() {
    let remote = Remote::new(None, &[("notes.json", NOTES)]).await;
    let mut studio = remote.studio();
    let token = studio.token.clone().expect("the first user's");
    let user = Caller::new(&studio.address, &token);
    let job = user.build(&json!({ "name": "Notes", "goal": "g", "model": "scripted:notes.json" })).await;
    user.until_paused(&job).await;
    let (status, resumed) = user.post(&format!("/api/generation/{job}/resume"), &json!({})).await;
    assert_eq!(status, StatusCode::OK, "{resumed}");
    let client = remote.server.client();
    let sandbox: SandboxId = resumed["sandbox_id"].as_str().expect("a sandbox").parse().expect("an id");
    let sandbox = client.attach(&client.info(&sandbox).await.expect("it is there")).expect("it runs");
    let notes = "/home/user/project/notes.txt";
    sandbox.files().write(notes, "second\n").await.expect("written");
    let unpacked = async || {
        let listed = sandbox.commands().run("ls -d /home/user/.sandbar-restore.*").await.expect("a command");
        listed.stdout_text().lines().count()
    };

    // Killed while the archive is sent into the sandbox, where it is being unpacked.
    remote.front.now(Some(Fault::Hold(Method::POST, "/SendInput")));
    let snapshots = format!("/api/jobs/{job}/snapshots");
    let saved = user.get(&snapshots).await["snapshots"][0].clone();
    let (status, begun) = user.post(&format!("/api/jobs/{job}/restore"), &json!({ "key": saved["key"] })).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{begun}");
    tokio::time::timeout(TIMEOUT, remote.front.holds.notified()).await.expect("the worker sends the archive");
    eventually_async("it is being unpacked", TIMEOUT, || async { (unpacked().await == 1).then_some(()) }).await;
    studio.process.end_by("KILL", TIMEOUT);
    assert_eq!(sandbox.files().read_text(notes).await.expect("read"), "second\n", "it was in the middle of it");
    let (records, id) = (remote.records().await, job.parse().expect("an id"));
    let killed = records.job(&id).await.expect("read").expect("a job");
    assert!(killed.restore_to.is_some() && !killed.settled);

    remote.front.now(None);
    let studio = remote.studio();
    let restored = until(&records, &id, "the restore is done", |job| job.settled).await;
    assert!(restored.attempt > killed.attempt);
    assert_eq!((restored.status, restored.restore_to, &*restored.stage_label), (Status::Ready, None, "Ready"));
    assert_eq!(sandbox.files().read_text(notes).await.expect("read"), "first\n");
    assert_eq!(unpacked().await, 0, "nothing is left of the one that was killed");
    let events = records.events(&id, 0).await.expect("read");
    let studio_events = || {
        events.iter().filter_map(|event| match &event.body.event {
            TimelineEventKind::Studio(event) => Some(event),
            _ => None,
        })
    };
    let restored = studio_events().filter(|event| matches!(event, StudioEvent::Restored { .. }));
    assert_eq!(restored.count(), 1, "{events:#?}");
    let wrong = studio_events().find(|event| matches!(event, StudioEvent::Status { message: Some(_), .. }));
    assert!(wrong.is_none(), "{wrong:?}");
    // The replaced files can be restored again.
    let user = Caller::new(&studio.address, &token);
    let newest = user.get(&snapshots).await["snapshots"][0]["key"].as_str().expect("a key").to_owned();
    let kept = user.get(&format!("/api/jobs/{job}/file?path=notes.txt&snapshot={newest}")).await;
    assert_eq!(kept["text"], "second\n", "{kept}");
}

/// The number of files below a directory.
fn kept_in(directory: &Path) -> usize {
    let entries = std::fs::read_dir(directory).into_iter().flatten().map(|entry| entry.expect("an entry").path());
    entries.map(|path| if path.is_dir() { kept_in(&path) } else { 1 }).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn provider_refusals_on_sqlite() {
    refused(None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn provider_refusals_on_postgres() {
    refused(Some(testing::postgres::database())).await;
}
