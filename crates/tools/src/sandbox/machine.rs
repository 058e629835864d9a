//! A sandbox as the tools' machine: its handle, the session's directory, and resuming it when it is
//! paused. What is detected about a sandbox is cached here and dropped with it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use sdk::label;
use sdk::{CallError, Command, CommandError, FileError, GoneReason, Output, Sandbox};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

use super::searching::{Engine, helper_path};
use super::source::SandboxSource;
use crate::port::PortError;

/// Directory for files that all sessions of a sandbox share and that do not outlive it.
pub(super) const SHARED: &str = "/tmp/.sandbar";

/// Session name and directories.
#[derive(Debug, Clone)]
pub(super) struct SessionSettings {
    /// The directory of all sessions.
    pub(super) base: &'static str,
    pub(super) session: String,
    /// Working directory of the first command.
    pub(super) root: String,
}

/// Runs an operation on the sandbox. If the sandbox is paused, resumes it and retries, so that a
/// paused sandbox is invisible to the agent. A macro, because the futures of borrowing closures
/// cannot be declared `Send`.
macro_rules! with_resume {
    ($machine:expr, |$sandbox:ident| $work:expr) => {{
        let $sandbox = $machine.sandbox();
        match $work.await {
            Err(error) if $machine.resume_if_paused(&$sandbox, &error).await => {
                let $sandbox = $machine.sandbox();
                $work.await
            }
            done => done,
        }
    }};
}
pub(super) use with_resume;

pub(crate) struct SandboxMachine {
    sandbox: RwLock<Sandbox>,
    epoch: u64,
    source: Arc<dyn SandboxSource>,
    /// The directory of all sessions.
    pub(super) base: &'static str,
    /// The directory of this session.
    pub(super) state: String,
    pub(super) root: String,
    home: OnceCell<Home>,
    server: OnceCell<Server>,
    /// The helper that runs commands, if it was detected.
    runner: RwLock<Option<Runner>>,
    /// The detected search engine.
    pub(super) engine: std::sync::OnceLock<Engine>,
    resumed: AtomicBool,
    /// Tasks that a call leaves running.
    background: parking_lot::Mutex<JoinSet<()>>,
    /// Tasks that write the output of detached commands to their logs.
    pub(super) followers: Followers,
}

/// Tasks that end with the machine.
pub(super) type Followers = Arc<parking_lot::Mutex<JoinSet<()>>>;

/// Extensions of the sandbox's server beyond E2B's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Server {
    /// It is a Sandbar server.
    pub(super) is_sandbar: bool,
    /// It replaces files atomically in one request, and refuses anything but regular files at once.
    pub(super) replaces_files: bool,
}

/// What runs commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runner {
    Helper,
    Script,
}

/// The default user.
#[derive(Debug, Clone)]
pub(super) struct Home {
    pub(super) path: String,
    pub(super) owner: String,
}

impl SandboxMachine {
    pub(super) fn new(
        sandbox: Sandbox,
        epoch: u64,
        source: Arc<dyn SandboxSource>,
        settings: &SessionSettings,
    ) -> Self {
        let SessionSettings { base, session, root } = settings;
        Self {
            sandbox: RwLock::new(sandbox),
            epoch,
            source,
            base,
            state: format!("{base}/{session}"),
            root: root.clone(),
            home: OnceCell::new(),
            server: OnceCell::new(),
            runner: RwLock::default(),
            engine: std::sync::OnceLock::new(),
            resumed: AtomicBool::new(false),
            background: parking_lot::Mutex::default(),
            followers: Followers::default(),
        }
    }

    /// Identifies the sandbox within its source.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether the sandbox was resumed since the last call of this function.
    pub(super) fn was_resumed(&self) -> bool {
        self.resumed.swap(false, Ordering::Relaxed)
    }

    pub(super) fn sandbox(&self) -> Sandbox {
        self.sandbox.read().clone()
    }

    /// Resumes the sandbox if the error says that it was paused. True if the operation can be
    /// retried.
    pub(super) async fn resume_if_paused(&self, found: &Sandbox, error: &impl MayBePaused) -> bool {
        // Decided before the await, so that the error is not held across it.
        let paused = error.is_paused();
        if !paused {
            return false;
        }
        let Some(resumed) = self.source.resume(found, self.epoch).await else { return false };
        *self.sandbox.write() = resumed;
        self.resumed.store(true, Ordering::Relaxed);
        true
    }

    pub(super) async fn home(&self) -> Result<Home, PortError> {
        let query = || async {
            let entry = with_resume!(self, |sandbox| sandbox.files().stat("~")).map_err(file_error)?;
            Ok::<_, PortError>(Home { path: entry.path, owner: entry.owner })
        };
        self.home.get_or_try_init(query).await.cloned()
    }

