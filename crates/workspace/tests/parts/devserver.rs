//! Dev servers of real programs: detected, started, polled, left alone, restarted, stopped.

use std::time::Duration;

use sandbar_workspace::devserver::{
    self, Choice, DevServer, DevServerError, LOG, Start, StartTimeouts, detect, start_within,
};
use sdk::{Pause, Sandbox};
use testing::Server;

use crate::support::{PROJECT, run};

/// What a busy machine may need.
const TIMEOUT: StartTimeouts = StartTimeouts { install: Duration::from_secs(120), ready: Duration::from_secs(90) };

async fn with_files(files: &[(&str, &str)]) -> (std::sync::Arc<Server>, Sandbox) {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let files = files.iter().map(|(path, text)| (format!("{PROJECT}/{path}"), (*text).to_owned()));
    sandbox.files().write_many(files).await.expect("they are written");
    run(&sandbox, &format!("mkdir -p {PROJECT}")).await;
    (server, sandbox)
}

async fn found(sandbox: &Sandbox) -> DevServer {
    detect(sandbox, PROJECT).await.expect("it answers").expect("a server")
}

async fn fetch(sandbox: &Sandbox, port: u16) -> String {
    run(
        sandbox,
        &format!("exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3 | tail -n 1"),
    )
    .await
}

