//! Stream errors when a sandbox ends.

use std::time::{Duration, Instant};

use futures::TryStreamExt;
use sandbar_sdk::{CommandError, FileError, GoneReason, Watch};

use testing::Server;

/// How soon a stream must end: the connection breaks, then two checks.
const SOON: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_killed_sandbox_ends_its_streams() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let running = sandbox.commands().start("sleep 100").await.expect("it starts");
    let mut watch = sandbox.files().watch("/tmp", Watch::default()).await.expect("it is watched");
    let waiting = tokio::spawn(running.wait());
    let watching = tokio::spawn(async move { watch.try_next().await });

    let killed = Instant::now();
    assert!(sandbox.kill().await.expect("it ends"));
    let error = waiting.await.expect("no panic").expect_err("it is gone");
    assert!(matches!(error, CommandError::SandboxGone { reason: GoneReason::Ended, .. }), "{error:?}");
    let error = watching.await.expect("no panic").expect_err("it is gone");
    assert!(matches!(error, FileError::SandboxGone { reason: GoneReason::Ended, .. }), "{error:?}");
    assert!(killed.elapsed() < SOON, "{:?}", killed.elapsed());

    let error = sandbox.commands().run("true").await.expect_err("it is gone");
    assert!(matches!(error, CommandError::SandboxGone { reason: GoneReason::Ended, .. }), "{error:?}");
    assert!(error.to_string().contains(sandbox.id().as_str()), "{error}");
    let error = sandbox.commands().list().await.expect_err("it is gone");
    assert!(matches!(error, CommandError::SandboxGone { reason: GoneReason::Ended, .. }), "{error:?}");
    for error in [sandbox.files().read("x").await.map(drop), sandbox.files().stat("x").await.map(drop)] {
        let error = error.expect_err("it is gone");
        assert!(matches!(error, FileError::SandboxGone { reason: GoneReason::Ended, .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_pause_ends_streams_and_preserves_processes() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let running = sandbox.commands().start("sleep 100; echo done").await.expect("it starts");
    let pid = running.pid();
    let waiting = tokio::spawn(running.wait());

    let paused = Instant::now();
    sandbox.client().pause(sandbox.id(), sandbar_sdk::Pause::default()).await.expect("it pauses");
    let error = waiting.await.expect("no panic").expect_err("it is paused");
    assert!(matches!(error, CommandError::SandboxGone { reason: GoneReason::Paused, .. }), "{error:?}");
    assert!(paused.elapsed() < SOON, "{:?}", paused.elapsed());
    let error = sandbox.files().read("x").await.expect_err("it is paused");
    assert!(matches!(error, FileError::SandboxGone { reason: GoneReason::Paused, .. }), "{error:?}");

    let again = sandbox.client().connect(sandbox.id(), sandbar_sdk::Connect::default()).await.expect("it resumes");
    let running = again.commands().connect(pid).await.expect("the process is still there");
    assert!(running.kill().await.expect("it is there"));
    assert!(!running.wait().await.expect("it ends").exit.exited);
    again.kill().await.expect("it ends");
}
