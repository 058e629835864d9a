//! Pictures on disk and in a real S3 server.

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sandbar_browser::store::{Occasion, Place, S3Config, ScreenshotStore, Secret, StoreConfig, StoreError};
use tempfile::TempDir;

const PICTURE: Bytes = Bytes::from_static(b"RIFF\x04\0\0\0WEBPpicture");

fn agent() -> Occasion {
    Occasion::Agent { at: "2026-11-16T00:09:37.062Z".parse().expect("a time") }
}

#[tokio::test]
async fn pictures_on_disk_have_local_addresses_or_the_cdns() {
    let directory = tempfile::tempdir().expect("a directory");
    let open = |served_at: Option<&str>, cdn: Option<&str>| {
        let place =
            Place::Disk { directory: directory.path().join("objects"), served_at: served_at.map(str::to_owned) };
        ScreenshotStore::open(StoreConfig { place, cdn: cdn.map(str::to_owned) }).expect("a store")
    };
    let key = "screenshots/job/agent/20261116T000937062Z_mobile.webp";
    for (store, url) in [
        (open(None, None), None),
        (open(Some("http://127.0.0.1:4980/objects"), None), Some("http://127.0.0.1:4980/objects/")),
        (open(None, Some("cdn.example.com")), Some("https://cdn.example.com/")),
        (open(Some("http://x/"), Some("https://example.com/media/")), Some("https://example.com/media/")),
    ] {
        let stored = store.put("job", &agent(), "mobile", PICTURE).await.expect("it is stored");
        assert_eq!(stored.key, key);
        match url {
            Some(prefix) => assert_eq!(stored.url.as_str(), format!("{prefix}{key}")),
            None => {
                let path = stored.url.to_file_path().expect("a file's address");
                assert_eq!(std::fs::read(path).expect("it is there"), PICTURE);
            }
        }
    }
    let refused = open(None, None).put("../../etc", &agent(), "mobile", PICTURE).await;
    assert!(matches!(refused, Err(StoreError::InvalidName { .. })), "{refused:?}");
}

#[tokio::test]
async fn pictures_in_a_bucket_have_signed_addresses_or_the_cdns() {
    let server = S3Server::start();
    let config =
        |cdn: Option<&str>| StoreConfig { place: Place::S3(server.config("secret")), cdn: cdn.map(str::to_owned) };
    let store = ScreenshotStore::open(config(None)).expect("a store");
    let stored = store.put("job", &agent(), "desktop", PICTURE).await.expect("it is stored");
    assert_eq!(stored.key, "screenshots/job/agent/20261116T000937062Z_desktop.webp");

    let (head, body) = get(stored.url.as_str());
    assert!(head.starts_with("HTTP/1.1 200") && head.to_lowercase().contains("content-type: image/webp"), "{head}");
    assert_eq!(body, PICTURE);
    let unsigned = stored.url.as_str().split('?').next().expect("an address");
    let (head, _) = get(unsigned);
    assert!(head.starts_with("HTTP/1.1 403"), "the signature is what opens it: {head}");

    let behind = ScreenshotStore::open(config(Some("cdn.example.com"))).expect("a store");
    let commit = Occasion::Commit { id: "3f2a".to_owned() };
    let stored = behind.put("job", &commit, "desktop", PICTURE).await.expect("it is stored");
    assert_eq!(stored.url.as_str(), "https://cdn.example.com/screenshots/job/auto/3f2a_desktop.webp");

    let stranger = ScreenshotStore::s3(server.config("wrong")).expect("a store");
    let refused = stranger.put("job", &agent(), "desktop", PICTURE).await;
    let Err(StoreError::Put { key, source }) = &refused else { panic!("{refused:?}") };
    assert!(key.ends_with("_desktop.webp") && !format!("{source:?}").contains("wrong"), "{refused:?}");
}

/// Status line with headers, and body.
fn get(url: &str) -> (String, Vec<u8>) {
    let answer = Command::new("curl").args(["-sS", "--noproxy", "*", "-i", url]).output().expect("curl is installed");
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let end = answer.stdout.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head and a body");
    (String::from_utf8_lossy(&answer.stdout[..end]).into_owned(), answer.stdout[end + 4..].to_vec())
}

/// SeaweedFS, as `./dev setup` installs it.
struct S3Server {
    port: u16,
    process: Child,
    directory: TempDir,
}

impl S3Server {
    fn start() -> Self {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.cache");
        let cache = std::env::var_os("SANDBAR_CACHE").map_or(root, PathBuf::from);
        let program = cache.join("seaweedfs/bin/weed");
        assert!(program.is_file(), "{} is missing; run ./dev setup", program.display());

        let directory = tempfile::tempdir().expect("a directory");
        let users = directory.path().join("s3.json");
        let user = r#"{"identities": [{"name": "test", "actions": ["Admin", "Read", "Write", "List"],
            "credentials": [{"accessKey": "id", "secretKey": "secret"}]}]}"#;
        std::fs::write(&users, user).expect("our own directory");
        let log = std::fs::File::create(directory.path().join("log")).expect("our own directory");
        let data = directory.path().join("data");
        std::fs::create_dir(&data).expect("our own directory");

        let names = [
            "s3",
            "s3.grpc",
            "master",
            "master.grpc",
            "volume",
            "volume.grpc",
            "filer",
            "filer.grpc",
            "admin",
            "admin.grpc",
        ];
        let ports = free_ports::<10>();
        // However this process ends, the server ends with it.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(&program).arg("mini");
        command.arg(format!("-dir={}", data.display())).arg(format!("-s3.config={}", users.display()));
        command.args([
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-master.telemetry=false",
            "-admin.ui=false",
            "-webdav=false",
        ]);
        command.args(["-s3.port.iceberg=0", "-s3.port.lance=0", "-bucket=pictures"]);
        for (name, port) in names.iter().zip(ports) {
            let flag = match name.strip_suffix(".grpc") {
                Some(name) => format!("-{name}.port.grpc={port}"),
                None => format!("-{name}.port={port}"),
            };
            command.arg(flag);
        }
        let errors = log.try_clone().expect("a file");
        let process = command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn().expect("setpriv is installed");
        let server = Self { port: ports[0], process, directory };
        server.wait_until_ready();
        server
    }

    fn config(&self, secret: &str) -> S3Config {
        S3Config {
            bucket: "pictures".to_owned(),
            region: "us-east-1".to_owned(),
            endpoint: Some(format!("http://127.0.0.1:{}", self.port)),
            access_key_id: Some("id".to_owned()),
            secret_access_key: Some(Secret::new(secret)),
        }
    }

    /// Ready is when the bucket exists.
    fn wait_until_ready(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let url = format!("http://127.0.0.1:{}/pictures", self.port);
        let mut ask = Command::new("curl");
        ask.args(["-s", "--noproxy", "*", "--user", "id:secret", "--aws-sigv4", "aws:amz:us-east-1:s3"]);
        ask.args(["-I", "-o", "/dev/null", "-w", "%{http_code}", &url]);
        while ask.output().expect("curl is installed").stdout != b"200" {
            let log = || std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "the S3 server does not come up: {}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port"));
    listeners.map(|listener| listener.local_addr().expect("it is bound").port())
}
