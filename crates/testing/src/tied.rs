//! A process that ends with the test program, however that ends.
//!
//! The kernel sends the signal when the *thread* that started the process ends, so each process has a thread of its own,
//! which lives exactly as long.

use std::ffi::OsStr;
use std::process::{ChildStdout, Command};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::eventually;

/// A running process; dropped, it is ended and waited for.
#[derive(Debug)]
pub struct Tied {
    pid: u32,
    ends_by: &'static str,
    owner: Option<JoinHandle<()>>,
}

impl Tied {
    /// A command for `program` that ends by the signal `ends_by` (`TERM`, `KILL`) with whoever starts it.
    pub fn command(ends_by: &str, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", ends_by]).arg(program);
        command
    }

    /// Starts what [`Tied::command`] made. Gives its output when that is piped.
    pub fn start(mut command: Command, ends_by: &'static str) -> (Self, Option<ChildStdout>) {
        let (started, child) = mpsc::channel();
        let owner = std::thread::spawn(move || {
            let mut child = command.spawn().expect("the program starts");
            let _ = started.send((child.id(), child.stdout.take()));
            let _ = child.wait();
        });
        let (pid, output) = child.recv().expect("the program starts");
        (Self { pid, ends_by, owner: Some(owner) }, output)
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends the signal and waits until the process has ended.
    #[track_caller]
    pub fn end_by(&mut self, name: &str, within: Duration) {
        if self.owner.as_ref().is_some_and(|owner| !owner.is_finished()) {
            signal(self.pid, name);
        }
        self.wait(within);
    }

    /// Waits until the process has ended by itself.
    #[track_caller]
    pub fn wait(&mut self, within: Duration) {
        let Some(owner) = &self.owner else { return };
        eventually("the program ends", within, || owner.is_finished().then_some(()));
        self.owner = None;
    }
}

impl Drop for Tied {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            if !owner.is_finished() {
                let _ = Command::new("kill").args([format!("-{}", self.ends_by), self.pid.to_string()]).status();
            }
            let _ = owner.join();
        }
    }
}

/// Sends a signal by its name.
#[track_caller]
pub fn signal(pid: u32, name: &str) {
    let done = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status().expect("kill runs");
    assert!(done.success(), "kill -{name} {pid}");
}
