//! A project of this machine with its dev server: set up, paused, rotated, moved, and always
//! served.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use sandbar_workspace::devserver::DevServer;
use sandbar_workspace::events::{EventKind, Observer};
use sandbar_workspace::setup::{Repo, Setup};
use sandbar_workspace::{MoveOptions, Settings, Workspace, WorkspaceError};

use crate::support::{World, error_chain, name, settings, setup};

const PORT: u16 = 4321;

fn git(directory: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.arg("-C").arg(directory).args(["-c", "user.name=t", "-c", "user.email=t@example.com"]).args(arguments);
    command.envs([("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_SYSTEM", "/dev/null")]);
    let output = command.output().expect("git runs");
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

/// A repository whose server needs generated files, which count their installations.
fn project(directory: &Path) {
    let server = r#"
        const text = require('./node_modules/generated');
        require('http').createServer((_, answer) => answer.end(text)).listen(process.env.PORT || 4321);"#;
    let files = [
        ("package.json", r#"{"scripts": {"dev": "node server.js"}, "dependencies": {"generated": "1"}}"#),
        ("server.js", server),
        (".gitignore", "node_modules\n"),
    ];
    for (name, text) in files {
        std::fs::write(directory.join(name), text).expect("a directory of our own");
    }
    git(directory, &["init", "--quiet", "--initial-branch=trunk"]);
    git(directory, &["add", "--all"]);
    git(directory, &["commit", "--quiet", "--message=first"]);
    std::fs::write(directory.join("draft.txt"), "not yet").expect("a directory of our own");
}

async fn stdout(workspace: &Workspace, line: &str) -> String {
    let output = workspace.exec(line).await.expect("it runs");
    assert!(output.success(), "{line}: {}{}", output.stdout_text(), output.stderr_text());
    output.stdout_text().trim_end().to_owned()
}

async fn fetch(workspace: &Workspace, port: u16) -> String {
    let ask =
        format!("exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3 | tail -n 1");
    stdout(workspace, &ask).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_is_served_after_every_change_of_sandbox() {
    let (world, directory) = (World::new(), tempfile::tempdir().expect("a directory"));
    project(directory.path());
    let workspaces = world.workspaces().await;
    let install = "mkdir -p node_modules/generated && echo >>../installs && \
                   echo 'module.exports = \"served\"' >node_modules/generated/index.js";
    let setup = Setup {
        repo: Some(Repo::parse(directory.path().to_str().expect("text")).branch("trunk")),
        dev_server: Some(DevServer {
            install_command: Some(install.to_owned()),
            ..DevServer::new("npm run dev", PORT)
        }),
        ..Setup::default()
    };
    let workspace = workspaces.create(&name("shop"), setup).await.expect("it is set up").workspace;
    let notices = workspace.enter().await.expect("it runs").notices();
    assert!(notices.iter().any(|line| line.starts_with("1 change in ")), "{notices:?}");
    assert_eq!(stdout(&workspace, "cd project && git rev-parse HEAD && git branch --show-current").await, {
        format!("{}\ntrunk", git(directory.path(), &["rev-parse", "HEAD"]))
    });

    let ready_sandbox = |event: &EventKind| matches!(event, EventKind::DevServerReady { port: PORT, .. });
    let mut expected = (1, 1);
    let check = async |workspace: &Workspace, expected: (usize, usize)| {
        assert_eq!(fetch(workspace, PORT).await, "served");
        let installs = stdout(workspace, "wc -l <installs").await.parse().expect("a number");
        assert_eq!((world.events.count(ready_sandbox), installs), expected, "ready, and installed");
    };
    check(&workspace, expected).await;

    // All files are there after a plain resume, so nothing is installed.
    workspace.pause().await.expect("paused");
    workspace.resume().await.expect("resumed");
    expected.0 += 1;
    check(&workspace, expected).await;

    workspace.rotate().await.expect("rotated");
    expected = (expected.0 + 1, expected.1 + 1);
    check(&workspace, expected).await;
    let notices = workspace.enter().await.expect("it runs").notices();
    assert!(notices.iter().any(|line| line.contains("project/node_modules")), "{notices:?}");

    for provider in ["two", "one"] {
        workspace.move_to(&name_of(provider), MoveOptions::default()).await.expect("moved");
        expected = (expected.0 + 1, expected.1 + 1);
        check(&workspace, expected).await;
    }
    workspace.close().await;
}

fn name_of(provider: &str) -> sandbar_workspace::ProviderName {
    provider.parse().expect("a name")
}

/// A command that needs no server does not wait long for a hung one, and an event reports the wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_hung_server_delays_a_resume_briefly() {
    const TIMEOUT: Duration = Duration::from_secs(4);
    let world = World::new();
    let settings = Settings { service_timeout: TIMEOUT, ..settings() };
    let workspaces = world.fixture().workspaces(settings, Arc::clone(&world.events) as Arc<dyn Observer>).await;
    let serve = "if [ -e hang ]; then sleep 1000; else exec python3 -m http.server 8123; fi";
    let setup = Setup { dev_server: Some(DevServer::new(serve, 8123)), ..setup() };
    let workspace = workspaces.create(&name("slow"), setup).await.expect("it is set up").workspace;
    workspace.write_file("project/hang", "").await.expect("written");
    workspace.pause().await.expect("paused");
    workspace.resume().await.expect("resumed");
    let events = world.events.events();
    let awaited = events.iter().find_map(|event| match event {
        EventKind::DevServerAwaited { command, port, within } => Some((command.as_str(), *port, *within)),
        _ => None,
    });
    assert_eq!(awaited, Some((serve, 8123, TIMEOUT)), "{events:?}");
    let failed = events.iter().find_map(|event| match event {
        EventKind::DevServerFailed { reason } => Some(reason.as_str()),
        _ => None,
    });
    assert!(failed.is_some_and(|reason| reason.contains("within 4s and was left running")), "{events:?}");
    assert_eq!(stdout(&workspace, "pgrep -fxc 'sleep 1000'").await, "1");
    workspace.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_server_reveals_no_secret() {
    let world = World::new();
    let (_, workspace) = world.workspace("found").await;
    assert!(workspace.serve(None).await.expect("nothing is to be served").is_none());
    workspace.write_file("project/index.html", "<p>hello").await.expect("written");
    let ready = workspace.serve(None).await.expect("it answers").expect("there is something to be served");
    assert_eq!((ready.port, fetch(&workspace, 8000).await.as_str()), (8000, "<p>hello"));

    let failing = DevServer::new("echo with $TOKEN; exit 5", 8001);
    let failed = workspace.serve(Some(failing)).await.expect_err("it ends at once");
    assert!(matches!(failed, WorkspaceError::DevServer(_)), "{failed:?}");
    assert!(error_chain(&failed).contains("exit status 5"), "{}", error_chain(&failed));
    workspace.close().await;

    // The same in a setup: errors show output of commands with values of variables masked.
    let workspaces = world.workspaces().await;
    let mut setup = setup();
    setup.prepare.commands = vec!["echo with $TOKEN >&2; exit 6".to_owned()];
    let failed = workspaces.create(&name("telling"), setup).await.expect_err("the command fails");
    let failed = error_chain(&failed);
    assert!(failed.contains("with ***") && failed.contains("step command 1"), "{failed}");
    let events = serde_json::to_string(&world.events.events()).expect("JSON");
    assert!(!events.contains("the-hidden-value"), "{events}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undeclared_server_is_detected_at_creation() {
    let (world, directory) = (World::new(), tempfile::tempdir().expect("a directory"));
    std::fs::write(directory.path().join("index.html"), "<p>found").expect("a directory of our own");
    git(directory.path(), &["init", "--quiet", "--initial-branch=trunk"]);
    git(directory.path(), &["add", "--all"]);
    git(directory.path(), &["commit", "--quiet", "--message=first"]);
    let workspaces = world.workspaces().await;
    let repo = Some(Repo::parse(directory.path().to_str().expect("text")));
    let created = workspaces.create(&name("undeclared"), Setup { repo, ..Setup::default() }).await;
    let workspace = created.expect("it is set up").workspace;
    assert_eq!(fetch(&workspace, 8000).await, "<p>found");
    workspace.pause().await.expect("paused");
    assert_eq!(fetch(&workspace, 8000).await, "<p>found");
    workspace.close().await;
}
