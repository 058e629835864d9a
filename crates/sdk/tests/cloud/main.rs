//! The contract on E2B's cloud. Runs when `E2B_API_KEY` is set and the endpoint is the cloud's;
//! skipped otherwise, because it needs an account and costs money.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use sandbar_sdk::{
    Chunk, Client, Command, CommandError, Connect, Create, Expiry, FileError, FileEventKind, GoneReason, ListQuery,
    Pause, SandboxError, Shell, Size, Watch,
};

/// A client of the cloud, if a key is set.
fn cloud() -> Option<Client> {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let elsewhere = ["E2B_API_URL", "E2B_SANDBOX_URL", "E2B_DOMAIN"].into_iter().filter_map(set);
    let ours = elsewhere.into_iter().any(|value| !value.contains("e2b."));
    if set("E2B_API_KEY").is_none() || ours {
        eprintln!("skipped: E2B_API_KEY is not set, or the endpoint is not E2B's cloud");
        return None;
    }
    Some(Client::from_env().expect("the environment is set for the cloud"))
}

fn create() -> Create {
    Create::template("base").timeout(Duration::from_secs(300)).metadata("purpose", "sandbar-sdk-test")
}

#[tokio::test]
async fn commands_and_terminals_run() {
    let Some(client) = cloud() else { return };
    let sandbox = client.create(create()).await.expect("a sandbox");
    let commands = sandbox.commands();

    let output = commands.run("echo out; echo err >&2; exit 3").await.expect("it runs");
    assert_eq!((&output.stdout[..], &output.stderr[..], output.exit.code), (&b"out\n"[..], &b"err\n"[..], 3));
    let output = commands.run(Command::exec("printf", ["%s", "it's $HOME"])).await.expect("it runs");
    assert_eq!(output.stdout_text(), "it's $HOME");
    let error = commands.run(Command::new("sleep 30").timeout(Duration::from_secs(1))).await.expect_err("too long");
    assert!(matches!(error, CommandError::DeadlineExceeded { .. }), "{error:?}");
    let error = commands.connect(999_999).await.expect_err("no such process");
    assert!(matches!(error, CommandError::NotFound { .. }), "{error:?}");

    let cat = commands.start(Command::new("cat").stdin()).await.expect("it starts");
    cat.send_stdin("through").await.expect("it is taken");
    cat.close_stdin().await.expect("it is closed");
    assert_eq!(cat.wait().await.expect("it ends").stdout, "through");

    let mut bytes = 0;
    let exit = commands.run_with("head -c 20000000 /dev/zero", |chunk| bytes += chunk.bytes().len()).await;
    assert_eq!((exit.expect("it runs").code, bytes), (0, 20_000_000));

    let mut shell = sandbox.pty().create(Size { cols: 91, rows: 33 }, Shell::default()).await.expect("it opens");
    shell.resize(Size { cols: 77, rows: 22 }).await.expect("it is resized");
    shell.send_stdin("echo \"size $(stty size)\"; exit\n").await.expect("it is typed");
    let mut shown = String::new();
    while let Some(Chunk::Pty(text)) = shell.next().await.expect("it streams") {
        shown.push_str(&String::from_utf8_lossy(&text));
    }
    assert!(shown.contains("size 22 77"), "{shown:?}");
    assert!(sandbox.kill().await.expect("it ends"));
}

#[tokio::test]
async fn files() {
    let Some(client) = cloud() else { return };
    let sandbox = client.create(create()).await.expect("a sandbox");
    let files = sandbox.files();

    let mut events = files.watch("/home/user", Watch::default()).await.expect("it is watched");
    let written = files.write("ü \"quoted\".txt", "content").await.expect("it is written");
    assert_eq!(files.read_text(&written.path).await.expect("it is there"), "content");
    let event =
        tokio::time::timeout(Duration::from_secs(20), events.next()).await.expect("in time").expect("it goes on");
    assert_eq!(event.expect("it goes on").kind, FileEventKind::Create);

    let chunks = stream::iter((0..32).map(|number| Ok::<_, std::io::Error>(Bytes::from(vec![number; 1024 * 1024]))));
    files.write_stream("big", chunks).await.expect("it is written");
    let mut down = files.read_stream("big").await.expect("it is there");
    let mut arrived = 0;
    while let Some(chunk) = down.try_next().await.expect("it streams") {
        arrived += chunk.len();
    }
    assert_eq!(arrived, 32 * 1024 * 1024);
    let many = (0..50).map(|number| (format!("many/{number}"), number.to_string()));
    assert_eq!(files.write_many(many).await.expect("all are written").len(), 50);
    assert_eq!(files.list("many").await.expect("a list").len(), 50);

    let link = files.download_url(&written.path, Expiry::After(Duration::from_secs(60))).expect("a link");
    let answer = reqwest::get(link).await.expect("an answer");
    assert_eq!(answer.text().await.expect("a body"), "content");
    let error = files.read("none").await.expect_err("it is not there");
    assert!(matches!(error, FileError::NotFound { .. }), "{error:?}");
    assert!(sandbox.kill().await.expect("it ends"));
}

#[tokio::test]
async fn lifecycle() {
    let Some(client) = cloud() else { return };
    let sandbox = client.create(create()).await.expect("a sandbox");
    let id = sandbox.id().clone();
    let listed: Vec<_> = client.list(ListQuery::default()).try_collect().await.expect("a list");
    assert!(listed.iter().any(|listed| listed.sandbox_id == id.as_str()), "{id} is not listed");

    let sleeper = sandbox.commands().start(Command::new("sleep 250").no_timeout()).await.expect("it starts");
    let pid = sleeper.pid();
    client.pause(&id, Pause::default()).await.expect("it pauses");
    let error = sleeper.wait().await.expect_err("it is paused");
    assert!(matches!(error, CommandError::SandboxGone { reason: GoneReason::Paused, .. }), "{error:?}");
    let sandbox = client.connect(&id, Connect::default()).await.expect("it resumes");
    let sleeper = sandbox.commands().connect(pid).await.expect("it is still there");

    let killed = Instant::now();
    assert!(sandbox.kill().await.expect("it ends"));
    let error = sleeper.wait().await.expect_err("it is gone");
    assert!(matches!(error, CommandError::SandboxGone { reason: GoneReason::Ended, .. }), "{error:?}");
    assert!(killed.elapsed() < Duration::from_secs(60), "{:?}", killed.elapsed());
    let error = client.info(&id).await.expect_err("it is gone");
    assert!(matches!(error, SandboxError::NotFound { .. }), "{error:?}");
    assert!(!client.kill(&id).await.expect("it is gone already"));
}
