//! Runs a command in a sandbox with this program's input, outputs and exit code, for every `exec`.

mod exit;

use super::process_options::ProcessOptions;
use super::stdin;
use crate::interrupt::{Stop, Stops};
use crate::show::Show;
use crate::values;
use anyhow::{Context as _, bail};
use clap::Args;
pub use exit::code;
use sdk::{Chunk, Command, CommandError, Exit, Process, Running, Sandbox, Signal};
use serde_json::json;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::process::ExitCode;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Between the first signal and SIGKILL.
const GRACE_TIMEOUT: Duration = Duration::from_secs(5);
/// For sending a signal to the command, and for the end of a killed command.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(5);
/// For reconnecting to a command. The service keeps its exit code for half a minute after its end.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const RECONNECT_INTERVAL: Duration = Duration::from_millis(500);
/// For one piece of input: a command may leave its input unread for as long as it runs.
const INPUT_TIMEOUT: Duration = Duration::from_secs(30 * 24 * 3600);
/// Limit of each output that `--json` collects.
const MAX_COLLECTED_BYTES: usize = 64 << 20;
/// The exit code of timeout(1).
const TIMEOUT_EXIT_CODE: u8 = 124;

/// The command and its options.
#[derive(Args)]
pub struct Run {
    /// A line for the login shell, instead of ARGV
    #[arg(long = "shell", short = 'c', value_name = "LINE", conflicts_with = "argv")]
    shell: Option<String>,
    #[command(flatten)]
    process_options: ProcessOptions,
    /// How long it may run; then it is killed [default: as long as the sandbox lives]
    #[arg(long, short, value_name = "TIME", value_parser = values::wait)]
    timeout: Option<Duration>,
    /// Leave it running, and print its pid
    #[arg(long, short)]
    background: bool,
    /// A name to find it by
    #[arg(long)]
    tag: Option<String>,
    /// The program and its arguments
    #[arg(last = true, value_name = "ARGV", required_unless_present = "shell")]
    argv: Vec<String>,
}

impl Run {
    /// Sets the directory unless the caller set one.
    #[must_use]
    pub fn default_cwd(mut self, directory: &str) -> Self {
        self.process_options.cwd.get_or_insert_with(|| directory.to_owned());
        self
    }

    /// Sets a tag on a command in the foreground that has none.
    #[must_use]
    pub fn default_tag(mut self, mark: &str) -> Self {
        if !self.background {
            self.tag.get_or_insert_with(|| mark.to_owned());
        }
        self
    }

    /// Runs the command to its end, or starts it in the background.
    pub async fn run(self, sandbox: &Sandbox, show: Show) -> anyhow::Result<ExitCode> {
        let input = !self.background && !std::io::stdin().is_terminal();
        let started = Instant::now();
        let running = sandbox.commands().start(self.command(input)?).await?;
        let pid = running.pid();
        if self.background {
            match show.json {
                true => show.object(&json!({ "pid": pid, "tag": self.tag }))?,
                false => show.line(pid.to_string())?,
            }
            return Ok(ExitCode::SUCCESS);
        }
        let mut helpers = JoinSet::new();
        if input {
            helpers.spawn(feed(sandbox.within(INPUT_TIMEOUT).commands().process(pid)));
        }
        let sink = if show.json { Sink::Collected { out: Vec::new(), err: Vec::new() } } else { Sink::Through };
        let mut followed = FollowedCommand { sandbox, user: self.process_options.user, running, sink };
        let end = followed.finish().await?;
        helpers.shutdown().await;
        let code = end.code();
        if let Sink::Collected { out, err } = &followed.sink {
            show.object(&json!({
                "stdout": String::from_utf8_lossy(out),
                "stderr": String::from_utf8_lossy(err),
                "exit_code": code,
                "duration_ms": u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            }))?;
        }
        match end {
            End::TimedOut(error) => eprintln!("sandbar: {error}"),
            End::Exited(exit) if !exit.exited && !show.json => eprintln!("sandbar: {}", exit.status),
            End::Exited(_) | End::Stopped(_) => {}
        }
        Ok(ExitCode::from(code))
    }

