//! An interrupted setup continues with the first step that is not done.

use std::collections::BTreeMap;
use std::time::Duration;

use sandbar_workspace::setup::{Prepare, Repo, Setup, Step, StepError};
use sdk::{Sandbox, Secret};
use testing::{Server, eventually_async};

use crate::support::{Kept, commit, error_chain, git, listens, run};

const TIMEOUT: Duration = Duration::from_secs(60);

fn commands(lines: &[&str]) -> Prepare {
    Prepare { commands: lines.iter().map(|line| (*line).to_owned()).collect(), ..Prepare::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_command_is_reported_and_retried_alone() {
    let (server, directory) = (Server::shared(&[]), tempfile::tempdir().expect("a directory"));
    git(directory.path(), &["init", "--quiet"]);
    commit(directory.path(), "a.txt", "a\n");
    let sandbox = server.sandbox().await;
    let repo = Some(Repo::parse(directory.path().to_str().expect("text")));
    let count = "echo one >>../count";
    let failing = "seq 100000; echo token-4711-token; echo oh no >&2; test -f ../mended";
    let env = BTreeMap::from([("TOKEN".to_owned(), Secret::from("token-4711-token"))]);
    let setup = Setup { repo, prepare: commands(&[count, failing, "echo three >>../count"]), env, ..Setup::default() };
    let kept = Kept::default();
    let failed = kept.set_up(&sandbox, &setup).await.expect_err("the second command fails");
    assert_eq!(failed.step, Step::Command(2));
    let StepError::CommandFailed { code: 1, tail, .. } = &failed.source else { panic!("{failed:?}") };
    assert!(tail.contains("100000\n") && tail.contains("oh no") && tail.len() < 5_000, "{tail}");
    assert!(!format!("{} {failed:?}", error_chain(&failed)).contains("4711"), "values of variables are hidden");
    assert!(!kept.progress().is_finished());

    run(&sandbox, "touch ../mended; echo mine >a.txt").await;
    kept.set_up(&sandbox, &setup).await.expect("it goes on");
    assert_eq!(run(&sandbox, "cat ../count a.txt").await, "one\nthree\nmine", "what was done is not done again");
    assert!(kept.progress().is_finished());

    // Corrected instead of repaired: steps before the correction are not repeated.
    let kept = Kept::default();
    let fresh = server.sandbox().await;
    kept.set_up(&fresh, &Setup { prepare: commands(&[count, "false"]), ..setup.clone() }).await.expect_err("it fails");
    let corrected = Setup { prepare: commands(&[count, "true", "cat ../count"]), ..setup };
    kept.set_up(&fresh, &corrected).await.expect("it goes on");
    assert_eq!(run(&fresh, "cat ../count").await, "one");
    // In another sandbox nothing is done.
    let other = server.sandbox().await;
    let unfinished = Kept::default();
    unfinished
        .set_up(&fresh, &Setup { prepare: commands(&[count, "false"]), ..corrected.clone() })
        .await
        .expect_err("it fails");
    unfinished.set_up(&other, &corrected).await.expect("all of it");
    assert_eq!(run(&other, "cat ../count").await, "one");
    for sandbox in [sandbox, fresh, other] {
        sandbox.kill().await.expect("it ends");
    }
}

/// Starts a setup and drops it when the condition `reached` holds, as a killed process does.
async fn give_up(kept: &Kept, sandbox: &Sandbox, setup: &Setup, reached: &str) {
    let far = eventually_async(reached, TIMEOUT, || async {
        let line = sdk::Command::exec("/bin/bash", ["-c", reached]);
        sandbox.commands().run(line).await.expect("it answers").success().then_some(())
    });
    tokio::select! {
        done = kept.set_up(sandbox, setup) => panic!("it should not have come to its end: {done:?}"),
        () = far => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_of_a_killed_attempt_are_killed_first() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    // Exits at once the second time. Its child ignores SIGTERM.
    let line = "echo $$ >>../runs; test -f ../again && exit 0; (trap '' TERM; while :; do sleep 1; done)";
    // Background processes of a completed command are kept.
    let first = "echo first >>../runs; setsid sleep 54321 >/dev/null 2>&1 &";
    let setup = Setup { prepare: commands(&[first, line]), ..Setup::default() };
    let kept = Kept::default();
    give_up(&kept, &sandbox, &setup, "test $(wc -l <~/runs) = 2").await;
    run(&sandbox, "touch ../again").await;
    kept.set_up(&sandbox, &setup).await.expect("it goes on");
    assert_eq!(run(&sandbox, "wc -l <../runs").await, "3", "the first command ran once, the second twice");
    // Also after the hung command was corrected.
    let kept = Kept::default();
    let hung = Setup { prepare: commands(&[first, "exec sleep 12345"]), ..Setup::default() };
    give_up(&kept, &sandbox, &hung, "pgrep -f '[s]leep 12345'").await;
    let corrected = Setup { prepare: commands(&[first, "true"]), ..Setup::default() };
    kept.set_up(&sandbox, &corrected).await.expect("it goes on");
    let left = "for file in $(grep -lsz ^SANDBAR_TASK= /proc/[0-9]*/environ); do cat ${file%/*}/comm; done";
    assert_eq!(run(&sandbox, left).await, "sleep");
    assert_eq!(run(&sandbox, "pgrep -fc '[s]leep 54321'").await, "1");
    sandbox.kill().await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partial_clone_is_removed_before_the_next() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    run(
        &sandbox,
        r#"set -e; git init -q ~/shop; cd ~/shop; echo a >a; git add a
        git -c user.name=a -c user.email=a@b commit -qm a"#,
    )
    .await;
    // Accepts the connection and stays silent until it is killed.
    let silent = "import socket; s = socket.create_server(('127.0.0.1', 9418)); s.listen(); c = s.accept(); input()";
    let silent = sdk::Command::exec("python3", ["-c", silent]).stdin().no_timeout();
    let silent = sandbox.commands().start(silent).await.expect("it starts");
    listens(&sandbox, 9418).await;
    let setup = Setup { repo: Some(Repo::parse("git://127.0.0.1/shop")), ..Setup::default() };
    let kept = Kept::default();
    // The stage exists, and git waits for the first byte.
    give_up(&kept, &sandbox, &setup, "ls -d ~/.sandbar/clone.*/.git").await;
    silent.kill().await.expect("it ends");
    let daemon = "git daemon --listen=127.0.0.1 --base-path=/home/user --export-all --reuseaddr";
    sandbox.commands().start(sdk::Command::new(daemon).no_timeout()).await.expect("it starts");
    listens(&sandbox, 9418).await;
    kept.set_up(&sandbox, &setup).await.expect("it is cloned");
    assert_eq!(run(&sandbox, "cat a; ls -A ~/.sandbar; pgrep -fc '[g]it clone' || true").await, "a\n0");
    sandbox.kill().await.expect("it ends");
}
