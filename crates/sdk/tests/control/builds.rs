//! Templates: request bodies, uploads, and outcomes of builds.

use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use fake::{FakeServer, Fault, Script};
use futures::TryStreamExt as _;
use sandbar_sdk::model::LogLevel;
use sandbar_sdk::templates::{Build, BuildError, ContextError, CopyFiles, Template, TemplateError};
use sandbar_sdk::{CallError, Create, CreateError, LogQuery};
use serde_json::{Value, json};

fn context() -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(root.path().join("app")).expect("a directory");
    std::fs::write(root.path().join("app/main.py"), "print(1)\n").expect("a file");
    std::fs::write(root.path().join("app/skip.log"), "no").expect("a file");
    root
}

fn template(context: &Path) -> Template {
    Template::from_image("python:3.12")
        .context(context)
        .ignore("**/*.log")
        .user("root")
        .copy_files(CopyFiles::new("app", "/app/").owner("user:user").mode(0o755))
        .run_as("root", "pip install x")
        .env("A", "1")
        .workdir("/app")
        .start("python main.py", "true")
}

#[tokio::test]
async fn a_template_is_built_from_steps() {
    let server = FakeServer::start().await;
    let client = server.client();
    let templates = client.templates();
    let context = context();
    let build = Build::new("tools:v1", template(context.path())).tag("stable").cpu_count(4).memory_mb(1024);
    let mut shown = Vec::new();
    let built = templates.build_with(&build, |entry| shown.push(entry.message.clone())).await.expect("a template");
    assert_eq!(built.tags, ["v1", "stable"]);
    assert_eq!(shown, ["[1/5] USER", "[2/5] COPY", "[3/5] RUN", "[4/5] ENV", "[5/5] WORKDIR"]);

    let asked: Value = serde_json::from_slice(&server.requests_to("POST /v3/templates")[0].body).expect("JSON");
    assert_eq!(asked, json!({ "name": "tools:v1", "tags": ["stable"], "cpuCount": 4, "memoryMB": 1024 }));
    let started = &server.requests_to("POST /v2/templates/*/builds/*")[0];
    let started: Value = serde_json::from_slice(&started.body).expect("JSON");
    let hash = started["steps"][1]["filesHash"].as_str().expect("a hash").to_owned();
    assert_eq!(
        started,
        json!({
            "fromImage": "python:3.12", "force": false, "startCmd": "python main.py", "readyCmd": "true",
            "steps": [
                { "type": "USER", "args": ["root"], "force": false },
                { "type": "COPY", "args": ["app", "/app/", "user:user", "0755"], "filesHash": hash, "force": false },
                { "type": "RUN", "args": ["pip install x", "root"], "force": false },
                { "type": "ENV", "args": ["A", "1"], "force": false },
                { "type": "WORKDIR", "args": ["/app"], "force": false },
            ],
        })
    );

    let uploads = server.requests_to(&format!("PUT /upload/{hash}"));
    assert_eq!(uploads.len(), 1);
    let upload = &uploads[0];
    assert_eq!(upload.headers["content-length"], upload.body.len().to_string().as_str());
    assert_eq!(upload.headers["x-upload"], "allowed", "the header the server sent");
    assert!(!upload.headers.contains_key("transfer-encoding") && !upload.headers.contains_key("x-api-key"));
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&upload.body[..]));
    let mut packed = Vec::new();
    for entry in archive.entries().expect("an archive") {
        let mut entry = entry.expect("an entry");
        let mut content = String::new();
        entry.read_to_string(&mut content).expect("text");
        packed.push((entry.path().expect("a path").display().to_string(), content));
    }
    assert_eq!(packed, [("app".to_owned(), String::new()), ("app/main.py".to_owned(), "print(1)\n".to_owned())]);

    let sandbox = client.create("tools:v1").await.expect("a sandbox of it");
    assert_eq!(sandbox.template(), built.template_id);
    // The server has the files already.
    templates.build(&Build::new("tools:v2", template(context.path()))).await.expect("a template");
    assert_eq!(server.requests_to(&format!("PUT /upload/{hash}")).len(), 1);
}

#[tokio::test]
async fn a_failed_step_is_named() {
    let server = FakeServer::start().await;
    server.on_command("make", Script::stdout("").exit(2));
    let client = server.client();
    let dockerfile = "FROM debian:12\nRUN true\nRUN make\n";
    let build = Build::new("broken", Template::from_dockerfile(dockerfile).expect("a Dockerfile"));
    let mut levels = Vec::new();
    let error = client.templates().build_with(&build, |entry| levels.push(entry.level)).await.expect_err("it fails");
    let BuildError::Failed { step, message, .. } = &error else { panic!("{error:?}") };
    // User and working directory come first, as in the official SDKs.
    assert_eq!((step.as_deref(), message.as_str()), (Some("4"), "exit status 2"));
    assert_eq!(levels.last(), Some(&LogLevel::Error), "the log is read to its end");
    let error = client.create("broken").await.expect_err("there is no such template");
    assert!(matches!(error, CreateError::TemplateNotFound { .. }), "{error:?}");
}

