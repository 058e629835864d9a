//! Snapshots, forks and built templates on the real server.

use std::path::Path;
use std::time::Duration;

use futures::TryStreamExt as _;
use sandbar_sdk::templates::{Build, BuildError, CopyFiles, Template};
use sandbar_sdk::{
    CallError, Client, Connect, Create, CreateError, Fork, LogQuery, NewSnapshot, Pause, Sandbox, SandboxError,
    SnapshotQuery,
};
use testing::{RunningServer, Server, ServerLaunch};

fn lasting(template: &str) -> Create {
    Create::template(template).timeout(Duration::from_secs(600))
}

async fn run_text(sandbox: &Sandbox, line: &str) -> String {
    sandbox.commands().run(line).await.expect("it runs").stdout_text().into_owned()
}

async fn snapshots_of(client: &Client, query: SnapshotQuery) -> Vec<String> {
    let rows: Vec<_> = client.snapshots(query).try_collect().await.expect("a list");
    rows.into_iter().map(|row| row.snapshot_id).collect()
}

#[tokio::test]
async fn a_snapshot_preserves_the_files_of_its_moment() {
    let server = Server::shared(&[]);
    let client = server.client();
    let sandbox = client.create(lasting("base")).await.expect("a sandbox");
    sandbox.files().write("kept", "before").await.expect("a file");
    let unnamed = sandbox.snapshot(NewSnapshot::unnamed()).await.expect("a snapshot");
    assert!(unnamed.snapshot_id.ends_with(":default") && unnamed.names.is_empty(), "{unnamed:?}");
    let first = sandbox.snapshot("beginnings").await.expect("a snapshot");
    sandbox.files().write("kept", "after").await.expect("a file");
    let second = sandbox.snapshot("beginnings").await.expect("a snapshot");
    assert_eq!(first, second, "two states of one snapshot");
    sandbox.pause(Pause::files_only()).await.expect("it pauses");
    let third = sandbox.snapshot(NewSnapshot::named("beginnings:paused")).await.expect("also of a paused one");
    assert_eq!(third.snapshot_id, "local/beginnings:paused");

    for (reference, expected) in [(&unnamed.snapshot_id, "before"), (&second.snapshot_id, "after")] {
        let copy = client.create(lasting(reference)).await.expect("a sandbox of the snapshot");
        assert_eq!(copy.files().read_text("kept").await.expect("the file"), expected);
        let error = client.delete_snapshot(reference).await.expect_err("it is in use");
        assert!(matches!(error, CallError::Invalid { .. }), "{error:?}");
        copy.kill().await.expect("it ends");
    }
    let of = || SnapshotQuery::new().sandbox(sandbox.id());
    assert_eq!(snapshots_of(&client, of().page_size(1)).await.len(), 2, "in two pages");
    let named = snapshots_of(&client, of().name("beginnings")).await;
    assert_eq!(named, std::slice::from_ref(&second.snapshot_id));
    assert_eq!(snapshots_of(&client, SnapshotQuery::new().name("unknown")).await.len(), 0);
    let log = client.logs(sandbox.id(), &LogQuery::newest()).await.expect("a log");
    assert!(log.iter().any(|entry| entry.message.contains("memory and processes are not part of it")), "{log:?}");
    for id in [&unnamed.snapshot_id, &second.snapshot_id] {
        assert!(client.delete_snapshot(id).await.expect("it is deleted"));
        assert!(!client.delete_snapshot(id).await.expect("an answer"), "it is gone already");
    }
    sandbox.kill().await.expect("it ends");
}

#[tokio::test]
async fn forks_of_running_and_paused_sandboxes_are_copies() {
    let server = Server::shared(&[]);
    let client = server.client();
    let sandbox = client.create(lasting("base").env("A", "1").metadata("kind", "source")).await.expect("a sandbox");
    for paused in [false, true] {
        if paused {
            sandbox.pause(Pause::with_memory()).await.expect("it pauses");
        }
        let fork = Fork::new().count(3).timeout(Duration::from_secs(300));
        let children = sandbox.fork(fork).await.expect("a fork");
        let children: Vec<_> = children.into_iter().map(|child| child.expect("a child")).collect();
        assert_ne!(children[0].access_token(), children[1].access_token());
        for child in &children {
            assert_eq!(run_text(child, "echo $A; ls mine 2>/dev/null; echo > mine").await, "1\n");
            let info = child.info().await.expect("it exists");
            assert_eq!(info.listed.metadata["kind"], "source");
            child.kill().await.expect("it ends");
        }
    }
    client.connect(sandbox.id(), Connect::default()).await.expect("the source resumes");
    assert_eq!(run_text(&sandbox, "ls mine 2>/dev/null; echo ok").await, "ok\n");
    let error = sandbox.fork(Fork::new().count(101)).await.expect_err("too many");
    assert!(matches!(error, SandboxError::Call(CallError::Invalid { .. })), "{error:?}");
    sandbox.kill().await.expect("it ends");
}

