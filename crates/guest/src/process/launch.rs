//! Launches a process from a request: environment, directory, streams.

use std::collections::BTreeMap;
use std::ffi::{CString, NulError};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use protocol::guest::{STDIN_ENCODING, STDIN_GZIP};
use protocol::rpc::process::{ProcessConfig, StartRequest};
use rustix::fs::{Gid, OFlags, Uid};
use rustix::process::Pid;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::tcsetwinsize;
use tokio::net::unix::pipe;
use tokio::sync::Mutex;

use super::inflate::InflateWriter;
use super::input::{Input, window};
use super::output::Source;
use crate::paths::{self, InvalidGuestPath};
use crate::state::Guest;
use crate::sys::{self, Image, ProcessIdentity, ProcessSpawnError, Stdio};
use crate::users::User;

/// Why a process did not start.
#[derive(Debug)]
pub(crate) enum LaunchError {
    InvalidPath(InvalidGuestPath),
    NoDirectory(PathBuf),
    NotFound(String),
    /// A NUL byte in the command, an argument or a variable.
    Nul,
    /// The command cannot be executed.
    Command {
        command: String,
        source: io::Error,
    },
    /// The user cannot enter it, or it was removed after the check.
    Directory {
        directory: String,
        source: io::Error,
    },
    /// The sandbox has reached its process limit.
    AtLimit,
    /// The guest failed.
    Guest(io::Error),
}

impl std::fmt::Display for LaunchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InvalidPath(bad) => bad.fmt(f),
            Self::NoDirectory(path) => write!(f, "cwd '{}' does not exist", path.display()),
            Self::NotFound(command) => write!(f, "command '{command}' was not found in PATH"),
            Self::Nul => f.write_str("the command, its arguments and variables cannot contain a NUL character"),
            Self::Command { command, source } => write!(f, "cannot start '{command}': {source}"),
            Self::Directory { directory, source } => {
                write!(f, "cannot enter the working directory '{directory}': {source}")
            }
            Self::AtLimit => f.write_str("the sandbox has reached its limit of processes"),
            Self::Guest(source) => write!(f, "cannot start a process: {source}"),
        }
    }
}

impl From<NulError> for LaunchError {
    fn from(_: NulError) -> Self {
        Self::Nul
    }
}

impl From<rustix::io::Errno> for LaunchError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Guest(errno.into())
    }
}

impl From<io::Error> for LaunchError {
    fn from(error: io::Error) -> Self {
        Self::Guest(error)
    }
}

/// A started process without a supervising task yet.
pub(super) struct Launched {
    pub(super) pid: Pid,
    pub(super) input: Input,
    pub(super) source: Source,
    pub(super) control: Option<Control>,
}

/// Our ends of a controlled process's descriptors.
pub(crate) struct Control {
    pub(crate) requests: pipe::Sender,
    pub(crate) responses: pipe::Receiver,
}

/// A validated launch: all checks that need no process.
pub(super) struct Plan {
    program: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    directory: CString,
    user: User,
    streams: Streams,
}

#[derive(Clone, Copy)]
enum Stdin {
    None,
    AsSent,
    /// Compressed.
    Inflated,
}

enum Streams {
    Pipes {
        stdin: Stdin,
    },
    /// Output by pipes, no input, and dedicated control descriptors.
    Controlled,
    Terminal {
        cols: u16,
        rows: u16,
    },
}

impl Plan {
    pub(super) fn new(guest: &Guest, user: User, request: &StartRequest) -> Result<Self, LaunchError> {
        let ProcessConfig { cmd, args, envs, cwd, .. } = &*request.process;
        let directory = paths::resolve(cwd.as_deref().unwrap_or_default(), &user, guest.default_workdir().as_deref())
            .map_err(LaunchError::InvalidPath)?;
        if !fs::metadata(&directory).is_ok_and(|meta| meta.is_dir()) {
            return Err(LaunchError::NoDirectory(directory));
        }
        let mut variables = BTreeMap::from([
            ("PATH".to_owned(), guest.path.clone()),
            ("HOME".to_owned(), user.home.clone()),
            ("USER".to_owned(), user.name.clone()),
            ("LOGNAME".to_owned(), user.name.clone()),
        ]);
        variables.extend(guest.sandbox_env());
        variables.extend(envs.iter().map(|(name, value)| (name.clone(), value.clone())));
        let stdin = match envs.get(STDIN_ENCODING) {
            _ if !request.stdin.unwrap_or(true) => Stdin::None,
            Some(encoding) if encoding == STDIN_GZIP && request.pty.is_unset() => Stdin::Inflated,
            _ => Stdin::AsSent,
        };
        if matches!(stdin, Stdin::Inflated) {
            variables.remove(STDIN_ENCODING);
        }
        let program = find_program(cmd, variables.get("PATH").map_or("", String::as_str))?;

        let mut arguments = vec![CString::new(cmd.as_str())?];
        for argument in args {
            arguments.push(CString::new(argument.as_str())?);
        }
        let environment =
            variables.iter().map(|(name, value)| CString::new(format!("{name}={value}"))).collect::<Result<_, _>>()?;
        let streams = match request.pty.as_option() {
            Some(pty) => Streams::Terminal { cols: saturate(pty.size.cols), rows: saturate(pty.size.rows) },
            None => Streams::Pipes { stdin },
        };
        let directory = CString::new(directory.as_os_str().as_bytes())?;
        Ok(Self { program, arguments, environment, directory, user, streams })
    }

    /// Gives the process control descriptors instead of an input: requests on 3, responses on 4.
    pub(super) fn with_control(self) -> Self {
        Self { streams: Streams::Controlled, ..self }
    }