    fn command(&self, input: bool) -> anyhow::Result<Command> {
        let mut command = match (&self.shell, self.argv.split_first()) {
            (None, Some((program, arguments))) => Command::exec(program, arguments),
            (line, _) => Command::new(line.clone().unwrap_or_default()),
        };
        command = self.timeout.map_or_else(|| command.clone().no_timeout(), |limit| command.clone().timeout(limit));
        command = self.process_options.apply(command)?;
        if let Some(tag) = &self.tag {
            command = command.tag(tag);
        }
        Ok(if input { command.stdin() } else { command })
    }
}

/// Forwards this program's standard input to a process, and closes it at its end.
async fn feed(process: Process) {
    let mut pieces = stdin::pieces();
    while let Some(piece) = pieces.recv().await {
        match process.send_stdin(piece).await {
            Ok(()) => {}
            // The process has ended or has closed its input, which is no error.
            Err(CommandError::NotFound { .. } | CommandError::InputRefused { .. }) => return,
            Err(error) => {
                eprintln!("sandbar: the input did not arrive: {error}");
                return;
            }
        }
    }
    match process.close_stdin().await {
        Ok(()) | Err(CommandError::NotFound { .. } | CommandError::InputRefused { .. }) => {}
        Err(error) => eprintln!("sandbar: the end of the input did not arrive: {error}"),
    }
}

/// What happens to the command's output.
enum Sink {
    Through,
    Collected { out: Vec<u8>, err: Vec<u8> },
}

impl Sink {
    fn take(&mut self, chunk: &Chunk) -> anyhow::Result<()> {
        match (self, chunk) {
            (Self::Through, Chunk::Stdout(bytes) | Chunk::Pty(bytes)) => {
                stdout().write_all(bytes)?;
                stdout().flush()?;
            }
            (Self::Through, Chunk::Stderr(bytes)) => stderr().write_all(bytes)?,
            (Self::Collected { out, err }, chunk) => {
                let (kept, bytes) = match chunk {
                    Chunk::Stdout(bytes) | Chunk::Pty(bytes) => (out, bytes),
                    Chunk::Stderr(bytes) => (err, bytes),
                };
                if kept.len() + bytes.len() > MAX_COLLECTED_BYTES {
                    bail!("the command gives more than 64 MiB of output; run it without --json");
                }
                kept.extend_from_slice(bytes);
            }
        }
        Ok(())
    }
}

/// How the command ended.
enum End {
    Exited(Exit),
    /// The service killed it after `--timeout`.
    TimedOut(CommandError),
    Stopped(Stop),
}

impl End {
    fn code(&self) -> u8 {
        match self {
            Self::Exited(exit) => code(exit),
            Self::TimedOut(_) => TIMEOUT_EXIT_CODE,
            Self::Stopped(stop) => stop.code(),
        }
    }
}

struct FollowedCommand<'a> {
    sandbox: &'a Sandbox,
    user: Option<String>,
    running: Running,
    sink: Sink,
}