/// Builds a template and returns its log lines.
async fn build(client: &Client, name: &str, template: Template) -> Result<Vec<String>, BuildError> {
    let mut lines = Vec::new();
    client.templates().build_with(&Build::new(name, template), |entry| lines.push(entry.message.clone())).await?;
    Ok(lines)
}

fn context() -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(root.path().join("app")).expect("a directory");
    std::fs::write(root.path().join("app/main.sh"), "echo built\n").expect("a file");
    std::os::unix::fs::symlink("main.sh", root.path().join("app/link")).expect("a link");
    root
}

fn app(context: &Path, last: &str) -> Template {
    Template::from_image("e2bdev/base:latest")
        .context(context)
        .env("GREETING", "hello")
        .copy_files(CopyFiles::new("app", "/srv/app").owner("user:user").mode(0o755))
        .workdir("/srv/app")
        .run("echo $GREETING > greeting; date +%s%N > stamp")
        .run(last)
}

#[tokio::test]
async fn a_rebuild_reuses_cached_steps() {
    let server = Server::shared(&[]);
    let (client, context) = (server.client(), context());
    let lines = build(&client, "made:v1", app(context.path(), "true")).await.expect("a template");
    assert!(lines.iter().all(|line| !line.contains("CACHED")), "{lines:?}");
    let sandbox = client.create(lasting("made:v1")).await.expect("a sandbox");
    assert_eq!(
        run_text(&sandbox, "pwd; cat greeting; ./main.sh; readlink link; echo $GREETING").await,
        "/srv/app\nhello\nbuilt\nmain.sh\nhello\n"
    );
    assert_eq!(run_text(&sandbox, "stat -c '%U:%G %a' main.sh").await, "user:user 755\n");
    let stamp = run_text(&sandbox, "cat stamp").await;

    let lines = build(&client, "made", app(context.path(), "echo 2 > last")).await.expect("a template");
    assert_eq!(lines.iter().filter(|line| line.starts_with("CACHED")).count(), 4, "{lines:?}");
    let newer = client.create(lasting("made")).await.expect("a sandbox");
    assert_eq!(run_text(&newer, "cat stamp last").await, format!("{stamp}2\n"));
    std::fs::write(context.path().join("app/main.sh"), "echo changed\n").expect("a file");
    build(&client, "made", app(context.path(), "true")).await.expect("a template");
    let newest = client.create(lasting("made")).await.expect("a sandbox");
    assert_eq!(run_text(&newest, "./main.sh").await, "changed\n");
    assert_ne!(run_text(&newest, "cat stamp").await, stamp);

    let templates = client.templates();
    let error = templates.delete("made").await.expect_err("it is in use");
    assert!(matches!(error, CallError::Invalid { .. }), "{error:?}");
    for sandbox in [sandbox, newer, newest] {
        sandbox.kill().await.expect("it ends");
    }
    assert!(templates.exists("made").await.expect("an answer"));
    assert!(templates.delete("made").await.expect("it is deleted"));
    assert!(!templates.exists("made").await.expect("an answer"));
}

#[tokio::test]
async fn the_start_command_runs_in_every_sandbox() {
    let server = Server::shared(&[]);
    let client = server.client();
    let template =
        Template::from_template("base").start("sh -c 'echo up > /tmp/up; exec sleep 600'", "test -f /tmp/up");
    build(&client, "starting", template).await.expect("a template");
    for _ in 0..2 {
        let sandbox = client.create(lasting("starting")).await.expect("a sandbox");
        assert_eq!(run_text(&sandbox, "cat /tmp/up; pgrep -c -x sleep").await, "up\n1\n");
        sandbox.pause(Pause::files_only()).await.expect("it pauses");
        client.connect(sandbox.id(), Connect::default()).await.expect("it resumes");
        assert_eq!(
            run_text(&sandbox, "until pgrep -x sleep > /dev/null; do sleep 0.05; done; echo again").await,
            "again\n"
        );
        sandbox.kill().await.expect("it ends");
    }
    let failing = Template::from_template("base").start("exit 5", "false");
    let error = build(&client, "not-starting", failing).await.expect_err("it does not start");
    assert!(matches!(&error, BuildError::Failed { step: Some(step), .. } if step == "finalize"), "{error:?}");
}

