//! A running command and its event stream.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{Stream, stream};
use protocol::rpc::process::{ConnectRequest, StartRequest};
use tokio::time::Instant;

use super::error::{CommandError, ProcessName};
use super::output::{Chunk, Event, Exit, Output, ProcessMessage, decode};
use super::process::{Process, Signal, Source};
use crate::pty::Size;
use crate::sandbox::Sandbox;
use crate::transport::connect::Frame;
use crate::transport::{Call, Failure, Idempotency};
use crate::watched::{StreamEnd, WatchedStream};

/// Between a command's timeout and the moment the client stops relying on the server to enforce it;
/// covers network latency.
const TIMEOUT_GRACE: Duration = Duration::from_secs(2);
/// For killing a process that the server should have killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two reconnect attempts.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(200);
/// Consecutive reconnect attempts without progress.
const MAX_RECONNECTS: u32 = 3;

/// A command that was started, or attached to.
///
/// Dropping it closes the stream and leaves the process running until its timeout;
/// [`Running::kill`] kills it.
///
/// ```no_run
/// # async fn example(sandbox: sandbar_sdk::Sandbox) -> Result<(), sandbar_sdk::CommandError> {
/// use sandbar_sdk::Chunk;
///
/// let mut build = sandbox.commands().start("make").await?;
/// while let Some(chunk) = build.next().await? {
///     match chunk {
///         Chunk::Stdout(text) => print!("{}", String::from_utf8_lossy(&text)),
///         Chunk::Stderr(text) => eprint!("{}", String::from_utf8_lossy(&text)),
///         Chunk::Pty(_) => unreachable!("it has no terminal"),
///     }
/// }
/// let exit = build.exit().expect("there is nothing more to come");
/// println!("{}", exit.status);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Running {
    process: Process,
    pid: u32,
    call: Call,
    /// [`None`] after the exit was received or the stream was lost.
    stream: Option<WatchedStream>,
    exit: Option<Exit>,
    timeout: Option<Timeout>,
    reconnected: bool,
    output_limit: usize,
}

/// When the server must have killed the process; known to the client that started it.
#[derive(Debug, Clone, Copy)]
struct Timeout {
    limit: Duration,
    at: Instant,
}

/// The parameters of a start besides its message.
pub(crate) struct ProcessLaunch {
    pub(crate) request: StartRequest,
    pub(crate) user: Option<String>,
    pub(crate) limit: Option<Duration>,
    pub(crate) output_limit: usize,
    pub(crate) source: Source,
}

impl Running {
    /// Starts a process and waits until it runs.
    pub(crate) async fn start(sandbox: &Sandbox, launch: ProcessLaunch) -> Result<Self, CommandError> {
        let ProcessLaunch { request, user, limit, output_limit, source } = launch;
        let client = sandbox.client();
        // Not retried once sent: the first request may have started the process.
        let call = Call::new(
            format!("start a command in sandbox {}", sandbox.id()),
            Idempotency::NotIdempotent,
            client.deadline(),
        );
        let user = sandbox.user_for_daemon(user.as_deref());
        let frames =
            sandbox.envd().stream(client.shared(), &call, "/process.Process/Start", user, limit, &request).await;
        let frames = match frames {
            Ok(frames) => frames,
            Err(failure) => return Err(CommandError::from_start(sandbox, &call, failure).await),
        };
        let (pid, stream) = match read_start(WatchedStream::new(frames, sandbox), sandbox, &call).await {
            Ok(begun) => begun,
            Err(StartFailure::Failed(failure)) => return Err(CommandError::from_start(sandbox, &call, failure).await),
            Err(StartFailure::Ended(ended)) => return Err(CommandError::from_stream_end(sandbox, &call, None, ended)),
        };
        // The server's timer has started before this moment.
        let timeout = limit.and_then(|limit| {
            let at = Instant::now().checked_add(limit.checked_add(TIMEOUT_GRACE)?)?;
            Some(Timeout { limit, at })
        });
        let process = Process { sandbox: sandbox.clone(), name: ProcessName::Pid(pid), source };
        Ok(Self { process, pid, call, stream: Some(stream), exit: None, timeout, reconnected: false, output_limit })
    }

