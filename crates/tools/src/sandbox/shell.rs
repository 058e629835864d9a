//! Runs commands in a sandbox. The scripts beside this file do the work inside.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sdk::label;
use sdk::{Chunk, Command, CommandError, Output, Running, Sandbox};

use super::machine::{Followers, SandboxMachine, command_error, file_error, with_resume};
use super::marks::{MarkEvent, MarkParser};
use crate::port::{PortError, Shell, ShellCall, ShellEnd, ShellEvent, Shells, Stream};

const FOREGROUND: &str = concat!(include_str!("tasks.sh"), include_str!("foreground.sh"));
const BACKGROUND: &str = concat!(include_str!("tasks.sh"), include_str!("background.sh"));
const INNER: &str = include_str!("inner.sh");
const MERGE: &str = include_str!("merge.sh");
const KILL: &str = include_str!("kill.sh");

/// One argument is limited to 128 KiB.
const PIECE: usize = 100_000;
/// All arguments and the environment are limited to 2 MiB. Longer commands are uploaded as files.
const MAX_ARGUMENTS: usize = 1_000_000;

/// Tells programs that there is no terminal. A command can override each variable.
const ENVIRONMENT: [(&str, &str); 15] = [
    ("TERM", "dumb"),
    ("NO_COLOR", "1"),
    ("PAGER", "cat"),
    ("GIT_PAGER", "cat"),
    ("MANPAGER", "cat"),
    ("GIT_EDITOR", "true"),
    ("GIT_SEQUENCE_EDITOR", "true"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GCM_INTERACTIVE", "never"),
    ("DEBIAN_FRONTEND", "noninteractive"),
    ("PIP_NO_INPUT", "1"),
    ("PIP_PROGRESS_BAR", "off"),
    ("TQDM_DISABLE", "1"),
    ("npm_config_yes", "true"),
    ("PYTHONUNBUFFERED", "1"),
];

/// Takes over the output of a detached command. $1 state directory, $2 group, stdin: the output
const FOLLOW: &str = concat!(
    include_str!("tasks.sh"),
    r#"
s=$1
mkdir -p "$s/bg" || exit 125
n=1
while ! mkdir "$s/bg/b$n" 2>/dev/null; do
    n=$((n + 1))
    [ "$n" -lt 10000 ] || exit 125
done
keep "$s/bg/b$n/"
printf %s "$2" >"$s/bg/b$n/pid"
: >"$s/bg/b$n.log"
echo "b$n"
(
    ulimit -c 0
    ulimit -f 131072
    exec cat >"$s/bg/b$n.log"
)
cat >/dev/null
"#
);

#[async_trait]
impl Shells for SandboxMachine {
    async fn start(&self, call: ShellCall) -> Result<Box<dyn Shell>, PortError> {
        let ShellCall { id, command, directory, background, limit } = call;
        let mark = format!("{:016x}{:016x}", rand::random::<u64>(), rand::random::<u64>());
        let command = if command.len() > MAX_ARGUMENTS {
            let path = format!("{}/out/{id}.sh", self.state);
            let written = with_resume!(self, |sandbox| sandbox.files().write(&path, command.clone()));
            written.map_err(file_error)?;
            format!("builtin source {}", crate::quote::quote(&path))
        } else {
            command
        };
        let seconds = limit.as_secs().to_string();
        let directory = directory.unwrap_or_default();
        let process = |launch: &[&str]| {
            let (program, before) = launch.split_first().unwrap_or((&"/bin/sh", &[]));
            let arguments = [&self.state, &mark, &id, &self.root, &seconds, &directory, INNER, MERGE];
            let arguments = before.iter().copied().chain(arguments).map(str::to_owned).chain(pieces(&command));
            let process = Command::exec(*program, arguments).envs(ENVIRONMENT).env("LANG", "C.UTF-8");
            label::tag_for_user(process, &command).cwd("/").no_timeout()
        };
        let by_script = ["/bin/sh", "-c", if background { BACKGROUND } else { FOREGROUND }, "sh"];
        let by_helper = if background { None } else { self.runner().await };
        let started = match by_helper {
            Some(helper) => {
                let process = process(&[helper, "--run"]);
                with_resume!(self, |sandbox| sandbox.commands().start(&process))
            }
            None => {
                let process = process(&by_script);
                with_resume!(self, |sandbox| sandbox.commands().start(&process))
            }
        };
        let running = match started {
            // The helper was deleted, or its directory is mounted noexec.
            Err(CommandError::NotStartable { .. }) if by_helper.is_some() => {
                self.use_script_runner();
                let process = process(&by_script);
                with_resume!(self, |sandbox| sandbox.commands().start(&process))
            }
            started => started,
        };
        let running = running.map_err(command_error)?;
        Ok(Box::new(SandboxShell {
            sandbox: self.sandbox(),
            state: self.state.clone(),
            followers: Arc::clone(&self.followers),
            call: id,
            group: None,
            task: None,
            running,
            stdout: MarkParser::new(Stream::Stdout, &mark, &self.state),
            stderr: MarkParser::new(Stream::Stderr, &mark, &self.state),
            waiting: VecDeque::new(),
            end: None,
        }))
    }
}

/// Splits a command into arguments that are short enough.
fn pieces(command: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut rest = command;
    while rest.len() > PIECE {
        let mut end = PIECE;
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        pieces.push(rest[..end].to_owned());
        rest = &rest[end..];
    }
    pieces.push(rest.to_owned());
    pieces
}

#[derive(Debug)]
struct SandboxShell {
    sandbox: Sandbox,
    state: String,
    followers: Followers,
    call: String,
    group: Option<u32>,
    task: Option<String>,
    running: Running,
    stdout: MarkParser,
    stderr: MarkParser,
    waiting: VecDeque<ShellEvent>,
    end: Option<ShellEnd>,
}

impl SandboxShell {
    fn process(&mut self, events: Vec<MarkEvent>) {
        for one in events {
            match one {
                MarkEvent::Event(event) => {
                    match &event {
                        ShellEvent::Started { group, .. } => self.group = Some(*group).filter(|group| *group > 1),
                        ShellEvent::Task { id, .. } => self.task = Some(id.clone()),
                        _ => {}
                    }
                    self.waiting.push_back(event);
                }
                MarkEvent::Last(Some(end)) => self.end = Some(end),
                MarkEvent::Last(None) => {}
            }
        }
        if self.stdout.is_ended()
            && self.stderr.is_ended()
            && let Some(end) = self.end.take()
        {
            self.waiting.push_back(ShellEvent::Ended(end));
        }
    }

    /// Handles a process that ended without its last mark: it was killed, or it is a background
    /// task.
    async fn handle_lost_shell(&mut self) {
        self.waiting.extend(self.stdout.rest());
        self.waiting.extend(self.stderr.rest());
        let exit_code = self.running.exit().map_or(-1, |exit| exit.code);
        if let Some(task) = &self.task {
            // The caller gets the exit code now, so the next command need not report it.
            let exit = format!("{}/bg/{task}/exit", self.state);
            if let Err(error) = self.sandbox.files().rename(&exit, &format!("{exit}ed")).await {
                tracing::debug!(%error, "end of a background task will be reported twice");
            }
        }
        let end = self.end.take().unwrap_or(ShellEnd { exit_code, ..ShellEnd::default() });
        self.waiting.push_back(ShellEvent::Ended(end));
    }
}

#[async_trait]
impl Shell for SandboxShell {
    async fn next(&mut self) -> Result<ShellEvent, PortError> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Ok(event);
            }
            match self.running.next().await.map_err(command_error)? {
                Some(Chunk::Stdout(bytes) | Chunk::Pty(bytes)) => {
                    let events = self.stdout.push(&bytes);
                    self.process(events);
                }
                Some(Chunk::Stderr(bytes)) => {
                    let events = self.stderr.push(&bytes);
                    self.process(events);
                }
                None => self.handle_lost_shell().await,
            }
        }
    }

    async fn kill(&mut self, grace: Duration) -> Result<usize, PortError> {
        let group = self.group.map_or(String::new(), |group| group.to_string());
        let tenths = (grace.as_millis() / 100).to_string();
        let mark = if group.is_empty() { format!("{}/out/{}.killed", self.state, self.call) } else { String::new() };
        let kill = |mark: &str| {
            let kill = Command::exec("/bin/sh", ["-c", KILL, "sh", &group, &self.call, &tenths, mark]);
            label::tag_internal(kill).timeout(grace + Duration::from_secs(10))
        };
        let commands = self.sandbox.commands();
        let (by_user, by_root) = tokio::join!(commands.run(kill(&mark)), commands.run(kill("").user("root")));
        let count = |output: Output| output.stdout_text().trim().parse().unwrap_or(0);
        match (by_user.map(count), by_root.map(count)) {
            (Ok(one), Ok(other)) => Ok(one.max(other)),
            // In a sandbox where root cannot run programs, the processes of the user are still
            // killed.
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
            (Err(error), Err(_)) => Err(command_error(error)),
        }
    }

    async fn detach(self: Box<Self>, so_far: Bytes) -> Result<(String, String), PortError> {
        let group = self.group.map_or(String::new(), |group| group.to_string());
        let follow = label::tag_internal(Command::exec("/bin/sh", ["-c", FOLLOW, "sh", &self.state, &group]));
        let follow = follow.stdin().no_timeout();
        let mut writer = self.sandbox.commands().start(follow).await.map_err(command_error)?;
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            match writer.next().await.map_err(command_error)? {
                Some(Chunk::Stdout(bytes)) => line.extend_from_slice(&bytes),
                Some(_) => {}
                None => return Err(PortError::NotStartable("the log could not be opened".into())),
            }
        }
        let task = String::from_utf8_lossy(&line).trim().to_owned();
        let log = format!("{}/bg/{task}.log", self.state);
        let exit = format!("{}/bg/{task}/exit", self.state);
        let followers = Arc::clone(&self.followers);
        let mut followers = followers.lock();
        while followers.try_join_next().is_some() {}
        followers.spawn(async move {
            if let Err(error) = follow_output(*self, &writer, so_far, &exit).await {
                tracing::debug!(%error, "the output of a detached command is lost from here on");
            }
        });
        Ok((task, log))
    }
}

