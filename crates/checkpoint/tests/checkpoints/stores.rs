//! The contract of every store.

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path as Key;
use sandbar_checkpoint::{Condition, ConditionalPuts, ObjectStoreError, Objects};
use testing::S3Server;

use crate::support::s3_objects;

const KEPT: Condition = Condition::Kept;

#[tokio::test]
async fn memory_meets_the_contract() {
    contract(Objects::memory(), ConditionalPuts { create: KEPT, update: KEPT }).await;
}

#[tokio::test]
async fn a_directory_meets_the_contract() {
    let directory = tempfile::tempdir().expect("a directory");
    let objects = Objects::disk(&directory.path().join("objects")).expect("a store");
    contract(objects, ConditionalPuts { create: KEPT, update: Condition::Unsupported }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_meets_the_contract() {
    let server = S3Server::shared();
    contract(s3_objects(&server, "contract", S3Server::SECRET), ConditionalPuts { create: KEPT, update: KEPT }).await;

    let stranger = s3_objects(&server, "contract", "wrong");
    let refused = stranger.put(&Key::from("a"), Bytes::from_static(b"x")).await.expect_err("a wrong key");
    assert!(!refused.is_transient(), "asking again does not help: {refused:?}");
    assert!(!format!("{refused:?} {stranger:?}").contains("wrong"), "secrets are not shown: {refused:?} {stranger:?}");
}

/// Read by another client of the S3 server.
#[tokio::test(flavor = "multi_thread")]
async fn objects_in_a_bucket_have_their_content_types() {
    use object_store::{Attribute, ObjectStoreExt as _, aws::AmazonS3Builder};
    let server = S3Server::shared();
    let objects = s3_objects(&server, "types", S3Server::SECRET);
    let builder = AmazonS3Builder::new().with_bucket_name(S3Server::BUCKET).with_region(S3Server::REGION);
    let builder = builder.with_access_key_id(S3Server::KEY_ID).with_secret_access_key(S3Server::SECRET);
    let other = builder.with_endpoint(server.endpoint()).with_allow_http(true).build().expect("a client");
    let type_of = async |name: &str| {
        let found = other.get(&Key::from(format!("types/{name}"))).await.expect("it is there");
        found.attributes.get(&Attribute::ContentType).map(|kind| kind.as_ref().to_owned()).unwrap_or_default()
    };
    for (name, expected) in [("a.tar.gz", "application/gzip"), ("a.manifest.json", "application/json")] {
        objects.put(&Key::from(name), Bytes::from_static(b"content")).await.expect("stored");
        assert_eq!(type_of(name).await, expected);
    }
    // In parts, as archives are uploaded.
    let mut upload = objects.upload(Key::from("b.tar.gz"));
    for _ in 0..12 {
        upload.push(&[7; 1 << 20]).await.expect("taken");
    }
    upload.finish().await.expect("stored");
    assert_eq!(type_of("b.tar.gz").await, "application/gzip");
}

/// A directory on a disk of its own with this size. Needs root.
fn mounted(bytes: &str) -> (tempfile::TempDir, impl Drop) {
    struct Unmount(std::path::PathBuf);
    impl Drop for Unmount {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg("--lazy").arg(&self.0).status();
        }
    }
    let directory = tempfile::tempdir().expect("a directory");
    let options = format!("size={bytes}");
    let mut mount = std::process::Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(directory.path());
    assert!(mount.status().expect("mount runs").success());
    let unmount = Unmount(directory.path().to_owned());
    (directory, unmount)
}

#[tokio::test]
async fn disk_faults_of_a_full_directory_leave_what_is_there() {
    testing::needs_root!("it mounts a disk");
    let (directory, _mounted) = mounted("6m");
    let objects = Objects::disk(&directory.path().join("objects")).expect("a store");
    let (small, large) = (Key::from("folder/small"), Key::from("folder/large"));
    objects.put(&small, Bytes::from_static(b"kept")).await.expect("a put");
    let too_much = Bytes::from(vec![7; 9 << 20]);
    for _ in 0..3 {
        objects.put(&large, too_much.clone()).await.expect_err("there is no room");
        objects.put(&small, too_much.clone()).await.expect_err("there is no room");
        objects.create(&large, too_much.clone()).await.expect_err("there is no room");
        let mut upload = objects.upload(large.clone());
        let pushed = upload.push(&too_much).await;
        match pushed {
            Ok(()) => drop(upload.finish().await.expect_err("there is no room")),
            Err(_) => upload.abort().await,
        }
    }
    assert_eq!(names(&objects, "folder").await, ["small"], "no partial object is listed");
    assert_eq!(objects.get(&small).await.expect("it is there"), Bytes::from_static(b"kept"));
    let fitting = Bytes::from(vec![7; 5 << 20]);
    objects.put(&large, fitting.clone()).await.expect("what failed has given its room back");
    assert!(objects.get(&large).await.expect("it is there") == fitting);
}

#[tokio::test(flavor = "multi_thread")]
async fn disk_faults_of_a_directory_lose_no_acknowledged_object() {
    testing::needs_root!("it mounts a disk");
    let mut disk = testing::Disk::new(1 << 30);
    let directory = disk.path().join("objects");
    let objects = Objects::disk(&directory).expect("a store");
    let (first, second) = (Key::from("folder/first"), Key::from("folder/second"));
    objects.put(&first, Bytes::from_static(b"one")).await.expect("a put");
    let after_put = disk.cut();
    let large = Bytes::from(vec![5; 9 << 20]);
    let mut upload = objects.upload(second.clone());
    upload.push(&large).await.expect("a piece");
    upload.finish().await.expect("an object");
    let after_upload = disk.cut();

    disk.fail();
    objects.put(&first, Bytes::from_static(b"two")).await.expect_err("the disk takes nothing");
    drop(objects);
    disk.repair();
    let objects = Objects::disk(&directory).expect("a store");
    assert_eq!(objects.get(&first).await.expect("it is there"), Bytes::from_static(b"one"));
    drop(objects);

    for (cut, uploaded) in [(after_put, false), (after_upload, true)] {
        disk.restore(cut);
        let objects = Objects::disk(&directory).expect("a store");
        assert_eq!(objects.get(&first).await.expect("it is there"), Bytes::from_static(b"one"));
        if uploaded {
            assert!(objects.get(&second).await.expect("it is there") == large);
        }
    }
}

/// `facts` is the expected handling of conditional puts.
async fn contract(objects: Objects, facts: ConditionalPuts) {
    assert_eq!(objects.conditional_puts().await.expect("a store that works"), facts);
    assert_eq!(names(&objects, "probe").await, [""; 0], "the probe leaves nothing behind");

    let (first, second) = (Key::from("folder/first"), Key::from("folder/second"));
    let text = Bytes::from_static(b"one");
    objects.put(&first, text.clone()).await.expect("a put");
    assert_eq!(objects.get(&first).await.expect("a get"), text);
    assert_eq!(objects.size(&first).await.expect("a size"), Some(3));
    objects.put(&first, Bytes::from_static(b"again")).await.expect("a put replaces");
    assert_eq!(objects.size(&first).await.expect("a size"), Some(5));

    objects.create(&second, text.clone()).await.expect("a first create");
    objects.create(&second, text.clone()).await.expect("the same once more is our own, repeated");
    let refused = objects.create(&second, Bytes::from_static(b"other")).await;
    assert!(matches!(refused, Err(ObjectStoreError::Exists { .. })), "{refused:?}");
    assert_eq!(objects.get(&second).await.expect("a get"), text, "the first one stays");
    assert_eq!(names(&objects, "folder").await, ["first", "second"]);
    assert_eq!(names(&objects, "other").await, [""; 0]);

    objects.delete(&first).await.expect("a delete");
    objects.delete(&first).await.expect("what is absent is deleted");
    assert_eq!(objects.size(&first).await.expect("a size"), None);
    let missing = objects.get(&first).await;
    assert!(matches!(missing, Err(ObjectStoreError::NotFound { .. })), "{missing:?}");

    // By one request, in parts, and at the boundaries.
    const PART: usize = 8 * 1024 * 1024;
    for size in [0, 1, PART - 1, PART, PART + 1, 2 * PART + 12345] {
        let content: Vec<u8> = (0..size).map(|at| (at * 7 + at / 1000) as u8).collect();
        let key = Key::from(format!("large/{size}"));
        let mut upload = objects.upload(key.clone());
        for piece in content.chunks(100_000) {
            upload.push(piece).await.expect("a piece");
            assert_eq!(objects.size(&key).await.expect("a size"), None, "no partial object is visible");
        }
        upload.finish().await.expect("an object");
        let read: Vec<Bytes> = objects.read(key.clone(), size as u64).try_collect().await.expect("it can be read");
        assert!(read.concat() == content, "{size} bytes came back as {}", read.concat().len());

        let aborted = Key::from(format!("large/{size}-aborted"));
        let mut upload = objects.upload(aborted.clone());
        upload.push(&content).await.expect("a piece");
        upload.abort().await;
        assert_eq!(objects.size(&aborted).await.expect("a size"), None);
    }
}

async fn names(objects: &Objects, folder: &str) -> Vec<String> {
    let listed = objects.list(&Key::from(folder)).await.expect("a list");
    let mut names: Vec<String> =
        listed.iter().filter_map(|object| object.location.filename().map(str::to_owned)).collect();
    names.sort();
    names
}