/// The processes that were started for a dev server.
async fn marked(sandbox: &Sandbox) -> String {
    run(sandbox, "grep -lsz ^SANDBAR_TASK=devserver /proc/[0-9]*/environ | sort").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_server_is_kept_until_its_command_changes() {
    let (_server, sandbox) = with_files(&[("index.html", "hello")]).await;
    let server = found(&sandbox).await;
    assert_eq!((server.port, server.install_command.as_deref()), (8000, None));
    let ready = start_within(&sandbox, &server, Start::Plain, TIMEOUT).await.expect("it answers");
    assert_eq!((ready.port, ready.ran_already), (8000, false));
    assert_eq!(fetch(&sandbox, 8000).await, "hello");
    assert!(run(&sandbox, &format!("cat {LOG}")).await.contains("GET / HTTP/1.1"), "its output is kept");

    let first = marked(&sandbox).await;
    let ready = start_within(&sandbox, &server, Start::Plain, TIMEOUT).await.expect("it answers");
    assert!(ready.ran_already);
    assert_eq!(marked(&sandbox).await, first, "nothing was started or ended");

    // Another command is another server, and replaces the first.
    let other =
        DevServer::new("mkdir -p sub && echo other >sub/index.html && python3 -m http.server $PORT -d sub", 8000);
    let ready = start_within(&sandbox, &other, Start::Plain, TIMEOUT).await.expect("it answers");
    assert!(!ready.ran_already);
    assert_eq!(fetch(&sandbox, 8000).await, "other");

    devserver::stop_leftovers(&sandbox).await.expect("it ends");
    assert_eq!(marked(&sandbox).await, "");
    devserver::stop_leftovers(&sandbox).await.expect("there is nothing to end");

    // A server that another process started is used, and never stopped.
    let by_hand = "setsid python3 -m http.server 8000 >/dev/null 2>&1 </dev/null & for i in $(seq 600); do \
                   (: <>/dev/tcp/127.0.0.1/8000) 2>/dev/null && exit 0; sleep 0.1; done; exit 1";
    run(&sandbox, by_hand).await;
    assert!(start_within(&sandbox, &server, Start::Plain, TIMEOUT).await.expect("it answers").ran_already);
    devserver::stop_leftovers(&sandbox).await.expect("there is nothing to end");
    assert_eq!(fetch(&sandbox, 8000).await, "hello");
    sandbox.kill().await.expect("it ends");
}

/// A server that answers is chosen, whatever the files say.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_server_is_chosen_before_a_detected_one() {
    let (_server, sandbox) = with_files(&[("index.html", "hello")]).await;
    let choose = async |declared| devserver::choose(&sandbox, PROJECT, declared).await.expect("it answers");
    let guess = found(&sandbox).await;
    let port = |choice: &Choice| choice.server.as_ref().map(|server| server.port);
    assert_eq!(choose(None).await, Choice { server: Some(guess.clone()), fallback_port: None });

    // A port without HTTP is ignored; one that only listens on ::1 is found.
    let by_hand = "setsid python3 -c 'import socket,time; s=socket.create_server((\"\", 4000)); time.sleep(9999)' \
                   >/dev/null 2>&1 </dev/null & \
                   setsid python3 -m http.server 3000 --bind ::1 >/dev/null 2>&1 </dev/null & \
                   for port in ::1/3000 127.0.0.1/4000; do for i in $(seq 600); do \
                   (: <>/dev/tcp/$port) 2>/dev/null && break; sleep 0.1; done; done";
    run(&sandbox, by_hand).await;
    let chosen = choose(None).await;
    assert_eq!((port(&chosen), chosen.fallback_port), (Some(3000), None), "{chosen:?}");
    let ready = start_within(&sandbox, &chosen.server.clone().expect("a server"), Start::Plain, TIMEOUT).await;
    assert!(ready.expect("it answers").ran_already);

    // A detected server that we started yields to it; a declared server is taken without probing.
    start_within(&sandbox, &guess, Start::Plain, TIMEOUT).await.expect("it answers");
    let chosen = choose(Some(guess)).await;
    assert_eq!((port(&chosen), chosen.fallback_port), (Some(3000), Some(8000)), "{chosen:?}");
    let declared = DevServer::new("npm run dev", 5000);
    assert_eq!(choose(Some(declared.clone())).await.server, Some(declared));

    // Without any file that reveals a server, any port that answers is taken.
    run(&sandbox, &format!("rm {PROJECT}/index.html")).await;
    devserver::stop_leftovers(&sandbox).await.expect("it ends");
    assert_eq!(choose(None).await, Choice { server: None, fallback_port: Some(3000) });
    sandbox.kill().await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_script_is_installed_and_survives_a_pause() {
    let package = r#"{"name": "shop", "scripts": {"dev": "node server.js"}}"#;
    // Exits at end of input, as some servers do. Its child stands for those of bundlers.
    let code = r#"
        require('child_process').spawn('sleep', ['100000'], { detached: true });
        process.stdin.on('end', () => process.exit(3)).resume();
        const text = require('fs').readFileSync('generated/text', 'utf8');
        require('http').createServer((_, answer) => answer.end(text)).listen(process.env.PORT || 4321);"#;
    let (server, sandbox) = with_files(&[("package.json", package), ("server.js", code)]).await;
    let mut dev = found(&sandbox).await;
    assert_eq!((dev.command.as_str(), dev.port, dev.install_command.as_deref()), ("npm run dev", 4321, None));
    dev.install_command =
        Some("mkdir -p generated && echo >>generated/runs && printf built >generated/text".to_owned());

    let failed = start_within(&sandbox, &dev, Start::Plain, TIMEOUT).await.expect_err("nothing is generated yet");
    let DevServerError::Died { log, .. } = &failed else { panic!("{failed:?}") };
    assert!(log.contains("generated/text") && log.contains("[ended with exit status 1]"), "{log}");
    start_within(&sandbox, &dev, Start::AfterRestore, TIMEOUT).await.expect("it answers");
    assert_eq!(fetch(&sandbox, 4321).await, "built");

    // Paused while it runs, then stopped with its children, and restarted without installing.
    sandbox.pause(Pause::default()).await.expect("it is paused");
    let id = sandbox.id().clone();
    let sandbox = server.client().connect(&id, sdk::Connect::default()).await.expect("it is resumed");
    assert_eq!(run(&sandbox, "pgrep -xc sleep").await, "1");
    devserver::stop_leftovers(&sandbox).await.expect("it ends");
    assert_eq!((marked(&sandbox).await, run(&sandbox, "pgrep -xc sleep || true").await), (String::new(), "0".into()));
    let ready = start_within(&sandbox, &dev, Start::Plain, TIMEOUT).await.expect("it answers");
    assert!(!ready.ran_already);
    assert_eq!(run(&sandbox, "wc -l <generated/runs").await, "1");

    dev.install_command = Some("echo half; echo no such package >&2; exit 7".to_owned());
    let failed = start_within(&sandbox, &dev, Start::AfterRestore, TIMEOUT).await.expect_err("it cannot be installed");
    assert!(matches!(&failed, DevServerError::Install { code: 7, .. }), "{failed:?}");
    assert!(failed.to_string().contains("no such package"), "{failed}");
    sandbox.kill().await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_application_is_detected_and_its_log_bounded() {
    let code = r#"
import os, sys
from wsgiref.simple_server import make_server
def app(environ, respond):
    for number in range(30000):
        print("line", number, "x" * 60)
    respond("200 OK", [])
    return [b"wsgi"]
make_server("", int(os.environ.get("PORT", 8123)), app).serve_forever()
"#;
    let (_server, sandbox) = with_files(&[("server.py", code)]).await;
    let server = found(&sandbox).await;
    assert_eq!(server.port, 8123);
    // The first request already prints two megabytes.
    start_within(&sandbox, &server, Start::Plain, TIMEOUT).await.expect("it answers");
    assert_eq!(fetch(&sandbox, 8123).await, "wsgi");
    let size = run(&sandbox, &format!("cat {LOG} {LOG}.1 | wc -c")).await;
    assert!((100_000..=1_048_576).contains(&size.parse::<u64>().expect("a number")), "{size}");
    assert!(run(&sandbox, &format!("cat {LOG}.1 {LOG} | tail -n 3")).await.contains("line 29999"));
    sandbox.kill().await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_answer_fails_with_its_log() {
    let (_server, sandbox) = with_files(&[]).await;
    assert_eq!(detect(&sandbox, PROJECT).await.expect("it answers"), None);
    assert_eq!(detect(&sandbox, "/nowhere").await.expect("it answers"), None);

    let hung = DevServer::new("echo compiling; exec sleep 100000", 8000);
    let short = StartTimeouts { ready: Duration::from_secs(2), ..TIMEOUT };
    let failed = start_within(&sandbox, &hung, Start::Plain, short).await.expect_err("it never answers");
    assert!(matches!(&failed, DevServerError::NotReady { port: 8000, .. }), "{failed:?}");
    assert!(failed.to_string().ends_with("within 2s and was left running:\ncompiling"), "{failed}");

    // The next one replaces it.
    let dead = DevServer::new("echo cannot find module >&2; exit 9", 8000);
    let failed = start_within(&sandbox, &dead, Start::Plain, TIMEOUT).await.expect_err("it ends at once");
    let DevServerError::Died { code: 9, log, .. } = &failed else { panic!("{failed:?}") };
    assert_eq!(log, "cannot find module\n[ended with exit status 9]");
    assert_eq!(marked(&sandbox).await, "");

    // A command that daemonizes its server exits with 0 and still answers.
    let behind = DevServer::new("setsid python3 -m http.server 8000 >/dev/null 2>&1 & exit 0", 8000);
    start_within(&sandbox, &behind, Start::Plain, TIMEOUT).await.expect("it answers");
    devserver::stop_leftovers(&sandbox).await.expect("it ends");
    assert_eq!(marked(&sandbox).await, "");
    sandbox.kill().await.expect("it ends");
}
