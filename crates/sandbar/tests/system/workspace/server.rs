//! The server that commands use: they start one if the data directory has none, and wait for a
//! server that a user started by `sandbar up`.

use super::{Down, User, text_of};
use crate::support::program::text;
use crate::support::{McpProcess, Program, Server, eventually};
use serde_json::json;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::process::Stdio;
use std::time::{Duration, Instant};
use testing::{RunningServer, ServerLaunch};

const TIMEOUT: Duration = Duration::from_secs(120);

#[test]
fn a_command_waits_for_a_server_that_a_user_started() {
    let mut server = Server::with(&["--no-studio"]);
    let user = User::for_server(&server);
    user.workspace.must(&["create", "shop"]);
    let id = user.sandbox("shop");
    user.exec("shop", "echo kept >file");
    server.kill_9();
    let mut waiting = user.workspace.command(&["exec", "shop", "-c", "cat file"]);
    let mut waiting = waiting.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut messages = BufReader::new(waiting.stderr.take().expect("it is piped"));
    let mut line = String::new();
    messages.read_line(&mut line).expect("text");
    assert!(line.contains("does not run; waiting") && line.contains("--no-studio"), "{line}");
    // As a service manager restarts it: the waiting command does not block the start.
    server.start_again();
    let mut output = String::new();
    waiting.stdout.take().expect("it is piped").read_to_string(&mut output).expect("text");
    assert!(waiting.wait().expect("it ends").success());
    assert_eq!((output.as_str(), user.sandbox("shop")), ("kept\n", id));
    user.workspace.must(&["destroy", "shop", "--yes"]);
}

#[test]
fn up_replaces_a_server_that_a_command_started() {
    let user = User::with_settings(|program| program);
    user.configure("listen = \"127.0.0.1:0\"\n");
    let _down = Down(&user);
    let id = text_of(&user.workspace.json(&["create", "shop"]), "sandboxID");
    user.exec("shop", "(while :; do date >ticks; sleep 0.1; done) >/dev/null 2>&1 & echo $! >pid");
    let data = user.home.path().join("data/sandbar");
    let note = || -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(data.join("server.json")).expect("a server was here")).expect("JSON")
    };
    let first = note()["pid"].clone();
    let program = testing::program();
    let launch = || ServerLaunch { program: &program, data: &data, arguments: &[], umask: "022", user: None };
    let started = RunningServer::launch(launch());
    assert_ne!(note()["pid"], first);
    assert_eq!(user.sandbox("shop"), id);
    assert_eq!(user.exec("shop", "kill -0 $(cat pid) && echo runs"), "runs\n", "the sandbox lived on");
    // The directory remains the user's server's after that ended: commands wait for it.
    drop(started);
    eventually("it has ended", TIMEOUT, || (note()["serving"] == false).then_some(()));
    let started = Instant::now();
    let refused = user.workspace.fails(1, &["exec", "shop", "--", "true"]);
    assert!(refused.contains("did not come back within") && refused.contains("sandbar up"), "{refused}");
    assert!(started.elapsed() < TIMEOUT, "it is bounded");
    let again = RunningServer::launch(launch());
    assert_eq!(user.exec("shop", "kill -0 $(cat pid) && echo runs"), "runs\n");
    drop(again);
    // `down` ends that, so that commands start a server again.
    user.down.must(&[]);
    assert_eq!(user.exec("shop", "echo again"), "again\n", "a command starts one");
}

/// Asserts that a command returns within 5 s in the best of three runs: other programs may delay
/// one of them, a wait for the store delays all.
#[track_caller]
fn check_quick(what: &str, run: impl Fn()) {
    let took = || {
        let started = Instant::now();
        run();
        started.elapsed()
    };
    let best = (0..3).map(|_| took()).min().expect("three runs");
    assert!(best < Duration::from_secs(5), "{what} took {best:?}");
}

/// Starts an MCP server on the workspace, makes one call and kills the server.
fn call_over_mcp(mcp: &Program) {
    let mut mcp = McpProcess::start(mcp, &["--workspace", "shop"]);
    let answer = mcp.call("bash", &json!({ "command": "echo hello" }));
    assert!(answer.to_string().contains("hello"), "{answer}");
    mcp.kill();
}

/// Starts a service that accepts connections and never answers.
pub(super) fn start_hanging_store() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("it has one"));
    (listener, address)
}

