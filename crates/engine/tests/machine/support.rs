//! The engine that most tests share, and commands in its sandboxes.

use std::collections::HashSet;
use std::future::Future;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use egress::{EgressConfig, Policy, Rules};
use launcher::users::Rights;
use parking_lot::Mutex;
use protocol::SandboxId;
use sandbar_engine::{
    Boot, BootFiles, Engine, EngineConfig, EngineError, FilesId, Machine, Namespaces, NamespacesError, Resources, Trash,
};
use tokio::runtime::Runtime;

pub(crate) const LIMITS: Resources = Resources { cpu_count: 2, memory_mb: 512, disk_mb: 512, pids: 256 };
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

/// Whether this process is root of the machine, or of a user namespace.
pub(crate) fn rights() -> Rights {
    Rights::of_this_process()
}

/// A data directory, deleted on drop.
pub(crate) struct TestDirectory {
    directory: tempfile::TempDir,
}

impl TestDirectory {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::Builder::new().prefix("sandbar-engine-").tempdir_in("/var/tmp").unwrap() }
    }

    pub(crate) fn at(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) async fn engine(&self) -> Namespaces {
        engine_at(self.at()).await
    }
}

/// The guest of the tests: this program.
pub(crate) fn guest() -> &'static [u8] {
    static GUEST: OnceLock<Vec<u8>> = OnceLock::new();
    GUEST.get_or_init(|| std::fs::read("/proc/self/exe").unwrap())
}

pub(crate) async fn engine_at(place: &Path) -> Namespaces {
    Namespaces::open(EngineConfig {
        data: place.join("data"),
        runtime: place.join("run"),
        guest: guest(),
        pool_bytes: 20 << 30,
        egress: EgressConfig::default(),
    })
    .await
    .unwrap()
}

static SHARED: Mutex<Option<(TestDirectory, Namespaces)>> = Mutex::new(None);

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap())
}

pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    runtime().block_on(work)
}

/// The engine that most tests share.
pub(crate) fn engine() -> Namespaces {
    let mut shared = SHARED.lock();
    let (_, engine) = shared.get_or_insert_with(|| {
        let place = TestDirectory::new();
        let engine = block_on(place.engine());
        (place, engine)
    });
    engine.clone()
}

/// The data directory of the shared engine.
pub(crate) fn shared_directory() -> PathBuf {
    engine();
    SHARED.lock().as_ref().unwrap().0.at().to_owned()
}

/// Ends sandboxes that failed tests left.
pub(crate) fn tear_down() {
    if let Some((place, engine)) = SHARED.lock().take() {
        block_on(engine.sweep(&HashSet::new(), &HashSet::new())).unwrap();
        drop(engine);
        drop(place);
    }
}

/// A name that no other test uses, in this run and in others at the same time.
pub(crate) fn fresh_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("test{}n{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn id(name: &str) -> SandboxId {
    name.parse().unwrap()
}

pub(crate) fn files(name: &str) -> FilesId {
    name.parse().unwrap()
}

/// What the engine reports to the operator about a failure.
#[track_caller]
pub(crate) fn cause(error: &EngineError) -> &NamespacesError {
    let EngineError::Failed { source, .. } = error else { panic!("{error:?}") };
    source.downcast_ref().unwrap()
}

/// A policy that denies every connection: the sandboxes of these tests need none.
pub(crate) fn closed() -> Policy {
    Policy::unheard(Rules::default().deny_everything())
}

pub(crate) async fn boot_of(engine: &Namespaces, name: &str) -> Boot {
    let known = engine.files().await.unwrap().contains(name);
    Boot {
        id: id(name),
        files: if known { BootFiles::Open } else { BootFiles::Create },
        resources: LIMITS,
        egress: closed(),
        volumes: Vec::new(),
        boot_id: "11111111-2222-3333-4444-555555555555".to_owned(),
        hostname: "sandbox".to_owned(),
        guest_config: b"{}".to_vec(),
    }
}

/// A sandbox that is removed on drop, with its files.
pub(crate) struct Sandbox {
    pub(crate) engine: Namespaces,
    pub(crate) name: String,
    pub(crate) machine: Arc<dyn Machine>,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Boot)) -> Self {
        let engine = engine();
        let name = fresh_name();
        let machine = block_on(async {
            let mut boot = boot_of(&engine, &name).await;
            change(&mut boot);
            engine.boot(boot).await.unwrap()
        });
        Self { engine, name, machine }
    }

    /// Runs a shell command as root; returns its output and its exit code.
    pub(crate) fn run(&self, command: &str) -> (String, i32) {
        run_at(self.machine.guest_socket(), command)
    }

    /// Runs a shell command as root that must succeed.
    #[track_caller]
    pub(crate) fn succeed(&self, command: &str) -> String {
        let (output, code) = self.run(command);
        assert_eq!(code, 0, "`{command}` printed: {output}");
        output.trim_end().to_owned()
    }

    #[track_caller]
    pub(crate) fn fail(&self, command: &str) -> String {
        let (output, code) = self.run(command);
        assert_ne!(code, 0, "`{command}` should fail but printed: {output}");
        output
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        block_on(async {
            self.machine.kill().await.unwrap();
            self.engine.remove_files(&files(&self.name)).await.unwrap();
        });
    }
}

pub(crate) fn run_at(socket: &Path, command: &str) -> (String, i32) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(COMMAND_TIMEOUT)).unwrap();
    stream.write_all(command.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (output, code) = answer.rsplit_once('\0').unwrap_or_else(|| panic!("no exit code for `{command}`: {answer}"));
    (output.to_owned(), code.parse().unwrap())
}

/// Runs a shell command on the host: the control of what is refused inside.
pub(crate) fn on_host(command: &str) -> (String, i32) {
    // The PATH of ordinary users lacks the administrator's programs.
    let script = format!("PATH=$PATH:/usr/sbin:/sbin\nexec 2>&1\n{command}");
    let output = Command::new("bash").arg("-c").arg(script).output().unwrap();
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code().unwrap_or(-1))
}

/// Remains of a sandbox on the machine: cgroups and sockets.
pub(crate) fn remains_of(name: &str, runtime: &Path) -> Vec<String> {
    let (cgroups, _) = on_host(&format!("find /sys/fs/cgroup -type d -name '{name}'"));
    let (sockets, _) = on_host(&format!("ls {} | grep -F '{name}'", runtime.display()));
    cgroups.lines().chain(sockets.lines()).map(str::to_owned).collect()
}
