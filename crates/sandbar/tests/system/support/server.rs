//! A real `sandbar up` in a temporary directory. Drop ends the server and removes its sandboxes and
//! files, also when the test failed.

use super::sandbox::Sandbox;
use serde_json::Value;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;
use tempfile::TempDir;
use testing::http::{self, Reply};
use testing::{RunningServer, ServerLaunch, User};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_sandbar");

pub(crate) struct Server {
    running: RunningServer,
    program: Program,
    pub(crate) address: String,
    pub(crate) key: String,
    data: PathBuf,
    /// Removed with the server. `None` if the caller chose the directory.
    _temporary: Option<TempDir>,
    arguments: Vec<String>,
    umask: &'static str,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with more flags for `sandbar up`.
    pub(crate) fn with(arguments: &[&str]) -> Self {
        Self::new(arguments, "022")
    }

    /// Starts a server with this umask, such as a careful administrator's.
    pub(crate) fn with_umask(umask: &'static str) -> Self {
        Self::new(&[], umask)
    }

    /// Starts a server as an ordinary user.
    pub(crate) fn for_user(user: User, arguments: &[&str]) -> Self {
        Self::for_account(Some(user), arguments)
    }

    /// Starts a server as this user. `None` is the user who runs the tests.
    pub(crate) fn for_account(user: Option<User>, arguments: &[&str]) -> Self {
        Self::with_program(Program { user, ..Program::default() }, arguments, "022")
    }

    /// Starts a server that listens on all addresses of this machine.
    pub(crate) fn on_all_addresses(arguments: &[&str]) -> Self {
        Self::with_program(Program { listen: Some("0.0.0.0:0"), ..Program::default() }, arguments, "022")
    }

    /// Starts a server as an ordinary user in cgroups that were delegated to the user.
    pub(crate) fn for_user_in(cgroups: &[PathBuf], user: User, arguments: &[&str]) -> Self {
        let program = Program { cgroups: cgroups.to_owned(), user: Some(user), ..Program::default() };
        Self::with_program(program, arguments, "022")
    }

    fn new(arguments: &[&str], umask: &'static str) -> Self {
        Self::with_program(Program::default(), arguments, umask)
    }

    /// Starts a server on a directory of the caller, which must outlive the server.
    pub(crate) fn on(data: &Path, arguments: &[&str]) -> Self {
        Self::for_account_on(None, data, arguments)
    }

    /// Starts a server on a directory of the caller as `user`, who must own the directory.
    pub(crate) fn for_account_on(user: Option<User>, data: &Path, arguments: &[&str]) -> Self {
        let program = Program { user, ..Program::default() };
        Self::launch(program, data.to_owned(), None, arguments, "022")
    }

    /// Starts a server as `user` on a new directory, after `prepare` filled it.
    pub(crate) fn on_new_directory(user: Option<User>, arguments: &[&str], prepare: impl FnOnce(&Path)) -> Self {
        Self::with_prepared(Program { user, ..Program::default() }, arguments, "022", prepare)
    }

    fn with_program(program: Program, arguments: &[&str], umask: &'static str) -> Self {
        Self::with_prepared(program, arguments, umask, |_| {})
    }

    fn with_prepared(program: Program, arguments: &[&str], umask: &'static str, prepare: impl FnOnce(&Path)) -> Self {
        let data = tempfile::Builder::new().prefix("sandbar-test-").tempdir().expect("a temporary directory");
        if let Some(User { uid, gid }) = program.user {
            std::os::unix::fs::chown(data.path(), Some(uid), Some(gid)).expect("root may give it away");
        }
        prepare(data.path());
        Self::launch(program, data.path().to_owned(), Some(data), arguments, umask)
    }

    fn launch(
        program: Program,
        data: PathBuf,
        temporary: Option<TempDir>,
        arguments: &[&str],
        umask: &'static str,
    ) -> Self {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let running = program.launch(&data, &arguments, umask);
        let (address, key) = (running.address.clone(), running.key.clone());
        Self { running, program, address, key, data, _temporary: temporary, arguments, umask }
    }

    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    /// The lines that the server has logged since it was started.
    pub(crate) fn log(&self) -> Vec<String> {
        self.running.log()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.data.join(name)
    }

    /// Ends the server and every sandbox, by `sandbar down --yes`.
    #[track_caller]
    pub(crate) fn down(&mut self) {
        let done = self.try_down();
        assert!(done.status.success(), "sandbar down failed: {}", String::from_utf8_lossy(&done.stderr));
        self.running.wait(Duration::from_secs(30));
    }

