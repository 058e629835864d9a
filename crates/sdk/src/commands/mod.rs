//! Commands in a sandbox: run to completion, or started and followed.

mod command;
mod error;
pub mod label;
mod output;
mod process;
mod running;

use std::fmt;

use bytes::Bytes;
use protocol::rpc::process::{ListRequest, ListResponse, ProcessConfig};

pub use command::Command;
pub(crate) use command::OUTPUT_LIMIT;
pub use error::{CommandError, ProcessName};
pub use output::{Chunk, Event, Exit, Output};
pub use process::{Process, Signal};
pub(crate) use process::{Source, terminal};
pub(crate) use running::ProcessLaunch;
pub use running::Running;

use crate::sandbox::Sandbox;
use crate::transport::{Call, Failure, Idempotency};
use crate::version::Feature;

impl Sandbox {
    /// The commands of this sandbox.
    pub fn commands(&self) -> Commands<'_> {
        Commands { sandbox: self }
    }
}

/// The commands of a sandbox.
///
/// ```no_run
/// # async fn example(sandbox: sandbar_sdk::Sandbox) -> Result<(), sandbar_sdk::CommandError> {
/// use sandbar_sdk::Command;
///
/// let output = sandbox.commands().run("uname -a").await?;
/// println!("{}", output.stdout_text());
///
/// // A non-zero exit code is not an error.
/// let missing = sandbox.commands().run(Command::exec("ls", ["/nowhere"])).await?;
/// assert!(!missing.success());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Commands<'a> {
    sandbox: &'a Sandbox,
}

/// A running process, as [`Commands::list`] reports it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessInfo {
    pub pid: u32,
    pub tag: Option<String>,
    pub program: String,
    pub arguments: Vec<String>,
    /// Its variables besides the sandbox's own.
    pub envs: std::collections::HashMap<String, String>,
    pub cwd: Option<String>,
}

/// Redacts the values of variables.
impl fmt::Debug for ProcessInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessInfo")
            .field("pid", &self.pid)
            .field("tag", &self.tag)
            .field("program", &self.program)
            .field("arguments", &self.arguments)
            .field("cwd", &self.cwd)
            .finish_non_exhaustive()
    }
}

impl<'a> Commands<'a> {
    /// Runs a command to completion and collects its output. A non-zero exit code is not an error.
    ///
    /// Dropping the future stops waiting; the process continues until its timeout. The command is
    /// started at most once, whatever happens to the connection.
    ///
    /// # Errors
    /// Any [`CommandError`]. After [`CommandError::OutputTooLarge`] and
    /// [`CommandError::DeadlineExceeded`] the process has been killed.
    pub async fn run(&self, command: impl Into<Command>) -> Result<Output, CommandError> {
        let running = self.start(command).await?;
        let process = running.process();
        let output = running.wait().await;
        if matches!(output, Err(CommandError::OutputTooLarge { .. })) {
            process.kill().await?;
        }
        output
    }

    /// Runs a command to completion and passes its output to `each` as it arrives. Nothing is
    /// collected, so no limit applies.
    ///
    /// # Errors
    /// Those of [`Running::next`] and [`Commands::start`].
    pub async fn run_with(
        &self,
        command: impl Into<Command>,
        mut each: impl FnMut(Chunk),
    ) -> Result<Exit, CommandError> {
        let mut running = self.start(command).await?;
        while let Some(chunk) = running.next().await? {
            each(chunk);
        }
        Ok(running.exit().cloned().expect("no further chunk means that the end was seen"))
    }

