//! A command that runs, and the stream of what it says.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{Stream, stream};
use protocol::rpc::process::{ConnectRequest, StartRequest};
use tokio::time::Instant;

use super::error::{CommandError, ProcessName};
use super::output::{Chunk, Event, Exit, Output, Said, decode};
use super::process::{Process, Signal, Source};
use crate::pty::Size;
use crate::sandbox::Sandbox;
use crate::transport::connect::Frame;
use crate::transport::{Call, Failure, Repeat};
use crate::watched::{Ended, Watched};

/// Between a command's timeout and the moment the client stops trusting the server to keep it. The server's word that it
/// did has to travel.
const GRACE: Duration = Duration::from_secs(2);
/// For killing what the server should have killed.
const KILL_DEADLINE: Duration = Duration::from_secs(5);
/// Between two tries to take a process up again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);
/// Tries to take a process up again, when each finds the connection lost once more.
const RECONNECTS: u32 = 3;

/// A command that was started, or connected to.
///
/// Dropping it closes the stream and leaves the process running until its timeout; [`Running::kill`] ends it.
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
    /// Until the end was seen, or the stream was lost.
    stream: Option<Watched>,
    exit: Option<Exit>,
    timeout: Option<Timeout>,
    reconnected: bool,
    output_limit: usize,
}

/// When the server must have killed the process, as its starter knows.
#[derive(Debug, Clone, Copy)]
struct Timeout {
    limit: Duration,
    at: Instant,
}

/// What a start needs besides its message.
pub(crate) struct Launch {
    pub(crate) request: StartRequest,
    pub(crate) user: Option<String>,
    pub(crate) limit: Option<Duration>,
    pub(crate) output_limit: usize,
    pub(crate) source: Source,
}

impl Running {
    /// Starts a process and waits until it runs.
    pub(crate) async fn start(sandbox: &Sandbox, launch: Launch) -> Result<Self, CommandError> {
        let Launch { request, user, limit, output_limit, source } = launch;
        let client = sandbox.client();
        // Never again once it was sent: the first may run.
        let call = Call::new(format!("start a command in sandbox {}", sandbox.id()), Repeat::Never, client.deadline());
        let user = sandbox.user_to_name(user.as_deref());
        let frames =
            sandbox.envd().stream(client.shared(), &call, "/process.Process/Start", user, limit, &request).await;
        let frames = match frames {
            Ok(frames) => frames,
            Err(failure) => return Err(CommandError::of_start(sandbox, &call, failure).await),
        };
        let (pid, stream) = match first(Watched::new(frames, sandbox), sandbox, &call).await {
            Ok(begun) => begun,
            Err(First::Failed(failure)) => return Err(CommandError::of_start(sandbox, &call, failure).await),
            Err(First::Ended(ended)) => return Err(CommandError::of_end(sandbox, &call, None, ended)),
        };
        // The server's clock has started by now, so it must have ended the process by then.
        let timeout = limit.and_then(|limit| {
            let at = Instant::now().checked_add(limit.checked_add(GRACE)?)?;
            Some(Timeout { limit, at })
        });
        let process = Process { sandbox: sandbox.clone(), name: ProcessName::Pid(pid), source };
        Ok(Self { process, pid, call, stream: Some(stream), exit: None, timeout, reconnected: false, output_limit })
    }

