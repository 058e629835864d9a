//! A studio whose sandboxes are another's, and what it does when that one refuses: nothing is lost, nothing is left behind.

use std::path::Path;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use reqwest::{Method, StatusCode};
use sandbar_studio::Status;
use sandbar_studio::records::{JobRecord, Records};
use sdk::model::SandboxState;
use sdk::{SandboxId, Secret};
use serde_json::json;
use tempfile::TempDir;
use testing::{Server, eventually_async};

use super::programs::{Alone, Caller, PATIENCE, scripts};

const PAGE: &str = r#"{"turns": [
    {"tool_calls": [{"name": "bash", "input": {"command": "echo '<h1>Hello</h1>' > /home/user/project/index.html"}}]},
    {"text": "Done."}
]}"#;

/// Stands before the provider, and refuses what it is told to.
struct Front {
    target: String,
    http: reqwest::Client,
    /// A method and how the path ends.
    refused: Mutex<Option<(Method, &'static str)>>,
}

impl Front {
    async fn before(server: &Server) -> (Arc<Self>, String) {
        let http = reqwest::Client::builder().no_proxy().build().expect("a client");
        let front = Arc::new(Self { target: server.url(), http, refused: Mutex::default() });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let router = axum::Router::new().fallback(pass).with_state(Arc::clone(&front));
        tokio::spawn(async move { axum::serve(listener, router).await });
        (front, url)
    }

