//! What is to be run.

use std::fmt;
use std::time::Duration;

use protocol::guest::{STDIN_ENCODING, STDIN_GZIP};
use protocol::rpc::process::{ProcessConfig, StartRequest};

/// As the official SDKs.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Enough for any text somebody reads, and far from what fills a memory.
pub(crate) const OUTPUT_LIMIT: usize = 64 * 1024 * 1024;

/// A command to be run in a sandbox.
///
/// ```
/// use std::time::Duration;
/// use sandbar_sdk::Command;
///
/// // A line for bash, with pipes and variables.
/// let count = Command::new("ls | wc -l").cwd("/etc");
/// // A program and its arguments, as they are: nothing to quote.
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

    /// A program and its arguments, which no shell sees. The program is looked for in the sandbox's `PATH`.
    pub fn exec<A: Into<String>>(program: impl Into<String>, arguments: impl IntoIterator<Item = A>) -> Self {
        let args = arguments.into_iter().map(Into::into).collect();
        let config = ProcessConfig { cmd: program.into(), args, ..ProcessConfig::default() };
        Self { config, user: None, limit: Some(TIMEOUT), stdin: false, tag: None, output_limit: OUTPUT_LIMIT }
    }

    /// The directory it runs in; the user's home unless set. Relative ones are below that home.
    #[must_use]
    pub fn cwd(mut self, directory: impl Into<String>) -> Self {
        self.config.cwd = Some(directory.into());
        self
    }

    /// A variable that this command sees besides the sandbox's own.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.config.envs.insert(name.into(), value.into());
        self
    }

    /// Variables that this command sees besides the sandbox's own.
    #[must_use]
    pub fn envs<N: Into<String>, V: Into<String>>(mut self, variables: impl IntoIterator<Item = (N, V)>) -> Self {
        self.config.envs.extend(variables.into_iter().map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// Who runs it; the sandbox's default user unless set.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>) -> Self {
        self.user = Some(name.into());
        self
    }

    /// How long it may run; a minute unless set. Then the server kills it, also when nobody waits for it any more.
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

    /// Keeps its standard input open for [`super::Running::send_stdin`]; it is empty otherwise.
    #[must_use]
    pub fn stdin(mut self) -> Self {
        self.stdin = true;
        self
    }

    /// As [`Command::stdin`], and what is sent is gzip, which the sandbox inflates before the command reads it.
    ///
    /// Sandbar's own: [`crate::Client::capabilities`] has `stdinEncodings` where it works. Elsewhere the command reads what was
    /// sent, and sees the variable `SANDBAR_STDIN_ENCODING`. A piece is taken before the command has read it, so that the next one
    /// may travel: what was wrong with it is told to whoever sends more, and close the input to end it.
    #[must_use]
    pub fn stdin_gzip(self) -> Self {
        self.stdin().env(STDIN_ENCODING, STDIN_GZIP)
    }

    /// A name to find it by, with [`super::Commands::connect_tag`].
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// How many bytes of each of its outputs are collected at most; 64 MiB unless set. More is
    /// [`super::CommandError::OutputTooLarge`]. Streaming knows no limit.
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

/// Values of variables are left out.
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
