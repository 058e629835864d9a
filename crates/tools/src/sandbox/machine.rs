//! A sandbox as the tools' machine: which one, where a session's own files are, and waking it when it sleeps. What is found
//! out about a sandbox is kept here, and gone with it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use sdk::{CallError, Command, CommandError, FileError, GoneReason, Output, Sandbox};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use workspace::label;

use super::searching::{Engine, helper_path};
use super::source::Source;
use crate::port::PortError;

/// What all sessions share in a sandbox, and what does not outlive it.
pub(super) const SHARED: &str = "/tmp/.sandbar";

/// Which session, and where.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    /// The directory of all sessions.
    pub(super) base: &'static str,
    pub(super) session: String,
    /// Where the first command runs.
    pub(super) root: String,
}

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
    epoch: u64,
    source: Arc<dyn Source>,
    /// The directory of all sessions.
    pub(super) base: &'static str,
    /// The directory of this one.
    pub(super) state: String,
    pub(super) root: String,
    home: OnceCell<Home>,
    server: OnceCell<Server>,
    /// The program that runs commands, where there is one.
    runner: RwLock<Option<Runner>>,
    /// What searches here, once something has.
    pub(super) engine: std::sync::OnceLock<Engine>,
    resumed: AtomicBool,
    /// What a call leaves to be finished beside it.
    beside: std::sync::Mutex<JoinSet<()>>,
    /// Those that write down what detached commands say.
    pub(super) followers: Followers,
}

/// Tasks that end with the machine.
pub(super) type Followers = Arc<std::sync::Mutex<JoinSet<()>>>;

/// What the sandbox's server has beyond E2B's own API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Server {
    /// It is one of ours.
    pub(super) is_sandbar: bool,
    /// Files are replaced whole or not at all in one request, and what is no file is refused at once.
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
    pub(super) fn new(sandbox: Sandbox, epoch: u64, source: Arc<dyn Source>, setting: &Setting) -> Self {
        let Setting { base, session, root } = setting;
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
            beside: std::sync::Mutex::default(),
            followers: Followers::default(),
        }
    }

    /// Which sandbox of its source it is.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
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
        if !paused {
            return false;
        }
        let Some(awake) = self.source.wake(found, self.epoch).await else { return false };
        *self.sandbox.write().unwrap_or_else(PoisonError::into_inner) = awake;
        self.resumed.store(true, Ordering::Relaxed);
        true
    }

    pub(super) async fn home(&self) -> Result<Home, PortError> {
        let look = || async {
            let entry = awake!(self, |sandbox| sandbox.files().stat("~")).map_err(file_error)?;
            Ok::<_, PortError>(Home { path: entry.path, owner: entry.owner })
        };
        self.home.get_or_try_init(look).await.cloned()
    }

    /// What the server offers. One that cannot be asked is taken for plain E2B until it can.
    pub(super) async fn server(&self) -> Server {
        let look = || async {
            let found = self.sandbox().client().capabilities().await?;
            Ok::<_, CallError>(found.map_or_else(Server::default, |found| Server {
                is_sandbar: true,
                replaces_files: found.capabilities.contains_key("replaceFiles"),
            }))
        };
        match self.server.get_or_try_init(look).await {
            Ok(server) => *server,
            Err(error) => {
                tracing::debug!(%error, "the server does not say what it can");
                Server::default()
            }
        }
    }

    /// Our helper in the sandbox, if it runs commands there: it starts two programs fewer than the script. A server of ours is
    /// near enough to be sent it at once; others have it when they needed it for searching.
    pub(super) async fn runner(&self) -> Option<&'static str> {
        let known = *self.runner.read().unwrap_or_else(PoisonError::into_inner);
        match known {
            Some(Runner::Helper) => return Some(helper_path()),
            Some(Runner::Script) => return None,
            None => {}
        }
        let sent =
            if self.server().await.is_sandbar { self.helper().await.unwrap_or_default().is_some() } else { false };
        let runner = if sent { Runner::Helper } else { Runner::Script };
        *self.runner.write().unwrap_or_else(PoisonError::into_inner) = Some(runner);
        sent.then(helper_path)
    }

    /// The helper does not work here.
    pub(super) fn runs_by_script(&self) {
        *self.runner.write().unwrap_or_else(PoisonError::into_inner) = Some(Runner::Script);
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
        let command = label::own(command);
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
    // Not the path, which may say anything.
    let lower = match &error {
        FileError::Invalid { message, .. } => message.to_lowercase(),
        _ => text.to_lowercase(),
    };
    // What the transport reports is no word about a file.
    let is_answer = lower.contains("the server answered ");
    match error {
        FileError::NotFound { .. } => PortError::NotFound,
        FileError::NoSpace { .. } => PortError::NoSpace,
        _ if lower.contains("not a directory") => PortError::NotADirectory,
        _ if lower.contains("is a directory") => PortError::IsDirectory,
        _ if lower.contains("permission denied") => PortError::PermissionDenied,
        _ if lower.contains("read-only file system") => PortError::ReadOnly,
        _ if lower.contains("operation not permitted") => PortError::PermissionDenied,
        // Where nothing can be made, as in /proc.
        FileError::Call(_) if is_answer && lower.contains("no such file or directory") => PortError::NotFound,
        // The file's own trouble, not the service's.
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
