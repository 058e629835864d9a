//! What every store promises, on all of them.

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path as Key;
use sandbar_workspace::snapshot::{Condition, ConditionalPuts, Objects, StoreError};
use testing::S3Server;

use crate::support::s3_objects;

const KEPT: Condition = Condition::Kept;

#[tokio::test]
async fn memory_keeps_the_promises() {
    contract(Objects::memory(), ConditionalPuts { create: KEPT, update: KEPT }).await;
}

#[tokio::test]
async fn a_directory_keeps_the_promises() {
    let directory = tempfile::tempdir().expect("a directory");
    let objects = Objects::disk(&directory.path().join("objects")).expect("a store");
    contract(objects, ConditionalPuts { create: KEPT, update: Condition::Unsupported }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_keeps_the_promises() {
    let server = S3Server::shared();
    contract(s3_objects(&server, "contract", S3Server::SECRET), ConditionalPuts { create: KEPT, update: KEPT }).await;

    let stranger = s3_objects(&server, "contract", "wrong");
    let refused = stranger.put(&Key::from("a"), Bytes::from_static(b"x")).await.expect_err("a wrong key");
    assert!(!refused.is_transient(), "asking again does not help: {refused:?}");
    assert!(!format!("{refused:?} {stranger:?}").contains("wrong"), "secrets are not shown: {refused:?} {stranger:?}");
}

/// `facts` are what the store must be found to do with conditional puts.
async fn contract(objects: Objects, facts: ConditionalPuts) {
    assert_eq!(objects.conditional_puts().await.expect("a store that works"), facts);
    assert_eq!(names(&objects, "probe").await, [""; 0], "the probe leaves nothing behind");

    let (first, second) = (Key::from("folder/first"), Key::from("folder/second"));
    let text = Bytes::from_static(b"one");
    objects.put(&first, text.clone()).await.expect("a put");
    assert_eq!(objects.get(&first).await.expect("a get"), text);
    assert_eq!(objects.size(&first).await.expect("a look"), Some(3));
    objects.put(&first, Bytes::from_static(b"again")).await.expect("a put replaces");
    assert_eq!(objects.size(&first).await.expect("a look"), Some(5));

    objects.create(&second, text.clone()).await.expect("a first create");
    objects.create(&second, text.clone()).await.expect("the same once more is our own, repeated");
    let refused = objects.create(&second, Bytes::from_static(b"other")).await;
    assert!(matches!(refused, Err(StoreError::Exists { .. })), "{refused:?}");
    assert_eq!(objects.get(&second).await.expect("a get"), text, "the first one stays");
    assert_eq!(names(&objects, "folder").await, ["first", "second"]);
    assert_eq!(names(&objects, "elsewhere").await, [""; 0]);

    objects.delete(&first).await.expect("a delete");
    objects.delete(&first).await.expect("what is absent is deleted");
    assert_eq!(objects.size(&first).await.expect("a look"), None);
    let missing = objects.get(&first).await;
    assert!(matches!(missing, Err(StoreError::NotFound { .. })), "{missing:?}");

    // Within one request, in parts, and at the edge between them.
    const PART: usize = 8 * 1024 * 1024;
    for size in [0, 1, PART - 1, PART, PART + 1, 2 * PART + 12345] {
        let content: Vec<u8> = (0..size).map(|at| (at * 7 + at / 1000) as u8).collect();
        let key = Key::from(format!("large/{size}"));
        let mut upload = objects.upload(key.clone());
        for piece in content.chunks(100_000) {
            upload.push(piece).await.expect("a piece");
            assert_eq!(objects.size(&key).await.expect("a look"), None, "nothing is seen before it is whole");
        }
        upload.finish().await.expect("an object");
        let read: Vec<Bytes> = objects.read(key.clone(), size as u64).try_collect().await.expect("it can be read");
        assert!(read.concat() == content, "{size} bytes came back as {}", read.concat().len());

        let given_up = Key::from(format!("large/{size}-given-up"));
        let mut upload = objects.upload(given_up.clone());
        upload.push(&content).await.expect("a piece");
        upload.abort().await;
        assert_eq!(objects.size(&given_up).await.expect("a look"), None);
    }
}

async fn names(objects: &Objects, folder: &str) -> Vec<String> {
    let listed = objects.list(&Key::from(folder)).await.expect("a list");
    let mut names: Vec<String> =
        listed.iter().filter_map(|object| object.location.filename().map(str::to_owned)).collect();
    names.sort();
    names
}