    /// Attaches to a process that runs, or ended within the last 30 seconds.
    pub(crate) async fn connect(process: Process, output_limit: usize) -> Result<Self, CommandError> {
        let sandbox = &process.sandbox;
        let client = sandbox.client();
        let call = Call::new(process.what("connect to"), Idempotency::Idempotent, client.deadline());
        let message = ConnectRequest { process: process.selector().into(), ..ConnectRequest::default() };
        let frames =
            sandbox.envd().stream(client.shared(), &call, "/process.Process/Connect", None, None, &message).await;
        let frames = match frames {
            Ok(frames) => frames,
            Err(failure) => return Err(CommandError::from_call(sandbox, &call, process.name.clone(), failure).await),
        };
        let (pid, stream) = match read_start(WatchedStream::new(frames, sandbox), sandbox, &call).await {
            Ok(begun) => begun,
            Err(StartFailure::Failed(failure)) => {
                return Err(CommandError::from_call(sandbox, &call, process.name.clone(), failure).await);
            }
            Err(StartFailure::Ended(ended)) => {
                let known = if let ProcessName::Pid(pid) = process.name { Some(pid) } else { None };
                return Err(CommandError::from_stream_end(sandbox, &call, known, ended));
            }
        };
        let process = Process { name: ProcessName::Pid(pid), ..process };
        Ok(Self {
            process,
            pid,
            call,
            stream: Some(stream),
            exit: None,
            timeout: None,
            reconnected: true,
            output_limit,
        })
    }

    /// Its process id inside the sandbox.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Changes how many bytes of each output [`Running::wait`] collects; see
    /// [`super::Command::output_limit`].
    #[must_use]
    pub fn output_limit(mut self, bytes: usize) -> Self {
        self.output_limit = bytes;
        self
    }

    /// A handle for input and signals, usable while this one is read.
    pub fn process(&self) -> Process {
        self.process.clone()
    }

    /// Its exit, once [`Running::next`] has returned [`None`].
    pub fn exit(&self) -> Option<&Exit> {
        self.exit.as_ref()
    }

    /// The next chunk of output; [`None`] after the exit. Cancel safe: no output is lost.
    ///
    /// After two silent keepalive intervals, or when the connection breaks, the client checks
    /// whether the sandbox runs before it returns an error.
    ///
    /// # Errors
    /// [`CommandError::SandboxGone`], [`CommandError::ConnectionLost`] (call
    /// [`Running::reconnect`]), [`CommandError::DeadlineExceeded`].
    pub async fn next(&mut self) -> Result<Option<Chunk>, CommandError> {
        loop {
            if self.exit.is_some() {
                return Ok(None);
            }
            let message = self.message().await?;
            match decode(&message) {
                Ok(ProcessMessage::Output(chunk)) => return Ok(Some(chunk)),
                Ok(ProcessMessage::End(exit)) => {
                    self.exit = Some(exit);
                    if let Some(stream) = self.stream.take() {
                        stream.finish().await;
                    }
                }
                Ok(ProcessMessage::Start(_) | ProcessMessage::Other) => {}
                Err(detail) => return Err(self.fail_stream(StreamEnd::Garbled(detail))),
            }
        }
    }

