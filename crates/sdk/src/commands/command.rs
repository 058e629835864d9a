//! The command to run.

use std::fmt;
use std::time::Duration;

use protocol::guest::{STDIN_ENCODING, STDIN_GZIP};
use protocol::rpc::process::{ProcessConfig, StartRequest};

/// Default of the official SDKs.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Bounds the memory for collected output; larger outputs are streamed.
pub(crate) const OUTPUT_LIMIT: usize = 64 * 1024 * 1024;

/// A command to run in a sandbox.
///
/// ```
/// use std::time::Duration;
/// use sandbar_sdk::Command;
///
/// // A bash line, with pipes and variables.
/// let count = Command::new("ls | wc -l").cwd("/etc");
/// // A program and its arguments, without a shell: nothing to quote.
/// let hello = Command::exec("printf", ["%s", "it's $HOME"]).timeout(Duration::from_secs(5));
/// ```
#[derive(Clone)]
pub struct Command {
    pub(super) config: ProcessConfig,
    pub(super) user: Option<String>,
    pub(super) limit: Option<Duration>,
    pub(super) stdin: bool,
    pub(super) tag: Option<String>,
    pub(super) output_limit: usize,
}

impl Command {
    /// A line for the login shell: `/bin/bash -l -c LINE`.
    pub fn new(line: impl Into<String>) -> Self {
        Self::exec("/bin/bash", ["-l".to_owned(), "-c".to_owned(), line.into()])
    }

    /// A program and its arguments, without a shell. The program is searched in the sandbox's
    /// `PATH`.
    pub fn exec<A: Into<String>>(program: impl Into<String>, arguments: impl IntoIterator<Item = A>) -> Self {
        let args = arguments.into_iter().map(Into::into).collect();
        let config = ProcessConfig { cmd: program.into(), args, ..ProcessConfig::default() };
        Self { config, user: None, limit: Some(TIMEOUT), stdin: false, tag: None, output_limit: OUTPUT_LIMIT }
    }

    /// The working directory; the user's home by default. Relative paths start at that home.
    #[must_use]
    pub fn cwd(mut self, directory: impl Into<String>) -> Self {
        self.config.cwd = Some(directory.into());
        self
    }

    /// Adds an environment variable for this command.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.config.envs.insert(name.into(), value.into());
        self
    }

    /// Adds environment variables for this command.
    #[must_use]
    pub fn envs<N: Into<String>, V: Into<String>>(mut self, variables: impl IntoIterator<Item = (N, V)>) -> Self {
        self.config.envs.extend(variables.into_iter().map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// The user that runs it; the sandbox's default user by default.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>) -> Self {
        self.user = Some(name.into());
        self
    }

    /// How long it may run; one minute by default. The server kills it then, even without a
    /// connected client.
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

    /// Keeps its standard input open for [`super::Running::send_stdin`]; by default it is empty.
    #[must_use]
    pub fn stdin(mut self) -> Self {
        self.stdin = true;
        self
    }

    /// Like [`Command::stdin`], with gzip input that the sandbox inflates before the command reads
    /// it.
    ///
    /// A Sandbar extension: [`crate::Client::capabilities`] lists `stdinEncodings` where it works.
    /// On other servers the command reads the compressed bytes, and sees the variable
    /// `SANDBAR_STDIN_ENCODING`. The server accepts a piece before the command has read it, so that
    /// the next one can travel: an invalid piece fails a later send. Close the input to end it.
    #[must_use]
    pub fn stdin_gzip(self) -> Self {
        self.stdin().env(STDIN_ENCODING, STDIN_GZIP)
    }

    /// A tag for [`super::Commands::connect_tag`].
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// The most bytes to collect of each output; 64 MiB by default. More is
    /// [`super::CommandError::OutputTooLarge`]. Streaming has no limit.
    #[must_use]
    pub fn output_limit(mut self, bytes: usize) -> Self {
        self.output_limit = bytes;
        self
    }

    pub(super) fn request(self) -> StartRequest {
        let Self { config, stdin, tag, .. } = self;
        StartRequest { process: config.into(), tag, stdin: Some(stdin), ..StartRequest::default() }
    }
}

impl From<&str> for Command {
    fn from(line: &str) -> Self {
        Self::new(line)
    }
}

impl From<String> for Command {
    fn from(line: String) -> Self {
        Self::new(line)
    }
}

impl From<&Self> for Command {
    fn from(command: &Self) -> Self {
        command.clone()
    }
}

/// Redacts the values of variables.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("program", &self.config.cmd)
            .field("arguments", &self.config.args)
            .field("cwd", &self.config.cwd)
            .field("variables", &self.config.envs.keys().collect::<Vec<_>>())
            .field("user", &self.user)
            .field("timeout", &self.limit)
            .finish_non_exhaustive()
    }
}