    /// Takes up a process that runs, or ended a short while ago.
    pub(crate) async fn connect(process: Process, output_limit: usize) -> Result<Self, CommandError> {
        let sandbox = &process.sandbox;
        let client = sandbox.client();
        let call = Call::new(process.what("connect to"), Repeat::Harmless, client.deadline());
        let message = ConnectRequest { process: process.selector().into(), ..ConnectRequest::default() };
        let frames =
            sandbox.envd().stream(client.shared(), &call, "/process.Process/Connect", None, None, &message).await;
        let frames = match frames {
            Ok(frames) => frames,
            Err(failure) => return Err(CommandError::of_call(sandbox, &call, process.name.clone(), failure).await),
        };
        let (pid, stream) = match first(Watched::new(frames, sandbox), sandbox, &call).await {
            Ok(begun) => begun,
            Err(First::Failed(failure)) => {
                return Err(CommandError::of_call(sandbox, &call, process.name.clone(), failure).await);
            }
            Err(First::Ended(ended)) => {
                let known = if let ProcessName::Pid(pid) = process.name { Some(pid) } else { None };
                return Err(CommandError::of_end(sandbox, &call, known, ended));
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

    /// Its number inside the sandbox.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Changes how many bytes of each output [`Running::wait`] collects; see [`super::Command::output_limit`].
    #[must_use]
    pub fn output_limit(mut self, bytes: usize) -> Self {
        self.output_limit = bytes;
        self
    }

    /// A handle for input and signals that may be used while this one is read.
    pub fn process(&self) -> Process {
        self.process.clone()
    }

    /// How it ended, once [`Running::next`] has said that nothing more comes.
    pub fn exit(&self) -> Option<&Exit> {
        self.exit.as_ref()
    }

    /// The next piece of output; [`None`] when it has ended. Safe to cancel: nothing is lost.
    ///
    /// The stream is watched. After two silent keepalive intervals, or when the connection breaks, the client looks
    /// whether the sandbox lives before it says what happened.
    ///
    /// # Errors
    /// [`CommandError::SandboxGone`], [`CommandError::ConnectionLost`] (then [`Running::reconnect`] goes on),
    /// [`CommandError::DeadlineExceeded`].
    pub async fn next(&mut self) -> Result<Option<Chunk>, CommandError> {
        loop {
            if self.exit.is_some() {
                return Ok(None);
            }
            let message = self.message().await?;
            match decode(&message) {
                Ok(Said::Output(chunk)) => return Ok(Some(chunk)),
                Ok(Said::End(exit)) => {
                    self.exit = Some(exit);
                    if let Some(stream) = self.stream.take() {
                        stream.finish().await;
                    }
                }
                Ok(Said::Start(_) | Said::Nothing) => {}
                Err(detail) => return Err(self.ended(Ended::Garbled(detail))),
            }
        }
    }

    async fn message(&mut self) -> Result<Bytes, CommandError> {
        let sandbox = &self.process.sandbox;
        let Some(stream) = &mut self.stream else {
            return Err(self.ended(Ended::Lost("its stream has ended before".into())));
        };
        let next = stream.next(sandbox);
        let next = match self.timeout {
            Some(timeout) => match tokio::time::timeout_at(timeout.at, next).await {
                Ok(next) => next,
                Err(_) => return Err(self.overdue().await),
            },
            None => next.await,
        };
        let ended = match next {
            Ok(Frame::Message(message)) => return Ok(message),
            Ok(Frame::End(None)) => sandbox.fate("the stream ended without the process's end".into()).await,
            Ok(Frame::End(Some(refusal))) if refusal.is("deadline_exceeded") && self.timeout.is_some() => {
                self.stream = None;
                return Err(self.timed_out(None));
            }
            Ok(Frame::End(Some(refusal))) => sandbox.fate(refusal.message).await,
            Err(ended) => ended,
        };
        Err(self.ended(ended))
    }

    fn ended(&mut self, ended: Ended) -> CommandError {
        self.stream = None;
        CommandError::of_end(&self.process.sandbox, &self.call, Some(self.pid), ended)
    }

    /// The server did not keep the timeout, or its word of it did not arrive.
    async fn overdue(&mut self) -> CommandError {
        self.stream = None;
        let sandbox = self.process.sandbox.within(KILL_DEADLINE);
        let killed = Process { sandbox, ..self.process.clone() }.kill().await;
        match killed {
            Err(CommandError::SandboxGone { id, reason }) => CommandError::SandboxGone { id, reason },
            Ok(_) => self.timed_out(None),
            Err(_) => self.timed_out(Some(self.pid)),
        }
    }

    fn timed_out(&self, may_still_run: Option<u32>) -> CommandError {
        let after = self.timeout.map_or(Duration::ZERO, |timeout| timeout.limit);
        CommandError::DeadlineExceeded { id: self.process.sandbox.id().clone(), after, may_still_run }
    }

    /// Reads it to its end and collects what it says.
    ///
    /// # Errors
    /// Those of [`Running::next`], and [`CommandError::OutputTooLarge`], after which the process still runs.
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

    /// Waits for its end, whatever it says until then. Since no output can be missed, a lost connection is made anew.
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
                    // Who connects again is told of an end by a signal, and not that the timeout sent it. The word
                    // of the start and that of the end do not travel equally long.
                    let due = self.timeout.is_some_and(|timeout| Instant::now() + GRACE + GRACE / 10 >= timeout.at);
                    return if self.reconnected && due && !exit.exited { Err(self.timed_out(None)) } else { Ok(exit) };
                }
                Err(CommandError::ConnectionLost { id, may_still_run, cause }) => {
                    CommandError::ConnectionLost { id, may_still_run, cause }
                }
                Err(error) => return Err(error),
            };
            reconnects += 1;
            if reconnects > RECONNECTS {
                return Err(lost);
            }
            tokio::time::sleep(RECONNECT_PAUSE * reconnects).await;
            match self.reconnect().await {
                Ok(again) => *self = again,
                Err(CommandError::ConnectionLost { .. } | CommandError::Call(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The same process on a new connection: what it says from now on, and its exit until half a minute after its end.
    /// What it said in between is lost.
    ///
    /// # Errors
    /// [`CommandError::NotFound`] when it ended longer ago.
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

    /// As [`Process::send_stdin`].
    ///
    /// # Errors
    /// As there.
    pub async fn send_stdin(&self, input: impl Into<Bytes>) -> Result<(), CommandError> {
        self.process.send_stdin(input).await
    }

    /// As [`Process::close_stdin`].
    ///
    /// # Errors
    /// As there.
    pub async fn close_stdin(&self) -> Result<(), CommandError> {
        self.process.close_stdin().await
    }

    /// As [`Process::signal`].
    ///
    /// # Errors
    /// As there.
    pub async fn signal(&self, signal: Signal) -> Result<(), CommandError> {
        self.process.signal(signal).await
    }

    /// As [`Process::kill`].
    ///
    /// # Errors
    /// As there.
    pub async fn kill(&self) -> Result<bool, CommandError> {
        self.process.kill().await
    }

    /// As [`Process::resize`].
    ///
    /// # Errors
    /// As there.
    pub async fn resize(&self, size: Size) -> Result<(), CommandError> {
        self.process.resize(size).await
    }
}

enum First {
    Failed(Failure),
    Ended(Ended),
}

/// The pid, which every stream of a process begins with, within the call's time.
async fn first(mut stream: Watched, sandbox: &Sandbox, call: &Call) -> Result<(u32, Watched), First> {
    loop {
        let next = tokio::time::timeout_at(call.deadline(), stream.next(sandbox)).await;
        match next.map_err(|_| First::Failed(Failure::Call(call.out_of_time())))? {
            Ok(Frame::Message(message)) => match decode(&message) {
                Ok(Said::Start(pid)) => return Ok((pid, stream)),
                Ok(Said::Nothing) => {}
                Ok(Said::Output(_) | Said::End(_)) => {
                    return Err(First::Ended(Ended::Garbled("a process's stream begins without its pid".into())));
                }
                Err(detail) => return Err(First::Ended(Ended::Garbled(detail))),
            },
            Ok(Frame::End(Some(refusal))) => {
                stream.finish().await;
                return Err(First::Failed(Failure::Refused(refusal)));
            }
            Ok(Frame::End(None)) => return Err(First::Ended(Ended::Lost("the stream ended at once".into()))),
            Err(ended) => return Err(First::Ended(ended)),
        }
    }
}
