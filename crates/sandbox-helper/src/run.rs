//! Runs one command and reports its end: the same as `foreground.sh` of the tools, without starting
//! two more programs and a shell. That script documents the marks and the files.
//!
//! Arguments: state directory, mark, call, root, hard limit in seconds, directory for this call or
//! an empty string, `inner.sh`, `merge.sh`, then the command in pieces.

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

/// Exit code of a program that could not start.
const CANNOT_START: u8 = 125;
/// Exit code of `timeout` for a command that it killed.
const TIMED_OUT: i32 = 124;
/// Between SIGTERM and SIGKILL.
const TERM_TIMEOUT: Duration = Duration::from_secs(1);

/// On one line, so that bash counts the command's lines from 1.
const SHELL: &str = r#"eval "$1"; eval "$__sandbar_v"; { __sandbar_v=$?; builtin set +xveu; __sandbar_save; exit "$__sandbar_v"; } 2>/dev/null"#;

pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    match Call::parse(arguments).ok_or_else(|| io::Error::other("arguments are missing")).and_then(|call| call.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // An error on stderr cannot be reported anywhere.
            let _ = writeln!(io::stderr(), "sandbar-sandbox-helper: {error}");
            CANNOT_START.into()
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
        // Named by this process's pid, so that concurrent commands do not collide; pids are
        // recycled, so there are never many files.
        let own = self.state.join("run").join(std::process::id().to_string());
        File::create(&own)?;
        let child = self.start(&own)?;
        let group = Pid::from_child(&child);
        let exit_code = self.wait(child, group)?;

        let directory = fs::read(self.state.join("cwd")).unwrap_or_default();
        let directory = directory.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let mut trailer =
            [b"\x1e", self.mark.as_bytes(), format!("={exit_code}\0").as_bytes(), directory, b"\0"].concat();
        for (pid, command) in group_members(group) {
            trailer.extend_from_slice(format!("{pid} ").as_bytes());
            trailer.extend(command.into_iter().map(|byte| if matches!(byte, 0 | b'\n') { b' ' } else { byte }));
            trailer.push(b'\n');
        }
        trailer.push(0);
        trailer.extend_from_slice(report_tasks(&self.state.join("bg")).as_bytes());
        trailer.extend_from_slice(b"\0\x1e");
        let mut stdout = io::stdout();
        stdout.write_all(&trailer)?;
        stdout.flush()?;
        io::stderr().write_all(&[b"\x1e", self.mark.as_bytes()].concat())
    }

    fn start(&self, own: &Path) -> io::Result<Child> {
        let mut shell = Command::new("/bin/bash");
        // Output of the shell before the command starts is discarded; the command's stderr is a
        // duplicate.
        let stderr = rustix::io::dup(io::stderr())?;
        let stderr_fd = stderr.as_raw_fd();
        let script = format!("exec 7>&{stderr_fd} {stderr_fd}>&- 8>&1; {SHELL}");
        // Variables of a profile carry over in `env`; only shell functions would need the profile
        // again, and then the file `plain` is absent.
        if !(self.state.join("plain").exists() && self.state.join("env").exists()) {
            shell.arg("-l");
        }
        shell.args(["-c", &script, "bash"]).arg(&self.inner).arg(&self.state).arg(&self.mark).arg(&self.id);
        shell.arg(&self.root).arg(&self.directory).arg(own).arg(&self.merge).args(&self.command);
        // A process group of its own, so that all of it can be killed while this program reports
        // the end.
        shell.env("SANDBAR_CALL", &self.id).stdin(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn()
    }

    /// Waits for the command and returns its exit code. The hard limit is a backstop for the case
    /// that the reader has died.
    fn wait(&self, mut child: Child, group: Pid) -> io::Result<i32> {
        let (ended, wait_for_end) = mpsc::channel();
        let waiter = thread::spawn(move || {
            let status = child.wait();
            // The receiver may have timed out.
            let _ = ended.send(());
            status
        });
        let timed_out = wait_for_end.recv_timeout(self.limit) == Err(RecvTimeoutError::Timeout);
        if timed_out {
            let _gone = rustix::process::kill_process_group(group, Signal::TERM);
            if wait_for_end.recv_timeout(TERM_TIMEOUT).is_err() {
                let _gone = rustix::process::kill_process_group(group, Signal::KILL);
            }
            // Also kills processes that left the group.
            for pid in find_marked(&self.id) {
                let _gone = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        let status = waiter.join().map_err(|_| io::Error::other("the thread that waits for the shell panicked"))??;
        Ok(if timed_out { TIMED_OUT } else { exit_code(status) })
    }
}

fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// All processes by pid.
fn processes() -> impl Iterator<Item = (i32, PathBuf)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
}

/// The fields after the name in `/proc/PID/stat`; the name may contain blanks and brackets.
fn stat(process: &Path) -> Option<Vec<String>> {
    let text = fs::read(process.join("stat")).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    Some(text.rsplit_once(") ")?.1.split_ascii_whitespace().map(str::to_owned).collect())
}

/// Living processes of a group, with their command lines.
fn group_members(group: Pid) -> Vec<(i32, Vec<u8>)> {
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

/// Processes with the call's mark in their environment.
fn find_marked(call: &OsStr) -> Vec<Pid> {
    let wanted = [b"SANDBAR_CALL=", call.as_bytes()].concat();
    let carries = |path: &Path| {
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted)
    };
    processes().filter(|(_, path)| carries(path)).filter_map(|(pid, _)| Pid::from_raw(pid)).collect()
}

/// Background tasks that ended or were lost since the last report, in the format of `tasks.sh`.
fn report_tasks(directory: &Path) -> String {
    let entries = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    let mut directories: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    directories.sort();
    let mut report = String::new();
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
            // It may have ended since the check above.
            if !exit.exists() {
                if File::create(task.join("lost")).is_ok() {
                    report.push_str(&format!("{name} lost\n"));
                }
                continue;
            }
        }
        if fs::rename(&exit, &exited).is_ok() {
            let code = fs::read_to_string(&exited).unwrap_or_default();
            report.push_str(&format!("{name} {}\n", code.trim()));
        }
    }
    report
}

/// Whether the process that keeps a task is alive, or just starting.
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
    fn tasks_are_reported_once_and_recycled_pids_are_lost() {
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
        assert_eq!(report_tasks(state.path()), "b1 7\nb3 lost\nb4 lost\n");
        assert_eq!(report_tasks(state.path()), "");
    }
}
