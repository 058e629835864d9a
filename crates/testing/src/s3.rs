//! SeaweedFS, as `./dev setup` installs it: a real S3 server.

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tempfile::TempDir;

use crate::{Tied, eventually};

/// A server with one bucket; each test uses its own prefix.
#[derive(Debug)]
pub struct S3Server {
    port: u16,
    _process: Tied,
    directory: TempDir,
}

impl S3Server {
    pub const BUCKET: &str = "objects";
    pub const REGION: &str = "us-east-1";
    pub const KEY_ID: &str = "id";
    pub const SECRET: &str = "secret";

    /// The server that all running tests share.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<S3Server>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock();
        if let Some(running) = shared.upgrade() {
            return running;
        }
        let started = Arc::new(Self::start());
        *shared = Arc::downgrade(&started);
        started
    }

    fn start() -> Self {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.cache");
        let cache = std::env::var_os("SANDBAR_CACHE").map_or(root, PathBuf::from);
        let program = cache.join("seaweedfs/bin/weed");
        assert!(program.is_file(), "{} is missing; run ./dev setup", program.display());

        let directory = tempfile::tempdir().expect("a directory");
        let users = directory.path().join("s3.json");
        let user = format!(
            r#"{{"identities": [{{"name": "test", "actions": ["Admin", "Read", "Write", "List"],
            "credentials": [{{"accessKey": "{}", "secretKey": "{}"}}]}}]}}"#,
            Self::KEY_ID,
            Self::SECRET
        );
        std::fs::write(&users, user).expect("our own directory");
        let log = std::fs::File::create(directory.path().join("log")).expect("our own directory");
        let data = directory.path().join("data");
        std::fs::create_dir(&data).expect("our own directory");

        let ports = free_ports::<10>();
        let mut command = Tied::command("KILL", &program);
        command.arg("mini").arg(format!("-dir={}", data.display())).arg(format!("-s3.config={}", users.display()));
        command.args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"]);
        command.args(["-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]);
        command.arg(format!("-bucket={}", Self::BUCKET));
        let names = ["s3", "master", "volume", "filer", "admin"];
        for (name, ports) in names.iter().zip(ports.chunks(2)) {
            command.arg(format!("-{name}.port={}", ports[0])).arg(format!("-{name}.port.grpc={}", ports[1]));
        }
        let errors = log.try_clone().expect("a file");
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let (process, _) = Tied::start(command, "KILL");
        let server = Self { port: ports[0], _process: process, directory };
        server.wait_until_ready();
        server
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Waits until the bucket exists.
    fn wait_until_ready(&self) {
        let user = format!("{}:{}", Self::KEY_ID, Self::SECRET);
        let region = format!("aws:amz:{}:s3", Self::REGION);
        let url = format!("{}/{}", self.endpoint(), Self::BUCKET);
        let mut ask = Command::new("curl");
        ask.args(["-s", "--noproxy", "*", "--user", &user, "--aws-sigv4", &region]);
        ask.args(["-I", "-o", "/dev/null", "-w", "%{http_code}", &url]);
        // Read lazily, when the wait fails: the directory is removed after that.
        let log = || std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        let what = std::fmt::from_fn(|f| write!(f, "the S3 server comes up: {}", log()));
        let mut answers = || ask.output().expect("curl is installed").stdout == b"200";
        eventually(what, Duration::from_secs(60), move || answers().then_some(()));
    }
}

fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port"));
    listeners.map(|listener| listener.local_addr().expect("it is bound").port())
}
