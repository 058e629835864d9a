//! SeaweedFS, as `./dev setup` installs it. One for all tests; buckets and prefixes tell them apart.

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sandbar_workspace::snapshot::{Objects, S3Config};
use tempfile::TempDir;

const BUCKET: &str = "objects";

pub(crate) struct S3Server {
    port: u16,
    pid: u32,
    /// Owns the process: it is tied to the life of the thread that started it.
    owner: Option<JoinHandle<()>>,
    directory: TempDir,
}

impl S3Server {
    /// The server of all tests that run now.
    pub(crate) fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<S3Server>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
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
        let user = r#"{"identities": [{"name": "test", "actions": ["Admin", "Read", "Write", "List"],
            "credentials": [{"accessKey": "id", "secretKey": "secret"}]}]}"#;
        std::fs::write(&users, user).expect("our own directory");
        let log = std::fs::File::create(directory.path().join("log")).expect("our own directory");
        let data = directory.path().join("data");
        std::fs::create_dir(&data).expect("our own directory");

        let ports = free_ports::<10>();
        // However this process ends, the server ends with it.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(&program).arg("mini");
        command.arg(format!("-dir={}", data.display())).arg(format!("-s3.config={}", users.display()));
        command.args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"]);
        command.args(["-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]);
        command.arg(format!("-bucket={BUCKET}"));
        let names = ["s3", "master", "volume", "filer", "admin"];
        for (name, ports) in names.iter().zip(ports.chunks(2)) {
            command.arg(format!("-{name}.port={}", ports[0])).arg(format!("-{name}.port.grpc={}", ports[1]));
        }
        let errors = log.try_clone().expect("a file");
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let (started, pid) = mpsc::channel();
        let owner = std::thread::spawn(move || {
            let mut process = command.spawn().expect("setpriv is installed");
            let _ = started.send(process.id());
            let _ = process.wait();
        });
        let pid = pid.recv().expect("the server starts");
        let server = Self { port: ports[0], pid, owner: Some(owner), directory };
        server.wait_until_ready();
        server
    }

    /// Objects under a prefix of one's own.
    pub(crate) fn objects(&self, prefix: &str, secret: &str) -> Objects {
        let config = S3Config {
            bucket: BUCKET.to_owned(),
            prefix: prefix.to_owned(),
            region: "us-east-1".to_owned(),
            endpoint: Some(format!("http://127.0.0.1:{}", self.port)),
            credentials: Some(("id".to_owned(), secret.into())),
        };
        assert!(!format!("{config:?}").contains(secret), "secrets are not shown");
        Objects::s3(config).expect("a store")
    }

    /// Ready is when the bucket exists.
    fn wait_until_ready(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let url = format!("http://127.0.0.1:{}/{BUCKET}", self.port);
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
        let _ = Command::new("kill").args(["-KILL", &self.pid.to_string()]).status();
        if let Some(owner) = self.owner.take() {
            let _ = owner.join();
        }
    }
}

fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port"));
    listeners.map(|listener| listener.local_addr().expect("it is bound").port())
}
