//! Runs one command of a model and says how it ended: what `foreground.sh` of the tools does with two programs and a shell,
//! in one that is there at once. The words it writes and the files it keeps are described there.
//!
//! Arguments: state directory, mark, call, root, hard limit in seconds, directory for this call or nothing, `inner.sh`,
//! `merge.sh`, then the command in pieces.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal};

/// What a program says that could not begin.
const CANNOT: u8 = 125;
/// What `timeout` says of what it ended.
const TIMED_OUT: i32 = 124;
/// Between asking the command to end and ending it.
const GRACE: Duration = Duration::from_secs(1);

/// On one line, so that bash counts the command's lines from 1.
const SHELL: &str = r#"eval "$1"; eval "$__sandbar_v"; { __sandbar_v=$?; builtin set +xveu; __sandbar_save; exit "$__sandbar_v"; } 2>/dev/null"#;

pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    match Call::parse(arguments).ok_or_else(|| io::Error::other("arguments are missing")).and_then(|call| call.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to tell when this fails too.
            let _ = writeln!(io::stderr(), "sandbar-search: {error}");
            CANNOT.into()
        }
    }
}

struct Call {
    state: PathBuf,
    mark: OsString,
    id: OsString,
    root: OsString,
    limit: Duration,
    directory: OsString,
    inner: OsString,
    merge: OsString,
    command: Vec<OsString>,
}

impl Call {
    fn parse(mut arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        let mut next = || arguments.next();
        Some(Self {
            state: next()?.into(),
            mark: next()?,
            id: next()?,
            root: next()?,
            limit: Duration::from_secs(next()?.to_str()?.parse().ok()?),
            directory: next()?,
            inner: next()?,
            merge: next()?,
            command: arguments.collect(),
        })
    }

    fn run(self) -> io::Result<()> {
        for directory in ["run", "bg", "out", "seen"] {
            let path = self.state.join(directory);
            if !path.is_dir() {
                fs::create_dir_all(path)?;
            }
        }
        // Named by this process, so that commands of separate programs do not meet; numbers come again, so there are never
        // many.
        let own = self.state.join("run").join(std::process::id().to_string());
        File::create(&own)?;
        let child = self.start(&own)?;
        let group = Pid::from_child(&child);
        let exit_code = self.wait(child, group)?;

        let directory = fs::read(self.state.join("cwd")).unwrap_or_default();
        let directory = directory.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let mut word = [b"\x1e", self.mark.as_bytes(), format!("={exit_code}\0").as_bytes(), directory, b"\0"].concat();
        for (pid, command) in members(group) {
            word.extend_from_slice(format!("{pid} ").as_bytes());
            word.extend(command.into_iter().map(|byte| if matches!(byte, 0 | b'\n') { b' ' } else { byte }));
            word.push(b'\n');
        }
        word.push(0);
        word.extend_from_slice(tasks(&self.state.join("bg")).as_bytes());
        word.extend_from_slice(b"\0\x1e");
        let mut stdout = io::stdout();
        stdout.write_all(&word)?;
        stdout.flush()?;
        io::stderr().write_all(&[b"\x1e", self.mark.as_bytes()].concat())
    }

