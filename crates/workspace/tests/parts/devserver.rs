//! Dev servers of real programs: found out, started, waited for, left alone, restarted, ended.

use std::time::Duration;

use sandbar_workspace::devserver::{
    self, Choice, DevServer, DevServerError, LOG, Patience, Start, detect, start_within,
};
use sdk::{Pause, Sandbox};
use testing::Server;

use crate::support::{PROJECT, run};

/// What a busy machine may need.
const PATIENCE: Patience = Patience { install: Duration::from_secs(120), ready: Duration::from_secs(90) };

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

async fn fetched(sandbox: &Sandbox, port: u16) -> String {
    run(
        sandbox,
        &format!("exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3 | tail -n 1"),
    )
    .await
}

/// Processes that were started for a dev server.
async fn marked(sandbox: &Sandbox) -> String {
    run(sandbox, "grep -lsz ^SANDBAR_TASK=devserver /proc/[0-9]*/environ | sort").await
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_served_by_python_and_the_server_is_left_alone_until_it_changes() {
    let (_server, sandbox) = with_files(&[("index.html", "hello")]).await;
    let server = found(&sandbox).await;
    assert_eq!((server.port, server.install_command.as_deref()), (8000, None));
    let ready = start_within(&sandbox, &server, Start::Plain, PATIENCE).await.expect("it answers");
    assert_eq!((ready.port, ready.ran_already), (8000, false));
    assert_eq!(fetched(&sandbox, 8000).await, "hello");
    assert!(run(&sandbox, &format!("cat {LOG}")).await.contains("GET / HTTP/1.1"), "what it says is kept");

    let first = marked(&sandbox).await;
    let ready = start_within(&sandbox, &server, Start::Plain, PATIENCE).await.expect("it answers");
    assert!(ready.ran_already);
    assert_eq!(marked(&sandbox).await, first, "nothing was started or ended");

    // Another command is another server, and the first makes room for it.
    let other =
        DevServer::new("mkdir -p sub && echo other >sub/index.html && python3 -m http.server $PORT -d sub", 8000);
    let ready = start_within(&sandbox, &other, Start::Plain, PATIENCE).await.expect("it answers");
    assert!(!ready.ran_already);
    assert_eq!(fetched(&sandbox, 8000).await, "other");

    devserver::end_leftovers(&sandbox).await.expect("it ends");
    assert_eq!(marked(&sandbox).await, "");
    devserver::end_leftovers(&sandbox).await.expect("there is nothing to end");

    // What somebody else has started serves as well, and is nobody's to end.
    let by_hand = "setsid python3 -m http.server 8000 >/dev/null 2>&1 </dev/null & for i in $(seq 600); do \
                   (: <>/dev/tcp/127.0.0.1/8000) 2>/dev/null && exit 0; sleep 0.1; done; exit 1";
    run(&sandbox, by_hand).await;
    assert!(start_within(&sandbox, &server, Start::Plain, PATIENCE).await.expect("it answers").ran_already);
    devserver::end_leftovers(&sandbox).await.expect("there is nothing to end");
    assert_eq!(fetched(&sandbox, 8000).await, "hello");
    sandbox.kill().await.expect("it ends");
}

/// What really answers is shown, whatever the files may speak of.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_somebody_started_is_chosen_before_one_that_could_be() {
    let (_server, sandbox) = with_files(&[("index.html", "hello")]).await;
    let choose = async |declared| devserver::choose(&sandbox, PROJECT, declared).await.expect("it answers");
    let guess = found(&sandbox).await;
    let port = |choice: &Choice| choice.server.as_ref().map(|server| server.port);
    assert_eq!(choose(None).await, Choice { server: Some(guess.clone()), else_at: None });

    // A port that answers nothing of HTTP is none; one that answers is seen also where only the newer loopback has it.
    let by_hand = "setsid python3 -c 'import socket,time; s=socket.create_server((\"\", 4000)); time.sleep(9999)' \
                   >/dev/null 2>&1 </dev/null & \
                   setsid python3 -m http.server 3000 --bind ::1 >/dev/null 2>&1 </dev/null & \
                   for port in ::1/3000 127.0.0.1/4000; do for i in $(seq 600); do \
                   (: <>/dev/tcp/$port) 2>/dev/null && break; sleep 0.1; done; done";
    run(&sandbox, by_hand).await;
    let chosen = choose(None).await;
    assert_eq!((port(&chosen), chosen.else_at), (Some(3000), None), "{chosen:?}");
    let ready = start_within(&sandbox, &chosen.server.clone().expect("a server"), Start::Plain, PATIENCE).await;
    assert!(ready.expect("it answers").ran_already);

    // A guess of ours that runs makes room for it; what somebody declared is not asked about.
    start_within(&sandbox, &guess, Start::Plain, PATIENCE).await.expect("it answers");
    let chosen = choose(Some(guess)).await;
    assert_eq!((port(&chosen), chosen.else_at), (Some(3000), Some(8000)), "{chosen:?}");
    let declared = DevServer::new("npm run dev", 5000);
    assert_eq!(choose(Some(declared.clone())).await.server, Some(declared));

    // Without any file that speaks of a server, whatever answers.
    run(&sandbox, &format!("rm {PROJECT}/index.html")).await;
    devserver::end_leftovers(&sandbox).await.expect("it ends");
    assert_eq!(choose(None).await, Choice { server: None, else_at: Some(3000) });
    sandbox.kill().await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_of_node_is_installed_after_a_restore_and_survives_a_pause() {
    let package = r#"{"name": "shop", "scripts": {"dev": "node server.js"}}"#;
    // Ends with its input, as some do. Its child stands for what bundlers start.
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

    let failed = start_within(&sandbox, &dev, Start::Plain, PATIENCE).await.expect_err("nothing is generated yet");
    let DevServerError::Died { log, .. } = &failed else { panic!("{failed:?}") };
    assert!(log.contains("generated/text") && log.contains("[ended with exit status 1]"), "{log}");
    start_within(&sandbox, &dev, Start::AfterRestore, PATIENCE).await.expect("it answers");
    assert_eq!(fetched(&sandbox, 4321).await, "built");

    // Frozen in the middle of its life, then ended with all it has started, and started without installing.
    sandbox.pause(Pause::default()).await.expect("it is paused");
    let id = sandbox.id().clone();
    let sandbox = server.client().connect(&id, sdk::Connect::default()).await.expect("it is resumed");
    assert_eq!(run(&sandbox, "pgrep -xc sleep").await, "1");
    devserver::end_leftovers(&sandbox).await.expect("it ends");
    assert_eq!((marked(&sandbox).await, run(&sandbox, "pgrep -xc sleep || true").await), (String::new(), "0".into()));
    let ready = start_within(&sandbox, &dev, Start::Plain, PATIENCE).await.expect("it answers");
    assert!(!ready.ran_already);
    assert_eq!(run(&sandbox, "wc -l <generated/runs").await, "1");

    dev.install_command = Some("echo half; echo no such package >&2; exit 7".to_owned());
    let failed = start_within(&sandbox, &dev, Start::AfterRestore, PATIENCE).await.expect_err("it cannot be installed");
    assert!(matches!(&failed, DevServerError::Install { code: 7, .. }), "{failed:?}");
    assert!(failed.to_string().contains("no such package"), "{failed}");
    sandbox.kill().await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_application_is_found_and_its_log_stays_small() {
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
    // Two megabytes of lines for the first question already.
    start_within(&sandbox, &server, Start::Plain, PATIENCE).await.expect("it answers");
    assert_eq!(fetched(&sandbox, 8123).await, "wsgi");
    let size = run(&sandbox, &format!("cat {LOG} {LOG}.1 | wc -c")).await;
    assert!((100_000..=1_048_576).contains(&size.parse::<u64>().expect("a number")), "{size}");
    assert!(run(&sandbox, &format!("cat {LOG}.1 {LOG} | tail -n 3")).await.contains("line 29999"));
    sandbox.kill().await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_answer_is_an_error_with_its_log() {
    let (_server, sandbox) = with_files(&[]).await;
    assert_eq!(detect(&sandbox, PROJECT).await.expect("it answers"), None);
    assert_eq!(detect(&sandbox, "/nowhere").await.expect("it answers"), None);

    let dumb = DevServer::new("echo compiling; exec sleep 100000", 8000);
    let short = Patience { ready: Duration::from_secs(2), ..PATIENCE };
    let failed = start_within(&sandbox, &dumb, Start::Plain, short).await.expect_err("it never answers");
    assert!(matches!(&failed, DevServerError::NotReady { port: 8000, .. }), "{failed:?}");
    assert!(failed.to_string().ends_with("within 2s and was left running:\ncompiling"), "{failed}");

    // The next one takes its place.
    let dead = DevServer::new("echo cannot find module >&2; exit 9", 8000);
    let failed = start_within(&sandbox, &dead, Start::Plain, PATIENCE).await.expect_err("it ends at once");
    let DevServerError::Died { code: 9, log, .. } = &failed else { panic!("{failed:?}") };
    assert_eq!(log, "cannot find module\n[ended with exit status 9]");
    assert_eq!(marked(&sandbox).await, "");

    // Whoever goes into the background ends well and answers all the same.
    let behind = DevServer::new("setsid python3 -m http.server 8000 >/dev/null 2>&1 & exit 0", 8000);
    start_within(&sandbox, &behind, Start::Plain, PATIENCE).await.expect("it answers");
    devserver::end_leftovers(&sandbox).await.expect("it ends");
    assert_eq!(marked(&sandbox).await, "");
    sandbox.kill().await.expect("it ends");
}