    fn refuse(&self, refused: Option<(Method, &'static str)>) {
        *self.refused.lock().expect("no panic") = refused;
    }
}

async fn pass(State(front): State<Arc<Front>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let refused = front.refused.lock().expect("no panic").clone();
    if refused.is_some_and(|(method, end)| parts.method == method && parts.uri.path().contains(end)) {
        return (StatusCode::INTERNAL_SERVER_ERROR, r#"{"code": 500, "message": "not today"}"#).into_response();
    }
    let body = axum::body::to_bytes(body, 1 << 20).await.expect("a small body");
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut headers = parts.headers;
    headers.remove("host");
    let sent = front.http.request(parts.method, format!("{}{path}", front.target)).headers(headers).body(body).send();
    let answer = sent.await.expect("an answer");
    let mut passed = Response::builder().status(answer.status());
    if let Some(kind) = answer.headers().get("content-type") {
        passed = passed.header("content-type", kind);
    }
    passed.body(Body::from(answer.bytes().await.expect("a body"))).expect("an answer")
}

/// A failed silent pause changes nothing but that it is logged; a deletion that fails is done by whoever comes next.
async fn refused(database: Option<String>) {
    let server = Server::start(&["--no-studio"]);
    let (front, front_url) = Front::before(&server).await;
    let directory = TempDir::new().expect("a directory");
    let scripts = scripts(directory.path(), &[("page.json", PAGE)]);
    let (config, objects) = (directory.path().join("config.toml"), directory.path().join("objects"));
    let port = server.address().rsplit(':').next().expect("a port").to_owned();
    let text = format!(
        "[[providers]]\nname = \"far\"\nkind = \"e2b\"\ndeployment_mode = \"self_hosted\"\napi_url = \"{front_url}\"\n\
         domain = \"localhost:{port}\"\napi_key_env = \"TEST_KEY\"\n[objects]\nurl = \"file://{}\"\n",
        objects.display(),
    );
    std::fs::write(&config, text).expect("written");
    let start = || {
        let arguments = ["--config", config.to_str().expect("plain"), "--scripts", scripts.to_str().expect("plain")];
        let mut variables = vec![("TEST_KEY", server.key())];
        variables.extend(database.as_deref().map(|url| ("SANDBAR_DATABASE", url)));
        Alone::start(directory.path(), &arguments, &variables)
    };
    let mut studio = start();
    let token = studio.token.clone().expect("the first user's");
    let user = Caller::new(&studio.address, &token);
    let url = database
        .clone()
        .unwrap_or_else(|| format!("sqlite://{}", directory.path().join("data/studio/records.sqlite").display()));
    let records = Records::open(&Secret::from(url)).await.expect("the records");
    let client = server.client();

    front.refuse(Some((Method::POST, "/pause")));
    let job = user.build(&json!({ "name": "Far", "goal": "g", "model": "scripted:page.json" })).await;
    let id = job.parse().expect("an id");
    let record = async || records.job(&id).await.expect("read").expect("a job");
    let until = async |what: &str, wanted: fn(&JobRecord) -> bool| {
        let look = || async { Some(record().await).filter(wanted) };
        eventually_async(what, PATIENCE, look).await
    };
    let ready = until("no worker has anything more to do", |job| job.settled).await;
    assert_eq!((ready.status, ready.sandbox_paused, ready.error_message), (Status::Ready, false, None));
    let log = studio.log();
    assert!(log.contains("the preview could not be put to sleep, and stays awake"), "{log}");
    assert!(records.events(&id, 0).await.expect("read").iter().all(|event| event.body["type"] != "paused"));
    let sandbox: SandboxId = ready.sandbox_id.expect("a sandbox").parse().expect("an id");
    let state = async || client.info(&sandbox).await.expect("it is there").listed.state;
    assert_eq!(state().await, SandboxState::Running);
    let (preview, sleep) = (format!("/api/jobs/{job}/preview"), format!("/api/jobs/{job}/snapshot"));
    assert_eq!(user.get(&preview).await["state"], "active");
    assert!(user.get(&format!("/api/jobs/{job}")).await["preview_url"].is_string());
    let (status, refused) = user.post(&sleep, &json!({})).await;
    assert_eq!((status.as_u16(), record().await.sandbox_paused), (503, false), "{refused}");
    front.refuse(None);
    assert_eq!(user.post(&sleep, &json!({})).await, (StatusCode::OK, json!({ "job_id": job, "paused": true })));
    assert_eq!((state().await, record().await.sandbox_paused), (SandboxState::Paused, true));

    // Deleted: seen no more at once. What the provider refuses to end is ended later, by another process if need be.
    assert!(kept_in(&objects) > 0);
    front.refuse(Some((Method::DELETE, "/sandboxes/")));
    let (status, _) = user.call(Method::DELETE, &format!("/api/jobs/{job}"), None).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let (status, _) = user.call(Method::GET, &format!("/api/jobs/{job}"), None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(user.get("/api/dashboard").await["jobs"], json!([]));
    eventually_async("it was tried", PATIENCE, || async {
        studio.log().contains("the job is left for whoever comes next").then_some(())
    })
    .await;
    assert!(!record().await.settled, "somebody is to remove it");
    studio.process.end_by("KILL", PATIENCE);
    front.refuse(None);
    let studio = start();
    let left = until("all is removed", |job| job.settled).await;
    assert_eq!((left.deleted, left.goal.as_str(), left.events), (true, "", 0));
    assert!(matches!(client.info(&sandbox).await, Err(sdk::SandboxError::NotFound { .. })));
    assert_eq!(kept_in(&objects), 0, "no snapshot is left");
    // What it used was used.
    let user = Caller::new(&studio.address, &token);
    let project = user.get("/api/dashboard").await["projects"][0]["project_id"].as_str().expect("an id").to_owned();
    let used = user.get(&format!("/api/projects/{project}/usage")).await;
    assert!(used["lines"].as_array().is_some_and(|lines| !lines.is_empty()), "{used}");
}

/// Files below a directory.
fn kept_in(directory: &Path) -> usize {
    let entries = std::fs::read_dir(directory).into_iter().flatten().map(|entry| entry.expect("an entry").path());
    entries.map(|path| if path.is_dir() { kept_in(&path) } else { 1 }).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_with_records_in_sqlite() {
    refused(None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_with_records_in_postgres() {
    refused(Some(testing::postgres::database())).await;
}