    async fn message(&mut self) -> Result<Bytes, CommandError> {
        let sandbox = &self.process.sandbox;
        let Some(stream) = &mut self.stream else {
            return Err(self.fail_stream(StreamEnd::Lost("its stream has ended before".into())));
        };
        let next = stream.next(sandbox);
        let next = match self.timeout {
            Some(timeout) => match tokio::time::timeout_at(timeout.at, next).await {
                Ok(next) => next,
                Err(_) => return Err(self.handle_missed_timeout().await),
            },
            None => next.await,
        };
        let ended = match next {
            Ok(Frame::Message(message)) => return Ok(message),
            Ok(Frame::End(None)) => sandbox.diagnose("the stream ended without the process's end".into()).await,
            Ok(Frame::End(Some(refusal))) if refusal.is("deadline_exceeded") && self.timeout.is_some() => {
                self.stream = None;
                return Err(self.timeout_error(None));
            }
            Ok(Frame::End(Some(refusal))) => sandbox.diagnose(refusal.message).await,
            Err(ended) => ended,
        };
        Err(self.fail_stream(ended))
    }

    fn fail_stream(&mut self, ended: StreamEnd) -> CommandError {
        self.stream = None;
        CommandError::from_stream_end(&self.process.sandbox, &self.call, Some(self.pid), ended)
    }

    /// Handles a server that did not enforce the timeout, or whose exit event was lost.
    async fn handle_missed_timeout(&mut self) -> CommandError {
        self.stream = None;
        let sandbox = self.process.sandbox.within(KILL_TIMEOUT);
        let killed = Process { sandbox, ..self.process.clone() }.kill().await;
        match killed {
            Err(CommandError::SandboxGone { id, reason }) => CommandError::SandboxGone { id, reason },
            Ok(_) => self.timeout_error(None),
            Err(_) => self.timeout_error(Some(self.pid)),
        }
    }

    fn timeout_error(&self, may_still_run: Option<u32>) -> CommandError {
        let after = self.timeout.map_or(Duration::ZERO, |timeout| timeout.limit);
        CommandError::DeadlineExceeded { id: self.process.sandbox.id().clone(), after, may_still_run }
    }

    /// Reads to the end and collects the output.
    ///
    /// # Errors
    /// Those of [`Running::next`], and [`CommandError::OutputTooLarge`], after which the process
    /// still runs.
    pub async fn wait(mut self) -> Result<Output, CommandError> {
        let (mut stdout, mut stderr) = (BytesMut::new(), BytesMut::new());
        while let Some(chunk) = self.next().await? {
            let (collected, bytes) = match chunk {
                Chunk::Stdout(bytes) | Chunk::Pty(bytes) => (&mut stdout, bytes),
                Chunk::Stderr(bytes) => (&mut stderr, bytes),
            };
            if bytes.len() > self.output_limit - collected.len() {
                let id = self.process.sandbox.id().clone();
                return Err(CommandError::OutputTooLarge { id, pid: self.pid, limit: self.output_limit });
            }
            collected.extend_from_slice(&bytes);
        }
        let exit = self.exit.expect("no further chunk means that the end was seen");
        Ok(Output { stdout: stdout.freeze(), stderr: stderr.freeze(), exit })
    }