    pub(crate) fn try_down(&self) -> std::process::Output {
        let mut down = self.program.command();
        down.args(["down", "--yes", "--data"]).arg(&self.data).output().expect("the program runs")
    }

    /// Ends the server by SIGKILL, so that it cannot clean up.
    pub(crate) fn kill_9(&mut self) {
        self.end_by("KILL");
    }

    /// Ends the server by SIGTERM. Its sandboxes stay.
    pub(crate) fn stop(&mut self) {
        self.end_by("TERM");
    }

    pub(crate) fn end_by(&mut self, name: &str) {
        self.running.end_by(name);
    }

    /// Sends the server's process the signal of this name.
    pub(crate) fn signal(&self, name: &str) {
        testing::signal(self.running.pid(), name);
    }

    /// Waits until the server ends by itself.
    #[track_caller]
    pub(crate) fn wait(&mut self, within: Duration) {
        self.running.wait(within);
    }

    /// Starts the server on the same data directory again.
    pub(crate) fn start_again(&mut self) {
        self.running = self.program.launch(&self.data, &self.arguments, self.umask);
        (self.address, self.key) = (self.running.address.clone(), self.running.key.clone());
    }

    /// Starts the server again with other flags for `sandbar up`, which later starts use as well.
    pub(crate) fn start_again_with(&mut self, arguments: &[&str]) {
        self.arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        self.start_again();
    }

    /// Sends a request to the control plane, with the API key.
    pub(crate) fn call(&self, method: &str, path: &str, body: Option<Value>) -> Reply {
        self.try_call(method, path, body).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    pub(crate) fn try_call(&self, method: &str, path: &str, body: Option<Value>) -> std::io::Result<Reply> {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let headers = [("X-API-Key", self.key.as_str()), ("Content-Type", "application/json")];
        http::request(&self.address, method, path, &headers, body.as_bytes())
    }

    #[track_caller]
    pub(crate) fn create(&self) -> Sandbox {
        self.create_with(serde_json::json!({ "templateID": "base" }))
    }

    #[track_caller]
    pub(crate) fn create_with(&self, body: Value) -> Sandbox {
        let reply = self.call("POST", "/v2/sandboxes", Some(body));
        assert_eq!(reply.status, 201, "{}", reply.text());
        let answer = reply.json();
        let text = |key: &str| answer[key].as_str().unwrap_or_else(|| panic!("{key} in {answer}")).to_owned();
        Sandbox::new(&self.address, text("sandboxID"), text("envdAccessToken"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // `down` ends a running server, and the sandboxes that a killed server left.
        let done = self.try_down();
        testing::remove_directory(&self.data);
        if !done.status.success() && !std::thread::panicking() {
            panic!("sandbar down failed: {}", String::from_utf8_lossy(&done.stderr));
        }
    }
}

/// The program's file, without `FD_CLOEXEC`, so that every child inherits it: an ordinary user may
/// lack the permission to open it by its path.
static OPENED: LazyLock<File> = LazyLock::new(|| {
    let opened = File::open(PROGRAM).expect("it was built");
    rustix::io::fcntl_setfd(&opened, rustix::io::FdFlags::empty()).expect("it is open");
    opened
});

/// The program under test, with the user who runs it.
#[derive(Default)]
struct Program {
    user: Option<User>,
    cgroups: Vec<PathBuf>,
    /// The address to listen on. `None` is a free port of loopback.
    listen: Option<&'static str>,
}

/// A path by which `user` can run the program.
fn path_for(user: Option<User>) -> PathBuf {
    match user {
        Some(_) => format!("/proc/self/fd/{}", OPENED.as_raw_fd()).into(),
        None => PROGRAM.into(),
    }
}

/// A command that runs the program as `user`. `None` is the user who runs the tests.
pub(crate) fn command_for(user: Option<User>) -> Command {
    let Some(user) = user else { return Command::new(PROGRAM) };
    let mut command = Command::new("setpriv");
    command.args(user.flags()).arg(path_for(Some(user)));
    command
}

impl Program {
    fn command(&self) -> Command {
        command_for(self.user)
    }

    fn launch(&self, data: &Path, arguments: &[String], umask: &str) -> RunningServer {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let launch =
            ServerLaunch { program: &path_for(self.user), data, arguments: &arguments, umask, user: self.user };
        match self.listen {
            Some(listen) => RunningServer::launch_at(listen, launch),
            None => RunningServer::launch_in(&self.cgroups, launch),
        }
    }
}
