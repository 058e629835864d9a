//! A command in a sandbox with this program's input, outputs and exit code: what every `exec` does.

use super::interrupt::{Stop, Stops};
use super::show::Show;
use super::stdin;
use super::surroundings::Surroundings;
use super::values;
use anyhow::{Context as _, bail};
use clap::Args;
use sdk::{Chunk, Command, CommandError, Exit, Process, Running, Sandbox, Signal};
use serde_json::json;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::process::ExitCode;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Between Ctrl-C and the end by force.
const GRACE: Duration = Duration::from_secs(5);
/// For telling the sandbox about a signal, and for the end of what was killed.
const TELL: Duration = Duration::from_secs(5);
/// How long a lost command is looked for. The service knows its exit code for half a minute after its end.
const SEARCH: Duration = Duration::from_secs(30);
const SEARCH_AGAIN: Duration = Duration::from_millis(500);
/// A command may leave its input unread for as long as it likes.
const INPUT_PATIENCE: Duration = Duration::from_secs(30 * 24 * 3600);
/// What `--json` collects of each output at most.
const MOST_COLLECTED: usize = 64 << 20;
/// As timeout(1) has it.
const TIMED_OUT: u8 = 124;

/// What is run, and how.
#[derive(Args)]
pub(crate) struct Run {
    /// A line for the login shell, instead of ARGV
    #[arg(long = "shell", short = 'c', value_name = "LINE", conflicts_with = "argv")]
    shell: Option<String>,
    #[command(flatten)]
    surroundings: Surroundings,
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
    /// Where it runs unless the caller said so.
    #[must_use]
    pub(crate) fn beginning_in(mut self, directory: &str) -> Self {
        self.surroundings.cwd.get_or_insert_with(|| directory.to_owned());
        self
    }

    /// A name to find it by, for a command that is followed to its end and has no other.
    #[must_use]
    pub(crate) fn marked(mut self, mark: &str) -> Self {
        if !self.background {
            self.tag.get_or_insert_with(|| mark.to_owned());
        }
        self
    }

    /// Runs it to its end, unless it is to be left running.
    pub(crate) async fn run(self, sandbox: &Sandbox, show: Show) -> anyhow::Result<ExitCode> {
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
            helpers.spawn(feed(sandbox.within(INPUT_PATIENCE).commands().process(pid)));
        }
        let sink = if show.json { Sink::Collected { out: Vec::new(), err: Vec::new() } } else { Sink::Through };
        let mut followed = Followed { sandbox, user: self.surroundings.user, running, sink };
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
        command = self.surroundings.place(command)?;
        if let Some(tag) = &self.tag {
            command = command.tag(tag);
        }
        Ok(if input { command.stdin() } else { command })
    }
}

/// Sends this program's input to a process, and its end.
async fn feed(process: Process) {
    let mut pieces = stdin::pieces();
    while let Some(piece) = pieces.recv().await {
        match process.send_stdin(piece).await {
            Ok(()) => {}
            // It has ended, or wants no more: not for us to judge.
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

/// Where output goes.
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
                if kept.len() + bytes.len() > MOST_COLLECTED {
                    bail!("the command gives more than 64 MiB of output; run it without --json");
                }
                kept.extend_from_slice(bytes);
            }
        }
        Ok(())
    }
}

/// How it went.
enum End {
    Exited(Exit),
    /// The service killed it, as was asked for.
    TimedOut(CommandError),
    Stopped(Stop),
}

impl End {
    fn code(&self) -> u8 {
        match self {
            Self::Exited(exit) => code(exit),
            Self::TimedOut(_) => TIMED_OUT,
            Self::Stopped(stop) => stop.code(),
        }
    }
}

struct Followed<'a> {
    sandbox: &'a Sandbox,
    user: Option<String>,
    running: Running,
    sink: Sink,
}

impl Followed<'_> {
    async fn finish(&mut self) -> anyhow::Result<End> {
        let mut stops = Stops::install()?;
        let mut stopping: Option<Stopping> = None;
        loop {
            let overdue = stopping.map(|stopping| stopping.until);
            tokio::select! {
                next = self.running.next() => match next {
                    Ok(Some(chunk)) => {
                        if let Err(error) = self.sink.take(&chunk) {
                            // Nobody reads any more: the command has no reason to go on.
                            self.tell("TERM").await;
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
                            found = search(&self.running) => self.running = found?,
                            stop = stops.next() => return Ok(End::Stopped(stop)),
                        }
                    }
                    Err(error) => return Err(error.into()),
                },
                stop = stops.next() => match &mut stopping {
                    None => {
                        self.tell(stop.name()).await;
                        stopping = Some(Stopping { by: stop, until: Instant::now() + GRACE, killed: false });
                    }
                    Some(again) => {
                        self.tell("KILL").await;
                        *again = Stopping { until: Instant::now() + TELL, killed: true, ..*again };
                    }
                },
                () = at(overdue) => match &mut stopping {
                    Some(stopping) if !stopping.killed => {
                        self.tell("KILL").await;
                        *stopping = Stopping { until: Instant::now() + TELL, killed: true, ..*stopping };
                    }
                    _ => {
                        eprintln!("sandbar: the command may still run as pid {}", self.running.pid());
                        return Ok(stopping.map_or(End::Stopped(Stop::Interrupt), |stopping| End::Stopped(stopping.by)));
                    }
                },
            }
        }
    }

    async fn tell(&self, signal: &str) {
        tell(self.sandbox, self.user.as_deref(), self.running.pid(), signal).await;
    }
}

