//! Terminals (PTYs): interactive shells.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use protocol::rpc::process::{ProcessConfig, StartRequest};

use crate::commands::{CommandError, OUTPUT_LIMIT, Process, ProcessLaunch, ProcessName, Running, Source, terminal};
use crate::sandbox::Sandbox;

/// Default of the official SDKs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub cols: u16,
    pub rows: u16,
}

impl Default for Size {
    fn default() -> Self {
        Self { cols: 80, rows: 24 }
    }
}

/// The program of a terminal: a login shell with a timeout of one minute by default.
#[derive(Clone)]
pub struct Shell {
    config: ProcessConfig,
    user: Option<String>,
    limit: Option<Duration>,
    tag: Option<String>,
}

impl Default for Shell {
    fn default() -> Self {
        Self::exec("/bin/bash", ["-i", "-l"])
    }
}

impl Shell {
    /// Runs another program than the shell.
    pub fn exec<A: Into<String>>(program: impl Into<String>, arguments: impl IntoIterator<Item = A>) -> Self {
        let args = arguments.into_iter().map(Into::into).collect();
        let mut config = ProcessConfig { cmd: program.into(), args, ..ProcessConfig::default() };
        for (name, value) in [("TERM", "xterm-256color"), ("LANG", "C.UTF-8"), ("LC_ALL", "C.UTF-8")] {
            config.envs.insert(name.into(), value.into());
        }
        Self { config, user: None, limit: Some(TIMEOUT), tag: None }
    }

    /// The working directory; the user's home by default.
    #[must_use]
    pub fn cwd(mut self, directory: impl Into<String>) -> Self {
        self.config.cwd = Some(directory.into());
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.config.envs.insert(name.into(), value.into());
        self
    }

    /// The user that runs it; the sandbox's default user by default.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>) -> Self {
        self.user = Some(name.into());
        self
    }

    /// How long it may run; one minute by default.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Lets it run as long as the sandbox lives.
    #[must_use]
    pub fn no_timeout(mut self) -> Self {
        self.limit = None;
        self
    }

    /// A tag to find it by.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }
}

/// Redacts the values of variables.
impl fmt::Debug for Shell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shell")
            .field("program", &self.config.cmd)
            .field("arguments", &self.config.args)
            .field("cwd", &self.config.cwd)
            .field("user", &self.user)
            .field("timeout", &self.limit)
            .finish_non_exhaustive()
    }
}

impl Sandbox {
    /// The terminals of this sandbox.
    pub fn pty(&self) -> Pty<'_> {
        Pty { sandbox: self }
    }
}

/// The terminals of a sandbox.
///
/// ```no_run
/// # async fn example(sandbox: sandbar_sdk::Sandbox) -> Result<(), sandbar_sdk::CommandError> {
/// use sandbar_sdk::{Chunk, Shell, Size};
///
/// let size = Size { cols: 100, rows: 30 };
/// let mut shell = sandbox.pty().create(size, Shell::default().no_timeout()).await?;
/// shell.send_stdin("echo hello; exit\n").await?;
/// while let Some(Chunk::Pty(shown)) = shell.next().await? {
///     print!("{}", String::from_utf8_lossy(&shown));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Pty<'a> {
    sandbox: &'a Sandbox,
}

impl Pty<'_> {
    /// Opens a terminal. Its output is [`crate::Chunk::Pty`]; [`Running::send_stdin`] types,
    /// [`Running::resize`] resizes.
    ///
    /// Dropping the result leaves the terminal open until its timeout.
    ///
    /// # Errors
    /// Those of [`crate::Commands::start`].
    pub async fn create(&self, size: Size, shell: Shell) -> Result<Running, CommandError> {
        let Shell { config, user, limit, tag } = shell;
        let request =
            StartRequest { process: config.into(), pty: terminal(size).into(), tag, ..StartRequest::default() };
        let launch = ProcessLaunch { request, user, limit, output_limit: OUTPUT_LIMIT, source: Source::Terminal };
        Running::start(self.sandbox, launch).await
    }

    /// Attaches to an open terminal and streams its output from now on.
    ///
    /// # Errors
    /// [`CommandError::NotFound`], or those of [`Running::next`].
    pub async fn connect(&self, pid: u32) -> Result<Running, CommandError> {
        Running::connect(self.process(pid), OUTPUT_LIMIT).await
    }

    /// A handle to a terminal. Sends no request.
    pub fn process(&self, pid: u32) -> Process {
        Process { sandbox: self.sandbox.clone(), name: ProcessName::Pid(pid), source: Source::Terminal }
    }

    /// See [`Process::resize`].
    ///
    /// # Errors
    /// Those of [`Process::resize`].
    pub async fn resize(&self, pid: u32, size: Size) -> Result<(), CommandError> {
        self.process(pid).resize(size).await
    }

    /// Types into a terminal.
    ///
    /// # Errors
    /// Those of [`Process::send_stdin`].
    pub async fn send(&self, pid: u32, input: impl Into<Bytes>) -> Result<(), CommandError> {
        self.process(pid).send_stdin(input).await
    }

    /// See [`Process::kill`].
    ///
    /// # Errors
    /// Those of [`Process::kill`].
    pub async fn kill(&self, pid: u32) -> Result<bool, CommandError> {
        self.process(pid).kill().await
    }
}
