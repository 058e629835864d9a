//! What the tests of snapshots share; and trees of files that are compared without the code under test.

use std::time::Duration;

use sandbar_workspace::snapshot::{Objects, ProjectId, S3Config, Settings, Snapshots};
use sdk::Sandbox;
use testing::S3Server;

/// Snapshots that are tried again at once.
pub(crate) fn snapshots(objects: Objects) -> Snapshots {
    Snapshots::new(objects).with(Settings { backoff: Duration::from_millis(10), ..Settings::default() })
}

/// Objects of the S3 server under a prefix of one's own.
pub(crate) fn s3_objects(server: &S3Server, prefix: &str, secret: &str) -> Objects {
    let config = S3Config {
        bucket: S3Server::BUCKET.to_owned(),
        prefix: prefix.to_owned(),
        region: S3Server::REGION.to_owned(),
        endpoint: Some(server.endpoint()),
        credentials: Some((S3Server::KEY_ID.to_owned(), secret.into())),
    };
    assert!(!format!("{config:?}").contains(secret), "secrets are not shown");
    Objects::s3(config).expect("a store")
}

pub(crate) fn project(name: &str) -> ProjectId {
    name.parse().expect("a project's id")
}

/// Runs a line as root, which must succeed.
pub(crate) async fn run(sandbox: &Sandbox, line: &str) -> String {
    let command = sdk::Command::exec("/bin/bash", ["-c", line]).user("root").cwd("/home/user");
    let output = sandbox.commands().run(command).await.expect("the sandbox answers");
    assert!(output.success(), "{line}\n{}{}", output.stdout_text(), output.stderr_text());
    output.stdout_text().into_owned()
}

async fn python(sandbox: &Sandbox, text: &str) -> String {
    let command = sdk::Command::exec("python3", ["-c", text]).user("root").cwd("/home/user");
    let output = sandbox.commands().run(command).await.expect("the sandbox answers");
    assert!(output.success(), "{}", output.stderr_text());
    output.stdout_text().into_owned()
}

/// Everything about every file below the home directory, one line each.
pub(crate) async fn tree(sandbox: &Sandbox) -> Vec<String> {
    let text = python(sandbox, include_str!("tree.py")).await;
    text.lines().map(str::to_owned).collect()
}

/// Makes a tree with everything that is hard to keep.
pub(crate) async fn make_hostile_tree(sandbox: &Sandbox) {
    python(sandbox, include_str!("hostile.py")).await;
}

#[track_caller]
pub(crate) fn assert_same(found: &[String], wanted: &[String]) {
    let differing = |a: &[String], b: &[String]| a.iter().filter(|line| !b.contains(line)).cloned().collect::<Vec<_>>();
    assert!(
        found == wanted,
        "the trees differ; missing:\n{}\ntoo much:\n{}",
        differing(wanted, found).join("\n"),
        differing(found, wanted).join("\n")
    );
}