#[test]
fn a_store_that_hangs_delays_no_command_that_does_not_need_it() {
    let server = Server::with(&["--ephemeral"]);
    let user = User::for_server(&server);
    user.workspace.must(&["create", "shop"]);
    user.exec("shop", "git init -q . && echo 1 >file");
    let (_listener, endpoint) = start_hanging_store();
    user.configure(&format!("[objects]\nurl = \"s3://bucket\"\nendpoint = \"{endpoint}\"\n"));
    let with_store = |word| {
        let program = Program::new(word).at(&server).variable("XDG_DATA_HOME", user.home.path().join("data"));
        let program = program.variable("XDG_CONFIG_HOME", user.home.path().join("config"));
        program.variable("AWS_ACCESS_KEY_ID", "key").variable("AWS_SECRET_ACCESS_KEY", "secret")
    };
    let (workspace, tool, mcp) = (with_store("workspace"), with_store("tool"), with_store("mcp"));
    std::fs::write(user.home.path().join("file"), "mine").expect("a directory of our own");
    let mine = user.home.path().join("file").to_str().expect("a plain name").to_owned();
    let commit = "git add . && git -c user.name=T -c user.email=t@example.com commit --allow-empty -qm one";
    let exec = ["exec", "shop", "--", "true"];
    check_quick("exec", || drop(workspace.must(&exec)));
    // A commit is to be saved; while the store hangs, each command looks whether it answers again.
    check_quick("a commit", || drop(workspace.must(&["exec", "shop", "-c", commit])));
    check_quick("exec after a commit", || drop(workspace.must(&exec)));
    check_quick("list", || drop(workspace.must(&["list"])));
    check_quick("show", || drop(workspace.must(&["show", "shop"])));
    check_quick("cp", || drop(workspace.must(&["cp", &mine, "shop:copy"])));
    check_quick("tool", || drop(tool.must(&["bash", r#"{"command": "cat copy"}"#, "--workspace", "shop"])));
    check_quick("mcp", || call_over_mcp(&mcp));
    user.configure("");
    user.workspace.must(&["destroy", "shop", "--yes"]);
}

/// The studio's records are in Postgres, whose URL `down` reads from the server's note.
#[test]
fn down_saves_the_workspaces_of_a_studio_on_postgres() {
    let database = testing::postgres::database();
    let server = Server::with(&["--database", &database]);
    let studio = User::with_settings(|program| program.at(&server).variable("STUDIO_DATABASE", &database));
    let objects = server.data().join("studio/objects");
    studio.configure(&format!(
        "[records]\nurl_env = \"STUDIO_DATABASE\"\n[objects]\nurl = \"file://{}\"\n",
        objects.display()
    ));
    let id = text_of(&studio.workspace.json(&["create", "job"]), "sandboxID");
    studio.exec("job", "echo built >file");
    let owner = User::for_server(&server);
    let ended = owner.down.json(&[]);
    assert_eq!(
        (text_of(&ended["saved"][0], "workspace"), text_of(&ended["saved"][0], "sandboxID")),
        ("job".into(), id),
        "{ended}"
    );
    let shown = studio.workspace.json(&["list"]);
    assert_eq!(text_of(&shown[0], "state"), "stopped", "its end is noted: {shown}");
    let note = server.file("server.json");
    assert!(!note.exists(), "nothing is left of the password");
    let again = owner.down.run(&[]);
    assert!(!text(&again.stdout).contains("postgres") && !text(&again.stderr).contains("postgres"), "{again:?}");
}

/// Runs `sandbar studio` on this database until it is ready, then kills it.
fn run_studio(server: &Server, database: &str) {
    let home = tempfile::tempdir().expect("a directory");
    let program = Program::new("studio").variable("SANDBAR_DATABASE", database);
    let program = program.variable("XDG_DATA_HOME", home.path()).variable("XDG_CONFIG_HOME", home.path());
    let data = server.data().to_str().expect("a plain name");
    let mut command = program.command(&["--data", data, "--listen", "127.0.0.1:0", "--builds", "0"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
    let ready = lines.any(|line| line.starts_with("ready: "));
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    assert!(ready, "the studio did not become ready");
}

/// Two studios that are processes of their own, on databases of their own: one was started with the
/// server's data directory, the other is named by the caller.
#[test]
fn down_saves_the_workspaces_of_separate_studios() {
    let server = Server::with(&["--no-studio"]);
    let databases = [testing::postgres::database(), testing::postgres::database()];
    run_studio(&server, &databases[0]);
    let objects = server.data().join("studio/objects");
    for (job, database) in ["job-one", "job-two"].into_iter().zip(&databases) {
        let studio = User::with_settings(|program| program.at(&server).variable("STUDIO_DATABASE", database));
        studio.configure(&format!(
            "[records]\nurl_env = \"STUDIO_DATABASE\"\n[objects]\nurl = \"file://{}\"\n",
            objects.display()
        ));
        studio.workspace.must(&["create", job]);
        studio.exec(job, "echo built >file");
    }
    let owner = User::for_server(&server);
    let refused = owner.down.fails(1, &[]);
    assert!(refused.contains("job-two") && !refused.contains("job-one"), "nothing names its database: {refused}");
    let ended = owner.down.json(&["--database", &databases[1]]);
    let mut saved: Vec<String> =
        ended["saved"].as_array().expect("a list").iter().map(|saved| text_of(saved, "workspace")).collect();
    saved.sort();
    assert_eq!(saved, ["job-one", "job-two"], "{ended}");
    let left = std::fs::read_dir(server.file("studio-databases")).expect("a directory").count();
    assert_eq!(left, 0, "nothing is left of a password");
    let again = owner.down.run(&[]);
    assert!(!text(&again.stdout).contains("postgres") && !text(&again.stderr).contains("postgres"), "{again:?}");
}