    /// Waits for the exit and discards the output; reconnects after a lost connection.
    ///
    /// # Errors
    /// Those of [`Running::next`].
    pub async fn wait_exit(&mut self) -> Result<Exit, CommandError> {
        let mut reconnects = 0;
        loop {
            let lost = match self.next().await {
                Ok(Some(_)) => {
                    reconnects = 0;
                    continue;
                }
                Ok(None) => {
                    let exit = self.exit.clone().expect("no further chunk means that the end was seen");
                    // A reconnected client sees an exit by signal, not that the timeout sent it.
                    // The margin covers the different latencies of the start and the exit events.
                    let due = self
                        .timeout
                        .is_some_and(|timeout| Instant::now() + TIMEOUT_GRACE + TIMEOUT_GRACE / 10 >= timeout.at);
                    return if self.reconnected && due && !exit.exited {
                        Err(self.timeout_error(None))
                    } else {
                        Ok(exit)
                    };
                }
                Err(CommandError::ConnectionLost { id, may_still_run, cause }) => {
                    CommandError::ConnectionLost { id, may_still_run, cause }
                }
                Err(error) => return Err(error),
            };
            reconnects += 1;
            if reconnects > MAX_RECONNECTS {
                return Err(lost);
            }
            tokio::time::sleep(RECONNECT_INTERVAL * reconnects).await;
            match self.reconnect().await {
                Ok(again) => *self = again,
                Err(CommandError::ConnectionLost { .. } | CommandError::Call(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Attaches to the same process on a new connection: its output from now on, and its exit until
    /// 30 seconds after its end. Output in between is lost.
    ///
    /// # Errors
    /// [`CommandError::NotFound`] when it ended earlier, or those of [`Running::next`].
    pub async fn reconnect(&self) -> Result<Self, CommandError> {
        let again = Self::connect(self.process.clone(), self.output_limit).await?;
        Ok(Self { timeout: self.timeout, ..again })
    }

    /// The output and then the exit, as a stream. Dropping it leaves the process running.
    pub fn into_stream(self) -> impl Stream<Item = Result<Event, CommandError>> + Send + 'static {
        stream::unfold(Some(self), |running| async move {
            let mut running = running?;
            match running.next().await {
                Ok(Some(chunk)) => Some((Ok(Event::Output(chunk)), Some(running))),
                Ok(None) => {
                    let exit = running.exit.expect("no further chunk means that the end was seen");
                    Some((Ok(Event::Exit(exit)), None))
                }
                Err(error) => Some((Err(error), None)),
            }
        })
    }

    /// See [`Process::send_stdin`].
    ///
    /// # Errors
    /// Those of [`Process::send_stdin`].
    pub async fn send_stdin(&self, input: impl Into<Bytes>) -> Result<(), CommandError> {
        self.process.send_stdin(input).await
    }

    /// See [`Process::close_stdin`].
    ///
    /// # Errors
    /// Those of [`Process::close_stdin`].
    pub async fn close_stdin(&self) -> Result<(), CommandError> {
        self.process.close_stdin().await
    }

    /// See [`Process::signal`].
    ///
    /// # Errors
    /// Those of [`Process::signal`].
    pub async fn signal(&self, signal: Signal) -> Result<(), CommandError> {
        self.process.signal(signal).await
    }

    /// See [`Process::kill`].
    ///
    /// # Errors
    /// Those of [`Process::kill`].
    pub async fn kill(&self) -> Result<bool, CommandError> {
        self.process.kill().await
    }

    /// See [`Process::resize`].
    ///
    /// # Errors
    /// Those of [`Process::resize`].
    pub async fn resize(&self, size: Size) -> Result<(), CommandError> {
        self.process.resize(size).await
    }
}

enum StartFailure {
    Failed(Failure),
    Ended(StreamEnd),
}

/// Reads the start event, which every process stream begins with, within the call's deadline.
async fn read_start(
    mut stream: WatchedStream,
    sandbox: &Sandbox,
    call: &Call,
) -> Result<(u32, WatchedStream), StartFailure> {
    loop {
        let next = tokio::time::timeout_at(call.deadline(), stream.next(sandbox)).await;
        match next.map_err(|_| StartFailure::Failed(Failure::Call(call.deadline_exceeded())))? {
            Ok(Frame::Message(message)) => match decode(&message) {
                Ok(ProcessMessage::Start(pid)) => return Ok((pid, stream)),
                Ok(ProcessMessage::Other) => {}
                Ok(ProcessMessage::Output(_) | ProcessMessage::End(_)) => {
                    return Err(StartFailure::Ended(StreamEnd::Garbled(
                        "a process's stream begins without its pid".into(),
                    )));
                }
                Err(detail) => return Err(StartFailure::Ended(StreamEnd::Garbled(detail))),
            },
            Ok(Frame::End(Some(refusal))) => {
                stream.finish().await;
                return Err(StartFailure::Failed(Failure::Refused(refusal)));
            }
            Ok(Frame::End(None)) => {
                return Err(StartFailure::Ended(StreamEnd::Lost("the stream ended at once".into())));
            }
            Err(ended) => return Err(StartFailure::Ended(ended)),
        }
    }
}
