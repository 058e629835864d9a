//! Test sites, canary sockets that must stay untouched, and a browser.

use std::fs::Permissions;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::response::Html;
use axum::routing::get;
use sandbar_browser::{Browser, BrowserConfig, Capture, CaptureError, CaptureRequest, Upstream};
use tempfile::TempDir;
use tokio::net::{TcpListener, UdpSocket};
use tokio_util::task::AbortOnDropHandle;

/// A browser whose profiles are removed at the end of the test: first the browser, then the
/// directory.
pub(crate) struct Rig {
    pub(crate) browser: Browser,
    pub(crate) directory: Profiles,
}

/// Waits for the killed browser, which would else write into the directory being removed.
pub(crate) struct Profiles(TempDir);

impl Profiles {
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Profiles {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.0.path().read_dir().is_ok_and(|mut entries| entries.next().is_some()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

pub(crate) fn rig() -> Rig {
    rig_with(|_| {})
}

pub(crate) fn rig_with(change: impl FnOnce(&mut BrowserConfig)) -> Rig {
    let _ = tracing_subscriber::fmt().with_env_filter(filter()).with_test_writer().try_init();
    let directory = passable_directory();
    let mut config = BrowserConfig::new(directory.path());
    change(&mut config);
    Rig {
        browser: Browser::start(config).expect("chromium is installed (./dev setup)"),
        directory: Profiles(directory),
    }
}

fn filter() -> tracing_subscriber::EnvFilter {
    tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "sandbar_browser=debug".into())
}

/// The browser runs as another user, who needs search permission.
pub(crate) fn passable_directory() -> TempDir {
    let directory = tempfile::Builder::new().prefix("sandbar-browser-test-").tempdir().expect("a directory");
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o711)).expect("our own directory");
    directory
}

/// A server on loopback, seen by pages as `http://3000-NAME.localhost`.
pub(crate) struct Site {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    _server: AbortOnDropHandle<()>,
}

impl Site {
    pub(crate) async fn serve(name: &'static str, router: Router) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let server = async move { axum::serve(listener, router).await.expect("it serves") };
        Self { name, address, _server: AbortOnDropHandle::new(tokio::spawn(server)) }
    }

    pub(crate) async fn page(name: &'static str, html: impl Into<String>) -> Self {
        let html = html.into();
        Self::serve(name, Router::new().route("/", get(move || async move { Html(html) }))).await
    }

    /// A desktop capture only, for tests where a second viewport adds nothing.
    pub(crate) fn request(&self, path: &str) -> CaptureRequest {
        let mut request = self.request_all_viewports(path);
        request.viewports.truncate(1);
        request
    }

    pub(crate) fn request_all_viewports(&self, path: &str) -> CaptureRequest {
        let origin = format!("http://3000-{}.localhost", self.name).parse().expect("an origin");
        let mut request = CaptureRequest::new(origin, Upstream::new(self.address.to_string()));
        request.url_path = path.to_owned();
        request
    }
}

impl Rig {
    pub(crate) async fn capture(&self, site: &Site, path: &str) -> Result<Capture, CaptureError> {
        self.browser.capture(site.request(path)).await
    }
}

/// Counts connections and datagrams: TCP and UDP, both address families, one port.
pub(crate) struct Canary {
    pub(crate) port: u16,
    hits: Arc<AtomicUsize>,
    _listeners: Vec<AbortOnDropHandle<()>>,
}

impl Canary {
    pub(crate) async fn listen() -> Self {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let port = tcp.local_addr().expect("it is bound").port();
        let tcp6 = TcpListener::bind((Ipv6Addr::LOCALHOST, port)).await.expect("the same port");
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).await.expect("the same port");
        let hits = Arc::new(AtomicUsize::new(0));
        let mut listeners = Vec::new();
        for tcp in [tcp, tcp6] {
            let hits = Arc::clone(&hits);
            listeners.push(AbortOnDropHandle::new(tokio::spawn(async move {
                while tcp.accept().await.is_ok() {
                    hits.fetch_add(1, Ordering::SeqCst);
                }
            })));
        }
        let count = Arc::clone(&hits);
        listeners.push(AbortOnDropHandle::new(tokio::spawn(async move {
            while udp.recv(&mut [0; 64]).await.is_ok() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        })));
        Self { port, hits, _listeners: listeners }
    }

    /// The number of hits, after a probe of its own was counted. Both protocols preserve order on
    /// loopback, so earlier traffic has been counted by then.
    pub(crate) async fn hits(&self) -> usize {
        let before = self.hits.load(Ordering::SeqCst);
        let own = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await;
        own.expect("the canary listens");
        let probe = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        probe.send_to(b"x", (Ipv4Addr::LOCALHOST, self.port)).await.expect("the canary listens");
        let noticed = async || self.hits.load(Ordering::SeqCst) >= before + 2;
        testing::eventually_async("the canary to notice our own calls", testing::SOON, noticed).await;
        self.hits.load(Ordering::SeqCst) - 2
    }
}

/// A process of the browser whose profiles are under `directory`.
#[derive(Debug, Clone)]
pub(crate) struct BrowserProcess {
    pub(crate) pid: i32,
    pub(crate) command: String,
}

impl BrowserProcess {
    pub(crate) fn is_main(&self) -> bool {
        !self.command.contains("--type=") && !self.command.contains("crashpad")
    }

    /// A line of `/proc/PID/status`.
    pub(crate) fn status(&self, name: &str) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
        line.unwrap_or_default().to_owned()
    }

    pub(crate) fn namespace(&self, kind: &str) -> Option<std::path::PathBuf> {
        std::fs::read_link(format!("/proc/{}/ns/{kind}", self.pid)).ok()
    }
}

pub(crate) fn browser_processes(directory: &Path) -> Vec<BrowserProcess> {
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    let marker = format!("--user-data-dir={}/", directory.display());
    let processes = std::fs::read_dir("/proc").expect("proc is mounted").flatten();
    processes
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let command = std::fs::read(entry.path().join("cmdline")).ok()?;
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            command.contains(&marker).then_some(BrowserProcess { pid, command })
        })
        .collect()
}

pub(crate) fn kill(process: &BrowserProcess) {
    let pid = rustix::process::Pid::from_raw(process.pid).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("the browser is ours");
}