#[tokio::test]
async fn missing_files_fail_before_the_first_request() {
    let server = FakeServer::start().await;
    let client = server.client();
    let root = context();
    for (source, outside) in [("nothing", false), ("../secret", true), ("/etc/passwd", true)] {
        let template = Template::from_image("a").context(root.path()).copy(source, "/x");
        let error = client.templates().start(&Build::new("x", template)).await.expect_err("it cannot be copied");
        match error {
            BuildError::Context(ContextError::Outside { .. }) => assert!(outside, "{source}"),
            BuildError::Context(ContextError::NoFiles { .. }) => assert!(!outside, "{source}"),
            other => panic!("{other:?}"),
        }
    }
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn uploads_are_retried_and_build_waits_time_out() {
    let server = FakeServer::start().await;
    let client = server.client();
    let root = context();
    let files = CopyFiles::new("app/main.py", "/x").uncompressed().force_upload();
    let template = Template::from_template("base").context(root.path()).copy_files(files);
    let build = Build::new("again", template);
    // The hash is part of the path; the first request reveals it.
    let started = client.templates().start(&build).await.expect("it starts");
    let uploads: Vec<_> =
        server.requests().into_iter().filter(|request| request.target.starts_with("/upload/")).collect();
    assert_eq!(uploads.len(), 1);
    let rule = format!("PUT {}", uploads[0].target);

    let other = FakeServer::start().await;
    other.fail_next(&rule, 1, Fault::cut()).fail_next(&rule, 1, Fault::status(503));
    let elsewhere = other.client();
    elsewhere.templates().build(&build).await.expect("the third upload succeeds");
    let tries = other.requests_to(&rule);
    assert_eq!(tries.len(), 3);
    assert!(tries.iter().all(|request| request.body == uploads[0].body), "whole each time");
    assert!(tar::Archive::new(&tries[0].body[..]).entries().expect("a plain archive").count() == 1);

    // A requested build that is never started waits forever.
    let waiting = client.templates().build_timeout(Duration::from_millis(300));
    let requested = server.client();
    let entries: Vec<_> =
        requested.templates().follow(&started.template_id, &started.build_id).try_collect().await.expect("it is ready");
    assert_eq!(entries.len(), 1);
    server.lacks("POST /v2/templates/*/builds/*");
    let error = waiting.build(&build).await.expect_err("it cannot be started");
    assert!(matches!(error, BuildError::Call(_)), "{error:?}");
    let asked = server.requests_to("GET /templates/*/files/*");
    let last = asked.last().expect("it asked for an upload").target.clone();
    let template_id = last.split('/').nth(2).expect("an id").to_owned();
    let newest = client.templates().get(&template_id).await.expect("it exists");
    let build_id = &newest.builds.last().expect("a build").build_id;
    let ended = waiting.follow(&template_id, build_id).try_collect::<Vec<_>>().await.expect_err("it never starts");
    assert!(matches!(ended, BuildError::DeadlineExceeded { .. }), "{ended:?}");
}

#[tokio::test]
async fn templates_are_named_tagged_published_and_deleted() {
    let server = FakeServer::start().await;
    let client = server.client();
    let templates = client.templates();
    let built = templates.build(&Build::new("app", Template::from_image("a").run("x"))).await.expect("a template");
    assert!(templates.exists("app").await.expect("an answer"));
    assert!(!templates.exists("other").await.expect("an answer"));
    server.fail_next("GET /templates/aliases/*", 1, Fault::status(403));
    assert!(templates.exists("theirs").await.expect("an answer"), "another team has taken it");
    assert_eq!(templates.alias("app").await.expect("it exists").template_id, built.template_id);
    let error = templates.alias("other").await.expect_err("it does not exist");
    assert!(matches!(&error, TemplateError::NotFound { template, .. } if template == "other"), "{error:?}");

    let assigned = templates.assign_tags("app", &["v1", "v2"]).await.expect("tags");
    assert_eq!((assigned.build_id, assigned.tags.len()), (built.build_id.clone(), 2));
    templates.remove_tags("app", &["v2"]).await.expect("it goes");
    let tags: Vec<String> = templates.tags("app").await.expect("tags").into_iter().map(|tag| tag.tag).collect();
    assert_eq!(tags, ["default", "v1"]);
    client.create("app:v1").await.expect("a sandbox").kill().await.expect("it ends");
    let error = client.create("app:v2").await.expect_err("the tag is gone");
    assert!(matches!(error, CreateError::TemplateNotFound { .. }), "{error:?}");

    templates.set_public(&built.template_id, true).await.expect("it is public");
    server.lacks("PATCH /v2/templates/*").lacks("GET /v2/templates");
    templates.set_public(&built.template_id, true).await.expect("older servers too");
    let all: Vec<_> = templates.list().try_collect().await.expect("a list");
    assert!(all.iter().any(|template| template.template_id == built.template_id && template.public));
    let whole = templates.get("app").await.expect("it exists");
    assert_eq!((whole.builds.len(), whole.template.names), (1, vec!["team/app".to_owned()]));
    let log = templates.logs(&built.template_id, &built.build_id, &LogQuery::oldest()).await.expect("a log");
    assert_eq!(log[0].message, "[1/1] RUN");

    let sandbox = client.create(Create::template("app")).await.expect("a sandbox");
    let error = templates.delete(&built.template_id).await.expect_err("it is in use");
    assert!(matches!(error, CallError::Invalid { .. }), "{error:?}");
    sandbox.kill().await.expect("it ends");
    assert!(templates.delete(&built.template_id).await.expect("it is deleted"));
    assert!(!templates.delete(&built.template_id).await.expect("an answer"));
}
