//! A sandbox as the tools' machine: which one, where a session's own files are, and waking it when it sleeps.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use sdk::{Command, CommandError, Connect, FileError, GoneReason, Output, Sandbox};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

use super::searching::Engine;
use crate::port::PortError;

/// What all sessions share in a sandbox.
pub(super) const SHARED: &str = "/tmp/.sandbar";
/// How long a sandbox lives at least after it was woken.
const AWAKE: Duration = Duration::from_secs(3600);

/// Does something to the sandbox. One that is paused is woken first: an agent knows nothing of sleep. A macro, since the
/// futures of closures that borrow cannot be told to be `Send`.
macro_rules! awake {
    ($machine:expr, |$sandbox:ident| $work:expr) => {{
        let $sandbox = $machine.sandbox();
        match $work.await {
            Err(error) if $machine.wakes(&$sandbox, &error).await => {
                let $sandbox = $machine.sandbox();
                $work.await
            }
            done => done,
        }
    }};
}
pub(super) use awake;

pub(crate) struct SandboxMachine {
    sandbox: RwLock<Sandbox>,
    pub(super) state: String,
    pub(super) root: String,
    home: OnceCell<Home>,
    /// What searches here, once something has.
    pub(super) engine: std::sync::OnceLock<Engine>,
    resumed: AtomicBool,
    waking: tokio::sync::Mutex<()>,
    /// What a call leaves to be finished beside it.
    beside: std::sync::Mutex<JoinSet<()>>,
    /// Those that write down what detached commands say.
    pub(super) followers: Followers,
}

/// Tasks that end with the machine.
pub(super) type Followers = Arc<std::sync::Mutex<JoinSet<()>>>;

/// The default user.
#[derive(Debug, Clone)]
pub(super) struct Home {
    pub(super) path: String,
    pub(super) owner: String,
}

impl SandboxMachine {
    pub(super) fn new(sandbox: Sandbox, session: &str, root: &str) -> Self {
        Self {
            sandbox: RwLock::new(sandbox),
            state: format!("{SHARED}/{session}"),
            root: root.to_owned(),
            home: OnceCell::new(),
            engine: std::sync::OnceLock::new(),
            resumed: AtomicBool::new(false),
            waking: tokio::sync::Mutex::default(),
            beside: std::sync::Mutex::default(),
            followers: Followers::default(),
        }
    }

    pub(super) fn set_session(&mut self, name: &str) {
        self.state = format!("{SHARED}/{name}");
    }

    pub(super) fn set_root(&mut self, directory: String) {
        self.root = directory;
    }

    /// Whether it was woken since somebody asked.
    pub(super) fn was_resumed(&self) -> bool {
        self.resumed.swap(false, Ordering::Relaxed)
    }

    pub(super) fn sandbox(&self) -> Sandbox {
        self.sandbox.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether an error was that the sandbox slept, and it is awake now.
    pub(super) async fn wakes(&self, found: &Sandbox, error: &impl MayBePaused) -> bool {
        // Decided before the wait: the error need not be held over it.
        let paused = error.is_paused();
        paused && self.wake(found).await
    }

    /// Resumes a paused sandbox, once for all who found it so.
    async fn wake(&self, found: &Sandbox) -> bool {
        let _turn = self.waking.lock().await;
        let connected = found.client().connect(found.id(), Connect::timeout(AWAKE)).await;
        match connected {
            Ok(sandbox) => {
                *self.sandbox.write().unwrap_or_else(PoisonError::into_inner) = sandbox;
                self.resumed.store(true, Ordering::Relaxed);
                true
            }
            Err(error) => {
                tracing::debug!(%error, "a paused sandbox could not be resumed");
                false
            }
        }
    }

    pub(super) async fn home(&self) -> Result<Home, PortError> {
        let look = || async {
            let entry = awake!(self, |sandbox| sandbox.files().stat("~")).map_err(file_error)?;
            Ok::<_, PortError>(Home { path: entry.path, owner: entry.owner })
        };
        self.home.get_or_try_init(look).await.cloned()
    }

    /// Goes on beside the call; [`SandboxMachine::settle`] waits for it.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.beside.lock().unwrap_or_else(PoisonError::into_inner).spawn(work);
    }

    /// Waits for what goes on beside a call, so that a program may end after it.
    pub(super) async fn settle(&self) {
        let mut beside = std::mem::take(&mut *self.beside.lock().unwrap_or_else(PoisonError::into_inner));
        while beside.join_next().await.is_some() {}
    }

    /// Runs one of our own small programs to its end.
    pub(super) async fn run(&self, command: Command) -> Result<Output, PortError> {
        awake!(self, |sandbox| sandbox.commands().run(&command)).map_err(command_error)
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

/// An error that waking may cure.
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
    let lower = text.to_lowercase();
    match error {
        FileError::NotFound { .. } => PortError::NotFound,
        FileError::NoSpace { .. } => PortError::NoSpace,
        _ if lower.contains("not a directory") => PortError::NotADirectory,
        _ if lower.contains("is a directory") => PortError::IsDirectory,
        _ if lower.contains("permission denied") => PortError::PermissionDenied,
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
