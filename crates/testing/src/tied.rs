//! A process that ends together with the test program, also when that is killed.
//!
//! The kernel sends the signal when the *thread* that started the process ends, so each process has
//! its own thread, which lives exactly as long.

use std::ffi::OsStr;
use std::process::{ChildStdout, Command};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::eventually;

/// A running process. Dropping it ends the process and waits for that.
#[derive(Debug)]
pub struct Tied {
    pid: u32,
    ends_by: &'static str,
    owner: Option<JoinHandle<()>>,
}

impl Tied {
    /// A command for `program` to which the kernel sends the signal `ends_by` (`TERM`, `KILL`) when
    /// the starting thread ends.
    pub fn command(ends_by: &str, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", ends_by]).arg(program);
        command
    }

    /// Starts a command of [`Tied::command`]. Returns its output if that is piped.
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

    /// Waits until the process ends by itself.
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