/// Writes the output of a detached command to its log until it ends, then its exit code.
async fn follow_output(mut shell: SandboxShell, writer: &Running, so_far: Bytes, exit: &str) -> Result<(), PortError> {
    if !so_far.is_empty() {
        writer.process().send_stdin(so_far).await.map_err(command_error)?;
    }
    loop {
        match shell.next().await? {
            ShellEvent::Output(_, bytes) => writer.process().send_stdin(bytes).await.map_err(command_error)?,
            ShellEvent::Ended(end) => {
                // The log's writer exits when there is no more to write; the exit code must be
                // known by then.
                let code = format!("{}\n", end.exit_code);
                shell.sandbox.files().write(exit, code).await.map_err(file_error)?;
                return writer.process().close_stdin().await.map_err(command_error);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::Instant;

    #[test]
    fn commands_are_split_between_characters() {
        let command = "→".repeat(100_000);
        let cut = pieces(&command);
        assert!(cut.iter().all(|piece| piece.len() <= PIECE));
        assert_eq!(cut.concat(), command);
        assert_eq!(pieces(""), [""]);
    }

    /// Tests script and helper without a sandbox: if the reader of their output dies, they must end
    /// the command themselves.
    #[test]
    fn abandoned_command_is_killed_by_its_watchdog() {
        ends_alone("98765", &["/bin/sh", "-c", FOREGROUND, "sh"]);
        ends_alone("98764", &[env!("SANDBAR_SANDBOX_HELPER_IMAGE"), "--run"]);
    }

    #[track_caller]
    fn ends_alone(number: &str, launch: &[&str]) {
        let state = tempfile::tempdir().expect("a directory");
        let number = format!("{number}{}", std::process::id());
        let command = format!("sleep {number} & setsid sleep {number} & sleep {number}");
        let begun = Instant::now();
        let run = Command::new(launch[0])
            .args(&launch[1..])
            .arg(state.path())
            .args(["MARK", &format!("call{number}"), "/tmp", "1", "", INNER, MERGE, &command])
            .env("HOME", state.path())
            .stdin(Stdio::null())
            .output()
            .expect("it runs");
        assert!(begun.elapsed() < Duration::from_secs(20));
        assert!(String::from_utf8_lossy(&run.stdout).contains("MARK=124\0"), "{run:?}");
        let left = Command::new("pgrep").args(["-f", &format!("^sleep {number}")]).output().expect("pgrep runs");
        assert!(left.stdout.is_empty(), "{}", String::from_utf8_lossy(&left.stdout));
    }
}