    /// Starts the process.
    pub(super) fn launch(&self) -> Result<Launched, LaunchError> {
        match self.streams {
            Streams::Pipes { stdin } => self.spawn_with_pipes(stdin, None),
            Streams::Controlled => {
                let (requests, ours) = pipe()?;
                let (responses, theirs) = pipe()?;
                let ends = [dup_above_control(&requests)?, dup_above_control(&theirs)?];
                let launched = self.spawn_with_pipes(Stdin::None, Some([ends[0].as_fd(), ends[1].as_fd()]))?;
                let control = Control {
                    requests: pipe::Sender::from_owned_fd(ours)?,
                    responses: pipe::Receiver::from_owned_fd(responses)?,
                };
                Ok(Launched { control: Some(control), ..launched })
            }
            Streams::Terminal { cols, rows } => self.spawn_in_terminal(cols, rows),
        }
    }

    fn spawn_with_pipes(&self, stdin: Stdin, control: Option<[BorrowedFd<'_>; 2]>) -> Result<Launched, LaunchError> {
        let (stdout, child_stdout) = pipe()?;
        let (stderr, child_stderr) = pipe()?;
        let (child_stdin, sender) = match stdin {
            Stdin::None => (fs::File::open("/dev/null")?.into(), None),
            Stdin::AsSent | Stdin::Inflated => {
                let (reader, writer) = pipe()?;
                (reader, Some(pipe::Sender::from_owned_fd(writer)?))
            }
        };
        let source = Source::Pipes {
            stdout: Some(pipe::Receiver::from_owned_fd(stdout)?),
            stderr: Some(pipe::Receiver::from_owned_fd(stderr)?),
        };
        let pid = self.spawn(&Stdio::Pipes {
            stdin: child_stdin.as_fd(),
            stdout: child_stdout.as_fd(),
            stderr: child_stderr.as_fd(),
            control,
        })?;
        let input = match (stdin, sender) {
            (Stdin::Inflated, Some(sender)) => Input::Inflated(Mutex::new(Some(InflateWriter::new(sender)))),
            (_, sender) => Input::Pipe(Mutex::new(sender)),
        };
        Ok(Launched { pid, input, source, control: None })
    }

    fn spawn_in_terminal(&self, cols: u16, rows: u16) -> Result<Launched, LaunchError> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags)?;
        unlockpt(&master)?;
        let terminal = ioctl_tiocgptpeer(&master, flags)?;
        tcsetwinsize(&terminal, window(cols, rows))?;
        // Lets programs open their terminal by name. A devpts that refuses is not fatal.
        let _refused = rustix::fs::fchown(&terminal, Some(Uid::from_raw(self.user.uid)), None::<Gid>);
        let status = rustix::fs::fcntl_getfl(&master)?;
        rustix::fs::fcntl_setfl(&master, status | OFlags::NONBLOCK)?;
        let master = Arc::new(sys::watch_readiness(master)?);
        let pid = self.spawn(&Stdio::Terminal(terminal.as_fd()))?;
        let input = Input::Terminal { master: Arc::clone(&master), write_lock: Mutex::new(()) };
        Ok(Launched { pid, input, source: Source::Terminal(Some(master)), control: None })
    }

    fn spawn(&self, stdio: &Stdio<'_>) -> Result<Pid, LaunchError> {
        let image = Image {
            program: &self.program,
            arguments: &self.arguments,
            environment: &self.environment,
            directory: &self.directory,
        };
        let identity = ProcessIdentity { uid: self.user.uid, gid: self.user.gid, groups: &self.user.groups };
        sys::spawn(&image, &identity, stdio).map_err(|error| match error {
            ProcessSpawnError::Clone(source) if source.raw_os_error() == Some(libc::EAGAIN) => LaunchError::AtLimit,
            ProcessSpawnError::Clone(source)
            | ProcessSpawnError::Streams(source)
            | ProcessSpawnError::Identity(source) => LaunchError::Guest(source),
            ProcessSpawnError::Directory(source) => {
                LaunchError::Directory { directory: self.directory.to_string_lossy().into_owned(), source }
            }
            ProcessSpawnError::Execute(source) => {
                LaunchError::Command { command: self.program.to_string_lossy().into_owned(), source }
            }
        })
    }
}

/// A close-on-exec pipe with both ends above the standard streams: the guest holds 0, 1 and 2.
fn pipe() -> Result<(OwnedFd, OwnedFd), LaunchError> {
    let ends = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    debug_assert!(ends.0.as_raw_fd() > 2 && ends.1.as_raw_fd() > 2);
    Ok(ends)
}

/// Duplicates an end to a number that the child's descriptor setup does not overwrite.
fn dup_above_control(end: &OwnedFd) -> Result<OwnedFd, LaunchError> {
    Ok(rustix::io::fcntl_dupfd_cloexec(end, 16)?)
}

/// A name with a slash is a path, relative to the process's directory; any other is searched in
/// `PATH`.
fn find_program(command: &str, path: &str) -> Result<CString, LaunchError> {
    if command.contains('/') {
        return Ok(CString::new(command)?);
    }
    let executable = |candidate: &PathBuf| {
        fs::metadata(candidate).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    let found = path.split(':').filter(|_| !command.is_empty()).map(|at| Path::new(at).join(command)).find(executable);
    match found {
        Some(program) => Ok(CString::new(program.as_os_str().as_bytes())?),
        None => Err(LaunchError::NotFound(command.to_owned())),
    }
}

fn saturate(size: u32) -> u16 {
    u16::try_from(size).unwrap_or(u16::MAX)
}