    /// The server's extensions. A server that does not answer is treated as plain E2B until it
    /// does.
    pub(super) async fn server(&self) -> Server {
        let query = || async {
            let found = self.sandbox().client().capabilities().await?;
            Ok::<_, CallError>(found.map_or_else(Server::default, |found| Server {
                is_sandbar: true,
                replaces_files: found.capabilities.contains_key("replaceFiles"),
            }))
        };
        match self.server.get_or_try_init(query).await {
            Ok(server) => *server,
            Err(error) => {
                tracing::debug!(%error, "the server does not say what it can");
                Server::default()
            }
        }
    }

    /// The path of our helper, if it can run commands: it starts two processes fewer than the
    /// script. It is uploaded at once to a Sandbar server, which is near; on other servers it is
    /// used only if a search uploaded it before.
    pub(super) async fn runner(&self) -> Option<&'static str> {
        let known = *self.runner.read();
        match known {
            Some(Runner::Helper) => return Some(helper_path()),
            Some(Runner::Script) => return None,
            None => {}
        }
        let sent =
            if self.server().await.is_sandbar { self.helper().await.unwrap_or_default().is_some() } else { false };
        let runner = if sent { Runner::Helper } else { Runner::Script };
        *self.runner.write() = Some(runner);
        sent.then(helper_path)
    }

    /// Falls back to the script: the helper does not work here.
    pub(super) fn use_script_runner(&self) {
        *self.runner.write() = Some(Runner::Script);
    }

    /// Runs work in the background; [`SandboxMachine::wait_for_background`] waits for it.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.background.lock().spawn(work);
    }

    /// Waits for background work, so that the program may exit after the call.
    pub(super) async fn wait_for_background(&self) {
        let mut beside = std::mem::take(&mut *self.background.lock());
        while beside.join_next().await.is_some() {}
    }

    /// Runs one of our own short programs to its end.
    pub(super) async fn run(&self, command: Command) -> Result<Output, PortError> {
        let command = label::tag_internal(command);
        with_resume!(self, |sandbox| sandbox.commands().run(&command)).map_err(command_error)
    }
}

impl fmt::Debug for SandboxMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxMachine")
            .field("sandbox", &self.sandbox())
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// An error that resuming the sandbox may cure.
pub(super) trait MayBePaused {
    fn is_paused(&self) -> bool;
}

impl MayBePaused for FileError {
    fn is_paused(&self) -> bool {
        matches!(self, Self::SandboxGone { reason: GoneReason::Paused, .. })
    }
}

impl MayBePaused for CommandError {
    fn is_paused(&self) -> bool {
        matches!(self, Self::SandboxGone { reason: GoneReason::Paused, .. })
    }
}

pub(super) fn file_error(error: FileError) -> PortError {
    let text = error.to_string();
    // Excludes the path, which may contain anything.
    let lower = match &error {
        FileError::Invalid { message, .. } => message.to_lowercase(),
        _ => text.to_lowercase(),
    };
    // Transport errors say nothing about a file.
    let is_answer = lower.contains("the server answered ");
    match error {
        FileError::NotFound { .. } => PortError::NotFound,
        FileError::NoSpace { .. } => PortError::NoSpace,
        _ if lower.contains("not a directory") => PortError::NotADirectory,
        _ if lower.contains("is a directory") => PortError::IsDirectory,
        _ if lower.contains("permission denied") => PortError::PermissionDenied,
        _ if lower.contains("read-only file system") => PortError::ReadOnly,
        _ if lower.contains("operation not permitted") => PortError::PermissionDenied,
        // A directory in which nothing can be created, such as /proc.
        FileError::Call(_) if is_answer && lower.contains("no such file or directory") => PortError::NotFound,
        // An error of the file, not of the service.
        FileError::Call(_) if is_answer && lower.contains("(os error ") => PortError::Other(text),
        FileError::SandboxGone { .. } | FileError::ConnectionLost { .. } => PortError::Unavailable(text),
        FileError::Call(call) if call.is_service_trouble() => PortError::Unavailable(text),
        _ => PortError::Other(text),
    }
}

pub(super) fn command_error(error: CommandError) -> PortError {
    let text = error.to_string();
    match error {
        CommandError::NotStartable { message, .. } => PortError::NotStartable(message),
        CommandError::DeadlineExceeded { after, .. } => PortError::Slow(after),
        CommandError::ConnectionLost { may_still_run: Some(pid), .. } => PortError::Unavailable(format!(
            "the connection to the sandbox was lost after the command started; it may still be running (pid {pid})"
        )),
        CommandError::SandboxGone { .. } | CommandError::ConnectionLost { .. } => PortError::Unavailable(text),
        CommandError::Call(call) if call.is_service_trouble() => PortError::Unavailable(text),
        _ => PortError::Other(text),
    }
}