#[tokio::test]
async fn a_failed_build_names_its_step_and_keeps_the_template() {
    let server = Server::shared(&[]);
    let client = server.client();
    build(&client, "failing", Template::from_template("base").run("echo 1 > ~/state")).await.expect("a template");
    let broken = || Template::from_template("base").run("true").run("echo so >&2; exit 7").run("true");
    let error = build(&client, "failing", broken()).await.expect_err("it fails");
    let BuildError::Failed { step, message, .. } = &error else { panic!("{error:?}") };
    assert_eq!(step.as_deref(), Some("2"));
    assert!(message.contains("exit status 7"), "{message}");
    let sandbox = client.create(lasting("failing")).await.expect("the earlier build is still there");
    assert_eq!(run_text(&sandbox, "cat state").await, "1\n");
    sandbox.kill().await.expect("it ends");

    build(&client, "never", broken()).await.expect_err("it fails");
    let error = client.create("never").await.expect_err("there is no such template");
    assert!(matches!(error, CreateError::TemplateNotFound { .. }), "{error:?}");
    let image = Template::from_image("127.0.0.1:1/none:1");
    let error = build(&client, "image", image).await.expect_err("no such image");
    let BuildError::Failed { step, message, .. } = &error else { panic!("{error:?}") };
    assert!(step.as_deref() == Some("base") && message.contains("127.0.0.1:1/none:1"), "{error}");
}

#[tokio::test]
async fn a_server_killed_during_a_build_leaves_no_partial_state() {
    let data = tempfile::Builder::new().prefix("sandbar-test-").tempdir().expect("a directory");
    let program = testing::program();
    let launch = || {
        RunningServer::launch(ServerLaunch {
            program: &program,
            data: data.path(),
            arguments: &[],
            umask: "022",
            user: None,
        })
    };
    let mut server = launch();
    let reach = |server: &RunningServer| testing::client(&server.address, &server.key).build().expect("valid options");
    let client = reach(&server);
    let sandbox = client.create(lasting("base")).await.expect("a sandbox");
    sandbox.files().write("kept", "yes").await.expect("a file");
    let snapshot = sandbox.snapshot("kept").await.expect("a snapshot");
    let template = || Template::from_template("base").run("echo done > ~/first").run("sleep 3600");
    let started = client.templates().start(&Build::new("killed", template())).await.expect("it starts");
    let mut follow = Box::pin(client.templates().follow(&started.template_id, &started.build_id));
    while let Some(entry) = follow.try_next().await.expect("it runs") {
        if entry.message.contains("sleep 3600") {
            break;
        }
    }
    drop(follow);
    server.end_by("KILL");

    let mut server = launch();
    let client = reach(&server);
    let status = client.templates().status(&started.template_id, &started.build_id, 0).await.expect("it is known");
    assert!(status.reason.is_some_and(|reason| reason.message.contains("stopped")));
    let error = client.create("killed").await.expect_err("nothing was built");
    assert!(matches!(error, CreateError::TemplateNotFound { .. }), "{error:?}");
    // The sandbox, the snapshot and the cached state after the first step survive; the build's
    // sandbox does not.
    let copy = client.create(lasting(&snapshot.snapshot_id)).await.expect("the snapshot is whole");
    assert_eq!(copy.files().read_text("kept").await.expect("the file"), "yes");
    assert_eq!(client.list(Default::default()).try_collect::<Vec<_>>().await.expect("a list").len(), 2);
    let mut lines = Vec::new();
    let again = Template::from_template("base").run("echo done > ~/first").run("cat ~/first");
    let again = Build::new("killed", again);
    client.templates().build_with(&again, |entry| lines.push(entry.message.clone())).await.expect("it is built");
    assert!(lines.iter().any(|line| line.starts_with("CACHED [1/2]")), "{lines:?}");
    for id in [sandbox.id(), copy.id()] {
        client.kill(id).await.expect("it ends");
    }
    server.end_by("TERM");
}
