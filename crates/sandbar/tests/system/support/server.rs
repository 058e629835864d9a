//! A real `sandbar up` in a temporary directory. Dropped, it leaves nothing behind, also when the test failed.

use super::http::{self, Reply};
use super::sandbox::Sandbox;
use serde_json::Value;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use testing::{Launch, Running, User};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_sandbar");

pub(crate) struct Server {
    running: Running,
    program: Program,
    pub(crate) address: String,
    pub(crate) key: String,
    data: PathBuf,
    /// Removed with the server; none where the caller chose the directory.
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

    /// Starts a server as a careful administrator's shell would.
    pub(crate) fn under_umask(umask: &'static str) -> Self {
        Self::new(&[], umask)
    }

    /// Starts a server as an ordinary user does.
    pub(crate) fn of_user(user: User, arguments: &[&str]) -> Self {
        Self::by(Program::of_user(user), arguments, "022")
    }

    /// Starts a server that listens on every address of this machine.
    pub(crate) fn everywhere(arguments: &[&str]) -> Self {
        Self::by(Program { listen: Some("0.0.0.0:0"), ..Program::default() }, arguments, "022")
    }

    /// The same in cgroups that were delegated to the user.
    pub(crate) fn of_user_in(cgroups: &[PathBuf], user: User, arguments: &[&str]) -> Self {
        let program = Program { cgroups: cgroups.to_owned(), ..Program::of_user(user) };
        Self::by(program, arguments, "022")
    }

    fn new(arguments: &[&str], umask: &'static str) -> Self {
        Self::by(Program::default(), arguments, umask)
    }

    /// Starts a server on a directory of the caller's, which must outlive it.
    pub(crate) fn on(data: &Path, arguments: &[&str]) -> Self {
        Self::launch(Program::default(), data.to_owned(), None, arguments, "022")
    }

    /// Starts a server on a directory that `prepare` has filled.
    pub(crate) fn on_new_directory(arguments: &[&str], prepare: impl FnOnce(&Path)) -> Self {
        Self::prepared(Program::default(), arguments, "022", prepare)
    }

    fn by(program: Program, arguments: &[&str], umask: &'static str) -> Self {
        Self::prepared(program, arguments, umask, |_| {})
    }

    fn prepared(program: Program, arguments: &[&str], umask: &'static str, prepare: impl FnOnce(&Path)) -> Self {
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

    /// Ends the server as a crash would, without a chance to clean up.
    pub(crate) fn kill_9(&mut self) {
        self.end_by("KILL");
    }

    /// Ends the server politely; sandboxes stay.
    pub(crate) fn stop(&mut self) {
        self.end_by("TERM");
    }

    pub(crate) fn end_by(&mut self, name: &str) {
        self.running.end_by(name);
    }

    /// Sends the server's process a signal, by its name.
    pub(crate) fn signal(&self, name: &str) {
        testing::signal(self.running.pid(), name);
    }

    /// Waits for the server to end by itself.
    #[track_caller]
    pub(crate) fn wait(&mut self, within: Duration) {
        self.running.wait(within);
    }

    /// Starts a server on the same data directory again.
    pub(crate) fn start_again(&mut self) {
        self.running = self.program.launch(&self.data, &self.arguments, self.umask);
        (self.address, self.key) = (self.running.address.clone(), self.running.key.clone());
    }

    /// The same with other flags for `sandbar up`, from now on.
    pub(crate) fn start_again_with(&mut self, arguments: &[&str]) {
        self.arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        self.start_again();
    }

    /// A control-plane call with the key.
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
        // `down` ends a running server as well as what a killed one left.
        let done = self.try_down();
        testing::remove_directory(&self.data);
        if !done.status.success() && !std::thread::panicking() {
            panic!("sandbar down failed: {}", String::from_utf8_lossy(&done.stderr));
        }
    }
}

/// The program under test, and who runs it.
#[derive(Default)]
struct Program {
    user: Option<User>,
    /// Open in every process that is started: where the program lies, an ordinary user may not be able to go.
    opened: Option<File>,
    cgroups: Vec<PathBuf>,
    /// Where the server listens; absent: a port of loopback.
    listen: Option<&'static str>,
}

impl Program {
    fn of_user(user: User) -> Self {
        let opened = File::open(PROGRAM).expect("it was built");
        rustix::io::fcntl_setfd(&opened, rustix::io::FdFlags::empty()).expect("it is open");
        Self { user: Some(user), opened: Some(opened), ..Self::default() }
    }

    fn path(&self) -> PathBuf {
        match &self.opened {
            Some(opened) => format!("/proc/self/fd/{}", opened.as_raw_fd()).into(),
            None => PROGRAM.into(),
        }
    }

    fn command(&self) -> Command {
        let Some(user) = self.user else { return Command::new(self.path()) };
        let mut command = Command::new("setpriv");
        command.args(user.flags()).arg(self.path());
        command
    }

    fn launch(&self, data: &Path, arguments: &[String], umask: &str) -> Running {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let launch = Launch { program: &self.path(), data, arguments: &arguments, umask, user: self.user };
        match self.listen {
            Some(listen) => Running::launch_at(listen, launch),
            None => Running::launch_in(&self.cgroups, launch),
        }
    }
}