impl FollowedCommand<'_> {
    async fn finish(&mut self) -> anyhow::Result<End> {
        let mut stops = Stops::install()?;
        let mut stopping: Option<Stopping> = None;
        loop {
            let overdue = stopping.map(|stopping| stopping.until);
            tokio::select! {
                next = self.running.next() => match next {
                    Ok(Some(chunk)) => {
                        if let Err(error) = self.sink.take(&chunk) {
                            // The reader of this program's output is gone: end the command.
                            self.send_signal("TERM").await;
                            return Err(error);
                        }
                    }
                    Ok(None) => {
                        let exit = self.running.exit().cloned().context("the command has no end")?;
                        return Ok(stopping.map_or(End::Exited(exit), |stopping| End::Stopped(stopping.by)));
                    }
                    Err(error @ CommandError::DeadlineExceeded { .. }) => return Ok(End::TimedOut(error)),
                    Err(CommandError::ConnectionLost { may_still_run: Some(_), cause, .. }) => {
                        eprintln!("sandbar: the connection was lost ({cause}); output may be missing");
                        tokio::select! {
                            found = reconnect_lost(&self.running) => self.running = found?,
                            stop = stops.next() => return Ok(End::Stopped(stop)),
                        }
                    }
                    Err(error) => return Err(error.into()),
                },
                stop = stops.next() => match &mut stopping {
                    None => {
                        self.send_signal(stop.name()).await;
                        stopping = Some(Stopping { by: stop, until: Instant::now() + GRACE_TIMEOUT, killed: false });
                    }
                    Some(again) => {
                        self.send_signal("KILL").await;
                        *again = Stopping { until: Instant::now() + SIGNAL_TIMEOUT, killed: true, ..*again };
                    }
                },
                () = sleep_until(overdue) => match &mut stopping {
                    Some(stopping) if !stopping.killed => {
                        self.send_signal("KILL").await;
                        *stopping = Stopping { until: Instant::now() + SIGNAL_TIMEOUT, killed: true, ..*stopping };
                    }
                    _ => {
                        eprintln!("sandbar: the command may still run as pid {}", self.running.pid());
                        return Ok(stopping.map_or(End::Stopped(Stop::Interrupt), |stopping| End::Stopped(stopping.by)));
                    }
                },
            }
        }
    }

    async fn send_signal(&self, signal: &str) {
        send_signal(self.sandbox, self.user.as_deref(), self.running.pid(), signal).await;
    }
}

/// Sends a signal to a command's process group, by `kill` in the sandbox: the protocol has only two
/// signals, and sends them to one process.
async fn send_signal(sandbox: &Sandbox, user: Option<&str>, pid: u32, signal: &str) {
    const LINE: &str = "kill -s \"$1\" -- \"-$2\" 2>/dev/null || kill -s \"$1\" -- \"$2\"";
    let mut kill = Command::exec("/bin/sh", ["-c", LINE, "sh", signal, &pid.to_string()]).timeout(SIGNAL_TIMEOUT);
    if let Some(user) = user {
        kill = kill.user(user);
    }
    let sandbox = sandbox.within(SIGNAL_TIMEOUT);
    match sandbox.commands().run(kill).await {
        Ok(output) if output.success() && signal != "KILL" => {}
        _ => {
            let signal = if signal == "KILL" { Signal::Kill } else { Signal::Terminate };
            // Fails if the process has ended; the caller waits for its end with a timeout.
            let _ = sandbox.commands().signal(pid, signal).await;
        }
    }
}

/// Kills commands whose tags begin with `begin`, except for `own`: killed programs left them.
/// Returns their command lines.
pub async fn kill_leftovers(sandbox: Sandbox, begin: &'static str, own: String) -> Vec<String> {
    let left = sandbox.within(SIGNAL_TIMEOUT).commands().list().await.unwrap_or_default();
    let left = left
        .into_iter()
        .filter(|process| process.tag.as_deref().is_some_and(|tag| tag.starts_with(begin) && tag != own));
    let mut ended = Vec::new();
    for process in left {
        send_signal(&sandbox, None, process.pid, "KILL").await;
        ended.push(std::iter::once(process.program).chain(process.arguments).collect::<Vec<_>>().join(" "));
    }
    ended
}

/// A stop that was requested by a signal.
#[derive(Clone, Copy)]
struct Stopping {
    by: Stop,
    until: Instant,
    killed: bool,
}

async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Reconnects to a command after its connection was lost.
pub async fn reconnect_lost(lost: &Running) -> anyhow::Result<Running> {
    let deadline = Instant::now() + RECONNECT_TIMEOUT;
    loop {
        match lost.reconnect().await {
            Ok(found) => return Ok(found),
            Err(CommandError::NotFound { .. }) => bail!(
                "the command (pid {}) ended while the connection was lost; its exit code is not known any more",
                lost.pid()
            ),
            Err(CommandError::ConnectionLost { .. } | CommandError::Call(_)) if Instant::now() < deadline => {
                tokio::time::sleep(RECONNECT_INTERVAL).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}
