//! Runs the attempts of [`launcher::trial`] in a process of their own.

use std::io::{self, Read};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use launcher::trial::Trial;

use crate::launchers::Executable;

/// All attempts together take some 20 ms.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Runs all attempts.
pub(super) fn run() -> io::Result<Trial> {
    let executable = Executable::new()?;
    let mut child =
        executable.command(launcher::TRY).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let deadline = Instant::now() + TRIAL_TIMEOUT;
    let finished = loop {
        match child.try_wait()? {
            Some(status) => break status.success(),
            None if Instant::now() >= deadline => break false,
            None => thread::sleep(POLL_INTERVAL),
        }
    };
    if !finished {
        let _ = child.kill();
        child.wait()?;
        return Err(io::Error::other("the helper process did not finish"));
    }
    let mut answer = String::new();
    child.stdout.take().expect("standard output is piped").read_to_string(&mut answer)?;
    Ok(serde_json::from_str(&answer)?)
}
