//! Shared helpers of the checkpoint tests.

use std::time::Duration;

use sandbar_checkpoint::{CheckpointSettings, Checkpoints, Objects, ProjectId, S3Config};
use sdk::Sandbox;
use testing::S3Server;
use workspace::ClientSandbox;

use testing::trees::python;
pub(crate) use testing::trees::{assert_same, run, tree_of as tree};

/// Checkpoints with a short backoff.
pub(crate) fn checkpoints(objects: Objects) -> Checkpoints {
    Checkpoints::new(objects)
        .with(CheckpointSettings { backoff: Duration::from_millis(10), ..CheckpointSettings::default() })
}

/// Objects of the S3 server under their own prefix.
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

/// A sandbox of the real client.
pub(crate) fn port(sandbox: &Sandbox) -> ClientSandbox {
    ClientSandbox(sandbox.clone())
}

pub(crate) fn project(name: &str) -> ProjectId {
    name.parse().expect("a project's id")
}

/// Makes a tree with everything that is hard to archive.
pub(crate) async fn make_hostile_tree(sandbox: &Sandbox) {
    python(sandbox, include_str!("hostile.py")).await;
}
