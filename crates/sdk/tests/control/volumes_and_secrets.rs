//! Volumes and secrets.

use std::collections::BTreeMap;

use bytes::Bytes;
use fake::{FakeServer, Fault};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use sandbar_sdk::model::volume::{EntryKind, VolumeEntryUpdate};
use sandbar_sdk::secrets::SecretError;
use sandbar_sdk::volumes::{EntryOptions, VolumeError};
use sandbar_sdk::{CallError, Create, CreateError, Secret};

#[tokio::test]
async fn a_volume_holds_files() {
    let server = FakeServer::start().await;
    let client = server.client();
    let volumes = client.volumes();
    let volume = volumes.create("cache").await.expect("a volume");
    let error = volumes.create("cache").await.expect_err("the name is taken");
    assert!(matches!(error, CallError::Invalid { .. }), "{error:?}");
    assert_eq!(volumes.list().await.expect("a list")[0].volume_id, volume.id());
    let volume = volumes.get(volume.id()).await.expect("it exists");

    let written = volume.write("/a b/ü.txt", "one").await.expect("a file");
    assert_eq!((written.name.as_str(), written.kind, written.size), ("ü.txt", EntryKind::File, 3));
    volume.write("/a b/ü.txt", "three").await.expect("it is replaced");
    assert_eq!(volume.read("/a b/ü.txt").await.expect("the content"), "three");

    let pieces = stream::iter((0..64).map(|_| Ok(Bytes::from(vec![7; 64 * 1024]))));
    let options = EntryOptions { mode: Some(0o600), uid: Some(5), ..EntryOptions::default() };
    let big = volume.write_stream("/big", pieces, options).await.expect("a file");
    assert_eq!((big.size, big.mode, big.uid), (4 << 20, 0o600, 5));
    let read =
        volume.read_stream("/big").await.expect("a stream").try_fold(0, async |sum, piece| Ok(sum + piece.len()));
    assert_eq!(read.await.expect("all of it"), 4 << 20);

    let error = volume.make_dir("/x/y", EntryOptions::default()).await.expect_err("no parent");
    assert!(matches!(error, VolumeError::PathNotFound { .. }), "{error:?}");
    volume.make_dir("/x/y", EntryOptions { force: Some(true), ..EntryOptions::default() }).await.expect("directories");
    let names = async |depth| -> Vec<String> {
        volume.list("/", depth).await.expect("a list").into_iter().map(|entry| entry.path).collect()
    };
    assert_eq!(names(1).await, ["/a b", "/big", "/x"]);
    assert_eq!(names(2).await, ["/a b", "/a b/ü.txt", "/big", "/x", "/x/y"]);
    let update = VolumeEntryUpdate { mode: Some(0o755), ..VolumeEntryUpdate::default() };
    assert_eq!(volume.update("/big", update).await.expect("it is changed").mode, 0o755);
    assert_eq!(volume.stat("/big").await.expect("it exists").uid, 5);

    assert!(volume.remove("/x").await.expect("it goes"));
    assert!(!volume.remove("/x").await.expect("an answer"), "it is gone already");
    assert!(!volume.exists("/x/y").await.expect("an answer"));
    let error = volume.read("/none").await.expect_err("it does not exist");
    assert!(matches!(&error, VolumeError::PathNotFound { path, .. } if path == "/none"), "{error:?}");

    let mounted = client.create(Create::template("base").volume("cache", "/mnt")).await.expect("a sandbox");
    assert_eq!(mounted.info().await.expect("it exists").listed.volume_mounts[0].name, "cache");
    let error = client.create(Create::template("base").volume("none", "/mnt")).await.expect_err("no such volume");
    assert!(matches!(error, CreateError::Call(CallError::Invalid { .. })), "{error:?}");

    assert!(volumes.delete(volume.id()).await.expect("it is deleted"));
    assert!(!volumes.delete(volume.id()).await.expect("an answer"));
    let error = volumes.get(volume.id()).await.expect_err("it is gone");
    assert!(matches!(error, VolumeError::NotFound { .. }), "{error:?}");

    // Content calls carry the volume's token, never the API key.
    let content = server.requests().into_iter().filter(|request| request.target.starts_with("/volumecontent/"));
    let bearer = format!("Bearer {}", volume.token().expose());
    for request in content {
        assert_eq!(request.headers["authorization"], bearer.as_str());
        assert!(!request.headers.contains_key("x-api-key"));
    }
}

#[tokio::test]
async fn a_failing_source_differs_from_a_broken_connection() {
    let server = FakeServer::start().await;
    let volume = server.client().volumes().create("v").await.expect("a volume");
    let broken = stream::iter([Ok(Bytes::from_static(b"a")), Err(std::io::Error::other("the disk is gone"))]);
    let error = volume.write_stream("/f", broken, EntryOptions::default()).await.expect_err("it breaks off");
    assert!(
        matches!(&error, VolumeError::Source { source, .. } if source.to_string() == "the disk is gone"),
        "{error:?}"
    );
    assert!(!volume.exists("/f").await.expect("an answer"), "half a body is no request");

    server.fail_next("PUT /volumecontent/*/file", 1, Fault::cut());
    let whole = stream::iter([Ok(Bytes::from_static(b"a"))]).boxed();
    let error = volume.write_stream("/f", whole, EntryOptions::default()).await.expect_err("it is cut");
    assert!(matches!(error, VolumeError::Call(CallError::ConnectionLost { .. })), "{error:?}");
    server.fail_next("PUT /volumecontent/*/file", 1, Fault::cut());
    volume.write("/f", "whole").await.expect("what is whole is sent again");
}

#[tokio::test]
async fn secret_values_are_never_returned() {
    let server = FakeServer::start().await;
    let client = server.client();
    let secrets = client.secrets();
    let value = Secret::from("sesame");
    let metadata = BTreeMap::from([("for".to_owned(), "tests".to_owned())]);
    let made = secrets.create("door", &value, Some(metadata.clone())).await.expect("a secret");
    assert_eq!((made.current_version, &made.metadata), (1, &metadata));
    let error = secrets.create("door", &value, None).await.expect_err("the name is taken");
    assert!(matches!(&error, CallError::Invalid { .. }), "{error:?}");
    assert!(!format!("{made:?} {error:?}").contains("sesame"));

    let updated = secrets.update("door", &Secret::from("simsim"), None).await.expect("a new version");
    assert_eq!((updated.current_version, &updated.metadata), (2, &metadata), "metadata stays");
    for name in ["door", &made.secret_id] {
        assert_eq!(secrets.get(name).await.expect("it exists").secret_id, made.secret_id);
    }
    secrets.create("window", &value, None).await.expect("a secret");
    let all: Vec<_> = secrets.list().try_collect().await.expect("a list");
    assert_eq!(all.len(), 2);
    assert!(secrets.delete("door").await.expect("it is deleted"));
    assert!(!secrets.delete("door").await.expect("an answer"));
    let error = secrets.get("door").await.expect_err("it is gone");
    assert!(matches!(error, SecretError::NotFound { .. }), "{error:?}");
}
