//! The real program, and a client of its REST API.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::Value;
use tempfile::TempDir;
use testing::{RunningServer, ServerLaunch, Tied, eventually_async, program, without_settings};

/// For any condition, on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(240);

/// Writes scripts of scripted models into a directory.
pub(crate) fn scripts(directory: &Path, scripts: &[(&str, &str)]) -> PathBuf {
    let place = directory.join("scripts");
    std::fs::create_dir(&place).expect("a directory");
    for (name, text) in scripts {
        std::fs::write(place.join(name), text).expect("written");
    }
    place
}

/// A `sandbar up` with its studio.
pub(crate) struct Whole {
    pub(crate) server: RunningServer,
    pub(crate) user: Caller,
    directory: TempDir,
}

impl Whole {
    pub(crate) fn start(files: &[(&str, &str)]) -> Self {
        let directory = TempDir::new().expect("a directory");
        let (data, scripts) = (directory.path().join("data"), scripts(directory.path(), files));
        let arguments = ["--ephemeral", "--scripts", scripts.to_str().expect("a plain path")];
        let server = RunningServer::launch(ServerLaunch {
            program: &program(),
            data: &data,
            arguments: &arguments,
            umask: "022",
            user: None,
        });
        let token = std::fs::read_to_string(data.join("studio/token")).expect("the first user's token");
        let user = Caller::new(&server.address, token.trim());
        Self { server, user, directory }
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }
}

/// A `sandbar studio` process.
pub(crate) struct Alone {
    pub(crate) address: String,
    pub(crate) token: Option<String>,
    pub(crate) process: Tied,
    log: PathBuf,
}

impl Drop for Alone {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

impl Alone {
    /// `variables` are added to its environment.
    pub(crate) fn start(directory: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Tied::command("TERM", program());
        command.args(["studio", "--listen", "127.0.0.1:0", "--data"]).arg(directory.join("data")).args(arguments);
        without_settings(&mut command)
            .env("SANDBAR_LOG", std::env::var("SANDBAR_LOG").unwrap_or_else(|_| "warn".into()));
        command.env("XDG_CONFIG_HOME", directory.join("none")).env("XDG_DATA_HOME", directory.join("none"));
        command.envs(variables.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped());
        let log = directory.join("log");
        command.stderr(std::fs::File::options().create(true).append(true).open(&log).expect("a log"));
        let (process, output) = Tied::start(command, "TERM");
        for line in BufReader::new(output.expect("stdout is piped")).lines() {
            let line = line.expect("a line");
            assert!(!line.contains("sbt_"), "a token in what journals keep: {line}");
            if let Some(address) = line.strip_prefix("ready: http://") {
                let token = std::fs::read_to_string(directory.join("data/studio/token")).ok();
                let token = token.map(|token| token.trim().to_owned());
                return Self { address: address.to_owned(), token, process, log };
            }
        }
        panic!("the studio did not become ready: {}", std::fs::read_to_string(&log).unwrap_or_default());
    }

    /// The log of the process.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// A client with a token.
#[derive(Clone)]
pub(crate) struct Caller {
    http: reqwest::Client,
    url: String,
    token: String,
}

impl Caller {
    pub(crate) fn new(address: &str, token: &str) -> Self {
        let http = reqwest::Client::builder().no_proxy().timeout(TIMEOUT).build().expect("a client");
        Self { http, url: format!("http://{address}"), token: token.to_owned() }
    }

    pub(crate) async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> (StatusCode, Value) {
        let mut request = self.http.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let answer = request.send().await.expect("an answer");
        let (status, text) = (answer.status(), answer.text().await.expect("a body"));
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> impl Future<Output = Value> + use<> {
        let (caller, path) = (self.clone(), path.to_owned());
        async move {
            let (status, body) = caller.call(Method::GET, &path, None).await;
            assert!(status.is_success(), "GET {path}: {status} {body}");
            body
        }
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        self.call(Method::POST, path, Some(body)).await
    }

    /// Starts a build and returns its id.
    pub(crate) async fn build(&self, body: &Value) -> String {
        let (status, started) = self.post("/api/generation", body).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{started}");
        started["job_id"].as_str().expect("an id").to_owned()
    }

    /// Polls a job until `wanted` holds.
    pub(crate) async fn until(&self, job: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let path = format!("/api/jobs/{job}");
        let poll = || async {
            let seen = self.get(&path).await;
            wanted(&seen).then_some(seen)
        };
        eventually_async(format!("{job} is {what}"), TIMEOUT, poll).await
    }

    pub(crate) async fn until_paused(&self, job: &str) -> Value {
        let done = |seen: &Value| {
            assert_ne!(seen["status"], "failed", "{seen}");
            seen["status"] == "ready" && seen["sandbox_paused"] == true
        };
        self.until(job, "ready and paused", done).await
    }
}