/// Sends a signal to a command and all it started. The protocol itself knows two signals, and one process.
async fn tell(sandbox: &Sandbox, user: Option<&str>, pid: u32, signal: &str) {
    const LINE: &str = "kill -s \"$1\" -- \"-$2\" 2>/dev/null || kill -s \"$1\" -- \"$2\"";
    let mut kill = Command::exec("/bin/sh", ["-c", LINE, "sh", signal, &pid.to_string()]).timeout(TELL);
    if let Some(user) = user {
        kill = kill.user(user);
    }
    let sandbox = sandbox.within(TELL);
    match sandbox.commands().run(kill).await {
        Ok(output) if output.success() && signal != "KILL" => {}
        _ => {
            let signal = if signal == "KILL" { Signal::Kill } else { Signal::Terminate };
            // It may have ended meanwhile; if not, the wait that follows has an end.
            let _ = sandbox.commands().signal(pid, signal).await;
        }
    }
}

/// Ends commands whose names begin with `begin`, except for `own`, and says which: those of programs that were killed.
pub(crate) async fn end_left(sandbox: Sandbox, begin: &'static str, own: String) -> Vec<String> {
    let left = sandbox.within(TELL).commands().list().await.unwrap_or_default();
    let left = left
        .into_iter()
        .filter(|process| process.tag.as_deref().is_some_and(|tag| tag.starts_with(begin) && tag != own));
    let mut ended = Vec::new();
    for process in left {
        tell(&sandbox, None, process.pid, "KILL").await;
        ended.push(std::iter::once(process.program).chain(process.arguments).collect::<Vec<_>>().join(" "));
    }
    ended
}

/// A stop that is under way.
#[derive(Clone, Copy)]
struct Stopping {
    by: Stop,
    until: Instant,
    killed: bool,
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Takes a lost command up again.
pub(crate) async fn search(lost: &Running) -> anyhow::Result<Running> {
    let deadline = Instant::now() + SEARCH;
    loop {
        match lost.reconnect().await {
            Ok(found) => return Ok(found),
            Err(CommandError::NotFound { .. }) => bail!(
                "the command (pid {}) ended while the connection was lost; its exit code is not known any more",
                lost.pid()
            ),
            Err(CommandError::ConnectionLost { .. } | CommandError::Call(_)) if Instant::now() < deadline => {
                tokio::time::sleep(SEARCH_AGAIN).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// What a shell would say: the command's own code, or 128 and the signal.
pub(crate) fn code(exit: &Exit) -> u8 {
    const UNKNOWN: u8 = 255;
    if exit.exited {
        // As the kernel does with what a process returns.
        return (exit.code & 0xff).try_into().unwrap_or(UNKNOWN);
    }
    let name = exit.status.strip_prefix("signal: ").unwrap_or_default();
    let name = name.strip_suffix(" (core dumped)").unwrap_or(name);
    let number = match name {
        "hangup" => 1,
        "interrupt" => 2,
        "quit" => 3,
        "illegal instruction" => 4,
        "trace/breakpoint trap" => 5,
        "aborted" => 6,
        "bus error" => 7,
        "floating point exception" => 8,
        "killed" => 9,
        "user defined signal 1" => 10,
        "segmentation fault" => 11,
        "user defined signal 2" => 12,
        "broken pipe" => 13,
        "alarm clock" => 14,
        "terminated" => 15,
        other => match other.strip_prefix("signal ").and_then(|number| number.parse::<u8>().ok()) {
            Some(number) if number < 127 => number,
            _ => return UNKNOWN,
        },
    };
    128 + number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        let exit = |code, exited, status: &str| Exit { code, exited, status: status.into(), error: None };
        for (exit, expected) in [
            (exit(0, true, "exit status 0"), 0),
            (exit(7, true, "exit status 7"), 7),
            (exit(-1, false, "signal: killed"), 137),
            (exit(-1, false, "signal: segmentation fault (core dumped)"), 139),
            (exit(-1, false, "signal: signal 34"), 162),
            (exit(-1, false, "stolen"), 255),
        ] {
            assert_eq!(code(&exit), expected, "{exit:?}");
        }
    }
}
