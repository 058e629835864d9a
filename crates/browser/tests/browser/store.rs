//! Screenshots on disk and in a real S3 server.

use std::process::Command;

use bytes::Bytes;
use sandbar_browser::store::{
    Credentials, Occasion, S3Config, ScreenshotStore, Secret, StoreConfig, StoreError, StoreLocation,
};
use testing::S3Server;

const IMAGE: Bytes = Bytes::from_static(b"RIFF\x04\0\0\0WEBPpicture");

fn agent() -> Occasion {
    Occasion::Agent { at: "2026-11-16T00:09:37.062Z".parse().expect("a time") }
}

#[tokio::test]
async fn screenshots_on_disk_have_file_or_cdn_urls() {
    let directory = tempfile::tempdir().expect("a directory");
    let open = |served_at: Option<&str>, cdn: Option<&str>| {
        let place = StoreLocation::Disk {
            directory: directory.path().join("objects"),
            served_at: served_at.map(str::to_owned),
        };
        ScreenshotStore::open(StoreConfig { place, cdn: cdn.map(str::to_owned) }).expect("a store")
    };
    let key = "screenshots/job/agent/20261116T000937062Z_mobile.webp";
    for (store, url) in [
        (open(None, None), None),
        (open(Some("http://127.0.0.1:4980/objects"), None), Some("http://127.0.0.1:4980/objects/")),
        (open(None, Some("cdn.example.com")), Some("https://cdn.example.com/")),
        (open(Some("http://x/"), Some("https://example.com/media/")), Some("https://example.com/media/")),
    ] {
        let stored = store.put("job", &agent(), "mobile", IMAGE).await.expect("it is stored");
        assert_eq!(stored.key, key);
        match url {
            Some(prefix) => assert_eq!(stored.url.as_str(), format!("{prefix}{key}")),
            None => {
                let path = stored.url.to_file_path().expect("a file's address");
                assert_eq!(std::fs::read(path).expect("it is there"), IMAGE);
            }
        }
    }
    let refused = open(None, None).put("../../etc", &agent(), "mobile", IMAGE).await;
    assert!(matches!(refused, Err(StoreError::InvalidName { .. })), "{refused:?}");
}

#[tokio::test]
async fn power_cut_and_full_disk_leave_no_partial_files() {
    testing::needs_root!("it mounts a disk");
    let mut disk = testing::Disk::new(64 << 20);
    let directory = disk.path().join("media");
    let put = async |viewport: &str, webp: Bytes| {
        let store = ScreenshotStore::open_disk(&directory, None).expect("a store");
        store.put("job", &agent(), viewport, webp).await
    };
    let file = |viewport: &str| directory.join(format!("screenshots/job/agent/20261116T000937062Z_{viewport}.webp"));
    put("mobile", IMAGE).await.expect("it is stored");
    let cut = disk.cut();
    // Larger than the disk.
    let refused = put("desktop", Bytes::from(vec![7; 80 << 20])).await;
    assert!(matches!(refused, Err(StoreError::Put { .. })), "{refused:?}");
    assert!(!file("desktop").exists(), "a partial write leaves no file");
    let count = std::fs::read_dir(file("desktop").parent().expect("a directory")).expect("readable").count();
    assert_eq!(count, 1, "nothing is left of the one that was refused");
    put("tablet", IMAGE).await.expect("there is space again");
    disk.restore(cut);
    assert_eq!(std::fs::read(file("mobile")).expect("it is there"), IMAGE);
}

#[tokio::test]
async fn screenshots_in_a_bucket_have_signed_or_cdn_urls() {
    let server = S3Server::shared();
    let config = |cdn: Option<&str>| StoreConfig {
        place: StoreLocation::S3(s3(&server, S3Server::SECRET)),
        cdn: cdn.map(str::to_owned),
    };
    let store = ScreenshotStore::open(config(None)).expect("a store");
    let stored = store.put("job", &agent(), "desktop", IMAGE).await.expect("it is stored");
    assert_eq!(stored.key, "screenshots/job/agent/20261116T000937062Z_desktop.webp");

    let (head, body) = get(stored.url.as_str());
    assert!(head.starts_with("HTTP/1.1 200") && head.to_lowercase().contains("content-type: image/webp"), "{head}");
    assert_eq!(body, IMAGE);
    let unsigned = stored.url.as_str().split('?').next().expect("an address");
    let (head, _) = get(unsigned);
    assert!(head.starts_with("HTTP/1.1 403"), "the signature is what opens it: {head}");

    let behind = ScreenshotStore::open(config(Some("cdn.example.com"))).expect("a store");
    let commit = Occasion::Commit { id: "3f2a".to_owned() };
    let stored = behind.put("job", &commit, "desktop", IMAGE).await.expect("it is stored");
    assert_eq!(stored.url.as_str(), "https://cdn.example.com/screenshots/job/auto/3f2a_desktop.webp");

    let stranger = ScreenshotStore::open_s3(s3(&server, "wrong")).expect("a store");
    let refused = stranger.put("job", &agent(), "desktop", IMAGE).await;
    let Err(StoreError::Put { key, source }) = &refused else { panic!("{refused:?}") };
    assert!(key.ends_with("_desktop.webp") && !format!("{source:?}").contains("wrong"), "{refused:?}");
}

fn s3(server: &S3Server, secret: &str) -> S3Config {
    S3Config {
        bucket: S3Server::BUCKET.to_owned(),
        region: S3Server::REGION.to_owned(),
        endpoint: Some(server.endpoint()),
        credentials: Some(Credentials {
            access_key_id: S3Server::KEY_ID.to_owned(),
            secret_access_key: Secret::new(secret),
        }),
    }
}

/// Returns the status line with headers, and the body.
fn get(url: &str) -> (String, Vec<u8>) {
    let answer = Command::new("curl").args(["-sS", "--noproxy", "*", "-i", url]).output().expect("curl is installed");
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let end = answer.stdout.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head and a body");
    (String::from_utf8_lossy(&answer.stdout[..end]).into_owned(), answer.stdout[end + 4..].to_vec())
}