    /// Starts a command and returns as soon as it runs.
    ///
    /// Dropping the future may leave it started; it is started at most once.
    ///
    /// # Errors
    /// [`CommandError::NotStartable`], [`CommandError::SandboxGone`],
    /// [`CommandError::ConnectionLost`] without a pid when it is unknown whether it was started,
    /// [`CommandError::Call`].
    pub async fn start(&self, command: impl Into<Command>) -> Result<Running, CommandError> {
        let command = command.into();
        if !command.stdin {
            self.sandbox.require(Feature::NoStdin, &format!("start a command in sandbox {}", self.sandbox.id()))?;
        }
        let launch = ProcessLaunch {
            user: command.user.clone(),
            limit: command.limit,
            output_limit: command.output_limit,
            source: Source::Stdin,
            request: command.request(),
        };
        Running::start(self.sandbox, launch).await
    }

    /// Attaches to a running process and streams its output from now on. A process that ended
    /// within the last 30 seconds yields its exit.
    ///
    /// # Errors
    /// [`CommandError::NotFound`], or those of [`Running::next`].
    pub async fn connect(&self, pid: u32) -> Result<Running, CommandError> {
        Running::connect(self.process(pid), OUTPUT_LIMIT).await
    }

    /// Like [`Commands::connect`], by the tag set with [`Command::tag`].
    ///
    /// # Errors
    /// Those of [`Commands::connect`].
    pub async fn connect_tag(&self, tag: impl Into<String>) -> Result<Running, CommandError> {
        let process = Process { name: ProcessName::Tag(tag.into()), ..self.process(0) };
        Running::connect(process, OUTPUT_LIMIT).await
    }

    /// A handle to a process for input and signals. Sends no request.
    pub fn process(&self, pid: u32) -> Process {
        Process { sandbox: self.sandbox.clone(), name: ProcessName::Pid(pid), source: Source::Stdin }
    }

    /// Lists the running processes that clients have started, terminals included.
    ///
    /// # Errors
    /// [`CommandError::SandboxGone`], [`CommandError::Call`].
    pub async fn list(&self) -> Result<Vec<ProcessInfo>, CommandError> {
        let client = self.sandbox.client();
        let what = format!("list the processes of sandbox {}", self.sandbox.id());
        let call = Call::new(what, Idempotency::Idempotent, client.deadline());
        let message = ListRequest::default();
        let path = "/process.Process/List";
        let answer: Result<ListResponse, Failure> =
            self.sandbox.envd().unary(client.shared(), &call, path, None, &message).await;
        let listed = match answer {
            Ok(answer) => answer.processes,
            Err(Failure::Refused(refusal)) if refusal.reports_sandbox_gone() => {
                let reason = self.sandbox.gone_reason().await;
                return Err(CommandError::SandboxGone { id: self.sandbox.id().clone(), reason });
            }
            Err(failure) => return Err(failure.into_error(&call).into()),
        };
        let known = listed.into_iter().map(|info| {
            let ProcessConfig { cmd, args, envs, cwd, .. } = Option::from(info.config).unwrap_or_default();
            let envs = envs.into_iter().collect();
            ProcessInfo { pid: info.pid, tag: info.tag, program: cmd, arguments: args, envs, cwd }
        });
        Ok(known.collect())
    }

    /// See [`Process::send_stdin`].
    ///
    /// # Errors
    /// Those of [`Process::send_stdin`].
    pub async fn send_stdin(&self, pid: u32, input: impl Into<Bytes>) -> Result<(), CommandError> {
        self.process(pid).send_stdin(input).await
    }

    /// See [`Process::close_stdin`].
    ///
    /// # Errors
    /// Those of [`Process::close_stdin`].
    pub async fn close_stdin(&self, pid: u32) -> Result<(), CommandError> {
        self.process(pid).close_stdin().await
    }

    /// See [`Process::signal`].
    ///
    /// # Errors
    /// Those of [`Process::signal`].
    pub async fn signal(&self, pid: u32, signal: Signal) -> Result<(), CommandError> {
        self.process(pid).signal(signal).await
    }

    /// See [`Process::kill`].
    ///
    /// # Errors
    /// Those of [`Process::kill`].
    pub async fn kill(&self, pid: u32) -> Result<bool, CommandError> {
        self.process(pid).kill().await
    }
}