    fn start(&self, own: &Path) -> io::Result<Child> {
        let mut shell = Command::new("/bin/bash");
        // What the shell says before the command runs is nobody's output; the command's own way out waits aside.
        let stderr = rustix::io::dup(io::stderr())?;
        let way_out = stderr.as_raw_fd();
        let script = format!("exec 7>&{way_out} {way_out}>&- 8>&1; {SHELL}");
        // What a profile sets is carried over like all else; only functions would have to be read again, and then there is
        // no mark.
        if !(self.state.join("plain").exists() && self.state.join("env").exists()) {
            shell.arg("-l");
        }
        shell.args(["-c", &script, "bash"]).arg(&self.inner).arg(&self.state).arg(&self.mark).arg(&self.id);
        shell.arg(&self.root).arg(&self.directory).arg(own).arg(&self.merge).args(&self.command);
        // A group of its own, so that all of it can be killed and this program stays to tell the end.
        shell.env("SANDBAR_CALL", &self.id).stdin(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn()
    }

    /// The command's exit code. Past the hard limit it is ended: for the day that whoever reads this has died.
    fn wait(&self, mut child: Child, group: Pid) -> io::Result<i32> {
        let (ended, wait_for_end) = mpsc::channel();
        let waiter = thread::spawn(move || {
            let status = child.wait();
            // Whoever listens may have ended it and gone.
            let _ = ended.send(());
            status
        });
        let timed_out = wait_for_end.recv_timeout(self.limit) == Err(RecvTimeoutError::Timeout);
        if timed_out {
            let _gone = rustix::process::kill_process_group(group, Signal::TERM);
            if wait_for_end.recv_timeout(GRACE).is_err() {
                let _gone = rustix::process::kill_process_group(group, Signal::KILL);
            }
            // Those who left the group go too.
            for pid in marked(&self.id) {
                let _gone = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        let status = waiter.join().map_err(|_| io::Error::other("the wait for the shell broke off"))??;
        Ok(if timed_out { TIMED_OUT } else { code(status) })
    }
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// All processes by number.
fn processes() -> impl Iterator<Item = (i32, PathBuf)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
}

/// The words after the name in a process's `stat`; the name may have blanks and brackets of its own.
fn stat(process: &Path) -> Option<Vec<String>> {
    let text = fs::read(process.join("stat")).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    Some(text.rsplit_once(") ")?.1.split_ascii_whitespace().map(str::to_owned).collect())
}

/// Processes of a group that live, with their command lines.
fn members(group: Pid) -> Vec<(i32, Vec<u8>)> {
    if rustix::process::test_kill_process_group(group).is_err() {
        return Vec::new();
    }
    let number = group.as_raw_pid().to_string();
    let mut members: Vec<(i32, Vec<u8>)> = processes()
        .filter(|(_, path)| {
            stat(path)
                .is_some_and(|words| words.first().is_some_and(|state| state != "Z") && words.get(2) == Some(&number))
        })
        .map(|(pid, path)| (pid, fs::read(path.join("cmdline")).unwrap_or_default()))
        .collect();
    members.sort();
    members
}

/// Processes that carry a call's mark in their environment.
fn marked(call: &OsStr) -> Vec<Pid> {
    let wanted = [b"SANDBAR_CALL=", call.as_bytes()].concat();
    let carries = |path: &Path| {
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted)
    };
    processes().filter(|(_, path)| carries(path)).filter_map(|(pid, _)| Pid::from_raw(pid)).collect()
}

/// What became of background tasks since somebody was told last, as `tasks.sh` says it.
fn tasks(directory: &Path) -> String {
    let entries = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    let mut directories: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    directories.sort();
    let mut told = String::new();
    for task in directories {
        if task.join("exited").exists() || task.join("lost").exists() {
            continue;
        }
        let name =
            String::from_utf8_lossy(&task.file_name().unwrap_or_default().to_os_string().into_vec()).into_owned();
        let (exit, exited) = (task.join("exit"), task.join("exited"));
        if !exit.exists() {
            if is_kept(&task) {
                continue;
            }
            // It may have ended while it was looked at.
            if !exit.exists() {
                if File::create(task.join("lost")).is_ok() {
                    told.push_str(&format!("{name} lost\n"));
                }
                continue;
            }
        }
        if fs::rename(&exit, &exited).is_ok() {
            let code = fs::read_to_string(&exited).unwrap_or_default();
            told.push_str(&format!("{name} {}\n", code.trim()));
        }
    }
    told
}

/// Whether somebody keeps a task, or is about to.
fn is_kept(task: &Path) -> bool {
    let Ok(keeper) = fs::read_to_string(task.join("keeper")) else { return true };
    let mut words = keeper.split_ascii_whitespace();
    let (Some(pid), Some(started)) = (words.next(), words.next()) else { return true };
    let now = stat(&Path::new("/proc").join(pid));
    now.and_then(|words| words.get(19).cloned()).as_deref() == Some(started)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_told_once_and_numbers_that_came_again_are_nobody() {
        let state = tempfile::tempdir().expect("a directory");
        let own = stat(Path::new("/proc/self")).expect("of this process")[19].clone();
        let this = std::process::id();
        for (task, file, text) in [
            ("b1", "exit", "7\n".to_owned()),
            ("b2", "keeper", format!("{this} {own}\n")),
            ("b3", "keeper", format!("{this} 1\n")),
            ("b4", "keeper", "999999999 1\n".to_owned()),
            ("b5", "pid", "1".to_owned()),
            ("b6", "exited", "0\n".to_owned()),
        ] {
            fs::create_dir_all(state.path().join(task)).expect("a task");
            fs::write(state.path().join(task).join(file), text).expect("a note");
        }
        assert_eq!(tasks(state.path()), "b1 7\nb3 lost\nb4 lost\n");
        assert_eq!(tasks(state.path()), "");
    }
}
